"""A reported prompt is the smallest: fewest modules, then shortest XML."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from promptcache.testing import ByteTokenizer, PromptCase, Subject, check_prompts
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
PLANTED = {
    "a slot is one position short": (tokens_are_in_place, "<policy/>"),
    "a slot's default is not applied": (tokens_are_in_place, "<policy/>"),
    "the boundary tokens stay at their places": (tokens_are_in_place, '<policy days=""/>'),
    "added text starts one position late": (tokens_are_in_place, "a"),
    "union members are laid out one after another": (tokens_are_in_place, "<policy/>"),
    "every answer is called exact": (level_is_right, '<policy days=""/>'),
}
"""The law that a fault breaks, and the smallest prompt that shows it."""


@pytest.mark.parametrize(("name", "law", "prompt"), [(name, *each) for name, each in PLANTED.items()], ids=PLANTED)
def test_planted_faults_shrink_to_the_smallest_prompt(
    name: str, law: Callable[[PromptCase], None], prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each fault planted into the engine, the note of the error is the smallest prompt that breaks the law."""
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    fault.plant(monkeypatch)

    with pytest.raises(BrokenLaw) as caught:
        check_prompts(Subject(checked(DESK), ByteTokenizer()), law, max_examples=500)

    assert caught.value.__notes__[0].startswith(f'prompt: <prompt schema="desk">{prompt}</prompt>\n')
