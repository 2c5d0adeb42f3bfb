"""A prompt with its schema and the arguments of `--arg`, checked as far as possible without a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from promptcache.cli.documents import (
    DocumentKind,
    InputDocument,
    Sources,
    checked_schema,
    find_schema,
    only_schema,
    parsed_prompt,
    read,
)
from promptcache.cli.exits import UsageMistake
from promptcache.cli.output import slot_name
from promptcache.diagnostics import PromptError, counted, did_you_mean, size_text
from promptcache.language import (
    Argument,
    CheckedSchema,
    Placement,
    Prompt,
    Reference,
    Repair,
    Selection,
    absolute,
    ancestors,
    declared_members,
    resolve_prompt,
    source_of,
    tool_definitions,
)
from promptcache.layout import (
    Encoding,
    Layout,
    Plan,
    Variant,
    check_length,
    check_positions,
    lay_out,
    make_plan,
    member_encodings,
    pair_encodings,
    run_variants,
)
from promptcache.tokenizer import (
    Dtype,
    HubTokenizer,
    ModelFacts,
    Tokenizer,
    declared_positions,
    model_folder,
    read_facts,
)

LaidOut: TypeAlias = tuple[Layout, tuple[Variant, ...]]
"""A layout, and what `run_variants` returns for it."""

_MAX_COUNTED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A prompt and its schema, with the files of both."""

    prompt_file: str
    schema_file: str
    prompt: Prompt
    schema: CheckedSchema

    @property
    def tools(self) -> list[Any]:
        """The tools that the cached text of the prompt defines."""
        return tool_definitions(resolve_prompt(self.prompt, self.schema))

    def data(self, model: str) -> dict[str, Any]:
        """Return the names of the documents and of the model, for `--json`."""
        schema = {"name": self.schema.name, "file": self.schema_file}
        return {"prompt": self.prompt_file, "schema": schema, "model": model}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """A tokenizer and a number of positions: they decide whether texts fit their slots, and prompts the model.

    Attributes:
        model: As the user named it.
        folder: Has the tokenizer and `config.json`.
        max_positions: None if the configuration does not declare it.
    """

    model: str
    folder: Path
    tokenizer: HubTokenizer
    max_positions: int | None

    @classmethod
    def of(cls, model: str, folder: Path | None = None) -> TokenLimits:
        """Read the tokenizer and `config.json` of a model; `folder` is that of the model if it is known."""
        folder = folder or model_folder(model)
        tokenizer = HubTokenizer.from_folder(folder)
        return cls(model=model, folder=folder, tokenizer=tokenizer, max_positions=declared_positions(folder))

    def lay_out(self, schema: CheckedSchema, *, check: bool = True, placement: Placement = Placement.CLOSED) -> LaidOut:
        """Return the layout and the variants of a schema, as an engine makes them.

        Args:
            check: Whether to check that the model has enough positions.
            placement: Where requests have cached text, if the schema does not say.

        Raises:
            SchemaError: A filler is longer than its slot, or, with `check`, the model has too few positions.
        """
        layout = lay_out(schema, self.tokenizer, placement=placement, max_positions=self.max_positions)
        variants = run_variants(layout)
        if check:
            self.check(layout, variants)
        return layout, variants

    def check(self, layout: Layout, variants: Sequence[Variant]) -> None:
        """Raise a `SchemaError` if the model has too few positions for a schema."""
        if self.max_positions is not None:
            check_length(layout, variants, self.max_positions, f"model '{self.model}'")

    def warm_cost(self, schema: CheckedSchema, layout: Layout) -> WarmCost:
        """Return what `warm` encodes of a schema, in the dtype of `config.json`. Errors are as of `all_encodings`."""
        facts = read_facts(self.model, self.folder, Dtype.AUTO)
        return WarmCost.of((each for _, each in all_encodings(schema, layout, self.tokenizer)), facts)

    def plan(self, selection: Selection, laid_out: LaidOut, max_new_tokens: int = 1, repair: str | None = None) -> Plan:
        """Plan a prompt as an engine does.

        Raises:
            PromptError: An argument is longer than its slot, or the prompt is empty.
            ContextLengthExceeded: The model has too few positions for the prompt and the answer.
        """
        plan = make_plan(selection, *laid_out, self.tokenizer, None if repair is None else Repair.parse(repair))
        if self.max_positions is not None:
            check_positions(plan, self.max_positions, max_new_tokens)
        return plan

    def plan_request(self, request: CheckedRequest, max_new_tokens: int = 1, repair: str | None = None) -> Plan:
        """Lay out the schema of a request, and plan its prompt as `plan` does."""
        selection = resolve_prompt(request.prompt, request.schema)
        return self.plan(selection, self.lay_out(request.schema), max_new_tokens, repair)


