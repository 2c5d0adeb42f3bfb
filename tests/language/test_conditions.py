"""Tests of `<rules>`: conditions, choices, their implications and their diagnostics."""

import re
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import PromptError, SchemaError
from promptcache.language import parse_prompt, resolve_prompt
from promptcache.language.rules.rules import Check, RuleKind
from promptcache.language.rules.solver import RuleSolver
from promptcache.language.syntax.conditions import Cardinality, Test, broken_clause, holds, read_condition
from promptcache.language.syntax.nodes import IN_PYTHON
from tests.conftest import law_examples
from tests.language.documents import checked, codes, faults, selected
from tests.language.generated import conditions

PATHS = ["a", "b", "c", "b/d"]
MODULES = '<module name="a">A</module><module name="b">B<module name="d">D</module></module><module name="c">C</module>'


def with_rules(rules: str, modules: str = MODULES) -> str:
    return f'<schema name="s">{modules}\n<rules>{rules}</rules></schema>'


def is_possible(test: Test | Cardinality, modules: Sequence[str], chosen: set[str]) -> bool:
    """Return whether the solver accepts a set of modules under a rule."""
    check = Check(kind=RuleKind.ASSERT, test=test, words="", message=None, span=IN_PYTHON)
    with RuleSolver(modules) as solver:
        solver.add([check])
        return solver.is_possible(chosen, {*modules} - chosen)


@settings(max_examples=law_examples())
@given(condition=conditions(PATHS), chosen=st.sets(st.sampled_from(PATHS)))
def test_conditions_mean_the_same_to_all(condition, chosen):
    """Evaluation and the clauses for the solver agree on a condition."""
    test = read_condition(condition, lambda path, _: path.removeprefix("/"))

    assert holds(test, chosen) == is_possible(test, PATHS, chosen)


@settings(max_examples=law_examples())
@given(condition=conditions(PATHS), chosen=st.sets(st.sampled_from(PATHS)), more=st.sets(st.sampled_from(PATHS)))
def test_a_broken_condition_has_a_reason(condition, chosen, more):
    """The modules present break the reason, and every set that breaks the reason breaks the condition too."""
    test = read_condition(condition, lambda path, _: path.removeprefix("/"))
    if holds(test, chosen):
        return

    when, then = broken_clause(test, chosen)

    assert when <= chosen
    assert then.isdisjoint(chosen)
    assert (not when <= more or then & more) or not holds(test, more)


@pytest.mark.parametrize(
    ("condition", "grouped"),
    [
        ("a or b and c", lambda a, b, c: a or (b and c)),
        ("not a and b", lambda a, b, c: (not a) and b),
        ("not (a and b)", lambda a, b, c: not (a and b)),
        ("a implies b implies c", lambda a, b, c: not a or (not b or c)),
        ("a implies b or c", lambda a, b, c: not a or (b or c)),
    ],
)
def test_operators_bind_as_usual(condition, grouped):
    """`not` binds before `and`, `and` before `or`, `or` before `implies`, which groups to the right."""
    test = read_condition(condition, lambda path, _: path)
    for bits in product((False, True), repeat=3):
        present = {name for name, bit in zip("abc", bits, strict=True) if bit}
        assert holds(test, present) == grouped(*bits)


@given(size=st.integers(1, 8), low=st.integers(0, 8), high=st.none() | st.integers(0, 8), bits=st.integers(0, 255))
def test_numbers_of_modules_mean_the_same_to_the_solver(size, low, high, bits):
    """The solver accepts a number of modules exactly if it is between `low` and `high`."""
    modules = tuple("abcdefgh"[:size])
    present = {module for number, module in enumerate(modules) if bits >> number & 1}
    kept = low <= len(present) and (high is None or len(present) <= high)
    assert is_possible(Cardinality(modules, low, high), modules, present) == kept


def test_a_slash_tells_a_module_from_a_keyword():
    """A path from the root can refer to a module with the name of a keyword."""
    schema = checked(with_rules('<assert test="/not implies not /and"/>', '<module name="and"/><module name="not"/>'))
    assert schema.guaranteed["not"] == {"not"}


@pytest.mark.parametrize("test", ["(" * 60 + "a" + ")" * 60, "not " * 60 + "a"])
def test_deep_conditions_are_refused(test):
    """The depth of a condition is limited."""
    assert codes(faults(SchemaError, checked, with_rules(f'<assert test="{test}"/>'))) == ["PC308"]


