"""Tests of large documents: every answer takes about a second, or a limit is reported with its number."""

import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import pytest

from promptcache.diagnostics import CODES, MAX_FAULTS, Diagnostic, LanguageError, PromptError, SchemaError, suggest
from promptcache.language import count_combinations, limited_solver, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.limits import MAX_BYTES, MAX_ELEMENTS, MAX_EXAMPLES, MAX_NAME, MAX_PATTERN
from promptcache.language.syntax.names import MAX_SUGGESTIONS
from tests.language.documents import checked, faults
from tests.speed import is_within

SECONDS = 8
"""Maximum CPU time of an answer on a busy machine. Slow versions took ten times as long."""

MANY = MAX_ELEMENTS - 10
SOME = 4_000


def schema_of(content: str) -> str:
    return f'<schema name="s">{content}</schema>'


def modules(number: int, attributes: str = "", content: str = "") -> str:
    """Return modules m0, m1, …; {0} in their attributes and content is replaced by their number."""
    return "".join(f'<module name="m{i}"{attributes.format(i)}>{content.format(i)}</module>' for i in range(number))


def asserted(tests: Iterable[str]) -> str:
    return "<rules>" + "".join(f'<assert test="{test}"/>' for test in tests) + "</rules>"


def filled(text: str) -> str:
    """Return a text repeated up to the limit of bytes."""
    return text * ((MAX_BYTES - 500) // len(text.encode()))


LONGEST = {
    *("valid modules", "defaults that can never be used", "hard patterns", "examples that fail"),
    *("what follows", "choices left open", "wrong references"),
}


def cases(table: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Return the cases of a table as parameters. Those that take two seconds or more are for slow runs."""
    return [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in LONGEST else [])
        for name, case in table.items()
    ]


A = '<module name="a">A</module>'
BROKEN_SLOT = '<module name="a"><parameter name="p" length="2" default="aaa" pattern="{}"/></module>'
SCHEMAS = {
    "modules of one name": ("PC203", '<module name="a"/>' * MANY),
    "unknown elements": ("PC101", "<modul/>" * MANY),
    "unknown attributes": ("PC103", modules(SOME, ' requird="true"')),
    "paths that lead nowhere": ("PC208", A + f'<module name="b" requires="{"aa " * 20_000}"/>'),
    "defaults that can never be used": (
        "PC303", '<module name="z" required="true"/>' + "".join(
            f'<union default="a{i}"><module name="a{i}" excludes="z"/><module name="b{i}"/></union>' for i in range(SOME))),
    "examples": ("PC009", modules(3_000, ' required="true"') + '<example valid="false"><prompt schema="s"/></example>' * 2_000),
    "examples that fail": ("PC310", modules(3_000, ' required="true"') + '<example valid="true"><prompt schema="s"/></example>' * 400),
    "a long pattern": ("PC215", BROKEN_SLOT.format(filled("a"))),
    "repetitions of nothing": ("PC215", BROKEN_SLOT.format("(" * 12 + "a{0}" + "){100}" * 12)),
    "hard patterns": ("", "".join(f'<module name="m{i}"><parameter name="p" length="3" default="{"a" * 2_000}" '
                                  'pattern="(a?){100}a{100}a*"/></module>' for i in range(2_000))),
    "valid modules": ("", modules(9_000, ' requires="/m{0}"', "\n  Text.\n <parameter name='p' length='2'/>")),
    "words of conditions": ("PC308", A + asserted(["a or " * 400 + "a"] * 4_000)),
    "2^30 alternatives": ("", modules(60) + asserted([" or ".join(f"(m{i} and m{i + 1})" for i in range(0, 60, 2))])
                          + f'<rules><choose modules="{" ".join(f"m{i}" for i in range(60))}" max="30"/></rules>'),
    "rules of all kinds": ("", modules(2_000, "", "word " * 90) + "<rules>" + "".join(
        f'<require if="m{i} and m{i + 3}" then="m{i + 1} or not m{i + 2}"/><exclude modules="m{i + 4} m{i + 5}"/>'
        f'<choose modules="m{i + 6} m{i + 7} m{i + 8}" max="2"/><assert test="m{i + 9} implies m{i + 10} or m{i + 11}"/>'
        for i in range(0, 1_500, 12)) + "</rules>"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "content"), cases(SCHEMAS))
def test_schemas_are_answered_soon(code: str, content: str) -> None:
    """The check of any repeated content ends soon, and the first fault has the expected code."""
    started = time.process_time()
    found = _codes(lambda: checked(schema_of(content)))
    _check_answer(started, found, code)


LINEAR: list[Callable[[int], str]] = [
    lambda n: '<schema name="s">é' + "\n" * 20 * n + "x</schema>",
    lambda n: '<schema name="s">' + "<doc>é</doc>" * (n // 2) + "</schema>",
    lambda n: '<schema name="s">' + "<!-- - -->" * 3 * n + "x</schema>",
    lambda n: '<schema name="s" version="' + "&#65;" * 10 * n + '"/>',
    lambda n: '<schema name="s">' + "<!-- é -->" * n + "a < b</schema>",
    lambda n: '<schema name="s">' + "a &amp; " * n + "R&D</schema>",
    lambda n: '<schema name="s">' + "<a" + ' b="é"' * n + "</schema>",
    lambda n: '<schema name="s">' + "<a " + 'b="' * n + "</schema>",
    lambda n: '<schema name="s">' + "<module><doc>é</doc></module>" * (n // 2) + "<doc></schema>",
    lambda n: '<schema name="s">' + "\n <module>\n  <doc>é\n</doc></module>" * (n // 2) + "<doc></schema>",
    lambda n: '<schema name="' + " " * 20 * n,
    lambda n: '<schema name="s' + " a" * 10 * n + '"b>',
    lambda n: '<schema name="s">&#' + "1" * n + ";</schema>",
    lambda n: "x " * n,
    lambda n: '<schema name="s"/>' + "\n" * n + "x",
]


@pytest.mark.parametrize("repeated", LINEAR, ids=range(len(LINEAR)))
def test_reading_and_explaining_take_linear_time(repeated: Callable[[int], str]) -> None:
    """A long document is read, or its fault explained, in time that grows with its length."""

    def seconds(size: int) -> float:
        start = time.process_time()
        with suppress(SchemaError):
            parse_schema(repeated(size))
        return time.process_time() - start

    small, large = min(seconds(1_500) for _ in range(3)), seconds(30_000)
    assert is_within(large - 60 * small, 0.1)


def mutual(number: int) -> str:
    """Return modules that all require each other."""
    names = [f"m{i}" for i in range(number)]
    return "".join(
        f'<module name="{name}" requires="{" ".join(each for each in names if each != name)}"/>' for name in names
    )


def pigeons(number: int, condition: str = "") -> str:
    """Return `number` pigeons, each in a hole, with one hole too few; with a condition, only if the condition holds."""
    hole = [[f"p{pigeon}h{hole}" for hole in range(number - 1)] for pigeon in range(number)]
    one_each = "".join(
        f'<require if="{condition}" then="{" or ".join(each)}"/>'
        if condition
        else f'<choose modules="{" ".join(each)}" min="1"/>'
        for each in hole
    )
    apart = "".join(f'<exclude modules="{" ".join(each)}"/>' for each in zip(*hole, strict=True))
    names = "".join(f'<module name="{name}"/>' for each in hole for name in each)
    return f"{names}<rules>{one_each}{apart}</rules>"


def random_clauses(number: int, seed: int) -> str:
    """Return random clauses of three modules; their number is near the limit of satisfiability, which is hardest."""
    draw = random.Random(seed)
    return modules(number) + asserted(
        " or ".join(f"{draw.choice(('', 'not '))}m{each}" for each in draw.sample(range(number), 3))
        for _ in range(round(4.26 * number))
    )


HARD = {
    "pigeonhole 12 into 11": pigeons(12),
    "pigeonhole 12 into 11, if at all": '<module name="x"/>' + pigeons(12, "x"),
    "random clauses": random_clauses(200, 2),
    "more random clauses": random_clauses(400, 3),
    "two of 800": modules(800) + f'<rules><choose modules="{" ".join(f"m{i}" for i in range(800))}" min="2"/></rules>',
    "200 modules that require each other": mutual(200),
    "chains of requires": "".join(f'<module name="m{i}" requires="m{i + 1}"/>' for i in range(9_000)) + '<module name="m9000"/>',
    "alternatives that depend on each other": modules(2_000) + asserted(f"m{i} or m{i + 1}" for i in range(1_999)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("content", HARD.values(), ids=HARD)
def test_hard_rules_are_answered_within_the_budget(content: str) -> None:
    """The check and the count of hard rules end within the budget."""
    started = time.process_time()
    with suppress(SchemaError):
        count_combinations(checked(schema_of(content)).rules)
    assert is_within(time.process_time() - started, SECONDS)


OPEN = {
    "an undecided schema": (pigeons(12), "any prompt can satisfy this schema: 23 rules", 0, "at least 1 of 'p0h0', 'p0h1'"),
    "an undecided module": ('<module name="x"/>' + pigeons(12, "x"), "are always present with 'x': 23 rules", 0, "if x then p0h0"),
    "what follows": (HARD["chains of requires"], "are always present with 'm", 0, "' requires 'm"),
    "what is in every prompt": (
        '<module name="x"/><module name="y"/>' + pigeons(12, "x") + asserted(["x or y"]), "in every prompt and with 'x'", 0, "if x"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "question", "place", "rule"), cases(OPEN))
def test_open_questions_are_named(content: str, question: str, place: int, rule: str) -> None:
    """A question that exceeds the limit of work is reported with its rules, and the report is deterministic."""
    found = []
    for _ in range(2):
        with limited_solver(600_000):
            found.append(_open_questions(schema_of(content)))

    assert found[0] == found[1]
    assert question in found[0].message
    assert rule in found[0].related[place][1]


def test_what_is_not_known_to_be_guaranteed_is_not() -> None:
    """Modules of open questions count as usable and independent; the reported guarantees are correct and closed."""
    with limited_solver(600_000):
        schema = checked(
            schema_of('<module name="x"/><module name="y" requires="x z"/><module name="z"/>' + pigeons(12, "x"))
        )
    guaranteed = schema.guaranteed
    assert [each.code for each in schema.warnings] == ["PC318"]
    assert (guaranteed["x"], guaranteed["z"]) == ({"x"}, {"z"})
    assert all(guaranteed[other] <= guaranteed[module] for module in guaranteed for other in guaranteed[module])


WIDE = schema_of('<module name="z"/>' + modules(SOME, ' excludes="z"', '<parameter name="p" length="2"/>'))
NEEDED = schema_of(modules(SOME, "", '<union required="true"><module name="a"/><module name="b"/></union>'))
PROMPTS = {
    "wrong references": ("PC401", WIDE, "<mm/>" * MANY),
    "modules that are excluded": ("PC410", WIDE, "<z/>" + "".join(f"<m{i}/>" for i in range(SOME))),
    "choices left open": ("PC407", NEEDED, "".join(f"<m{i}/>" for i in range(SOME))),
    "a long path": ("PC207", WIDE, f'<use module="{filled("z/")}z"/>'),
    "unknown arguments": ("PC402", WIDE, "<m0 " + "".join(f' a{i}=""' for i in range(1_000)) + "/>"),
}


@pytest.mark.parametrize(("code", "schema", "content"), cases(PROMPTS))
def test_prompts_are_answered_soon(code: str, schema: str, content: str) -> None:
    """The check of any repeated prompt content ends soon, and the first fault has the expected code."""
    read = _checked_once(schema)
    started = time.process_time()
    found = _codes(lambda: resolve_prompt(parse_prompt(f'<prompt schema="s">{content}</prompt>'), read))
    _check_answer(started, found, code)
    assert found.count("PC012") == (len(found) > MAX_FAULTS)


def _check_answer(started: float, found: list[str], code: str) -> None:
    assert is_within(time.process_time() - started, SECONDS)
    assert found[:1] == ([code] if code else [])
    assert len(found) <= MAX_FAULTS + 1


def test_suggestions_end_where_nobody_reads_them() -> None:
    """With fifty unknown paths, all are reported, and the first ones have a suggestion."""
    rules = "".join(f'<exclude modules="alpha alpah{number}"/>' for number in range(50))
    found = faults(SchemaError, checked, schema_of(f'<module name="alpha"/><rules>{rules}</rules>'))
    assert [each.code for each in found] == ["PC208"] * 50
    assert sum("did you mean" in each.help for each in found) == MAX_SUGGESTIONS


LIMITS = {
    "elements": (f"more than {MAX_ELEMENTS} elements", "<doc/>" * MAX_ELEMENTS),
    "what rules name": (f"more than {MAX_ELEMENTS} modules", A + f'<module name="b" requires="{"a " * (MAX_ELEMENTS + 1)}"/>'),
    "examples": (f"more than {MAX_EXAMPLES} examples", "<example><prompt schema='s'/></example>" * (MAX_EXAMPLES + 1)),
    "faults": (f"more than {MAX_FAULTS} faults", "<modul/>" * (MAX_FAULTS + 1)),
    "a name": (f"at most {MAX_NAME}", f'<module name="{"m" * (MAX_NAME + 1)}"/>'),
    "the name of an element": (f"at most {MAX_NAME}", f"<{'m' * (MAX_NAME + 1)}/>"),
    "a separator": (f"at most {MAX_NAME} characters", f'<module name="m" separator="{" " * (MAX_NAME + 1)}"/>'),
    "a pattern": (f"at most {MAX_PATTERN}", BROKEN_SLOT.format("a" * (MAX_PATTERN + 1))),
}  # fmt: skip


@pytest.mark.parametrize(("words", "content"), LIMITS.values(), ids=LIMITS)
def test_limits_say_their_number(words: str, content: str) -> None:
    """A document over a limit is refused with the limit in the message."""
    with pytest.raises(SchemaError, match=words):
        checked(schema_of(content))


def test_what_is_too_hard_to_explain_is_reported_without_a_reason() -> None:
    """The more steps there are, the more is known: first nothing, then the fault, then its reason."""
    impossible = schema_of('<module name="a" required="true" excludes="b"/><module name="b" required="true"/>')
    open_choice = checked(schema_of('<union required="true"><module name="a"/><module name="b"/></union>'))
    found: dict[tuple[str, bool], None] = {}
    for steps in range(0, 1_000, 10):
        with limited_solver(steps):
            (fault,) = faults(SchemaError, checked, impossible)
        found[fault.code, bool(fault.related)] = None
    assert [*found] == [("PC314", True), ("PC301", False), ("PC301", True)]

    prompt = parse_prompt('<prompt schema="s"/>')
    (helped,) = faults(PromptError, resolve_prompt, prompt, open_choice)
    with limited_solver(0):
        (missing,) = faults(PromptError, resolve_prompt, prompt, open_choice)
    assert (missing.message, helped.help, missing.help) == (helped.message, "add <a/> or <b/>", CODES["PC407"].fix)


def test_suggestions_are_sought_among_long_and_many_names() -> None:
    """Suggestions among tens of thousands of names, long or similar, take a bounded number of steps."""
    alike = [f"{'ab' * 25}{number}{'ba' * 4}" for number in range(50_000)]
    started = time.process_time()
    assert suggest("a" * 100_000, ["a" * 99_999]) is None
    suggest("ba" * 30, alike)
    assert suggest("maimi", ["miami", *alike]) == "miami"
    assert is_within(time.process_time() - started, 2)


_checked_once = cache(checked)
"""For schemas that several tests use: a check of one takes a second, and nothing changes it."""


def _open_questions(schema: str) -> Diagnostic:
    try:
        found = checked(schema).warnings
    except SchemaError as error:
        found = error.diagnostics
    (first,) = (each for each in found if each.code in ("PC314", "PC318"))
    return first


def _codes(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except LanguageError as error:
        return [found.code for found in error.diagnostics]
    return []
