"""Tests of resolving prompts to selections."""

import time

import pytest

from promptcache.diagnostics import Diagnostic, PromptError
from promptcache.language import Prompt, parse_prompt, resolve_prompt
from tests.language.documents import SCHEMAS, TRAVEL, checked, faults, selected
from tests.speed import is_within

RULES = (SCHEMAS / "rules.xml").read_text(encoding="utf-8")


def refusal(prompt: str | Prompt, schema: str = TRAVEL) -> Diagnostic:
    """Return the only fault of a prompt."""
    read = parse_prompt(prompt) if isinstance(prompt, str) else prompt
    (found,) = faults(PromptError, resolve_prompt, read, checked(schema))
    return found


def test_a_missing_module_is_offered_only_where_it_helps():
    """The help for a missing choice leaves out modules that other named modules exclude."""
    found = refusal('<prompt schema="travel"><trip><visa who="me"/></trip></prompt>')
    advice = 'add <use module="trip/paris"/> or <use module="trip/oslo"/>'
    assert (found.code, found.help) == ("PC407", advice)


@pytest.mark.parametrize(
    ("prompt", "fix"),
    [
        (Prompt("travel").use("trp"), "did you mean 'trip'?"),
        (Prompt("travel").use("visa"), "there is one at /trip/visa"),
        (Prompt("travel").use("trip").use("trip/visa", who="me"), "add 'trip/paris' or 'trip/oslo'"),
    ],
)
def test_a_fix_of_a_prompt_that_is_no_document_has_no_elements(prompt: Prompt, fix: str) -> None:
    """Prompts of Python and of JSON get paths."""
    assert refusal(prompt).help == fix


def test_an_impossible_prompt_names_the_smallest_conflict():
    """If no addition can fix a prompt, the diagnostic lists the conflicting modules and rules with their places."""
    found = refusal('<prompt schema="rules" tone="x"><always/><left/><right/></prompt>', RULES)
    assert (found.code, found.help) == ("PC417", "remove one of 'left', 'right'")
    assert [span.source for span, _ in found.related] == ["<prompt>", "<schema>", "<schema>", "<schema>"]


def test_of_three_members_of_a_union_only_one_is_kept():
    """The help for several members of a union says how many of them can stay."""
    union = '<schema name="s"><union><module name="a"/><module name="b"/><module name="c"/></union></schema>'
    for members, advice in (
        ("<a/><b/>", "remove one of 'a', 'b'"),
        ("<a/><b/><c/>", "keep only one of 'a', 'b', 'c'"),
    ):
        found = refusal(f'<prompt schema="s">{members}</prompt>', union)
        assert (found.code, found.help) == ("PC408", advice)


def test_resolving_does_not_depend_on_the_size_of_the_schema():
    """A prompt of 20 modules resolves in less than a millisecond in schemas of 20 and of 2,000 modules."""
    prompt = Prompt("s")
    for number in range(20):
        prompt = prompt.use(f"m{number}", p="x")
    best = []
    for size in (20, 2_000):
        modules = "".join(
            f'<module name="m{number}"><parameter name="p" length="4"/></module>' for number in range(size)
        )
        schema = checked(f'<schema name="s">{modules}</schema>')
        times = []
        for _ in range(50):
            start = time.process_time()
            resolve_prompt(prompt, schema)
            times.append(time.process_time() - start)
        best.append(min(times))
    assert is_within(best[1], 0.001)
    assert best[1] < 3 * best[0]


def test_help_names_modules_as_a_prompt_can() -> None:
    """Where no tag can have a name, each suggestion, pasted, brings the prompt nearer to a valid one."""
    schema = """<schema name="s">
      <module name="සිංහල" required="true">Go <parameter name="ද" length="4" required="true"/>
        <parameter name="who" length="4" required="true"/><module name="sea" requires="/ක/ඛ">Sea.</module></module>
      <module name="ක"><parameter name="p" length="3" required="true"/><module name="ඛ">Two.</module></module>
    </schema>"""
    for naming, advice in {
        "": 'add <use module="සිංහල" who="…"><arg name="ද">…</arg></use>',
        '<use module="සිංහල" who="I"/>': 'add <arg name="ද">…</arg>',
        '<use module="සිංහල" who="I"><arg name="ද">x</arg><sea/></use>': 'add <use module="ක" p="…"><use module="ඛ"/></use>',
        '<use module="ඛ"/>': 'there is one at /ක/ඛ: write <use module="ක"><use module="ඛ"/></use>',
    }.items():
        assert faults(PromptError, selected, f'<prompt schema="s">{naming}</prompt>', schema)[0].help == advice
