"""Tests of the implications of rules against an exhaustive search."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import SchemaError
from promptcache.language import Schema, count_combinations, limited_solver, list_selections, parse_schema
from promptcache.language.rules.backbone import find_backbone
from promptcache.language.rules.compile import compile_rules
from promptcache.language.rules.explain import find_conflict
from promptcache.language.rules.rules import Implication, Rule, RuleKind, Rules, index_rules
from promptcache.language.syntax.index import index_schema
from tests.conftest import law_examples
from tests.language.documents import checked, faults
from tests.language.generated import all_selections, declared_schemas


def rules_of(schema: Schema) -> Rules:
    return compile_rules(index_schema(schema))


@settings(max_examples=law_examples())
@given(schema=declared_schemas())
def test_guaranteed_modules_are_those_of_every_selection(schema):
    """The guaranteed modules of a module are those in all valid selections with it."""
    rules = rules_of(schema)
    selections = all_selections(rules)

    backbone = find_backbone(rules)

    if not selections:
        assert backbone is None
        return
    assert backbone is not None
    assert all(backbone.guaranteed[each] <= found for found in backbone.guaranteed.values() for each in found)
    expected = {}
    for module in rules.order:
        having = [selection for selection in selections if not module or module in selection]
        if having:
            expected[module] = frozenset.intersection(*having)
    assert {module: backbone.guaranteed[module] for module in expected} == expected
    assert backbone.dead == rules.order.keys() - expected.keys()


@settings(max_examples=law_examples())
@given(schema=declared_schemas(), data=st.data())
def test_a_set_of_modules_implies_what_its_selections_share(schema, data):
    """The modules implied by several modules are those in all valid selections with them."""
    rules = rules_of(schema)
    modules = data.draw(st.lists(st.sampled_from(list(rules.order)[1:] or [""]), max_size=3))
    having = [selection for selection in all_selections(rules) if selection.issuperset(filter(None, modules))]

    backbone = find_backbone(rules, [modules])

    if backbone is not None:
        assert backbone.together == (frozenset.intersection(*having) if having else None,)


@settings(max_examples=law_examples())
@given(schema=declared_schemas(), limit=st.integers(0, 300))
def test_combinations_are_counted_up_to_a_limit(schema, limit):
    """Combinations are the sets that keep the rules; beyond the limit there are more, and they are not listed."""
    rules = rules_of(schema)
    selections = all_selections(rules)
    assert count_combinations(rules, limit) == (min(len(selections), limit), len(selections) <= limit)
    listed = list_selections(rules, limit)
    assert (None if listed is None else {*listed}) == ({*selections} if len(selections) <= limit else None)


FREE = "".join(f'<module name="m{number}">M</module>' for number in range(30))
TWO = f'<rules><choose modules="{" ".join(f"m{number}" for number in range(30))}" min="2" max="2"/></rules>'


def test_few_of_many_combinations_are_counted():
    """The count does not depend on the number of sets that break the rules; a lack of steps makes it a lower bound."""
    free, two = (checked(f'<schema name="s">{FREE}{rules}</schema>').rules for rules in ("", TWO))
    assert count_combinations(free) == (10_000, False)
    assert count_combinations(two) == (435, True)
    with limited_solver(10_000):
        number, exact = count_combinations(two, 100)
    assert number < 435
    assert not exact


def _keeps(rules: Rules, kept: tuple[Rule, ...], wanted: tuple[str, ...]) -> bool:
    nesting = tuple(rule for rule in rules.rules if rule.kind is RuleKind.NESTING)
    fewer = index_rules(tuple(rules.order)[1:], (*nesting, *kept), (), ())
    return any(selection.issuperset(wanted) for selection in all_selections(fewer))


@settings(max_examples=law_examples())
@given(schema=declared_schemas(max_modules=5), data=st.data())
def test_every_part_of_a_conflict_is_needed(schema, data):
    """A conflict cannot hold, and without any one of its rules and modules it can."""
    rules = rules_of(schema)
    modules = [module for module in rules.order if module]
    wanted = tuple(data.draw(st.lists(st.sampled_from(modules), max_size=3, unique=True))) if modules else ()

    conflict = find_conflict(rules, wanted)

    if conflict is None:
        assert _keeps(rules, tuple(rule for rule in rules.rules if rule.kind is not RuleKind.NESTING), wanted)
        return
    modules, broken = map(tuple, conflict)
    assert not _keeps(rules, broken, modules)
    for number in range(len(broken)):
        assert _keeps(rules, broken[:number] + broken[number + 1 :], modules)
    for number in range(len(modules)):
        assert _keeps(rules, broken, modules[:number] + modules[number + 1 :])


REQUIRED = '<union required="true"><module name="a" requires="{}"/><module name="b" requires="{}"/></union>'
C = '<module name="c"/>'
NESTED = (
    '<union required="true"><module name="eu"/><module name="us"/><module name="asia"/></union><module name="vat"/>'
    '<module name="tax"/><module name="invoice"/><module name="receipt"/><rules><assert test="asia"/>'
    '<assert test="(((eu and vat) or (us and tax)) and invoice) or (((eu and tax) or (us and vat)) and receipt)"/></rules>'
)


@pytest.mark.parametrize(
    ("content", "module", "guaranteed"),
    [
        (C + REQUIRED.format("c", "c"), "", {"c"}),  # no single rule says so
        (f'{C}<module name="p">{REQUIRED.format("/c", "/c")}</module>', "p", {"p", "c"}),
        (f'{C}<module name="p">{REQUIRED.format("/c", "/c")}</module>', "", set()),
        (f'{C}<module name="m" excludes="a"/>{REQUIRED.format("c", "c")}', "m", {"m", "b", "c"}),
    ],
)
def test_alternatives_are_followed(content: str, module: str, guaranteed: set[str]) -> None:
    """What every member of a union requires is guaranteed, in a module or for those that leave one member."""
    assert checked(f'<schema name="s">{content}</schema>').guaranteed[module] == guaranteed


def test_nested_alternatives_are_decided() -> None:
    """A contradiction inside nested alternatives is found, and a condition that only the empty selection keeps counted."""
    with pytest.raises(SchemaError, match="PC301"):
        checked(f'<schema name="s">{NESTED}</schema>')
    rule = '<require if="a and (a implies a)" then="(a implies a) implies not a"/>'
    schema = checked(f'<schema name="s"><module name="a"/><rules>{rule}</rules></schema>')
    assert count_combinations(schema.rules) == (1, True)


@pytest.mark.parametrize("requires", ["a1 b1", "b1 a1"])
def test_the_shorter_of_two_explanations_is_given(requires):
    """If a long and a short chain of rules explain a dead module, the diagnostic has the short one."""
    chain = "".join(f'<module name="a{number}" requires="a{number + 1}"/>' for number in range(1, 6))
    schema = checked(
        f'<schema name="s"><module name="m" requires="{requires}"/>{chain}<module name="a6" excludes="m"/>'
        '<module name="b1" excludes="m"/></schema>'
    )
    (warning,) = schema.warnings
    assert [words for _, words in warning.related] == ["'m' requires 'b1'", "'b1' excludes 'm'"]


def test_an_unsatisfiable_schema_names_the_rules_that_conflict():
    """The error lists exactly the rules of the conflict, with their places."""
    text = '<schema name="s"><module name="a" required="true" requires="b"/>\n<module name="b" excludes="a"/></schema>'
    (diagnostic,) = faults(SchemaError, checked, text)
    places = [(span.line, span.column, words) for span, words in diagnostic.related]
    assert diagnostic.code == "PC301"
    assert places == [(1, 45, "'a' is required"), (1, 61, "'a' requires 'b'"), (2, 28, "'b' excludes 'a'")]


def test_triggers_do_not_miss_rules_with_several_conditions():
    """A rule with several conditions is broken only if all of them hold."""
    span = parse_schema('<schema name="s"/>').span
    rule = Implication(kind=RuleKind.REQUIRES, when=("a", "b"), then=frozenset({"c"}), span=span)
    rules = index_rules(("a", "b", "c"), (rule,), (), ())
    assert list(rules.broken({"", "a", "b"})) == [rule]
    assert not list(rules.broken({"", "b"}))
    assert not list(rules.broken({"", "a", "b", "c"}))
