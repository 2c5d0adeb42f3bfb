"""Lists of prompts for `parametrize`: all of a schema, or few that cover its choices. Nothing is random.

A choice is a module that is used or is not used. A covering shows every t-tuple of choices that some valid prompt
shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, product
from typing import TypeAlias

from promptcache.diagnostics import InvalidValue, whole
from promptcache.language import CheckedSchema, RuleSolver, open_solver
from promptcache.testing.prompt_xml import (
    Members,
    PromptChoice,
    check_members,
    first_members,
    has_tokens,
    keep_rules,
    write_prompt,
)
from promptcache.testing.selection import list_selections
from promptcache.testing.subject import PromptCase, SchemaSource, Subject
from promptcache.testing.texts import Said, plain_argument
from promptcache.tokenizer import Tokenizer

Choices: TypeAlias = frozenset[int]
"""Choices as in the solver: the number of a module that is used, or the negative number of one that is not."""

DEFAULT_TEXT = "And now?"


def covering(
    schema: SchemaSource, t: int = 2, *, text: str = DEFAULT_TEXT, tokenizer: Tokenizer | None = None
) -> list[PromptCase]:
    """Return few prompts that together show every t-tuple of choices that any valid prompt shows.

    Args:
        schema: A path, XML text, or a schema.
        t: How many choices to cover together.
        text: Text at the end of every prompt.
        tokenizer: Measures slots; None takes the demo model's.
    """
    whole(1).check("t", t, InvalidValue)
    subject = Subject(schema, tokenizer)
    return [plain_case(subject, each, text) for each in covering_combinations(subject, t)]


def covering_combinations(subject: Subject, t: int = 2) -> list[frozenset[str]]:
    """Return the modules of each prompt of a covering."""
    return [each for each in covering_selections(subject.schema, t) if _fits(subject, each)]


def all_prompts(
    schema: SchemaSource, limit: int = 1000, *, text: str = DEFAULT_TEXT, tokenizer: Tokenizer | None = None
) -> list[PromptCase]:
    """Return a prompt for every valid selection, the smallest first.

    Raises:
        ValueError: there are more than `limit`.
    """
    subject = Subject(schema, tokenizer)
    listed = list_selections(subject.schema, limit)
    if listed is None:
        raise ValueError(f"{subject!r} has more than {limit} valid selections; use covering()")
    return [plain_case(subject, modules, text) for modules in listed if _fits(subject, modules)]


def plain_case(
    subject: Subject, modules: Collection[str], text: str = DEFAULT_TEXT, members: Members | None = None
) -> PromptCase:
    """Return the plainest prompt that uses `modules`: required arguments only, then `text`.

    `members` are those of collections; None means as few as possible.

    Raises:
        InvalidValue: The schema declares too few members, or no text was found for a slot.
    """
    check_members(subject.schema, modules)
    given = {
        (owner, name): plain_argument(parameter, subject.tokenizer)
        for owner in ("", *modules)
        for name, parameter in subject.schema.parameters[owner].items()
        if parameter.required
    }
    if members is None:
        members = first_members(subject.schema, modules)
    if not text and not has_tokens(subject.schema.children, modules, given, members):
        text = DEFAULT_TEXT
    said = (Said(text=text),) if text else ()
    choice = PromptChoice(modules=frozenset(modules), arguments=given, messages=said, members=members)
    return subject.case(write_prompt(lambda _: 0, subject.schema, choice).document())


def _fits(subject: Subject, modules: Collection[str]) -> bool:
    """Whether the schema declares members with which a prompt of these modules keeps the rules over members."""
    return keep_rules(subject.schema, modules, first_members(subject.schema, modules))


def covering_selections(schema: CheckedSchema, t: int = 2) -> Iterator[frozenset[str]]:
    """Yield the selections of a covering: each shows a new tuple, and as many other new ones as possible."""
    with open_solver(schema.rules) as solver:
        left = dict.fromkeys(valid_tuples(solver, len(schema.rules.order), t))
        while left:
            chosen = _grown(solver, list(left), len(schema.rules.order))
            left = {one: None for one in left if not one <= chosen}
            yield frozenset(path for path, place in schema.rules.order.items() if path and place + 1 in chosen)


def valid_tuples(solver: RuleSolver, num_variables: int, t: int) -> Iterator[Choices]:
    """Yield every t-tuple of choices that some valid selection shows; variable 1 is the root, which is no choice."""
    seen: set[Choices] = set()
    for variables in combinations(range(2, num_variables + 1), min(t, num_variables - 1)):
        for signs in product((1, -1), repeat=len(variables)):
            wanted = frozenset(sign * variable for sign, variable in zip(signs, variables, strict=True))
            if wanted not in seen and (shown := _shown(solver, wanted)) is not None:
                seen.update(map(frozenset, combinations(shown, len(variables))))
            if wanted in seen:
                yield wanted


def _grown(solver: RuleSolver, left: Sequence[Choices], num_variables: int) -> set[int]:
    """Return a whole selection that shows the first tuple and, choice by choice, as many others as possible."""
    chosen = set(left[0])
    showing: dict[int, list[Choices]] = {}
    for one in left:
        for choice in one:
            showing.setdefault(choice, []).append(one)

    def gain(choice: int) -> tuple[int, int]:
        tuples = showing.get(choice, ())
        return sum(one - {choice} <= chosen for one in tuples), len(tuples)

    undecided = {variable for variable in range(2, num_variables + 1) if chosen.isdisjoint((variable, -variable))}
    while undecided:
        best = max((sign * variable for variable in sorted(undecided) for sign in (1, -1)), key=gain)
        undecided.remove(abs(best))
        chosen.add(best if _shown(solver, {*chosen, best}) is not None else -best)
    return chosen


def _shown(solver: RuleSolver, choices: Collection[int]) -> list[int] | None:
    """Return all choices of a valid selection that shows some, or None."""
    paths = solver.modules
    present, absent = ([paths[abs(one) - 1] for one in choices if (one > 0) is used] for used in (True, False))
    found = solver.selection(present, absent)
    return None if found is None else [n + 1 if path in found else -n - 1 for n, path in enumerate(paths) if path]
