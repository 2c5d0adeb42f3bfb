"""A reported prompt is the smallest: fewest modules, then shortest XML, against an enumeration of all prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.testing import ByteTokenizer, PromptCase, Subject
from promptcache.testing.cases import subject_prompts
from promptcache.testing.check import check_prompts
from promptcache.testing.prompt_xml import PromptChoice, has_tokens, write_prompt
from promptcache.testing.selection import list_selections
from promptcache.testing.texts import Said
from tests import strategies
from tests.conftest import law_examples
from tests.laws.laws import BrokenLaw, level_is_right, tokens_are_in_place
from tests.planted import language_faults, layout_faults  # noqa: F401 # registered where they are defined
from tests.planted.registry import FAULTS
from tests.testing.samples import checked

DESK = """
<schema name="desk" positions="fixed">
  <module name="tone"><union default="calm"><module name="calm">Calm.</module><module name="brisk">Brisk.</module></union></module>
  <module name="policy">Terms <parameter name="days" length="4" default="ten"/> long.
    <module name="region"><union><module name="eu">EU.</module><module name="uk">UK.</module></union></module>
  </module>
  <module name="client" requires="policy">For <parameter name="who" length="5" required="true" placeholder="Ada"/>.</module>
</schema>
"""
SAID = [
    (),
    (Said(text="a"),),
    *(((Said(role=role, text=text),)) for role in ("user", "assistant") for text in ("", "a")),
]
PLANTED = {
    "a slot is one position short": tokens_are_in_place,
    "a slot's default is not applied": tokens_are_in_place,
    "the boundary tokens stay at their places": tokens_are_in_place,
    "added text starts one position late": tokens_are_in_place,
    "union members are laid out one after another": tokens_are_in_place,
    "every answer is called exact": level_is_right,
}


def size(case: PromptCase) -> tuple[int, int]:
    """Return the size that shrinking reduces: first the modules, then the XML."""
    return len(case.selection.modules), len(case.xml.encode())


@cache
def every_prompt() -> tuple[tuple[tuple[int, int], str], ...]:
    """Every prompt of DESK with short, full and default arguments, each written as short as can be; the smallest first."""
    found = []
    for modules in list_selections(checked(DESK)) or ():
        for choice in choices(modules):
            xml = write_prompt(lambda _: 0, checked(DESK), choice).document()
            found.append(((len(modules), len(xml.encode())), xml))
    return tuple(sorted(found))


def choices(modules: frozenset[str]) -> Iterator[PromptChoice]:
    """Every choice of arguments and messages that is a prompt."""
    days = (None, "", "a", "abcd") if "policy" in modules else (None,)
    names = ("a", "Ada", "abcde") if "client" in modules else (None,)
    for day, name, said in product(days, names, SAID):
        drawn = {("policy", "days"): day, ("client", "who"): name}
        given_texts = {key: text for key, text in drawn.items() if text is not None}
        spoken = any(each.role or each.text for each in said)
        if spoken or has_tokens(checked(DESK).children, modules, given_texts, {}):
            yield PromptChoice(modules=modules, arguments=given_texts, messages=said)


def smallest(fails: Callable[[PromptCase], bool]) -> tuple[int, int]:
    """The size of the smallest prompt that fails, by enumeration."""
    subject = Subject(checked(DESK), ByteTokenizer())
    return next(measured for measured, xml in every_prompt() if fails(subject.case(xml)))


def reported(check: Callable[[PromptCase], None]) -> tuple[int, int]:
    """The size of the prompt that is reported where a law is checked on the schema."""
    subject = Subject(checked(DESK), ByteTokenizer())
    with pytest.raises(BrokenLaw) as caught:
        check_prompts(subject, check, max_examples=500)
    (note,) = (note for note in caught.value.__notes__ if note.startswith("prompt: "))
    return size(subject.case(note.splitlines()[0].removeprefix("prompt: ")))


def breaks(check: Callable[[PromptCase], None], case: PromptCase) -> bool:
    """Whether a law does not hold."""
    try:
        check(case)
    except BrokenLaw:
        return True
    return False


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_shrink_to_the_smallest_prompt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each fault planted into the engine, no prompt with fewer modules or shorter XML breaks the law."""
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    every_prompt()
    fault.plant(monkeypatch)

    assert reported(PLANTED[name]) <= smallest(partial(breaks, PLANTED[name]))


@settings(max_examples=law_examples(0.5))
@given(data=st.data())
def test_the_plainest_form_is_the_shortest(data: st.DataObject) -> None:
    """For any choices of a prompt, no other way to write it is shorter than the one that zeros draw."""
    schema = data.draw(strategies.schemas())
    case = data.draw(subject_prompts(Subject(schema, ByteTokenizer())))
    given_texts = {(each.module, each.parameter): each.text for each in case.selection.arguments}
    choice = PromptChoice(modules=frozenset(case.selection.modules), arguments=given_texts, messages=())

    shortest = write_prompt(lambda _: 0, schema, choice).document()

    for _ in range(3):
        assert len(write_prompt(data.draw, schema, choice).document()) >= len(shortest)
