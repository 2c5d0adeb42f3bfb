"""The repr of results, and pickling."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from promptcache import Engine, Prompt, Schema
from promptcache.diagnostics import InvalidValue, UnknownSchema
from promptcache.kv import StoreConfig, open_store
from promptcache.language import module
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

LONG = "A long text that nobody wants to see in a terminal. " * 200
SCHEMA = Schema("travel").with_module(*(module(f"m{number}", LONG[:200]) for number in range(100))).user("Question: ")


@pytest.fixture(scope="module")
def results() -> Mapping[str, Any]:
    """Results and inputs of an engine by name."""
    made = Engine(tiny_model(), ByteTokenizer())
    checked = made.add_schema(Schema("travel").module("all", LONG[:3000]).module("other", LONG[:200]))
    prompt = Prompt("travel").use("all").user(LONG[:300])
    answer = made.generate(prompt, max_new_tokens=8)
    return {
        "schema": SCHEMA,
        "module": SCHEMA.children[0],
        "checked": checked,
        "rules": checked.rules,
        "prompt": prompt,
        "selection": answer.plan.selection,
        "layout": answer.plan.layout,
        "run": answer.plan.layout.runs[0],
        "encoding": answer.plan.reused[0].source.encoding,
        "plan": answer.plan,
        "completion": answer,
        "usage": answer.usage,
        "report": made.warm()[0],
        "engine": made,
        "store": made.store,
    }


def test_what_is_shown_is_short_and_says_what_it_is(results: Mapping[str, Any]) -> None:
    """The repr of any result is one line of a few hundred characters; it counts collections and names records."""
    shown = {name: repr(each) for name, each in results.items()}

    assert {name: text for name, text in shown.items() if "\n" in text or len(text) > 500} == {}
    assert shown["schema"].startswith("Schema(name='travel', 101 children")
    assert "2 modules" in shown["checked"]
    assert "schema='travel'" in shown["layout"]
    assert "8 token_ids" in shown["completion"]
    assert "schemas travel" in shown["engine"]


def test_results_can_be_pickled(results: Mapping[str, Any]) -> None:
    """Results survive pickling."""
    again = {
        name: pickle.loads(pickle.dumps(each)) for name, each in results.items() if name not in ("engine", "store")
    }

    assert {name: repr(each) for name, each in again.items()} == {name: repr(results[name]) for name in again}
    assert again["completion"].token_ids == results["completion"].token_ids


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_holds_memory_cannot_be_pickled(results: Mapping[str, Any], tmp_path: Any, take: Any) -> None:
    """Pickling an engine, a store or a stream raises an error that names the alternative."""
    engine = results["engine"]
    tiers = open_store(StoreConfig(folder=tmp_path), engine.model.shape)
    with engine.stream(results["prompt"], max_new_tokens=1) as stream:
        for each, instead in ((engine, "store="), (engine.store, "folder="), (tiers, "folder"), (stream, "completion")):
            with pytest.raises(InvalidValue, match=f"{type(each).__name__} cannot be pickled or copied: .*{instead}"):
                take(each)


def test_a_layout_is_found_by_its_schema(results: Mapping[str, Any]) -> None:
    """`Engine.layout` returns the layout that plans use, and suggests the nearest name of an unknown schema."""
    assert results["engine"].layout("travel") is results["layout"]
    with pytest.raises(UnknownSchema, match="did you mean 'travel'"):
        results["engine"].layout("travle")