@pytest.mark.parametrize(
    ("rule", "prompt", "message", "advice"),
    [
        (
            '<require if="a and b" then="b/d or c" message="Say d."/>',
            "<a/><b/>",
            "Say d.",
            'add <use module="b/d"/> or <c/>',
        ),
        ('<exclude modules="a c"/>', "<a/><c/>", "'a' and 'c' exclude each other", "remove one of 'a', 'c'"),
        ('<choose modules="a b c" max="2"/>', "<a/><b/><c/>", "at most 2 of 'a', 'b', 'c'", "remove one of"),
        (
            '<exclude modules="a b c"/>',
            "<c/><a/><b/>",
            "at most one of 'a', 'b', 'c' can be used",
            "keep only one of 'c', 'a', 'b'",
        ),
        ('<choose modules="a b c" max="1"/>', "<a/><b/><c/>", "at most 1 of", "keep only one of 'a', 'b', 'c'"),
        ('<choose modules="a b c b/d" max="2"/>', "<a/><b><d/></b><c/>", "at most 2 of", "keep only 2 of 'a', 'b', "),
        ('<choose modules="a b c" min="2" max="2"/>', "<a/>", "exactly 2 of", "add <b/> or <c/>"),
        ('<assert test="a or c"/>', "", "a or c must hold", "add <a/> or <c/>"),
        ('<assert test="a implies not b"/>', "<b/><a/>", "a implies not b must hold", "remove one of 'b', 'a'"),
    ],
)
def test_broken_rules_say_what_to_do(rule, prompt, message, advice):
    """The diagnostic of a broken rule has the author's message, or the rule, and lists the modules to add or remove."""
    (diagnostic,) = faults(PromptError, selected, f'<prompt schema="s">{prompt}</prompt>', with_rules(rule))
    assert message in diagnostic.message
    assert advice in diagnostic.help
    assert diagnostic.code == ("PC419" if "choose" in rule else "PC418")


@pytest.mark.parametrize(
    ("named", "rule", "advice"),
    [
        ("<a/>", '<exclude modules="a x"/>', "<z/>"),
        ("<b/>", '<exclude modules="b x"/>', "<y/>, <z/>"),
        ("<a/>", '<require if="a and x" then="d"/>', "<z/>, or add <d/>"),
    ],
)
def test_another_member_is_offered_only_where_it_helps(named, rule, advice):
    """The help for a default that breaks a rule leaves out members and modules that the named modules exclude."""
    modules = (
        '<module name="a" excludes="y"/><module name="b"/><module name="d"/>'
        '<union default="x"><module name="x"/><module name="y"/><module name="z"/></union>'
    )
    (found,) = faults(PromptError, selected, f'<prompt schema="s">{named}</prompt>', with_rules(rule, modules))
    assert (found.code, found.help) == ("PC411", f"name another member: {advice}")


def test_rules_guarantee_and_kill():
    """Rules affect guaranteed modules, dead modules, and their explanations."""
    schema = checked(with_rules('<assert test="a and not c"/><require if="b" then="b/d"/>'))
    assert schema.guaranteed[""] == {"a"}
    assert schema.guaranteed["b"] == {"a", "b", "b/d"}
    (warning,) = schema.warnings
    assert warning.message == "module 'c' can never be used: a and not c must hold"


def test_words_written_with_references_have_places() -> None:
    """A diagnostic points at the right word after a character reference."""
    document = f'<schema name="s">{MODULES}\n<module name="x" requires="a &#98; none"/></schema>'
    span = faults(SchemaError, checked, document)[0].span
    assert (span.line, span.column, span.stop_column) == (2, 36, 40)


@settings(max_examples=law_examples(0.5))
@given(
    low=st.integers(1, 14),
    num=st.integers(1, 15),
    named=st.sets(st.sampled_from("abcdefghijklmno")),
    excludes=st.booleans(),
)
def test_help_for_a_number_of_modules_makes_the_prompt_valid(
    low: int, num: int, named: set[str], excludes: bool
) -> None:
    """A prompt is valid after modules of the help are added, as many as it says. No other rule is broken."""
    members = "abcdefghijklmno"[: max(low, num)]
    modules = "".join(f'<module name="{name}">x</module>' for name in "abcdefghijklmnop")
    exclude = '<exclude modules="a p"/>' if excludes and len(members) > low else ""
    schema = checked(
        f'<schema name="s">{modules}<rules><choose min="{low}" modules="{" ".join(members)}"/>{exclude}</rules></schema>'
    )
    given_names = {*(named & {*members[1:]}), *("p" if exclude else "")}

    for _ in range(low + 1):
        naming = "".join(f"<{name}/>" for name in sorted(given_names))
        try:
            resolve_prompt(parse_prompt(f'<prompt schema="s">{naming}<user>Go.</user></prompt>'), schema)
            break
        except PromptError as error:
            advice = error.diagnostics[0].help
        assert advice is not None
        options = re.findall(r"<(\w)/>", advice)
        lacking = low - len(given_names & {*members})
        number = re.match(r"add (\d+) of", advice)
        count = int(number[1]) if number else len(options) if " and " in advice else 1
        assert count == (lacking if lacking <= 12 else 1)
        given_names |= {*options[:count]}
    else:
        pytest.fail("the prompt is not valid with all modules of the help")
