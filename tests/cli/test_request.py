"""Arguments of `--arg`."""

from __future__ import annotations

import pytest

from promptcache.cli.exits import UsageMistake
from promptcache.cli.request import with_arguments
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt

SCHEMA = check_schema(
    parse_schema(
        """
        <schema name="s"><parameter name="tone" length="9"/>
          <module name="files"><module name="unit.py"><parameter name="lines" length="9"/></module></module>
          <module name="plan"><parameter name="days" length="9"/><parameter name="note" length="9"/></module>
          <module name="car"><parameter name="days" length="9"/></module>
          <union default="by"><module name="by"><parameter name="via" length="9"/></module></union>
          <collection name="notes"><module name="wifi">On the door.</module></collection>
        </schema>
        """
    )
)


def filled(inside: str, *words: str) -> dict[str, str]:
    """The arguments of a prompt after `--arg words`."""
    prompt = with_arguments(parse_prompt(f'<prompt schema="s">{inside}</prompt>'), SCHEMA, words)
    return {f"{each.module}.{each.parameter}": each.text for each in resolve_prompt(prompt, SCHEMA).arguments}


FILLED: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "a unique name is enough": ("<plan/>", ["days=3"], {"plan.days": "3"}),
    "that of the prompt": ('<plan days="3" note="n"/>', ["days=4"], {"plan.days": "4", "plan.note": "n"}),
    "the last one counts": ("<plan/>", ["days=3", "plan.days=4"], {"plan.days": "4"}),
    "a path": ("<plan/><car/>", ["/car.days=1"], {"car.days": "1"}),
    "dots": ("<files><unit.py/></files>", ["files/unit.py.lines=3"], {"files/unit.py.lines": "3"}),
    "of the schema": ("", ["tone=dry"], {".tone": "dry"}),
    "a default of a union": ("<plan/>", ["via=Rome"], {"by.via": "Rome"}),
    "a member": ("<plan/><notes><wifi/></notes>", ["days=3"], {"plan.days": "3"}),
    "a member in use": ('<plan/><use module="/notes/wifi"/>', ["days=3"], {"plan.days": "3"}),
    "a value is data": ("<plan/>", ["note= a=b <c> "], {"plan.note": " a=b <c> "}),
}


@pytest.mark.parametrize(("inside", "words", "expected"), FILLED.values(), ids=FILLED)
def test_arguments_are_filled(inside: str, words: list[str], expected: dict[str, str]) -> None:
    """An argument goes to the parameter that its name or path means, and takes the place of the prompt's own."""
    assert filled(inside, *words) == expected


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dais=3", "no module of this prompt has it; did you mean 'days'"),
        ("days=3", "several modules have it; write plan.days or car.days"),
        ("zzz=3", "parameters here: tone, plan.days, plan.note, car.days, by.via"),
        ("lines=3", "no module of this prompt has it"),
        ("days", "write NAME=VALUE"),
    ],
)
def test_what_cannot_be_filled_is_told(word: str, message: str) -> None:
    """A name that means nothing, or too much, is a mistake of usage with a way out."""
    with pytest.raises(UsageMistake, match=message):
        filled("<plan/><car/>", word)


def test_faults_of_the_prompt_come_first() -> None:
    """A prompt that names unknown modules is not changed, so that its own diagnostics are reported."""
    for inside in ("<plam/>", "<notes><wifi><plan/></wifi></notes>"):
        prompt = parse_prompt(f'<prompt schema="s">{inside}</prompt>')

        assert with_arguments(prompt, SCHEMA, ["days=3"]) is prompt
