"""The strategies that users import: cases of any schema, in the tokens of any tokenizer."""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from promptcache.language.syntax.patterns import matches
from promptcache.testing import (
    ByteTokenizer,
    PromptCase,
    Subject,
    all_prompts,
    arguments,
    covering,
    pairs,
    prompts,
    selections,
)
from promptcache.testing.subject import default_tokenizer, read_schema
from promptcache.testing.texts import fill_tokens, fit_tokens
from promptcache.tokenizer import Tokenizer
from tests.conftest import law_examples
from tests.strategies import InvalidPrompt, invalid_prompts
from tests.testing.samples import RICH, WIDE, occurring

SCHEMAS = Path(__file__).parents[2] / "schemas"
SUPPORT = SCHEMAS / "support.xml"
SEARCH = settings(max_examples=2000, derandomize=True, database=None)


@given(case=prompts(SUPPORT))
def test_a_case_has_all_its_parts(case: PromptCase) -> None:
    """A case has its XML, selection, plan, text and tokens, and they belong together."""
    assert case.xml.startswith("<prompt")
    assert case.selection is case.plan.selection
    assert "".join(each.text for each in case.selection.arguments if each.parameter == "name") in case.text
    assert len(case.tokens) == case.plan.num_reused_tokens + case.plan.num_new_tokens
    assert case.plan.stop <= 2048


@pytest.mark.parametrize(
    "form", [SUPPORT, str(SUPPORT), SUPPORT.read_text(), read_schema(SUPPORT), read_schema(SUPPORT).source]
)
def test_schemas_come_in_any_form(form) -> None:  # type: ignore[no-untyped-def]
    """A path, its text, XML, a declared and a checked schema all give the same selections."""
    assert occurring(selections(form), lambda modules: [" ".join(sorted(modules))], {"customer"}) >= {"customer"}


@given(
    case=prompts(
        RICH,
        select=["cities/rome", "plan/visa"],
        args={"plan/days": "two", "note": None},
        text="Go.",
        tokenizer=ByteTokenizer(),
    )
)
def test_parts_can_be_given(case: PromptCase) -> None:
    """Modules, arguments and text that are asked for are in every prompt."""
    assert {"cities/rome", "plan/visa"} <= set(case.selection.modules)
    given_texts = {(each.module, each.parameter): each.text for each in case.selection.arguments}
    assert given_texts["plan", "days"] == "two"
    assert ("", "note") not in given_texts
    assert [message.text for message in case.selection.messages] == ["Go."]


@given(case=prompts(WIDE, select=["m3", "top/part"], tokenizer=ByteTokenizer()))
@settings(max_examples=law_examples(0.1))
def test_modules_can_be_asked_for_where_nothing_is_listed(case: PromptCase) -> None:
    """Beyond listing, too, every prompt uses the modules that are asked for."""
    assert {"m3", "top", "top/part"} <= set(case.selection.modules)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), default_tokenizer()], ids=["bytes", "demo model"])
def test_arguments_reach_the_exact_maximum(tokenizer) -> None:  # type: ignore[no-untyped-def]
    """No argument has more tokens than its slot with its space, and short, full and in-between ones occur."""
    schema = read_schema(SUPPORT)
    lengths = occurring(
        arguments(schema, ["customer"], tokenizer),
        lambda given_texts: [str(len(tokenizer.tokenize(" " + given_texts["customer", "name"])))],
        {str(number) for number in (2, 5, 13)},
    )

    assert {"2", "5", "13"} <= lengths
    assert max(map(int, lengths)) == 13


TRIP = f"""
<schema name="trip">
  <module name="flight" required="true">
    A seat in <parameter name="class" length="2" required="true" type="choice" choices="business class|first class|{"x" * 9}"/>
    on <parameter name="day" length="10" required="true" pattern="\\d{{4}}-\\d{{2}}-\\d{{2}}"/>
    at <parameter name="gate" length="2" required="true" type="int" pattern="[1-9]\\d"/>.
  </module>
  <module name="meal">A meal.</module>
</schema>
"""
"""With slots that hold fewer tokens than their values have bytes, or just as many as a value of theirs."""


