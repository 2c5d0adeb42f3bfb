"""Laws of the tree that is shown: every token once, at its position, in its part; IPython shows it as pictures."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import html

from promptcache.decode import Completion
from promptcache.language import Repair
from promptcache.layout import Origin, Plan, Slot, VariantKind, lay_out, make_plan, run_variants
from promptcache.picture import Part, PartKind, Use, facts, view
from promptcache.picture.html import VIEWS
from tests import strategies
from tests.conftest import law_examples
from tests.layout.samples import layout_of, plan_of
from tests.strategies.collections import collection_schemas

SCHEMA = """\
<schema name="trip">
  <system>Be brief.</system>
  <module name="plan">Trip of <parameter name="days" length="8" default="two"/> days</module>
  <union name="city">
    <module name="rome" reserve="30">Rome is old.</module>
    <module name="miami" cache="false">Miami</module>
  </union>
  <collection name="notes" min="0" max="3"><module name="a">One.</module><module name="b">Two.</module></collection>
  <module name="car" requires="plan">By car.</module>
  <scaffold name="both" modules="plan rome"/>
  <user>Go.</user>
</schema>
"""
SCHEMAS = st.one_of(strategies.schemas(), collection_schemas())
NOTES = SCHEMA.splitlines()[7]
PROMPT = '<prompt schema="trip"><plan days="three"/><rome/><user>Where to?</user></prompt>'


def parts(root: Part) -> dict[str, Part]:
    """The modules of a tree, by path."""
    return {part.name: part for part in root.walk() if part.kind is PartKind.MODULE}


def stretches(root: Part) -> Counter[tuple[Use, int]]:
    """How often each position has tokens of each use, in the texts and slots of a tree."""
    leaves = (part for part in root.walk() if part.kind.is_leaf)
    return Counter(
        (use, position) for leaf in leaves for start, stop, use in leaf.stretches for position in range(start, stop)
    )


def own_tokens(part: Part) -> Counter[Use]:
    """The tokens of a part and of turns in it, without those of inner modules."""
    inner = (own_tokens(child) for child in part.children if child.kind is PartKind.TURN)
    return sum(inner, Counter(part.tokens))


def use_of(origin: Origin | None) -> Use:
    """What a piece of this origin is."""
    again = {None: Use.REUSED, Origin.REPAIRED: Use.REPAIRED, Origin.LAST: Use.REPAIRED}
    return again.get(origin, Use.NEW)


@pytest.mark.law
@settings(max_examples=law_examples(0.2))
@given(data=st.data(), schema=SCHEMAS, tokenizer=strategies.TOKENIZERS)
def test_a_prompt_is_shown_as_what_it_is(data: Any, schema: Any, tokenizer: Any) -> None:
    """Every token of a plan is shown once, at its position, as what it is, in its module, which says what it attends to."""
    repair = data.draw(st.sampled_from(["none", "slots", "first-2", "all"]))
    layout, selection = lay_out(schema, tokenizer), data.draw(strategies.prompts(schema))
    plan = make_plan(selection, layout, run_variants(layout), tokenizer, Repair.parse(repair))

    root = view(plan, 10)

    assert stretches(root) == Counter(
        (use_of(piece.origin), position) for piece in plan.pieces for position in piece.position_ids
    )
    shown = parts(root)
    assert {path for path, part in shown.items() if part.present} == {*selection.modules}
    assert root.stop == plan.stop
    for path in selection.modules:
        own = [piece for piece in plan.pieces if piece.module == path and piece.run is not None]
        expected: Counter[Use] = Counter()
        for piece in own:
            expected[use_of(piece.origin)] += len(piece.token_ids)
        assert own_tokens(shown[path]) == expected
        check_context(plan, path, shown[path].sees)


def check_context(plan: Plan, path: str, sees: tuple[str, ...]) -> None:
    """Compare what a module sees with the contexts of its encodings, whose parts are known by their tokens."""
    runs = {(piece.run.module, piece.run.index): piece.run for piece in plan.pieces if piece.run is not None}
    named = [
        {run.module for run in runs.values() if run.token_ids == part.encoding.token_ids}
        for piece in plan.pieces
        if piece.source is not None and piece.module == path
        for part in piece.source.encoding.context
    ]
    assert all(modules & {path, "", *sees} for modules in named)
    assert {*sees} <= set().union(*named)


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_a_schema_is_shown_as_it_is_laid_out(schema: Any, tokenizer: Any) -> None:
    """Texts and slots are those of the layout, in its order; modules have its ranges, and see what their variants see."""
    layout = lay_out(schema, tokenizer)
    variants = run_variants(layout)

    root = view(layout)

    leaves = [part for part in root.walk() if part.kind.is_leaf]
    pieces = [piece for run in layout.runs for piece in run.pieces]
    assert sorted((each.start, each.stop) for each in leaves) == sorted((each.start, each.stop) for each in pieces)
    assert {part.name for part in leaves if part.kind is PartKind.SLOT} == {
        each.parameter for each in pieces if isinstance(each, Slot)
    }
    for path, part in parts(root).items():
        node = layout.modules[path]
        assert (part.start, part.stop) == (node.start, node.stop)
        own = [variant for variant in variants if variant.kind is VariantKind.PLAIN and variant.module(layout) == path]
        seen = {
            variants[index] for variant in own for index in variant.sees if variants[index].run or not layout.has_bos
        }
        assert {*part.sees} == {variant.module(layout) for variant in seen} - {path}


def test_positions_are_those_of_the_prompt() -> None:
    """With closed positions parts and members follow one another; with fixed ones they are where the schema has them."""
    prompt = '<prompt schema="trip"><plan days="three"/><rome/><notes><b/><a/></notes><user>Where to?</user></prompt>'
    plan = plan_of(SCHEMA, prompt)
    fixed = plan_of(SCHEMA.replace('"trip">', '"trip" positions="fixed">').replace(NOTES, ""), PROMPT)

    closed, gaps = view(plan), view(fixed)

    shown = [part for part in closed.walk() if part.kind.is_leaf and part.stop > part.start]
    assert [part.start for part in shown[1:]] == [part.stop for part in shown[:-1]]
    assert shown[-1].stop == closed.stop == plan.stop
    assert [path for path in parts(closed) if path.startswith("notes/")] == ["notes/b", "notes/a"]
    assert closed == view(replace(plan, layout=layout_of(SCHEMA)))  # which has no members
    assert parts(gaps)["rome"].start == fixed.layout.modules["rome"].start > parts(closed)["rome"].start


def test_facts_are_told_in_words() -> None:
    """A part says its positions, tokens, bytes, properties and context, and in a prompt its reuse."""
    schema, prompt = (
        {part.name: " · ".join(facts(part)) for part in view(shown, 512).walk()}
        for shown in (layout_of(SCHEMA), plan_of(SCHEMA, PROMPT))
    )

    assert schema["rome"] == "[33, 63) 13 tokens · 6.5 KiB · reserve 30 · sees (root)"
    assert schema["miami"] == "[33, 39) 6 tokens · not cached"
    assert schema["city"] == "[33, 63) · at most one"
    assert schema["days"] == "[19, 28) 9 positions · length 8 and the space before it · default 'two'"
    assert schema["notes"] == "[63, 63) 0 tokens · collection, 0 to 3"
    assert schema["both"].endswith(" once more · 6.5 KiB · plan + rome")
    assert prompt["rome"].endswith(" · reserve 30 · in scaffold both · sees (root), plan · 13 reused")
    assert prompt["days"].endswith("6 positions · argument 'three' · 6 new")
    assert prompt["miami"] == "not cached · absent"
    assert prompt["added by the prompt"].endswith(" new")
    assert "answer from position" in prompt["trip"]


def shown(name: str, value: Any) -> html.HtmlElement:
    """The view of a value, and no element in it that could run or load something."""
    view = next(view for path, view in VIEWS.items() if path.endswith(f".{name}"))
    element = html.fragment_fromstring(view(value))
    assert element.get("class") == "promptcache"
    assert not {"script", "img", "link", "a", "i"} & {each.tag for each in element.iter()}
    return element


@pytest.mark.parametrize("path", VIEWS)
def test_views_are_registered_for_types_that_exist(path: str) -> None:
    """IPython compares these names with the module and the name of a type."""
    module, _, name = path.rpartition(".")

    found = getattr(import_module(module), name)

    assert (found.__module__, found.__name__) == (module, name)


def test_a_layout_and_a_plan_show_their_lines() -> None:
    """Every module has a line; a plan fades those that it does not use."""
    plan = plan_of(SCHEMA, PROMPT)
    for name, value, faded in (("Layout", plan.layout, set()), ("Plan", plan, {"miami", "notes", "car"})):
        names = {each.get("title"): each.get("class") for each in shown(name, value).find_class("name")}
        assert {"plan", "rome", "miami"} <= names.keys()
        assert {each for each, style in names.items() if "faded" in style.split()} == faded


def test_importing_the_package_in_ipython_registers_the_views() -> None:
    """A user of a notebook does nothing but import the package; elsewhere the pictures are not even loaded."""
    code = """
