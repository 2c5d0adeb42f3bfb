"""`promptcache explain`: show what a schema allows, and how long prompts become. Needs only the model's tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TypeAlias

import click
from rich.text import Text

from promptcache.cli.console import print_lines, xml_lines
from promptcache.cli.files import checked_schema, read
from promptcache.cli.options import Output, context_option, model_option, schema_argument, with_json
from promptcache.cli.output import ROOT, number_text
from promptcache.cli.request import accepted
from promptcache.cli.sources import Sources
from promptcache.diagnostics import counted, listed
from promptcache.language import (
    CheckedSchema,
    Combinations,
    Extreme,
    ParameterType,
    RuleKind,
    ancestors,
    count_combinations,
    describe,
    prompt_for,
)
from promptcache.layout import Layout, Slot, SlotText, TextPiece, lay_out, longest_text, shortest_text
from promptcache.tokenizer import HubTokenizer, Tokenizer, model_folder

SlotTexts: TypeAlias = Mapping[tuple[str, str], SlotText]
"""Texts for slots by module path ("" for the schema) and name."""

_MAX_BROUGHT = 6
_PRESENCE = {"always": "always there", "never": "can never be used: `promptcache check` says why", "optional": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """A slot and what it accepts. `fits` is false if every accepted text is longer than the slot."""

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
    """A module; the path "" is the schema's text outside modules.

    Attributes:
        num_tokens: Tokens of its own text, with defaults in its slots.
        presence: "always", "never" or "optional".
        brings: Modules that are guaranteed to be present with it, without its ancestors and those always present.
    """

    path: str
    num_tokens: int
    presence: str
    cached: bool
    brings: tuple[str, ...]
    parameters: tuple[ParameterFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule in words, and its place."""

    text: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """The shortest or longest prompt, without text of its own. If it is not `exact`, there may be a better one."""

    num_tokens: int
    exact: bool
    modules: tuple[str, ...]
    xml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFacts:
    """The report of `promptcache explain` on a schema."""

    schema: str
    file: str
    model: str
    modules: tuple[ModuleFacts, ...]
    rules: tuple[RuleFacts, ...]
    num_combinations: int
    combinations_exact: bool
    shortest: PromptFacts
    longest: PromptFacts


@click.command("explain")
@schema_argument
@model_option()
@context_option
@with_json
def command(sources: Sources, schema: str, model: str) -> Output:
    """Show what a schema allows: modules, rules, combinations, the shortest and the longest prompt.

    Both prompts have as few members of collections as possible, and these are not counted.

    SCHEMA is a schema file; - is standard input.
    """
    document = read(schema, sources)
    checked = checked_schema(document)
    facts = schema_facts(checked, document.name, model, HubTokenizer.from_folder(model_folder(model)))
    return Output(data=asdict(facts), text=lambda: print_lines(_lines(facts)))


def schema_facts(schema: CheckedSchema, file: str, model: str, tokenizer: Tokenizer) -> SchemaFacts:
    """Explain a schema under a tokenizer; `file` and `model` are names for the result."""
    layout = lay_out(schema, tokenizer)
    combinations = Combinations(schema.rules)
    slots = [((path, each.name), each) for path, own in schema.parameters.items() for each in own.values()]
    shortest = {slot: shortest_text(each, tokenizer) for slot, each in slots if each.required}
    fewest = {slot: text for slot, text in shortest.items() if text is not None}
    longest = {slot: longest_text(each, tokenizer) for slot, each in slots}
    fitting = {slot: text for slot, text in longest.items() if text is not None}
    full = {**fewest, **fitting}
    least, most = _num_tokens(layout, fewest), _num_tokens(layout, full)
    count = count_combinations(schema.rules)
    return SchemaFacts(
        schema=schema.name,
        file=file,
        model=model,
        modules=tuple(_modules(schema, combinations, _num_tokens(layout, {}), fitting)),
        rules=tuple(
            RuleFacts(text=describe(rule), place=str(rule.span))
            for rule in (*schema.rules.rules, *schema.rules.of_members)
            if rule.kind is not RuleKind.NESTING
        ),
        num_combinations=count.number,
        combinations_exact=count.exact,
        shortest=_prompt(schema, combinations.least(least), least[""], fewest),
        longest=_prompt(schema, combinations.greatest(most), most[""], full),
    )


