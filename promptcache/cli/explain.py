"""What a schema allows and costs: the work of `promptcache explain`.

Comes in: a schema file and the name of a model. Goes out: a `SchemaFacts`. No model is loaded: its tokenizer suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from promptcache.cli.combinations import Combinations, Extreme
from promptcache.cli.example_prompt import example_prompt
from promptcache.cli.files import checked_schema, read
from promptcache.cli.sources import Sources
from promptcache.language import CheckedSchema, count_combinations
from promptcache.language.rules.explain import describe
from promptcache.language.rules.rules import RuleKind
from promptcache.language.schema import Parameter, ParameterType
from promptcache.language.syntax.names import ancestors
from promptcache.layout import Layout, Slot, SlotText, Stretch, lay_out, longest_text, shortest_text
from promptcache.tokenizer import HubTokenizer, Tokenizer, model_folder

SlotTexts = Mapping[tuple[str, str], SlotText]
"""Texts for slots, by module path ("" for the schema's own) and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """A slot, what it takes, and what stands in it when a prompt says nothing.

    `fits` says whether anything that it takes does: if not, no prompt can fill it.
    """

    name: str
    length: int
    type: ParameterType
    choices: tuple[str, ...]
    pattern: str | None
    required: bool
    default: str | None
    placeholder: str | None
    fits: bool


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
        ModelNotFound: there is no such model, or it has no tokenizer.json.
    """
    document = read(file, sources)
    schema = checked_schema(document)
    folder = model_folder(model)
    return schema_facts(schema, document.name, model, HubTokenizer.from_folder(folder))


def schema_facts(schema: CheckedSchema, file: str, model: str, tokenizer: Tokenizer) -> SchemaFacts:
    """Explain a schema under a tokenizer; `file` and `model` are only passed on."""
    layout = lay_out(schema, tokenizer)
    combinations = Combinations(schema.rules)
    fewest, fitting = _shortest(schema, tokenizer), _longest(schema, tokenizer)
    full = {**fewest, **fitting}
    least, most = _num_tokens(layout, fewest), _num_tokens(layout, full)
    count = count_combinations(schema.rules)
    return SchemaFacts(
        schema=schema.name,
        file=file,
        model=model,
        modules=tuple(_modules(schema, combinations, _num_tokens(layout, {}), fitting)),
        rules=tuple(_rules(schema)),
        num_combinations=count.number,
        combinations_exact=count.exact,
        shortest=_prompt(schema, combinations.least(least), least[""], fewest),
        longest=_prompt(schema, combinations.greatest(most), most[""], full),
    )


def explain_data(facts: SchemaFacts) -> dict[str, Any]:
    """Return what is known about a schema as data."""
    return asdict(facts)


def _num_tokens(layout: Layout, texts: SlotTexts) -> Mapping[str, int]:
    """Return the tokens of each module's own text, slots with the texts that are given, else with their defaults."""
    return {
        path: sum(
            len(piece.token_ids) if isinstance(piece, Stretch) else _in_slot(piece, texts)
            for run in runs
            for piece in layout.runs[run].pieces
        )
        for path, runs in layout.runs_of.items()
    }


def _in_slot(slot: Slot, texts: SlotTexts) -> int:
    given = texts.get((slot.module, slot.parameter))
    if given is not None:
        return given.num_tokens
    return 0 if slot.required else len(slot.default_ids)


def _modules(
    schema: CheckedSchema, combinations: Combinations, num_tokens: Mapping[str, int], fitting: SlotTexts
) -> Iterator[ModuleFacts]:
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
                parameters=tuple(
                    _parameter(each, fits=(path, each.name) in fitting) for each in schema.parameters[path].values()
                ),
            )


def _parameter(parameter: Parameter, *, fits: bool) -> ParameterFacts:
    return ParameterFacts(
        name=parameter.name,
        length=parameter.length,
        type=parameter.type,
        choices=parameter.choices,
        pattern=parameter.pattern,
        required=parameter.required,
        default=parameter.default,
        placeholder=parameter.placeholder,
        fits=fits,
    )


def _rules(schema: CheckedSchema) -> Iterator[RuleFacts]:
    for rule in schema.rules.rules:
        if rule.kind is not RuleKind.NESTING:
            yield RuleFacts(text=describe(rule), place=str(rule.span))


def _shortest(schema: CheckedSchema, tokenizer: Tokenizer) -> SlotTexts:
    """Return the shortest texts for the slots that must have one."""
    texts = {
        (module, name): shortest_text(parameter, tokenizer)
        for module, parameters in schema.parameters.items()
        for name, parameter in parameters.items()
        if parameter.required
    }
    return {slot: text for slot, text in texts.items() if text is not None}


def _longest(schema: CheckedSchema, tokenizer: Tokenizer) -> SlotTexts:
    """Return the longest texts for all slots that something fits into."""
    texts = {
        (module, name): longest_text(parameter, tokenizer)
        for module, parameters in schema.parameters.items()
        for name, parameter in parameters.items()
    }
    return {slot: text for slot, text in texts.items() if text is not None}


def _prompt(schema: CheckedSchema, extreme: Extreme, root_tokens: int, texts: SlotTexts) -> PromptFacts:
    arguments = {slot: given.text for slot, given in texts.items()}
    return PromptFacts(
        num_tokens=extreme.weight + root_tokens,
        exact=extreme.exact and all(given.extreme for given in texts.values()),
        modules=tuple(sorted(extreme.modules, key=schema.rules.order.__getitem__)),
        xml=example_prompt(schema, extreme.modules, arguments).to_xml(),
    )