import sys, types
if {running}:
    sys.modules["IPython"] = types.ModuleType("IPython")
    def register(module, name, view):
        print(f"{{module}}.{{name}}")
    formatter = types.SimpleNamespace(for_type_by_name=register)
    formatters = types.SimpleNamespace(formatters={{"text/html": formatter}})
    sys.modules["IPython"].get_ipython = lambda: types.SimpleNamespace(display_formatter=formatters)
import promptcache
print("promptcache.picture" in sys.modules)
"""
    told = [
        subprocess.run([sys.executable, "-c", code.format(running=running)], capture_output=True, text=True, check=True)
        for running in (True, False)
    ]

    assert [each.stdout.split() for each in told] == [[*VIEWS, "True"], ["False"]]


def test_an_answer_shows_its_text_and_what_it_cost() -> None:
    """The answer is shown as text, for any content."""
    usage = SimpleNamespace(num_reused_tokens=20, num_new_tokens=5, num_generated_tokens=7)
    told = SimpleNamespace(usage=usage, level="exact", lossy=False, timing=SimpleNamespace(ttft_s=0.012))
    answer = SimpleNamespace(text="<i>Yes</i>\n\x1b", plan=plan_of(SCHEMA, PROMPT), finish_reason="stop", **vars(told))
    words = shown("Completion", answer).text_content()

    assert "<i>Yes</i>\ufffd" in words
    assert "20 tokens reused · 5 new · 7 generated · level exact · first token after 12 ms" in words
    assert vars(answer).keys() <= Completion.__dataclass_fields__.keys()
