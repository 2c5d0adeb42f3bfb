"""Arguments of `--arg`."""

from __future__ import annotations

import pytest

from promptcache.cli.exits import UsageMistake
from promptcache.cli.request import with_arguments
from promptcache.language import CheckedSchema, check_schema, parse_prompt, parse_schema, resolve_prompt

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


def filled(inside: str, *words: str, schema: CheckedSchema = SCHEMA) -> dict[tuple[str, str], str]:
    """The arguments of a prompt after `--arg words`."""
    prompt = with_arguments(parse_prompt(f'<prompt schema="s">{inside}</prompt>'), schema, words)
    return {(each.module, each.parameter): each.text for each in resolve_prompt(prompt, schema).arguments}


def test_unique_name_is_enough() -> None:
    """A parameter that only one module of the prompt has needs no path."""
    assert filled("<plan/>", "days=3") == {("plan", "days"): "3"}


def test_argument_of_the_prompt_is_replaced() -> None:
    """An argument from the command line takes the place of the prompt's own; the others stay."""
    assert filled('<plan days="3" note="n"/>', "days=4") == {("plan", "days"): "4", ("plan", "note"): "n"}


def test_last_one_counts() -> None:
    """Of two arguments for one parameter the later is taken."""
    assert filled("<plan/>", "days=3", "plan.days=4") == {("plan", "days"): "4"}


def test_module_is_named_by_its_path() -> None:
    """A path in front of the name chooses among modules, and may start with a slash."""
    assert filled("<plan/><car/>", "/car.days=1") == {("car", "days"): "1"}


def test_names_with_dots_work() -> None:
    """Module names may hold dots, as file names do."""
    assert filled("<files><unit.py/></files>", "files/unit.py.lines=3") == {("files/unit.py", "lines"): "3"}


def test_parameter_of_the_schema_itself() -> None:
    """A parameter outside all modules is named alone."""
    assert filled("", "tone=dry") == {("", "tone"): "dry"}


def test_module_that_is_only_implied_can_be_filled() -> None:
    """The default of a union gets its argument although the prompt does not name it."""
    assert filled("<plan/>", "via=Rome") == {("by", "via"): "Rome"}


@pytest.mark.parametrize("inside", ["<plan/><notes><wifi/></notes>", '<plan/><use module="/notes/wifi"/>'])
def test_prompts_with_members_are_filled(inside: str) -> None:
    """Members of collections are no modules of the schema, and have no parameters."""
    assert filled(inside, "days=3") == {("plan", "days"): "3"}


def test_value_is_data() -> None:
    """Everything behind the first equals sign is the text, exactly."""
    assert filled("<plan/>", "note= a=b <c> ") == {("plan", "note"): " a=b <c> "}


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
