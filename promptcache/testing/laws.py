"""Laws that hold for every schema without any model, each a function that raises `BrokenLaw` where it does not hold.

Comes in: a schema under test, a case, or an invalid prompt. Goes out: nothing, or what is wrong. `LAWS` lists them, and
`check_laws` runs them over prompts of one schema. Laws that need a model lie in `engine_laws`.
"""

from __future__ import annotations

from collections.abc import Collection

from promptcache.diagnostics import PromptError
from promptcache.language import parse_prompt, resolve_prompt
from promptcache.layout import Origin
from promptcache.testing.attending import wrong_contexts, wrong_states
from promptcache.testing.choices import Said
from promptcache.testing.cover import DEFAULT_TEXT
from promptcache.testing.document_laws import (
    formatting_keeps_prompts,
    formatting_keeps_the_schema,
    grammar_accepts_the_schema,
    grammars_accept_prompts,
    grammars_refuse_faults,
    prompts_print,
    schemas_print,
)
from promptcache.testing.faulty import InvalidPrompt
from promptcache.testing.law import BrokenLaw, Law, Over, hold
from promptcache.testing.meaning import completed, is_understood, violations
from promptcache.testing.placing import expected_tokens, planned_tokens
from promptcache.testing.prompt_xml import Choice, write_prompt
from promptcache.testing.seeing import true_level
from promptcache.testing.selecting import can_be_completed, list_selections, smallest_with
from promptcache.testing.subject import PromptCase, Subject
from promptcache.testing.token_texts import plain_argument

__all__ = [
    "LAWS",
    "BrokenLaw",
    "Law",
    "Over",
    "contexts_are_as_declared",
    "every_module_can_be_selected",
    "fault_is_reported_first",
    "formatting_keeps_prompts",
    "formatting_keeps_the_schema",
    "grammar_accepts_the_schema",
    "grammars_accept_prompts",
    "grammars_refuse_faults",
    "guarantees_hold",
    "level_is_right",
    "longest_prompt_fits",
    "no_control_token_in_text",
    "positions_are_disjoint",
    "prompts_print",
    "rules_are_as_declared",
    "schemas_print",
    "states_are_right",
    "tokens_are_in_place",
]

RULE_CODES = frozenset({"PC406", "PC407", "PC408", "PC409", "PC410", "PC411", "PC414", "PC417", "PC418", "PC419"})
"""What a prompt gets that breaks a rule."""


def positions_are_disjoint(case: PromptCase) -> None:
    """No two tokens of a prompt stand at the same position, and each list of a plan is in position order."""
    positions = [position for position, _ in planned_tokens(case.plan)]
    hold(len(set(positions)) == len(positions), "two tokens at one position", case)
    starts = [prefill.start for prefill in case.plan.prefill]
    firsts = [reuse.part.first for reuse in case.plan.reuse]
    hold(starts == sorted(starts) and firsts == sorted(firsts), "a plan out of position order", case)


def tokens_are_in_place(case: PromptCase) -> None:
    """Reused and new tokens together are the prompt's, each once, where a walk over the schema puts it."""
    expected = sorted(expected_tokens(case.selection, case.tokenizer))
    planned = sorted(planned_tokens(case.plan))
    hold(planned == expected, f"planned {_difference(planned, expected)}", case)
    hold(case.plan.stop == 1 + max(position for position, _ in expected), "generation starts in a wrong place", case)


def level_is_right(case: PromptCase) -> None:
    """The level is `exact` if and only if every reused token has seen the tokens in use before it and no other."""
    hold(case.plan.level is true_level(case.plan), f"level {case.plan.level} is not right", case)


def states_are_right(case: PromptCase) -> None:
    """A prompt takes every run in the state of the scaffold in use there, and from the store if it is cached."""
    wrong = list(wrong_states(case.plan))
    hold(not wrong, "; ".join(wrong), case)