def faulty_prompts(schema: str, tokenizer: Tokenizer | None = None) -> st.SearchStrategy[InvalidPrompt]:
    """Prompts with one fault, of a schema as text."""
    return invalid_prompts(read_schema(schema), tokenizer=tokenizer or default_tokenizer())


@pytest.mark.parametrize("draw", [prompts, pairs, faulty_prompts])
def test_values_are_measured_in_tokens(draw: Callable[..., st.SearchStrategy[object]]) -> None:
    """All strategies for prompts draw every choice that a slot holds in tokens, even if it is longer in bytes."""
    chosen = {"business class", "first class"}

    def classes(case: object) -> list[str]:
        return [each for each in (*chosen, "x" * 9) if f'class="{each}"' in str(case)]

    assert occurring(draw(TRIP), classes, chosen) == chosen


@pytest.mark.parametrize(
    "attributes", ['type="choice" choices="calm|fast"', 'type="choice" choices="a|bb" pattern="bb"']
)
def test_choices_that_fit_nowhere_are_told(attributes: str) -> None:
    """If a slot can hold none of its choices, the functions that need one name the slot."""
    xml = f'<schema name="s"><parameter name="pace" length="1" required="true" {attributes}/></schema>'

    for needs_one in (prompts, pairs, faulty_prompts, lambda *a, **k: list(all_prompts(*a, **k))):
        with pytest.raises(ValueError, match=r"'pace'.* of length 1"):
            needs_one(xml, tokenizer=ByteTokenizer())


@given(text=st.text(max_size=20), word=st.sampled_from(["x", " a", "é", "\n"]), size=st.integers(0, 40))
def test_text_is_fitted_to_tokens(text: str, word: str, size: int) -> None:
    """A fitted text has no more tokens than asked for, and a filled one exactly as many."""
    tokenizer = default_tokenizer()

    assert len(tokenizer.tokenize(fit_tokens(text, size, tokenizer))) <= size
    assert len(tokenizer.tokenize(fill_tokens(text, word, size, tokenizer))) <= size
    assert len(tokenizer.tokenize(fill_tokens("", "x", size, tokenizer))) == size


@given(both=pairs(RICH, tokenizer=ByteTokenizer()))
def test_pairs_are_cases_that_differ(both: tuple[PromptCase, PromptCase]) -> None:
    """The two cases of a pair use different modules and end in the same messages."""
    first, second = both
    assert first.selection.modules != second.selection.modules
    assert [each.text for each in first.selection.messages] == [each.text for each in second.selection.messages]


