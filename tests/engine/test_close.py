"""`Engine.close`: what ends with an engine, what stays, and the error of calls after it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from promptcache.decode.service import ServiceState
from promptcache.diagnostics import EngineClosed, ServiceClosed
from promptcache.engine import Engine
from promptcache.kv import Store
from promptcache.testing.tiny_model import tiny_model
from tests.engine.asking import by_service, engine_of

SCHEMA = """<schema name="travel"><system>You plan trips.</system>
<module name="paris">Paris has soup.</module><collection name="notes" max="2"/></schema>"""
PROMPT = '<prompt schema="travel"><paris/><user>Where to?</user></prompt>'
CHAT = [{"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4}


def opened(**settings: Any) -> Engine:
    """Return an engine with a schema that has answered a prompt."""
    engine = engine_of(schema=SCHEMA, **settings)
    engine.generate(PROMPT, **GREEDY)
    return engine


CALLS: dict[str, Callable[[Engine], object]] = {
    **{
        name: lambda engine, name=name: getattr(engine, name)(PROMPT)
        for name in (*("promote", "plan", "render", "generate", "stream", "logits", "reference", "link", "audit"),)
    },
    **{name: lambda engine, name=name: getattr(engine, name)() for name in ("warm", "service", "chat", "__enter__")},
    "add_schema": lambda engine: engine.add_schema(SCHEMA),
    "remove_schema": lambda engine: engine.remove_schema("travel"),
    "add_member": lambda engine: engine.add_member("travel", "notes", "a", "A"),
    "remove_member": lambda engine: engine.remove_member("travel", "notes", "a"),
    "members": lambda engine: engine.members("travel", "notes"),
    "layout": lambda engine: engine.layout("travel"),
    "keys": lambda engine: engine.keys("travel"),
    "generate without a schema": lambda engine: engine.generate(CHAT),
    "generate_batch": lambda engine: engine.generate_batch([PROMPT]),
    "agenerate": lambda engine: asyncio.run(engine.agenerate(PROMPT)),
    "astream": lambda engine: asyncio.run(anext(engine.astream(PROMPT))),
    "load_chat": lambda engine: engine.load_chat("chat.json"),
    "logits": lambda engine: engine.logits(PROMPT),
    "score": lambda engine: engine.score(PROMPT, ["a"]),
}
STAYS = {"close", "stats", "clear_history", "from_pretrained"}


def test_every_method_is_tried() -> None:
    """A method is in the table of calls after the end, or works then."""
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
    answer = engine.generate(PROMPT, **GREEDY)
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
        by_service(services[0], PROMPT, **GREEDY)
        engine.generate(PROMPT, **GREEDY)
        assert engine.store.nbytes() > 0

    for thread in set(threading.enumerate()) - before:  # threads without work, which need a moment
        thread.join(1)
    assert set(threading.enumerate()) <= before
    assert (engine.store.nbytes(), [*engine.store.keys()]) == (0, [])
    with pytest.raises(ServiceClosed):
        services[1].submit(PROMPT, print)


def test_requests_in_flight() -> None:
    """A stream goes on to its end, and a request of a service gets an error."""
    engine = opened()
    whole = engine.generate(PROMPT, **GREEDY).text

    def hold_until_the_end(*_: Any, **__: Any) -> bool:
        while service.state is ServiceState.READY:
            threading.Event().wait(0.01)
        return False

    items: queue.Queue[Any] = queue.Queue()
    with engine.stream(PROMPT, **GREEDY) as stream:
        first = next(stream)
        service = engine.service()
        service.submit(PROMPT, items.put, stopping_criteria=[hold_until_the_end], **GREEDY)
        engine.close()
        assert "".join([first, *stream]) == whole

    while isinstance(item := items.get(timeout=60), int):
        pass
    assert isinstance(item, ServiceClosed)


def test_what_is_not_the_engines_stays(tmp_path: Path) -> None:
    """KV in a folder, and in a store of the caller, serves the next engine."""
    model = tiny_model()
    for store in (tmp_path, Store(model.shape)):
        with engine_of(model, schema=SCHEMA, store=store) as engine:
            engine.warm()
        with engine_of(model, schema=SCHEMA, store=store) as engine:
            assert engine.generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0
