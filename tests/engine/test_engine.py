"""The public interface of an engine, what its results show, and its end: what ends with it, what stays, and later calls."""

import asyncio
import copy
import gc
import itertools
import pickle
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from promptcache import Prompt, Schema
from promptcache.decode.service import ServiceState, _Loop
from promptcache.diagnostics import (
    Cancelled,
    EngineClosed,
    InvalidValue,
    ModelNotFound,
    PromptError,
    SchemaError,
    ServiceClosed,
    UnknownSchema,
    UnsupportedModel,
)
from promptcache.engine import Engine
from promptcache.kv import Store, StoreConfig, open_store
from promptcache.language import module
from promptcache.layout import Level
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import DEMO_FOLDER, loads_quickly
from tests.engine.asking import GREEDY, PROMPT, SCHEMA, by_service, engine_of


@pytest.fixture
def engine() -> Engine:
    return engine_of()


def test_timing_adds_up(engine: Engine) -> None:
    """Every step takes some time, and the time to first token is the sum of the steps before decoding."""
    timing = engine.generate(PROMPT, **GREEDY).timing

    phases = (timing.plan_s, timing.refine_s, timing.fetch_s, timing.link_s, timing.prefill_s)
    assert all(phase > 0 for phase in (*phases, timing.decode_s))
    phases = (*phases, timing.wait_s, timing.encode_s, timing.choose_s)
    assert timing.ttft_s == pytest.approx(sum(phases))


def test_a_schema_that_fails_leaves_the_old_one(engine: Engine) -> None:
    with pytest.raises(SchemaError):
        engine.add_schema('<schema name="travel"><module name="a"/><module name="a"/></schema>')

    assert engine.generate(PROMPT, **GREEDY).level is Level.MODULAR


def test_concurrent_requests_encode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [
        f'<prompt schema="travel"><plan days="{days}"/><{city}/>Go?</prompt>'
        for days, city in itertools.product("1234", ("miami", "paris"))
    ]
    engine, alone, puts = engine_of(), engine_of(), list[Any]()
    put = engine.store.put
    monkeypatch.setattr(engine.store, "put", lambda *args: (puts.append(args), put(*args))[1])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: engine.generate(prompt, **GREEDY).token_ids, prompts))

    assert answers == [alone.generate(prompt, **GREEDY).token_ids for prompt in prompts]
    used = [part.encoding for prompt in prompts for part in engine.plan(prompt).tokens.parts]
    assert len(puts) == len({*used, *(part.encoding for each in used for part in each.context)})


def test_threads_that_read_one_stream_all_come_to_its_end(engine: Engine) -> None:
    stream = engine.stream(PROMPT, max_new_tokens=20, do_sample=False)
    with ThreadPoolExecutor(3) as pool:
        pieces = [piece for found in pool.map(lambda _: list(stream), range(3)) for piece in found]

    assert stream.completion is not None
    assert sorted("".join(pieces)) == sorted(stream.completion.text)


def test_a_stream_is_generated_as_it_is_read(engine: Engine) -> None:
    """A piece costs the tokens up to it. What is closed keeps the KV that it computed, and nothing more."""
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


def test_a_dropped_stream_is_freed_at_once_and_by_the_collector(engine: Engine) -> None:
    """It is in no cycle, which at exit would abort PyTorch. In one of the caller, it takes no lock while it is freed."""
    streams = [engine.stream(PROMPT, **GREEDY) for _ in range(2)]
    known = [weakref.ref(each) for each in streams if next(each)]
    streams[0].own = streams[0]  # type: ignore[attr-defined] # a cycle
    gc.disable()
    del streams
    assert [each() is None for each in known] == [False, True]
    history = engine._executor.history
    assert history is not None
    with history._lock:
        gc.enable()
        gc.collect()
    assert known[0]() is None


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

    before, others, items = at_exit(), {*threading.enumerate()}, queue.Queue[Any]()
    service = engine.service()
    service.submit(PROMPT, items.put, max_new_tokens=3_000, eos_token_id=[], do_sample=False)
    items.get(timeout=20)
    (end,) = (each for each in at_exit() if each not in before)

    end()

    assert service.state is ServiceState.DRAINING
    assert not [each for each in {*threading.enumerate()} - others if each.name == "promptcache-service"]


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


WITH_NOTES = """<schema name="travel"><system>You plan trips.</system>
<module name="paris">Paris has soup.</module><collection name="notes" max="2"/></schema>"""
ASKED = '<prompt schema="travel"><paris/><user>Where to?</user></prompt>'
CHAT = [{"role": "user", "content": "Hello"}]