def all_encodings(
    schema: CheckedSchema, layout: Layout, tokenizer: Tokenizer, codec: str = "full"
) -> Iterator[tuple[str, Encoding]]:
    """Yield what `warm` encodes of a schema, with the paths: its modules, pairs of modules, and members of collections.

    Raises:
        ContextLengthExceeded: A member alone needs more positions than the model has.
    """
    variants = run_variants(layout, codec)
    yield from ((each.module(layout), each.encoding) for each in variants)
    yield from pair_encodings(layout, variants)
    yield from member_encodings(declared_members(schema), layout, variants, tokenizer, codec)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmCost:
    """What `warm` encodes of a schema: at most 10,000 encodings are counted.

    Attributes:
        nbytes: Bytes of their KV in `dtype`.
    """

    num_encodings: int
    num_tokens: int
    nbytes: int
    dtype: Dtype

    @classmethod
    def of(cls, encodings: Iterable[Encoding], model: ModelFacts) -> WarmCost:
        """Count encodings, each once."""
        sizes = dict[str, int]()
        for each in encodings:
            sizes[each.digest] = each.num_tokens
            if len(sizes) == _MAX_COUNTED:
                break
        number = sum(sizes.values())
        nbytes = number * model.token_bytes
        return cls(num_encodings=len(sizes), num_tokens=number, nbytes=nbytes, dtype=model.dtype)

    def __str__(self) -> str:
        more = "more than " if self.num_encodings == _MAX_COUNTED else ""
        tokens, encodings = counted(self.num_tokens, "token"), counted(self.num_encodings, "encoding")
        return f"{more}{tokens} in {encodings} · {size_text(self.nbytes)}"


def read_request(file: str, schema_files: Sequence[str], words: Sequence[str], sources: Sources) -> CheckedRequest:
    """Read a prompt and its schema, fill in the arguments of `--arg`, and check the result.

    Raises:
        LanguageError: All faults of the prompt or of the schema, or the schema was not found.
        UsageMistake: `--arg` names a parameter that the prompt does not have.
    """
    document = read(file, sources)
    return complete_request(parsed_prompt(document), document, schema_files, words, sources)


def complete_request(
    prompt: Prompt, document: InputDocument, schema_files: Sequence[str], words: Sequence[str], sources: Sources
) -> CheckedRequest:
    """Find the schema of a prompt from its document, and check both. Errors are those of `read_request`."""
    offered = [read(name, sources) for name in schema_files]
    found = find_schema(prompt, document, (), offered, sources)
    return _filled_in(prompt, document.name, checked_schema(found), found.name, words, sources)


def ask_request(
    question: str, modules: Iterable[str], schema_files: Sequence[str], words: Sequence[str], sources: Sources
) -> CheckedRequest:
    """Return the request of a question about modules of a schema, without a file, checked as `read_request`'s."""
    if len(schema_files) > 1:
        raise UsageMistake("--use is for modules of one schema; give one --schema")
    document = read(schema_files[0], sources) if schema_files else only_schema(sources)
    schema = checked_schema(document)
    prompt = Prompt(schema.name).text(question)
    for module in modules:
        prompt = prompt.use(module)
    return _filled_in(prompt, "<question>", schema, document.name, words, sources)


def read_chat_request(file: str, schema_files: Sequence[str], words: Sequence[str], sources: Sources) -> CheckedRequest:
    """Like `read_request`, for the prompt below a conversation. A schema is read as a prompt that names no module."""
    document = read(file, sources)
    if document.kind is not DocumentKind.SCHEMA:
        return complete_request(parsed_prompt(document), document, schema_files, words, sources)
    if schema_files:
        raise UsageMistake(f"--schema is for prompts, and {document.name} is a schema")
    schema = checked_schema(document)
    prompt = Prompt(schema.name, span=schema.source.span)
    try:
        return _filled_in(prompt, document.name, schema, document.name, words, sources)
    except PromptError as error:
        where = "in a prompt, and start the chat over the prompt"
        raise PromptError([replace(each, help=f"{each.help}, {where}") for each in error.diagnostics]) from None


