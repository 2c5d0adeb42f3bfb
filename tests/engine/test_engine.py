"""The engine's public interface, and what its results show."""

from __future__ import annotations

import copy
import itertools
import pickle
import queue
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from promptcache import Completion, Prompt, Schema
from promptcache.decode.service import ServiceState, _Loop
from promptcache.diagnostics import (
    Cancelled,
    InvalidValue,
    ModelNotFound,
    PromptError,
    SchemaError,
    UnknownSchema,
    UnsupportedModel,
)
from promptcache.engine import Engine
from promptcache.kv import KV, Store, StoreConfig, open_store
from promptcache.language import check_schema, module, parse_schema
from promptcache.layout import Level
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import DEMO_FOLDER, loads_quickly
from tests.engine.asking import GREEDY, PROMPT, SCHEMA, engine_of


@pytest.fixture
def engine() -> Engine:
    """An engine with the travel schema, nothing encoded yet."""
    return engine_of()


class CountingStore(Store):
    """A store that counts puts."""

    puts = 0

    def put(self, *args: Any) -> KV:
        """Put and count."""
        self.puts += 1
        return super().put(*args)


def test_timing_adds_up(engine: Engine) -> None:
    """Every step takes some time, and the time to first token is the sum of the steps before decoding."""
    timing = engine.generate(PROMPT, **GREEDY).timing

    phases = (timing.plan_s, timing.refine_s, timing.fetch_s, timing.link_s, timing.prefill_s)
    assert all(phase > 0 for phase in (*phases, timing.decode_s))
    phases = (*phases, timing.wait_s, timing.encode_s, timing.choose_s)
    assert timing.ttft_s == pytest.approx(sum(phases))


def test_progress_of_warming_may_use_the_engine(engine: Engine) -> None:
    """A progress callback of `warm` may answer a prompt, encoding included."""
    engine.add_schema('<schema name="other"><module name="x">Something else.</module></schema>')
    answers: list[Completion] = []

    def progress(done: int, total: int) -> None:
        answers.append(engine.generate('<prompt schema="other"><x/>?</prompt>', **GREEDY))

    thread = threading.Thread(target=engine.warm, args=("travel",), kwargs={"progress": progress}, daemon=True)
    thread.start()
    thread.join(60)

    assert not thread.is_alive()
    assert answers[0].usage.num_encoded_tokens > 0


@pytest.mark.parametrize("name", ["travel", "other"])
def test_text_in_the_same_place_is_encoded_once(name: str) -> None:
    """A schema that replaces another one, or is beside it, encodes only the text that is new."""
    store = CountingStore(tiny_model().shape)
    engine = engine_of(store=store)
    engine.warm(pairs=True)
    before = store.puts

    engine.add_schema(SCHEMA.replace('name="travel"', f'name="{name}"').replace("soup", "wine"))
    reports = engine.warm(pairs=True)

    assert sum(each.num_encoded for each in reports) == store.puts - before == 2  # alone, and behind the plan


def test_a_schema_that_fails_leaves_the_old_one(engine: Engine) -> None:
    """After an error the engine serves the old schema."""
    with pytest.raises(SchemaError):
        engine.add_schema('<schema name="travel"><module name="a"/><module name="a"/></schema>')

    assert engine.generate(PROMPT, **GREEDY).level is Level.MODULAR


def test_documents_may_be_text_path_tree_or_built(tmp_path: Path, engine: Engine) -> None:
    """Every form of a schema and of a prompt has the same plan."""
    (tmp_path / "travel.xml").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "prompt.xml").write_text(PROMPT, encoding="utf-8")
    schema, prompt = tmp_path / "travel.xml", tmp_path / "prompt.xml"
    built = Prompt("travel").use("plan", days="nine").use("paris").text("Where to?")
    found = set()
    for source in (SCHEMA, schema, str(schema), parse_schema(SCHEMA), check_schema(parse_schema(SCHEMA))):
        engine.add_schema(source)
        found |= {engine.plan(each).tokens for each in (PROMPT, prompt, str(prompt), built)}

    assert len(found) == 1


