"""The laws that hold for every schema without any model; each is a function that raises `BrokenLaw`.

`LAWS` lists them. Laws that need a model are in `engine_laws`.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import PromptError, Span
from promptcache.language import (
    CheckedModule,
    CheckedSchema,
    Example,
    Module,
    Repair,
    Selection,
    check_schema,
    example_prompt,
    format_document,
    parse_prompt,
    parse_schema,
    print_schema,
    resolve_prompt,
)
from promptcache.language.syntax.attributes import attributes_of, write_attributes
from promptcache.layout import Level, Origin, Plan, make_plan, needed_positions, positions_to_repair
from promptcache.testing import PromptCase
from promptcache.testing.cases import subject_prompts
from promptcache.testing.cover import DEFAULT_TEXT
from promptcache.testing.prompt_xml import PromptChoice, first_members, write_prompt
from promptcache.testing.selection import can_be_completed, list_selections
from promptcache.testing.texts import Said, plain_argument
from tests.laws.attended_oracle import most_attended
from tests.laws.level_oracle import repaired_positions, true_level, wrong_contexts, wrong_variants
from tests.laws.position_oracle import expected_tokens, planned_tokens
from tests.laws.rules_oracle import completed, is_understood, violations
from tests.laws.subject import Subject, published_grammar
from tests.strategies.selected import named_modules, smallest_with

RULE_CODES = frozenset({"PC406", "PC407", "PC408", "PC409", "PC410", "PC411", "PC414", "PC417", "PC418", "PC419"})
"""The codes of prompts that break a rule."""

REPAIRS = ("first-1", "first-3", "first-50%", "all")
"""The repairs that laws compare with "slots"."""

_PLACES = frozenset({"span", "places", "source", "node"})


class BrokenLaw(AssertionError): ...


class Over(StrEnum):
    """The kind of value that a law is about; its `check` takes one.

    SCHEMA takes a `Subject`, PROMPT a `PromptCase`, NAMED a `Subject` and the paths of modules, ANSWER a `SchemaServer`
    and a `Selection`.
    """

    SCHEMA = "schema"
    PROMPT = "prompt"
    NAMED = "named modules"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A law by its name; `check` raises `BrokenLaw` if it does not hold."""

    name: str
    over: Over
    check: Callable[..., None]


def hold(holds: bool, wrong: str, *about: object) -> None:
    if not holds:
        told = ", ".join(map(str, about))
        raise BrokenLaw(f"{wrong} ({told})" if told else wrong)


def positions_are_disjoint(case: PromptCase) -> None:
    """No two tokens of a prompt stand at the same position, and each list of a plan is in position order."""
    positions = [position for position, _ in planned_tokens(case.plan)]
    hold(len(set(positions)) == len(positions), "two tokens at one position", case)
    hold(positions == sorted(positions), "a plan out of position order", case)


def tokens_are_in_place(case: PromptCase) -> None:
    """Reused and new tokens are together the tokens of the prompt, each once, where a walk over the schema puts it."""
    expected = sorted(expected_tokens(case.selection, case.plan.layout, case.tokenizer, case.plan.repair))
    planned = sorted(planned_tokens(case.plan))
    hold(planned == expected, f"planned {_difference(planned, expected)}", case)
    hold(case.plan.pieces[-1].source is None, "the last token is not computed", case)
    hold(case.plan.stop == 1 + max(position for position, _ in expected), "generation starts in a wrong place", case)


def level_is_right(case: PromptCase) -> None:
    """The level is `exact` if and only if every reused token has seen the tokens in use before it and no other."""
    hold(case.plan.level is true_level(case.plan), f"level {case.plan.level} is not right", case)


def variants_are_right(case: PromptCase) -> None:
    """Every cached run comes from the store: in the state of the scaffold in use, else plain or behind others."""
    wrong = list(wrong_variants(case.plan, case.tokenizer))
    hold(not wrong, "; ".join(wrong), case)


def repairs_are_right(case: PromptCase) -> None:
    """Every repair computes again the tokens that it names, at their positions; with `all` the answer is exact."""
    plans = {name: _plan(case, name) for name in ("slots", *REPAIRS)}
    slots = plans.pop("slots")
    tokens, new = sorted(planned_tokens(slots)), _new_positions(slots)
    for name, plan in plans.items():
        hold(sorted(planned_tokens(plan)) == tokens, f"with repair {name!r} a token is elsewhere", case)
        hold(plan.level is true_level(plan), f"with repair {name!r} level {plan.level} is not right", case)
        if slots.new[-1].origin is not Origin.LAST:
            expected = new | repaired_positions(slots, plan.repair)
            hold(_new_positions(plan) == expected, f"repair {name!r} computes other tokens", case)
    weights = [position * 7919 % 13 for position in range(slots.stop)]
    for name in ("attended-2", "attended-50%"):
        plan = _plan(case, name)
        plan = plan.with_choice(positions_to_repair(plan.pieces, plan.repair, weights))
        expected = new | most_attended(slots, plan.repair, weights)
        hold(_new_positions(plan) == expected, f"repair {name!r} computes other tokens", case)
        hold(plan.level is true_level(plan), f"with repair {name!r} level {plan.level} is not right", case)
    hold(plans["all"].level is Level.EXACT, "with repair 'all' the answer is not exact", case)