def _filled_in(
    prompt: Prompt, prompt_file: str, schema: CheckedSchema, schema_file: str, words: Sequence[str], sources: Sources
) -> CheckedRequest:
    """Fill in the arguments of `--arg`, and check the prompt."""
    if prompt.schema == schema.name:
        prompt = with_arguments(prompt, schema, words)
    resolve_prompt(prompt, schema)
    sources.check_context()
    return CheckedRequest(prompt_file=prompt_file, schema_file=schema_file, prompt=prompt, schema=schema)


def check_lengths(request: CheckedRequest, model: str, options: Mapping[str, Any]) -> None:
    """Check the lengths of a request with the options of its answer, without loading the model."""
    folder = model_folder(model)
    if (folder / "tokenizer.json").is_file():  # otherwise transformers makes a tokenizer of other files
        TokenLimits.of(model, folder).plan_request(request, options.get("max_new_tokens", 1), options.get("repair"))


def with_arguments(prompt: Prompt, schema: CheckedSchema, words: Sequence[str]) -> Prompt:
    """Return a prompt with the arguments of `--arg`.

    A prompt that names unknown modules is returned unchanged: resolving it reports them.

    Args:
        words: `name=value` or `module/path.name=value`; the last word for a parameter counts.

    Raises:
        UsageMistake: No module of the prompt has such a parameter, or several have it and the path is missing.
    """
    named = set[str]()
    for path in (each for found in _paths(prompt.references, "") for each in (found, *ancestors(found))):
        around = schema.modules.get(path.rpartition("/")[0])
        if around is None or around.collection is None:  # members of collections have no parameters
            named.add(path)
    if not named <= schema.modules.keys():
        return prompt
    present = sorted(schema.rules.complete(named), key=schema.rules.order.__getitem__)  # "" first
    targets = {slot_name(module, name): (module, name) for module in present for name in schema.parameters[module]}
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise UsageMistake("--arg: the text is not UTF-8")
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageMistake(f"--arg {word}: write NAME=VALUE")
        module, parameter = _choose(name, targets)
        span = source_of(word, f"--arg {name}").span(len(name) + 1, len(word))
        prompt = _fill(prompt, module, Argument(name=parameter, text=value, span=span))
    return prompt


def _path(reference: Reference, parent: str) -> str:
    return absolute("/" + reference.path if reference.absolute else reference.path, parent)


def _paths(references: Iterable[Reference], parent: str) -> Iterator[str]:
    """Yield the paths of references and of those in them."""
    for reference in references:
        path = _path(reference, parent)
        yield path
        yield from _paths(reference.children, path)


def _choose(name: str, targets: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """Return a parameter with the path of its module; the name may have the path, as those of `targets` do."""
    if name.removeprefix("/") in targets:
        return targets[name.removeprefix("/")]
    found = [full for full, (_, parameter) in targets.items() if name == parameter]
    if len(found) == 1:
        return targets[found[0]]
    if found:
        raise UsageMistake(f"--arg {name}: several modules have it; write {' or '.join(found)}")
    known = ", ".join(targets) or "none"
    fix = did_you_mean(name, [*(parameter for _, parameter in targets.values()), *targets])
    raise UsageMistake(f"--arg {name}: no module of this prompt has it; {fix or f'parameters here: {known}'}")


def _fill(prompt: Prompt, module: str, argument: Argument) -> Prompt:
    """Put an argument into the reference to its module. A module that is only implied gets a reference."""

    def replaced(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return (*(each for each in arguments if each.name != argument.name), argument)

    def filled(references: Iterable[Reference], parent: str) -> Iterator[Reference]:
        for reference in references:
            path = _path(reference, parent)
            arguments = replaced(reference.arguments) if path == module else reference.arguments
            yield replace(reference, arguments=arguments, children=tuple(filled(reference.children, path)))

    if not module:
        return replace(prompt, arguments=replaced(prompt.arguments))
    if module in _paths(prompt.references, ""):
        return replace(prompt, references=tuple(filled(prompt.references, "")))
    implied = Reference(path=module, span=argument.span, absolute=True, arguments=(argument,))
    return replace(prompt, references=(*prompt.references, implied))