def test_concurrent_requests_encode_once() -> None:
    """Concurrent requests on a cold store get the answers of single ones, and encode each encoding once."""
    prompts = [
        f'<prompt schema="travel"><plan days="{days}"/><{city}/>Go?</prompt>'
        for days, city in itertools.product("1234", ("miami", "paris"))
    ]
    store, alone = CountingStore(tiny_model().shape), engine_of()
    engine = engine_of(store=store)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: engine.generate(prompt, **GREEDY).token_ids, prompts))

    assert answers == [alone.generate(prompt, **GREEDY).token_ids for prompt in prompts]
    used = [part.encoding for prompt in prompts for part in engine.plan(prompt).tokens.parts]
    assert store.puts == len({*used, *(part.encoding for each in used for part in each.context)})


def test_threads_that_read_one_stream_all_come_to_its_end(engine: Engine) -> None:
    """Several readers share the pieces, and each of them ends."""
    stream = engine.stream(PROMPT, max_new_tokens=20, do_sample=False)
    with ThreadPoolExecutor(3) as pool:
        pieces = [piece for found in pool.map(lambda _: list(stream), range(3)) for piece in found]

    assert stream.completion is not None
    assert sorted("".join(pieces)) == sorted(stream.completion.text)


def test_a_stream_is_generated_as_it_is_read(engine: Engine) -> None:
    """A piece costs the tokens up to it. What is closed or dropped keeps the KV that it computed, and nothing more."""
    seen: list[int] = []
    options: dict[str, Any] = {"max_new_tokens": 1_000, "eos_token_id": [], "do_sample": False}
    stops = [lambda input_ids, _scores: bool(seen.append(input_ids.shape[1]))]
    stream = engine.stream(PROMPT, stopping_criteria=stops, **options)
    assert not seen
    next(stream)
    assert 0 < len(seen) < 50
    num_seen = len(seen)
    stream.close()
    assert (stream.completion, [*stream]) == (None, [])

    dropped = engine.stream(PROMPT, stopping_criteria=stops, **options)
    next(dropped)
    del dropped

    assert len(seen) == 2 * num_seen
    assert engine.generate(PROMPT, **GREEDY).usage.num_history_tokens > 0


def test_a_stream_is_closed_by_another_thread(engine: Engine) -> None:
    """The thread that reads it gets an error after the token that is computed just then."""
    held, closed = threading.Event(), threading.Event()

    def hold(*_: Any, **__: Any) -> bool:
        held.set()
        return not closed.wait(20)

    stream = engine.stream(PROMPT, stopping_criteria=[hold], max_new_tokens=1_000, eos_token_id=[], do_sample=False)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, stream)
        assert held.wait(20)
        stream.close()
        closed.set()
        with pytest.raises(Cancelled):
            reading.result(20)


def test_the_end_of_the_program_ends_a_service(engine: Engine) -> None:
    """At exit the program stops the thread of a service, which would abort it otherwise."""

    def at_exit() -> list[weakref.finalize]:  # type: ignore[type-arg] # of anything
        registered = (each for each in weakref.finalize._registry if each.atexit)
        return [each for each in registered if getattr(each.peek()[1], "__func__", None) is _Loop.close]

    before, items = at_exit(), queue.Queue[Any]()
    service = engine.service()
    service.submit(PROMPT, items.put, max_new_tokens=3_000, eos_token_id=[], do_sample=False)
    items.get(timeout=20)
    (end,) = (each for each in at_exit() if each not in before)

    end()

    assert service.state is ServiceState.DRAINING
    assert not [each for each in threading.enumerate() if each.name == "promptcache-service"]