def _plan(case: PromptCase, repair: str) -> Plan:
    subject = case.subject
    return make_plan(case.selection, subject.layout, subject.variants, case.tokenizer, Repair.parse(repair))


def _new_positions(plan: Plan) -> set[int]:
    return {each.start + index for each in plan.new for index in range(len(each.token_ids))}


def no_control_token_in_text(case: PromptCase) -> None:
    """No text of a schema, argument or prompt turns into a control token: only BOS, headers and footers are."""
    control = case.tokenizer.control_ids
    texts = [each.text for each in case.selection.arguments] + [each.text for each in case.selection.messages]
    forged = [text for text in texts if not control.isdisjoint(case.tokenizer.tokenize(text))]
    hold(not forged, f"a control token in {forged}", case)
    for piece in case.plan.new:
        if piece.origin in {Origin.ARGUMENT, Origin.DEFAULT, Origin.TEXT}:
            hold(control.isdisjoint(piece.token_ids), f"a control token from {piece.origin}", case)


def every_module_can_be_selected(subject: Subject) -> None:
    """For every module there is a valid prompt that uses it."""
    for path in subject.schema.modules:
        hold(can_be_completed(subject.schema, {path}), f"no valid prompt can use module '{path}'", subject)


def all_modules_fit(subject: Subject, positions: int = 1 << 17) -> None:
    """The modules of a schema fit into the model's positions; with fixed positions, all at once with whole slots."""
    stop = needed_positions(subject.layout, subject.variants)
    hold(stop < positions, f"the schema takes {stop} positions, there are {positions}", subject)


def guarantees_hold(subject: Subject) -> None:
    """The modules guaranteed with a module are those that all valid prompts with it share."""
    listed = list_selections(subject.schema)
    for path in ("", *subject.schema.modules):
        smallest = smallest_with(subject.schema, {path} - {""})
        having = [each for each in listed or () if not path or path in each] or ([smallest] if smallest else [])
        if having:
            guaranteed, shared = subject.schema.guaranteed[path], frozenset.intersection(*having)
            right = guaranteed == shared if listed is not None else guaranteed <= shared
            hold(right, f"with '{path}' {sorted(guaranteed)} is guaranteed, shared is {sorted(shared)}", subject)


def contexts_are_as_declared(subject: Subject) -> None:
    """Every state of every run has seen the runs that its context or scaffold says, and no other."""
    wrong = list(wrong_contexts(subject.layout, subject.variants))
    hold(not wrong, "; ".join(wrong), subject)


def rules_are_as_declared(subject: Subject, named: Collection[str]) -> None:
    """A prompt is refused for its rules if and only if the words of the schema forbid it, and defaults are added."""
    source = subject.schema.source
    present = completed(source, named)
    forbidden = list(violations(source, present))
    codes, modules = _judged(subject, frozenset(named), present)
    if forbidden:
        hold(bool(codes & RULE_CODES), f"allowed although {'; '.join(forbidden)}", subject, named)
    elif is_understood(source):
        hold(not codes & RULE_CODES, f"refused with {sorted(codes)} although nothing forbids it", subject, named)
        hold(modules in (None, present), f"became {sorted(modules or ())}, not {sorted(present)}", subject, named)


def schemas_print(subject: Subject) -> None:
    """A schema that is printed and read again has the same text, rules, slots, guarantees and examples."""
    printed = print_schema(subject.schema.source)
    again = check_schema(parse_schema(printed, folder=subject.folder))
    hold(shape(again) == shape(subject.schema), f"printed as {printed}", subject)
    same = list(map(_meaning, again.examples)) == list(map(_meaning, subject.schema.examples))
    hold(same, f"the examples are printed as {printed}", subject)


def formatting_keeps_the_schema(subject: Subject) -> None:
    """Formatting a schema changes neither its tokens nor its rules, and formatting it again changes nothing."""
    once = format_document(subject.document, folder=subject.folder)
    again = check_schema(parse_schema(once, folder=subject.folder))
    hold(shape(again) == shape(subject.schema), f"formatted as {once}", subject)
    hold(format_document(once, folder=subject.folder) == once, f"formatting {once} again gives another text", subject)


def grammar_accepts_the_schema(subject: Subject) -> None:
    accepted = published_grammar().validate(etree.fromstring(subject.document.encode()))
    hold(accepted, f"the published grammar refuses {subject.document}", subject)


def prompts_print(case: PromptCase) -> None:
    """A prompt that is printed and read again selects the same modules, with the same arguments and messages."""
    printed = parse_prompt(case.xml).to_xml()
    again = resolve_prompt(parse_prompt(printed), case.subject.schema)
    hold(said(again) == said(case.selection), f"printed as {printed}", case)