def no_control_token_in_text(case: PromptCase) -> None:
    """No text of a schema, argument or prompt turns into a control token: only BOS, headers and footers are."""
    control = case.tokenizer.control_ids
    texts = [each.text for each in case.selection.arguments] + [each.text for each in case.selection.messages]
    forged = [text for text in texts if not control.isdisjoint(case.tokenizer.tokenize(text))]
    hold(not forged, f"a control token in {forged}", case)
    for prefill in case.plan.prefill:
        if prefill.origin in {Origin.ARGUMENT, Origin.DEFAULT, Origin.TEXT}:
            hold(control.isdisjoint(prefill.token_ids), f"a control token from {prefill.origin}", case)


def every_module_can_be_selected(subject: Subject) -> None:
    """For every module there is a valid prompt that uses it."""
    for path in subject.schema.modules:
        hold(can_be_completed(subject.schema, {path}), f"no valid prompt can use module '{path}'", subject)


def longest_prompt_fits(subject: Subject, positions: int = 1 << 17) -> None:
    """Even the longest prompt of a schema has room in the model's positions."""
    stop = subject.layout.stop
    hold(stop < positions, f"the schema takes {stop} positions, there are {positions}", subject)


def guarantees_hold(subject: Subject) -> None:
    """What is guaranteed with a module is what all valid prompts share that use it."""
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
    wrong = list(wrong_contexts(subject.layout, subject.states))
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


def fault_is_reported_first(subject: Subject, invalid: InvalidPrompt) -> None:
    """A prompt with one fault gets that fault's code first, at the line and column where the fault is."""
    try:
        subject.case(invalid.xml)
    except PromptError as error:
        first = error.diagnostics[0]
    else:
        raise BrokenLaw(f"{invalid.mutation} ({invalid.code}) is accepted: {invalid.xml}")
    got = (first.code, first.span.line, first.span.column)
    expected = (invalid.code, invalid.line, invalid.column)
    hold(got == expected, f"{invalid.mutation}: {got} instead of {expected}", invalid.xml)


LAWS = (
    Law(name="every module can be selected", over=Over.SCHEMA, check=every_module_can_be_selected),
    Law(name="longest prompt fits", over=Over.SCHEMA, check=longest_prompt_fits),
    Law(name="guarantees hold", over=Over.SCHEMA, check=guarantees_hold),
    Law(name="contexts are as declared", over=Over.SCHEMA, check=contexts_are_as_declared),
    Law(name="schemas print", over=Over.SCHEMA, check=schemas_print),
    Law(name="formatting keeps the schema", over=Over.SCHEMA, check=formatting_keeps_the_schema),
    Law(name="grammar accepts the schema", over=Over.SCHEMA, check=grammar_accepts_the_schema),
    Law(name="rules are as declared", over=Over.NAMED, check=rules_are_as_declared),
    Law(name="fault is reported first", over=Over.INVALID, check=fault_is_reported_first),
    Law(name="grammars refuse faults", over=Over.INVALID, check=grammars_refuse_faults),
    Law(name="positions are disjoint", over=Over.PROMPT, check=positions_are_disjoint),
    Law(name="tokens are in place", over=Over.PROMPT, check=tokens_are_in_place),
    Law(name="level is right", over=Over.PROMPT, check=level_is_right),
    Law(name="states are right", over=Over.PROMPT, check=states_are_right),
    Law(name="no control token in text", over=Over.PROMPT, check=no_control_token_in_text),
    Law(name="prompts print", over=Over.PROMPT, check=prompts_print),
    Law(name="formatting keeps prompts", over=Over.PROMPT, check=formatting_keeps_prompts),
    Law(name="grammars accept prompts", over=Over.PROMPT, check=grammars_accept_prompts),
)
"""Every law that needs no model."""


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
    choice = Choice(modules=named, arguments=given, messages=(Said(text=DEFAULT_TEXT),))
    xml = write_prompt(lambda _: 0, subject.schema, choice, in_full=True).document()
    try:
        return set(), frozenset(resolve_prompt(parse_prompt(xml), subject.schema).modules)
    except PromptError as error:
        return {each.code for each in error.diagnostics}, None