def test_a_stream_that_failed_or_was_closed_is_over(engine: Engine) -> None:
    """Iteration ends after an error and after `close`. A fault in the prompt is raised by the call."""

    def fail(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")

    failing, closed = engine.stream(PROMPT, logits_processor=[fail], **GREEDY), engine.stream(PROMPT, **GREEDY)
    with pytest.raises(ValueError, match="mine"):
        next(failing)
    closed.close()

    assert (list(failing), list(closed), closed.completion) == ([], [], None)
    with pytest.raises(PromptError):
        engine.stream(PROMPT.replace("paris", "rome"))


def test_a_request_keeps_the_schema_it_started_with(engine: Engine) -> None:
    """A schema that is replaced while a request runs, and warmed, has no effect on it."""
    expected = engine.generate(PROMPT, **GREEDY).text
    stream = engine.stream(PROMPT, **GREEDY)
    first = next(stream)
    engine.add_schema(SCHEMA.replace("soup", "wine").replace("You plan", "He plans"))
    engine.warm()

    assert "".join([first, *stream]) == expected


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, ModelNotFound, r"no config\.json"),
        ({"config.json": '{"model_type": "llama"}'}, ModelNotFound, "no tokenizer"),
        ({"config.json": '{"model_type": "t5"}', "tokenizer.json": "{}"}, UnsupportedModel, "t5"),
    ],
)
def test_a_folder_without_a_model_of_ours_is_refused(
    tmp_path: Path, files: dict[str, str], error: type[Exception], message: str
) -> None:
    """A folder without a model or a tokenizer, and one with an encoder and decoder, is refused with the fix."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    with pytest.raises(error, match=message):
        Engine.from_pretrained(tmp_path)


def test_a_folder_can_be_named_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder, for checking and for loading a model folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").symlink_to(DEMO_FOLDER)

    assert Engine.from_pretrained("~/model").fingerprint == Engine.from_pretrained("demo").fingerprint
    with pytest.raises(ModelNotFound, match=f"'{tmp_path}/nothing' does not exist"):
        Engine.from_pretrained("~/nothing")


@pytest.mark.filterwarnings("ignore:Cannot enable progress bars")
def test_large_folders_show_that_they_load(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The bar of transformers is shown for weights that take a while, as for a download. Small ones show none."""
    shown = []
    monkeypatch.setattr(logging, "_tqdm_active", True)  # commands that ran in this process disable bars
    for limit in (2**30, 0):
        monkeypatch.setattr(sys.modules[loads_quickly.__module__], "_QUICK_BYTES", limit)
        Engine.from_pretrained(DEMO_FOLDER)
        shown.append("%|" in capsys.readouterr().err)

    assert shown == [False, True]


LONG = "This text is too long for a terminal. " * 300
LARGE = Schema("travel").with_module(*(module(f"m{number}", LONG[:200]) for number in range(100))).user("Question: ")
SHOWING = engine_of(schema=Schema("travel").module("all", LONG[:3000]).module("other", LONG[:200]))
ANSWER = SHOWING.generate(Prompt("travel").use("all").user(LONG[:300]), max_new_tokens=8)
CHECKED = ANSWER.plan.layout.schema
RESULTS: dict[str, Any] = {
    "schema": LARGE,
    "module": LARGE.children[0],
    "checked": CHECKED,
    "rules": CHECKED.rules,
    "prompt": Prompt("travel").use("all").user(LONG[:300]),
    "selection": ANSWER.plan.selection,
    "layout": ANSWER.plan.layout,
    "run": ANSWER.plan.layout.runs[0],
    "encoding": ANSWER.plan.reused[0].source.encoding,
    "plan": ANSWER.plan,
    "completion": ANSWER,
    "usage": ANSWER.usage,
    "report": SHOWING.warm()[0],
}
SHOWN = {
    "schema": "Schema(name='travel', 101 children",
    "checked": "2 modules",
    "layout": "schema='travel'",
    "completion": "8 token_ids",
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_shown_is_short_and_says_what_it_is(name: str) -> None:
    """The repr of any result is one line of a few hundred characters, also after pickling; it counts collections."""
    shown = repr(RESULTS[name])

    assert "\n" not in shown
    assert len(shown) <= 500
    assert SHOWN.get(name, "") in shown
    assert repr(pickle.loads(pickle.dumps(RESULTS[name]))) == shown


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_holds_memory_cannot_be_pickled(tmp_path: Any, take: Any) -> None:
    """Pickling an engine, a store or a stream raises an error that names the alternative."""
    tiers = open_store(StoreConfig(folder=tmp_path), SHOWING.model.shape)
    with SHOWING.stream(RESULTS["prompt"], max_new_tokens=1) as stream:
        for each, instead in (
            (SHOWING, "store="),
            (SHOWING.store, "folder="),
            (tiers, "folder"),
            (stream, "completion"),
        ):
            assert len(repr(each)) <= 500
            with pytest.raises(InvalidValue, match=f"{type(each).__name__} cannot be pickled or copied: .*{instead}"):
                take(each)


def test_a_layout_is_found_by_its_schema() -> None:
    """`Engine.layout` returns the layout that plans use, and suggests the nearest name of an unknown schema."""
    assert SHOWING.layout("travel") is RESULTS["layout"]
    assert "schemas travel" in repr(SHOWING)
    with pytest.raises(UnknownSchema, match="did you mean 'travel'"):
        SHOWING.layout("travle")
