"""Warnings about valid documents that are hardly meant: idle rules, empty modules, tags that stay in the text.

Text outside of chat turns is one: a model that was trained on conversations sees no such text anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from promptcache.diagnostics import Diagnostic, Span, diagnostic
from promptcache.language.checked import CheckedItem, CheckedModule, CheckedParameter, CheckedUnion, FinalText
from promptcache.language.normalize import blocks
from promptcache.language.rules.rules import Implication, RuleKind, Rules
from promptcache.language.schema import Schema
from promptcache.language.syntax import nodes
from promptcache.language.syntax.files import is_template
from promptcache.language.syntax.index import Index
from promptcache.language.syntax.names import absolute, ancestors, listed, quoted
from promptcache.language.syntax.nodes import place, walk
from promptcache.language.syntax.values import separated
from promptcache.language.syntax.whitespace import is_blank, stray_indentation
from promptcache.language.syntax.xml import Characters

_TAG = re.compile(
    r"""\{\{-?\s*[^\W\d][^{}\n]*\}\} | \{%[^{}\n]*%\} | (?<![^\s(\[>:,;"'])\{[^\W\d]\w+(?::[.,]?\d+\w*)?\}(?!\w)""",
    re.VERBOSE,
)
"""A tag of Jinja, or a name in braces that is no part of a longer word, also with a width: `{style:10}`."""


def lint_schema(schema: Schema, index: Index, rules: Rules) -> Iterator[Diagnostic]:
    """Yield the warnings of a schema without faults of names and paths."""
    yield from _texts(schema.children, schema.whitespace)
    for _, item in walk(schema.children):
        if isinstance(item, nodes.Parameter):
            for attribute, text in (("default", item.default), ("placeholder", item.placeholder)):
                if text is not None:
                    yield from lint_value(text, place(item, attribute))
            if item.required and item.default is not None:
                message = f"parameter '{item.name}' is required, so no prompt contains its default"
                fix = "write it as placeholder, the text in the slot while the module is encoded; or remove required"
                yield diagnostic("PC222", message, place(item, "default"), fix)
            yield from lint_choices(item)
        elif isinstance(item, nodes.AnswerFormat):
            yield from lint_choices(item)
        elif isinstance(item, nodes.Union) and item.required and item.default is not None:
            message = "the union is required, but its default is used where a prompt names no member"
            fix = "remove the default, so that prompts must name a member; or remove required"
            yield diagnostic("PC222", message, place(item, "required"), fix)
    yield from _idle_rules(index, rules)
    yield from _empty_modules(index, rules)


def lint_text(texts: Sequence[nodes.Text | Characters | None]) -> Iterator[Diagnostic]:
    """Yield a warning for indentation and for each tag of a template that stays in a text block.

    None is an item that keeps its text: a parameter, or exact text.
    """
    found = stray_indentation([None if text is None else text.text for text in texts])
    if found is not None and (text := texts[found[0]]) is not None:
        _, start, stop, message = found
        advice = "indent with plain spaces, or put the text into <text>, which keeps all whitespace"
        yield diagnostic("PC901", f"{message}, which becomes part of the text", _place_in(text, start, stop), advice)
    for text in texts:
        if text is not None:
            yield from lint_value(text.text, text.span, text)


def lint_value(value: str, span: Span, text: nodes.Text | Characters | None = None) -> Iterator[Diagnostic]:
    """Yield a warning for each different tag of a template that stays in the value of an attribute, or in a `text`.

    In a template, tags that are left come from values.
    """
    if "{" not in value or is_template(span.source):
        return
    for tag in {tag[0]: tag for tag in reversed([*_TAG.finditer(value)])}.values():
        message = f"{tag[0]} stays in the text as it is: only templates, *.xml.j2, have variables"
        fix = (
            'a schema can declare a slot, <parameter name="…" length="…"/>; rename a template to *.xml.j2; '
            "<text> and <arg> keep braces"
        )
        place = span if text is None else _place_in(text, tag.start(), tag.end())
        yield diagnostic("PC902", message, place, fix)


def _texts(items: tuple[nodes.Item, ...], mode: nodes.Whitespace) -> Iterator[Diagnostic]:
    for block in blocks(items):
        match block[0]:
            case nodes.Module() as module:
                yield from _texts(module.children, module.whitespace or mode)
            case nodes.Union() | nodes.Turn() as parent:
                yield from _texts(parent.children, mode)
            case nodes.Collection() as parent:
                yield from _texts(parent.children, parent.whitespace or mode)
            case nodes.Text() | nodes.Parameter():
                texts = [item if isinstance(item, nodes.Text) and not item.exact else None for item in block]
                yield from lint_text(texts) if mode is nodes.Whitespace.DEDENT else ()


def _place_in(text: nodes.Text | Characters, start: int, stop: int) -> Span:
    """Return the span of characters in a line of a text, or of the whole text if its lines differ from the document."""
    span, content = text.span, text.text.strip(" \t\n")
    if content.count("\n") != span.stop_line - span.line:  # the text has comments or references
        return span
    before = text.text.index(content)
    line = span.line + text.text.count("\n", before, start)
    first = span.column - before if line == span.line else -text.text.rfind("\n", 0, start)
    return replace(span, line=line, column=first + start, stop_line=line, stop_column=first + stop)


def lint_choices(parameter: nodes.Parameter | nodes.AnswerFormat) -> Iterator[Diagnostic]:
    """Yield a warning for choices that are hardly meant."""
    if parameter.type is not nodes.ParameterType.CHOICE or not parameter.choices:
        return
    called = f"parameter '{parameter.name}'" if isinstance(parameter, nodes.Parameter) else "the answer"
    span, trimmed = place(parameter, "choices"), [each.strip() for each in parameter.choices]
    if len(trimmed) == 1:
        message = f"{called} has only one choice, {quoted(parameter.choices[0])}"
        yield diagnostic("PC223", message, span, separated(parameter) or "add choices, separated by |")
    elif trimmed != [*parameter.choices]:
        spaced = next(each for each in parameter.choices if each != each.strip())
        message = f"the choice {quoted(spaced)} of {called} begins or ends with a space"
        yield diagnostic("PC223", message, span, f'write choices="{"|".join(trimmed)}"')


def _idle_rules(index: Index, rules: Rules) -> Iterator[Diagnostic]:
    """Yield a warning for each rule that every prompt keeps, as far as the rule itself shows it."""
    for rule in rules.rules:
        if isinstance(rule, Implication) and rule.kind is RuleKind.REQUIRES:
            path, (other,) = rule.when[0], rule.then
            if other == path or other in ancestors(path):
                why = "itself" if other == path else f"'{other}', which is always present with it"
                message = f"module '{path}' requires {why}"
                yield diagnostic("PC315", message, rule.span, "name another module, or remove this path")
    for declared in (rule for each in index.rules for rule in each.combinations):
        match declared:
            case nodes.Exclude() if _num_modules(declared) == 1:
                message = "<exclude> names one module, and one module alone cannot break it"
                fix = "name the modules of which at most one can be present"
                yield diagnostic("PC315", message, place(declared, "modules"), fix)
            case nodes.Choose(minimum=None | 0, maximum=most) if most is None or most >= _num_modules(declared):
                message = "min and max of this <choose> allow any number of its modules"
                yield diagnostic("PC315", message, declared.span, "raise min, or lower max")


def _num_modules(rule: nodes.Exclude | nodes.Choose) -> int:
    return len({absolute(path, "") for path in rule.modules})


def _empty_modules(index: Index, rules: Rules) -> Iterator[Diagnostic]:
    """Yield a warning for each module without content, unless it is an alternative, documented, or part of a rule."""
    of_structure = {RuleKind.NESTING, RuleKind.UNION, RuleKind.CHOICE, RuleKind.REQUIRED}
    ruled = {module for rule in rules.rules if rule.kind not in of_structure for module in rule.modules}
    for path, entry in index.modules.items():
        is_member = any(member == path for _, member in entry.choices)
        if is_member or path in ruled or path in index.collections:
            continue
        if not all(
            isinstance(item, nodes.Text) and (not item.text if item.exact else is_blank(item.text))
            for item in entry.module.children
        ):
            continue
        source = "its file is empty" if entry.module.src is not None else "it has no content"
        message = f"module '{path}' adds nothing to a prompt: {source}"
        fix = "write its text, or remove it; a <doc> in it says that it is meant to be empty"
        yield diagnostic("PC112", message, place(entry.module, "name"), fix)


def texts_outside_turns(items: Iterable[CheckedItem], owner: str = "") -> Iterator[tuple[str, Span]]:
    """Yield the texts and slots outside of turns, each with the path of its module; "" for anonymous text."""
    for item in items:
        match item:
            case FinalText() if item.text.strip():
                yield owner, item.span
            case CheckedParameter():
                yield owner, item.span
            case CheckedModule():
                if item.collection is not None:
                    yield item.path, item.span
                yield from texts_outside_turns(item.children, item.path)
            case CheckedUnion():
                yield from texts_outside_turns(item.members, owner)


def text_outside_turns(texts: Mapping[str, Span], modules: Sequence[str]) -> Iterator[Diagnostic]:
    """Yield the warning for a conversation that contains text outside of its turns, if it does.

    Args:
        texts: The first text outside of turns of each module that has one, by path.
        modules: Paths of the modules that are present.
    """
    present = [path for path in ("", *modules) if path in texts]
    if present:
        named = present if present[0] else present[1:]
        parts = [] if present[0] else ["text outside of modules"]
        parts += [f"the text of module{'s' * (len(named) > 1)} {listed(named)}"] if named else []
        message = f"{' and '.join(parts)} is outside of chat turns"
        fix = "write it inside a turn: a <system> or <user> turn can contain modules, unions and collections"
        yield diagnostic("PC518", message, texts[present[0]], fix)
