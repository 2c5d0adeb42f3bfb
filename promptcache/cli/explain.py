"""What a schema allows and costs: the work of `promptcache explain`.

Comes in: a schema file and a model's folder. Goes out: a `SchemaFacts`. No model is loaded: its tokenizer suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from promptcache.cli.combinations import Combinations, Extreme
from promptcache.cli.example_prompt import Arguments, example_prompt
from promptcache.cli.files import checked_schema, read
from promptcache.cli.model_folder import DEMO, model_folder
from promptcache.cli.sources import Sources
from promptcache.diagnostics import ModelNotFound
from promptcache.language import CheckedSchema, count_combinations
from promptcache.language.explain import describe
from promptcache.language.names import ancestors
from promptcache.language.rules import RuleKind
from promptcache.language.schema import Parameter, ParameterType
from promptcache.layout import HubTokenizer, Layout, Slot, Stretch, Tokenizer, lay_out


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """A slot, what it takes, and what stands in it when a prompt says nothing."""

    name: str
    length: int
    type: ParameterType
    choices: tuple[str, ...]
    pattern: str | None
    required: bool
    default: str | None
    placeholder: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """A module; "" is the schema's text outside modules.

    Attributes:
        num_tokens: Of its own text, with defaults in its slots.
        presence: "always", "never", or "optional".
        brings: The modules that are guaranteed to be present with it, but for those around it and those always there.
    """

    path: str
    num_tokens: int
    presence: str
    cached: bool
    brings: tuple[str, ...]
    parameters: tuple[ParameterFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule in words, and where it stands."""

    text: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """A prompt of extreme length, without text of its own; it may not be the most extreme where it is not `exact`."""

    num_tokens: int
    exact: bool
    modules: tuple[str, ...]
    xml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFacts:
    """Everything that `promptcache explain` says about a schema."""

    schema: str
    file: str
    model: str
    modules: tuple[ModuleFacts, ...]
    rules: tuple[RuleFacts, ...]
    num_combinations: int
    combinations_exact: bool
    shortest: PromptFacts
    longest: PromptFacts


def explain_schema(file: str, model: str, sources: Sources) -> SchemaFacts:
    """Explain a schema file, its lengths counted by a model's tokenizer.

    Raises:
        SchemaError: every fault of the schema.
        ModelNotFound: there is no such folder, or no tokenizer in it.
    """
    document = read(file, sources)
    schema = checked_schema(document)
    folder = model_folder(model)
    if folder is None:
        raise ModelNotFound(f"'{model}' is no folder; explain reads {DEMO!r} or a folder with a tokenizer")
    return schema_facts(schema, document.name, model, HubTokenizer.from_folder(folder))


def schema_facts(schema: CheckedSchema, file: str, model: str, tokenizer: Tokenizer) -> SchemaFacts:
    """Explain a schema under a tokenizer; `file` and `model` are only passed on."""
    layout = lay_out(schema, tokenizer)
    combinations = Combinations(schema.rules)
    least, most = _num_tokens(layout, full=False), _num_tokens(layout, full=True)
    count = count_combinations(schema.rules)
    return SchemaFacts(
        schema=schema.name,
        file=file,
        model=model,
        modules=tuple(_modules(schema, combinations, least)),
        rules=tuple(_rules(schema)),
        num_combinations=count.number,
        combinations_exact=count.exact,
        shortest=_prompt(schema, combinations.least(least), least[""], _required(schema)),
        longest=_prompt(schema, combinations.greatest(most), most[""], _full(schema)),
    )


def explain_data(facts: SchemaFacts) -> dict[str, Any]:
    """Return what is known about a schema as data."""
    return asdict(facts)


def _num_tokens(layout: Layout, *, full: bool) -> Mapping[str, int]:
    """Return the tokens of each module's own text, its slots full, or with their defaults where these are used."""
    return {
        path: sum(
            len(piece.token_ids) if isinstance(piece, Stretch) else _in_slot(piece, full=full)
            for run in runs
            for piece in layout.runs[run].pieces
        )
        for path, runs in layout.runs_of.items()
    }


def _in_slot(slot: Slot, *, full: bool) -> int:
    if full:
        return slot.stop - slot.start
    return 0 if slot.required else len(slot.default_ids)


def _modules(schema: CheckedSchema, combinations: Combinations, num_tokens: Mapping[str, int]) -> Iterator[ModuleFacts]:
    always, order = schema.guaranteed[""], schema.rules.order
    with combinations.asking() as smallest_with:
        for path in ("", *schema.modules):
            dead = smallest_with((path,)) is None
            brings = schema.guaranteed[path] - always - {path, *ancestors(path)} if path and not dead else ()
            yield ModuleFacts(
                path=path,
                num_tokens=num_tokens[path],
                presence="never" if dead else "always" if not path or path in always else "optional",
                cached=not path or schema.modules[path].cache,
                brings=tuple(sorted(brings, key=order.__getitem__)),
                parameters=tuple(map(_parameter, schema.parameters[path].values())),
            )


def _parameter(parameter: Parameter) -> ParameterFacts:
    return ParameterFacts(
        name=parameter.name,
        length=parameter.length,
        type=parameter.type,
        choices=parameter.choices,
        pattern=parameter.pattern,
        required=parameter.required,
        default=parameter.default,
        placeholder=parameter.placeholder,
    )


def _rules(schema: CheckedSchema) -> Iterator[RuleFacts]:
    for rule in schema.rules.rules:
        if rule.kind is not RuleKind.NESTING:
            yield RuleFacts(text=describe(rule), place=str(rule.span))


def _required(schema: CheckedSchema) -> Arguments:
    """Return the shortest arguments: empty ones, where there must be one."""
    return {
        (module, name): ""
        for module, parameters in schema.parameters.items()
        for name, parameter in parameters.items()
        if parameter.required
    }


def _full(schema: CheckedSchema) -> Arguments:
    """Return arguments that say how long they may be."""
    return {
        (module, name): f"… {parameter.length} tokens …"
        for module, parameters in schema.parameters.items()
        for name, parameter in parameters.items()
    }


def _prompt(schema: CheckedSchema, extreme: Extreme, root_tokens: int, arguments: Arguments) -> PromptFacts:
    return PromptFacts(
        num_tokens=extreme.weight + root_tokens,
        exact=extreme.exact,
        modules=tuple(sorted(extreme.modules, key=schema.rules.order.__getitem__)),
        xml=example_prompt(schema, extreme.modules, arguments).to_xml(),
    )