def _num_tokens(layout: Layout, texts: SlotTexts) -> Mapping[str, int]:
    """Return the tokens of each module's own text, with `texts` in its slots, otherwise defaults."""
    return {
        path: sum(
            len(piece.token_ids) if isinstance(piece, TextPiece) else _slot_tokens(piece, texts)
            for run in runs
            for piece in layout.runs[run].pieces
        )
        for path, runs in layout.runs_of.items()
    }


def _slot_tokens(slot: Slot, texts: SlotTexts) -> int:
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
                    ParameterFacts(
                        name=each.name,
                        length=each.length,
                        type=each.type,
                        choices=each.choices,
                        pattern=each.pattern,
                        required=each.required,
                        default=each.default,
                        placeholder=each.placeholder,
                        fits=(path, each.name) in fitting,
                    )
                    for each in schema.parameters[path].values()
                ),
            )


def _prompt(schema: CheckedSchema, extreme: Extreme, root_tokens: int, texts: SlotTexts) -> PromptFacts:
    arguments = {slot: given.text for slot, given in texts.items()}
    return PromptFacts(
        num_tokens=extreme.weight + root_tokens,
        exact=extreme.exact and all(given.extreme for given in texts.values()),
        modules=tuple(sorted(extreme.modules, key=schema.rules.order.__getitem__)),
        xml=prompt_for(schema, extreme.modules, arguments).to_xml(),
    )


def _lines(facts: SchemaFacts) -> Iterator[Text]:
    yield Text(facts.schema, style="bold").append(f"  tokens as {facts.model} counts them", style="not bold dim")
    yield _head("modules")
    for module in facts.modules:
        yield _module_line(module)
        yield from (Text(f"    {_parameter_line(parameter)}", style="magenta") for parameter in module.parameters)
    yield _head("rules" if facts.rules else "no rules")
    for rule in facts.rules:
        yield Text(f"  {rule.text}  ").append(rule.place, style="dim")
    yield _head(f"valid combinations: {number_text(facts.num_combinations, exact=facts.combinations_exact)}")
    yield from _prompt_lines("shortest", facts.shortest, "arguments left out, or as short as possible")
    yield from _prompt_lines("longest", facts.longest, "every slot as full as possible")


def _head(words: str) -> Text:
    return Text(f"\n{words}", style="bold")


def _module_line(module: ModuleFacts) -> Text:
    brought = f"always with {listed(module.brings, _MAX_BROUGHT)}" if module.brings else ""
    cached = "" if module.cached else "not cached"
    words = [counted(module.num_tokens, "token"), _PRESENCE[module.presence], cached, brought]
    text = Text(f"  {module.path or ROOT}", style="default" if module.presence != "never" else "red")
    return text.append(f"  {' · '.join(filter(None, words))}", style="dim")


def _parameter_line(parameter: ParameterFacts) -> str:
    words = [f"length {parameter.length}", *accepted(parameter), "required" if parameter.required else ""]
    words += [f"default {parameter.default!r}" if parameter.default is not None else ""]
    words += [f"placeholder {parameter.placeholder!r}" if parameter.placeholder is not None else ""]
    words += ["" if parameter.fits else "no allowed value fits"]
    return f"{parameter.name}  {' · '.join(filter(None, words))}"


def _prompt_lines(kind: str, prompt: PromptFacts, how: str) -> Iterator[Text]:
    about = "" if prompt.exact else "about "
    yield _head(f"{kind} prompt: {about}{counted(prompt.num_tokens, 'token')}").append(f", {how}", style="not bold")
    yield from xml_lines(prompt.xml, "  ")