def opened(**settings: Any) -> Engine:
    engine = engine_of(schema=WITH_NOTES, **settings)
    engine.generate(ASKED, **GREEDY)
    return engine


CALLS: dict[str, Callable[[Engine], object]] = {
    **{
        name: lambda engine, name=name: getattr(engine, name)(ASKED)
        for name in (*("promote", "plan", "render", "generate", "stream", "logits", "reference", "link", "audit"),)
    },
    **{name: lambda engine, name=name: getattr(engine, name)() for name in ("warm", "service", "chat", "__enter__")},
    "add_schema": lambda engine: engine.add_schema(WITH_NOTES),
    "remove_schema": lambda engine: engine.remove_schema("travel"),
    "add_member": lambda engine: engine.add_member("travel", "notes", "a", "A"),
    "remove_member": lambda engine: engine.remove_member("travel", "notes", "a"),
    "members": lambda engine: engine.members("travel", "notes"),
    "layout": lambda engine: engine.layout("travel"),
    "keys": lambda engine: engine.keys("travel"),
    "generate without a schema": lambda engine: engine.generate(CHAT),
    "generate_batch": lambda engine: engine.generate_batch([ASKED]),
    "agenerate": lambda engine: asyncio.run(engine.agenerate(ASKED)),
    "astream": lambda engine: asyncio.run(anext(engine.astream(ASKED))),
    "load_chat": lambda engine: engine.load_chat("chat.json"),
    "score": lambda engine: engine.score(ASKED, ["a"]),
}
STAYS = {"close", "stats", "clear_history", "from_pretrained"}


def test_every_method_is_tried() -> None:
    public = {name for name, made in vars(Engine).items() if not name.startswith("_") and callable(made)}

    assert {each.split()[0] for each in CALLS} - {"__enter__"} | STAYS == public | {"from_pretrained"}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_after_the_end_are_refused(call: Callable[[Engine], object]) -> None:
    """The error says that the engine is closed, for prompts that were planned before, too."""
    with pytest.raises(EngineClosed, match="this engine is closed: make another one"):
        call(CLOSED)


CLOSED = opened()
CLOSED.close()


def test_what_works_after_the_end() -> None:
    """The engine can be shown and closed again, and its answers stay. It is closed by an error in its block, too."""
    engine = opened()
    answer = engine.generate(ASKED, **GREEDY)
    with pytest.raises(KeyError), engine:
        raise KeyError
    engine.close()

    assert "none yet" in repr(engine)
    assert engine.schemas == {}
    assert answer.plan.num_reused_tokens > 0
    assert Engine(engine.model, engine.tokenizer).generate(CHAT, **GREEDY).token_ids


def test_nothing_of_an_engine_runs_after_its_end() -> None:
    """Threads of services and promotion have ended, and no KV is left in memory."""
    before = set(threading.enumerate())
    with opened(promote="auto") as engine:
        services = [engine.service(), engine.service()]
        by_service(services[0], ASKED, **GREEDY)
        engine.generate(ASKED, **GREEDY)
        assert engine.store.nbytes() > 0

    for thread in set(threading.enumerate()) - before:  # threads without work, which need a moment
        thread.join(1)
    assert set(threading.enumerate()) <= before
    assert (engine.store.nbytes(), [*engine.store.keys()]) == (0, [])
    with pytest.raises(ServiceClosed):
        services[1].submit(ASKED, print)


def test_requests_in_flight() -> None:
    """A stream goes on to its end, and a request of a service gets an error."""
    engine = opened()
    whole = engine.generate(ASKED, **GREEDY).text

    def hold_until_the_end(*_: Any, **__: Any) -> bool:
        while service.state is ServiceState.READY:
            threading.Event().wait(0.01)
        return False

    items: queue.Queue[Any] = queue.Queue()
    with engine.stream(ASKED, **GREEDY) as stream:
        first = next(stream)
        service = engine.service()
        service.submit(ASKED, items.put, stopping_criteria=[hold_until_the_end], **GREEDY)
        engine.close()
        assert "".join([first, *stream]) == whole

    while isinstance(item := items.get(timeout=60), int):
        pass
    assert isinstance(item, ServiceClosed)


def test_what_is_not_the_engines_stays(tmp_path: Path) -> None:
    """KV in a folder, and in a store of the caller, serves the next engine."""
    model = tiny_model()
    for store in (tmp_path, Store(model.shape)):
        with engine_of(model, schema=WITH_NOTES, store=store) as engine:
            engine.warm()
        with engine_of(model, schema=WITH_NOTES, store=store) as engine:
            assert engine.generate(ASKED, **GREEDY).usage.num_encoded_tokens == 0