def formatting_keeps_prompts(case: PromptCase) -> None:
    """Formatting a prompt does not change its content, and formatting it again changes nothing."""
    once = format_document(case.xml)
    again = resolve_prompt(parse_prompt(once), case.subject.schema)
    hold(said(again) == said(case.selection), f"formatted as {once}", case)
    hold(format_document(once) == once, f"formatting {once} again gives another text", case)


def grammars_accept_prompts(case: PromptCase) -> None:
    """The published grammar and the grammar of the schema's prompts accept every valid prompt."""
    root = etree.fromstring(case.xml.encode())
    hold(published_grammar().validate(root), "the published grammar refuses it", case)
    hold(case.subject.grammar.validate(root), "the schema's grammar refuses it", case)


_CHECKS: Mapping[Over, tuple[Callable[..., None], ...]] = {
    Over.SCHEMA: (
        *(every_module_can_be_selected, all_modules_fit, guarantees_hold, contexts_are_as_declared),
        *(schemas_print, formatting_keeps_the_schema, grammar_accepts_the_schema),
    ),
    Over.NAMED: (rules_are_as_declared,),
    Over.PROMPT: (
        *(positions_are_disjoint, tokens_are_in_place, level_is_right, variants_are_right, repairs_are_right),
        *(no_control_token_in_text, prompts_print, formatting_keeps_prompts, grammars_accept_prompts),
    ),
}
LAWS = tuple(
    Law(name=check.__name__.replace("_", " "), over=over, check=check)
    for over, checks in _CHECKS.items()
    for check in checks
)
"""Every law that needs no model."""


def check_law(law: Law, subject: Subject, data: st.DataObject, num_named: int = 1) -> None:
    """Check a law that needs no model on what is drawn for one schema.

    Args:
        num_named: Number of sets of modules that are drawn, if the law is over them.
    """
    match law.over:
        case Over.SCHEMA:
            law.check(subject)
        case Over.PROMPT:
            law.check(data.draw(subject_prompts(subject)))
        case Over.NAMED:
            for named in data.draw(st.lists(named_modules(subject.schema), min_size=num_named, max_size=num_named)):
                law.check(subject, named)


def shape(schema: CheckedSchema) -> tuple[object, ...]:
    """Return the whole content of a checked schema, without places."""
    return (
        schema.name,
        schema.version,
        without_places(schema.children),
        {owner: without_places(tuple(found.values())) for owner, found in schema.parameters.items()},
        dict(schema.guaranteed),
        without_places(schema.scaffolds),
        schema.open_separator,
        schema.repair,
        without_places(schema.answer_format),
        without_places((schema.rules.rules, schema.rules.of_members)),
    )


def said(selection: Selection) -> tuple[object, ...]:
    parts = selection.arguments, selection.messages, selection.answer_format
    return (selection.modules, *map(without_places, parts))


def _meaning(example: Example) -> tuple[object, ...]:
    """Return an example without its form: expectations, and the prompt or the codes of a malformed prompt."""
    expected = example.name, example.valid, example.contains, example.answer, example.expect
    try:
        return *expected, example_prompt(example).to_xml()
    except PromptError as error:
        return *expected, [each.code for each in error.diagnostics]


def without_places(value: Any) -> Any:
    """Return a tree of dataclasses as plain tuples."""
    if isinstance(value, Span):
        return None
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value) if each.name not in _PLACES]
        stated = _stated(value.node) if isinstance(value, CheckedModule) else ()
        return (type(value).__name__, stated, *(without_places(getattr(value, name)) for name in names))
    if isinstance(value, tuple):
        return tuple(without_places(item) for item in value)
    if isinstance(value, Mapping):
        return {key: without_places(item) for key, item in value.items()}
    return value


def _stated(module: Module) -> dict[str, str]:
    """Return the attributes of a module that no file around it and no file of its text can replace."""
    others = {"src", *(each.name for each in attributes_of(Module) if each.inherited)}
    return {name: text for name, text in write_attributes(module) if name not in others}


def _difference(planned: list[tuple[int, int]], expected: list[tuple[int, int]]) -> str:
    more, less = set(planned) - set(expected), set(expected) - set(planned)
    return f"{sorted(more)[:5]} instead of {sorted(less)[:5]}"


def _judged(
    subject: Subject, named: frozenset[str], present: Collection[str]
) -> tuple[set[str], frozenset[str] | None]:
    """Return the codes that a prompt naming these modules gets, or the modules that it selects."""
    given = {
        (owner, name): plain_argument(parameter, subject.tokenizer)
        for owner in ("", *named)
        for name, parameter in subject.schema.parameters[owner].items()
        if parameter.required and owner in {"", *present}
    }
    members = first_members(subject.schema, named)
    choice = PromptChoice(modules=named, arguments=given, messages=(Said(text=DEFAULT_TEXT),), members=members)
    xml = write_prompt(lambda _: 0, subject.schema, choice, in_full=True).document()
    schema = replace(subject.schema, rules=replace(subject.schema.rules, of_members=()))
    try:
        return set(), frozenset(resolve_prompt(parse_prompt(xml), schema).modules) & schema.modules.keys()
    except PromptError as error:
        return {each.code for each in error.diagnostics}, None