@pytest.mark.parametrize("draw", [prompts, pairs, faulty_prompts, selections])
@pytest.mark.parametrize("schema", [RICH, WIDE, TRIP])
def test_strategies_are_shown_in_short(schema: str, draw: Callable[..., st.SearchStrategy[object]]) -> None:
    """The repr of a strategy, which Hypothesis shows if nothing can be drawn, names its schema and not all of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "warn", lambda *_, **__: pytest.fail("Hypothesis found the text too long"))
        shown = repr(draw(schema))

    assert "Span(" not in shown
    if draw in (prompts, pairs):
        assert "\n" not in shown
        assert len(shown) < 200


@pytest.mark.parametrize("name", ["සිංහල", "Ａ", "ꙮ", "é"])
def test_names_that_are_no_tags_can_be_tested(name: str) -> None:
    """Prompts use modules and parameters whose names some XML parsers do not take as tags."""
    inner = f'<module name="{name}">B<parameter name="{name}" length="4"/></module>'
    slot = f'<parameter name="{name}" length="4" required="true"/>'
    xml = f'<schema name="s"><module name="{name}">A{slot}{inner}</module><module name="b">B</module></schema>'

    assert any(f"{name}/{name}" in case.selection.modules for case in all_prompts(xml))
    paths = {name, f"{name}/{name}", "b"}
    assert occurring(prompts(xml), lambda case: case.selection.modules, paths) == paths


NUMERIC = '<schema name="s"><parameter name="p" length="{}" required="true" type="{}"/></schema>'


@pytest.mark.parametrize(
    ("kind", "forms"),
    [
        ("int", {"-[0-9]+", r"\+[0-9]+", "0[0-9]+"}),
        ("number", {"-.*", r".*[0-9]\.[0-9]+", r"[0-9]+\.", ".*e.*", ".*E-.*"}),
    ],
)
def test_numbers_of_every_form_are_drawn(kind: str, forms: set[str]) -> None:
    """Arguments of numeric types have every form that the language takes, if the slot holds it."""
    drawn = arguments(NUMERIC.format(6, kind), [], ByteTokenizer())

    found = occurring(
        drawn, lambda given_texts: [form for form in forms if re.fullmatch(form, given_texts["", "p"])], forms
    )

    assert found == forms


@pytest.mark.parametrize("kind", ["int", "number"])
def test_numbers_fit_and_shrink(kind: str) -> None:
    """No number is longer than its slot, and the simplest ones are short."""
    short = arguments(NUMERIC.format(1, kind), [], ByteTokenizer())
    assert occurring(short, lambda given_texts: [given_texts["", "p"]], {"0", "9"}) <= set("0123456789")

    drawn = arguments(NUMERIC.format(6, kind), [], ByteTokenizer())
    assert find(drawn, lambda given_texts: True, settings=SEARCH)["", "p"] == "0"
    assert find(drawn, lambda given_texts: "-" in given_texts["", "p"], settings=SEARCH)["", "p"] == "-0"
    assert find(drawn, lambda given_texts: abs(float(given_texts["", "p"])) > 7, settings=SEARCH)["", "p"] == "8"


def test_a_pattern_that_no_text_matches_is_named() -> None:
    """Texts are found for any characters. If none fits a required slot, the error names the slot and its pattern."""
    schema = '<schema name="s"><parameter name="p" length="4" required="true" pattern="{}"/></schema>'
    for pattern in ("Ж", r"[^ -~éß日\n]"):
        (case,) = all_prompts(schema.format(pattern), tokenizer=ByteTokenizer())
        assert matches(pattern, case.selection.arguments[0].text)

    with pytest.raises(ValueError, match=r"slot 'p' of length 4, which takes text like a\{5\}"):
        list(all_prompts(schema.format("a{5}"), tokenizer=ByteTokenizer()))


def test_empty_text_gives_no_empty_prompt() -> None:
    """With an empty text only prompts are drawn whose modules have text."""
    schema = '<schema name="s"><module name="a">A</module><module name="b"></module></schema>'

    @settings(max_examples=20, database=None)
    @given(prompts(schema, text=""))
    def check(case: PromptCase) -> None:
        assert "a" in case.selection.modules
        assert case.plan.stop > 0

    check()


@pytest.mark.parametrize("pattern", [r"\p{Greek}+", r"\pL[\pN_]*\z", r"[^[:ascii:]]+", r"\x{416}|\P{L}"])
def test_classes_of_re2_are_drawn(pattern: str) -> None:
    """Valid prompts are drawn for a pattern in syntax that only RE2 has, with different arguments."""
    schema = f'<schema name="s"><parameter name="p" length="40" required="true" pattern="{pattern}"/></schema>'
    texts: set[str] = set()

    @settings(max_examples=20, database=None)
    @given(prompts(schema))
    def collect(case: PromptCase) -> None:
        texts.update(each.text for each in case.selection.arguments)

    collect()

    assert len(texts) > 1


def test_a_report_shows_the_prompt_its_slots_and_a_command() -> None:
    """The note of a failure names every slot with its place and content, and the command that shows all of it."""
    case = Subject(SUPPORT).case('<prompt schema="support"><customer name="Ann O\'Hara"/>Hello?</prompt>')

    lines = case.report.splitlines()

    assert lines[0] == f"prompt: {case.xml}"
    assert 'slot customer/name [30, 43): 6 of 13 tokens, "Ann O\'Hara"' in lines
    assert "slot customer/plan [51, 58): no argument, 1 token of default" in lines
    assert lines[-1].endswith(f"| promptcache render - --schema {SUPPORT}")


FRESH = """
from hypothesis import given
from promptcache.testing import prompts


