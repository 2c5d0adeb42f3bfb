"""Parse and check the examples of a schema: prompts that its author gives, with claims about them.

The checks need no tokenizer. The text of a prompt excludes the parts that a chat template adds.
"""

from __future__ import annotations

from collections.abc import Iterator

from promptcache.diagnostics import Diagnostic, PromptError, diagnostic
from promptcache.language.checked import CheckedSchema, Selection
from promptcache.language.limits import MAX_EXAMPLES
from promptcache.language.prompt import Prompt, parse_prompt_at
from promptcache.language.prompt_text import text_of
from promptcache.language.resolve import resolve_prompt
from promptcache.language.rules.explain import broken_rule
from promptcache.language.syntax.answers import answer_refusal
from promptcache.language.syntax.names import quoted
from promptcache.language.syntax.nodes import Example, place

_MAX_EXPLAINED = 20


def example_prompt(example: Example) -> Prompt:
    """Parse the prompt of an example; its spans are places in the schema document.

    Raises:
        PromptError: as `parse_prompt`.
    """
    return parse_prompt_at(example.prompt, example.prompt_span)


def check_examples(schema: CheckedSchema) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each example that contradicts its claims."""
    num_refused = 0
    for number, example in enumerate(schema.examples):
        if number == MAX_EXAMPLES:
            message, fix = (
                f"the schema has more than {MAX_EXAMPLES} examples",
                "move the other examples to separate files",
            )
            yield diagnostic("PC009", message, example.span, fix)
            return
        if not example.has_expectation:
            continue
        if example.valid is False and (attribute := _only_of_valid(example)) is not None:
            message = f'{_called(example)} has valid="false", and only a valid prompt can have "{attribute}"'
            fix = f'remove {attribute}, or write valid="true"'
            yield diagnostic("PC105", message, place(example, attribute), fix)
            continue
        try:
            explain = example.valid is not False and num_refused < _MAX_EXPLAINED
            selection = resolve_prompt(example_prompt(example), schema, explain=explain)
        except PromptError as error:
            if example.valid is not False:
                num_refused += 1
                yield _refused(example, error)
            continue
        if example.valid is False:
            message = f'{_called(example)} has valid="false", but its prompt is valid'
            yield diagnostic("PC311", message, place(example, "valid"), 'write valid="true"')
            continue
        if example.contains is not None and example.contains not in text_of(selection):
            message = f"the prompt of {_called(example)} does not contain {quoted(example.contains)}"
            yield diagnostic("PC312", message, place(example, "contains"), f"its text is {quoted(text_of(selection))}")
        if example.answer is not None:
            yield from _answered(example, example.answer, selection)


def _only_of_valid(example: Example) -> str | None:
    """Return the first attribute of an example that only a valid prompt can have."""
    return next((name for name in ("contains", "answer", "expect") if getattr(example, name) is not None), None)


def _answered(example: Example, answer: str, selection: Selection) -> Iterator[Diagnostic]:
    if selection.answer_format is None:
        message = f"{_called(example)} has an answer, but neither its prompt nor the schema has an <answer>"
        yield diagnostic("PC316", message, place(example, "answer"), "add <answer …/>, or remove the attribute")
    elif found := answer_refusal(selection.answer_format, answer):
        message = f"the answer {quoted(answer)} of {_called(example)} does not have its format: {found[0]}"
        related = ((selection.answer_format.span, "the format"),)
        yield diagnostic("PC316", message, place(example, "answer"), found[1], related)


def _refused(example: Example, error: PromptError) -> Diagnostic:
    if not error.diagnostics:
        return diagnostic("PC310", f"{_called(example)} is not valid", example.span)
    first, rule = error.diagnostics[0], broken_rule(error.diagnostics[0])
    related = tuple((fault.span, f"{fault.code} {fault.message}") for fault in error.diagnostics)
    claim, span = f"{_called(example)} is not valid", example.span
    if rule is not None:
        claim, span = f"a rule makes {_called(example)} invalid", rule
        related = ((example.span, _called(example)), *related)
    message = f"{claim}: {first.code} {first.message}"
    return diagnostic("PC310", message, span, first.help, related)


def _called(example: Example) -> str:
    return f"example {quoted(example.name)}" if example.name else "the example"