@given(prompts({schema!r}))
def test_days_are_dates(case):
    assert all(each.text[4] == "-" for each in case.selection.arguments if each.parameter == "day")
"""


def test_patterns_are_drawn_in_a_fresh_checkout(tmp_path: Path) -> None:
    """The property test of docs/testing.md passes with default settings where Hypothesis has no tables on disk yet."""
    slot = '<parameter name="day" length="20" required="true" pattern="\\d{4}-\\w\\S[^\\W_]"/>'
    schema = f'<schema name="s">{slot}</schema>'
    test = tmp_path / "test_fresh.py"
    test.write_text(FRESH.format(schema=schema), encoding="utf-8")
    places = {"HYPOTHESIS_STORAGE_DIRECTORY": "storage", "HOME": "home", "XDG_CACHE_HOME": "cache"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--confcutdir", str(tmp_path), str(test)]

    fresh = {**os.environ, **{name: str(tmp_path / folder) for name, folder in places.items()}}
    done = subprocess.run(words, cwd=tmp_path, env=fresh, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_importing_loads_neither_torch_nor_hypothesis() -> None:
    """`promptcache.testing` loads nothing heavy until it is used, and its strategies never load torch."""
    code = (
        "import sys, promptcache.testing as t; print([n for n in ('torch', 'transformers', 'hypothesis') if n in sys.modules]);"
        f"t.prompts({str(SUPPORT)!r}); t.covering; print('torch' in sys.modules)"
    )

    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert output.split("\n")[:2] == ["[]", "False"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: prompts(RICH, select=["calm", "brisk"]), "no valid prompt"),
        (lambda: prompts(RICH, select=["nowhere"]), "no valid prompt|has no module"),
        (lambda: prompts(RICH, select="num"), "select='num' is not allowed: a list of module paths, or a strategy"),
        (lambda: prompts(RICH, args={"plan/dais": "x"}), "no parameter"),
        (lambda: prompts(RICH, args=["plan/days"]), "args=.* is not allowed"),
        *(
            (lambda each=each: prompts(RICH, args={"plan/days": each}), "is not allowed")
            for each in (3, "\ud800", "\0")
        ),
        *((lambda each=each: prompts(RICH, text=each), "text=.* is not allowed") for each in (5, "a\0")),
        (lambda: arguments(RICH, ["zz"]), "has no module 'zz'"),
        *((lambda each=each: covering(RICH, t=each), "t=.* a whole number from 1 on") for each in (0, "2", 1.5)),
        (lambda: drawn(select=st.just(frozenset({"zz"}))), "has no module 'zz'"),
        (lambda: drawn(args={"plan/days": st.just(3)}), "a value of args"),
        (lambda: drawn(args={"plan/days": st.just("a\0")}), "a value of args"),
        (lambda: drawn(text=st.just(None)), "a value of text"),
    ],
)
def test_what_cannot_be_had_is_refused(make: Callable[[], object], message: str) -> None:
    """Modules, arguments and texts that no prompt has are refused when the strategy is made, or as they are drawn."""
    with pytest.raises(ValueError, match=message):
        make()


def drawn(**options: object) -> object:
    """Return what a strategy with these options draws first."""
    return find(prompts(RICH, **options), lambda _: True)  # type: ignore[arg-type]


def test_prompts_of_many_modules_occur() -> None:
    """Where selections are not listed, prompts of many modules are drawn as well."""
    heavy = occurring(selections(WIDE), lambda modules: {"heavy"} if len(modules) > 14 else set(), {"heavy"})

    assert heavy == {"heavy"}
