"""Promotion: an answer is the modular or the exact one, says which, and no request waits for a promotion."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from promptcache import Engine, StoreConfig
from promptcache.diagnostics import InvalidValue, PromptCacheError
from promptcache.encode import Promotions
from promptcache.encode.idle import QUIET_S, Activity, IdleThread, Interrupted
from promptcache.layout import Level
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.engine import asking
from tests.engine.promoting import GREEDY, TEXTS, PromotingEngine, asked, engine_of, num_combined, work
from tests.planted.registry import module_of

PATIENCE_S = 20.0


def prompt(*modules: str, text: str = "Well?") -> str:
    return f'<prompt schema="s">{"".join(f"<{each}/>" for each in modules)}{text}</prompt>'


def promote(engine: Engine, *modules: str) -> None:
    asked(engine, prompt(*modules))
    work(engine)


def is_promoted(engine: Engine, *modules: str) -> bool:
    return asked(engine, prompt(*modules)).usage.promoted


def wait_for(condition: Callable[[], bool]) -> None:
    stop = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.01)


@pytest.mark.law
def test_promotions_change_no_answer_but_from_modular_to_exact() -> None:
    """Whatever is asked, promoted, interrupted, evicted, replaced and changed, answers are right."""
    run_state_machine_as_test(
        PromotingEngine, settings=settings(max_examples=law_examples(0.2), stateful_step_count=20)
    )


def test_a_failed_promotion_costs_no_answer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An error in idle time is logged, one of a call is raised; requests are answered as before, and may be promoted."""
    engine = engine_of(tiny_model())
    with monkeypatch.context() as patched:
        patched.setattr(engine._executor, "extend_history", lambda *_: 1 / 0)
        promote(engine, "a", "b", "c")
        with pytest.raises(ZeroDivisionError):
            engine.promote(prompt("a", "b", "c"))

    assert engine.stats().promotions == Promotions()
    assert asked(engine, prompt("a", "b", "c")).level is Level.MODULAR
    assert "could not be promoted" in caplog.text
    assert engine.promote(prompt("a", "b", "c")) > 0
    assert is_promoted(engine, "a", "b", "c")


def test_methods_without_answers_stay_modular(tmp_path: Path) -> None:
    """Plans, logits and scores do not use promotions, and a folder has the schema's own KV only."""
    engine = engine_of(tiny_model(), store=tmp_path)
    engine.add_schema(TEXTS[0], keep="int8")
    text = prompt("a", "b", "c")
    logits, scores, lossy = engine.logits(text), engine.score(text, ["yes"]), asked(engine, text).lossy
    files = sorted(tmp_path.rglob("*.safetensors"))
    work(engine)

    assert engine.plan(text).level is Level.MODULAR
    assert engine.logits(text).equal(logits)
    assert engine.score(text, ["yes"]) == scores
    promoted = asked(engine, text)
    assert (promoted.usage.promoted, lossy, promoted.lossy) == (True, True, False)
    assert sorted(tmp_path.rglob("*.safetensors")) == files != []


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_a_call_promotes_at_once(mode: str) -> None:
    """`Engine.promote` computes what idle time would; with and without it, for cold and warm schemas."""
    engine = engine_of(tiny_model()) if mode == "auto" else asking.engine_of(schema=TEXTS[0])
    asked(engine, prompt("a", "b"))
    short, long = (num_combined(engine.plan(prompt(*each))) for each in (("a", "b"), ("a", "b", "c")))

    assert engine.promote(prompt("a", "b")) == short
    assert engine.promote(prompt("a", "b", "c", text="Another text.")) == long - short  # what is behind the beginning
    assert [engine.promote(prompt(*each)) for each in ((), ("a",), ("new",), ("a", "b"), ("a", "b", "c"))] == [0] * 5
    after = asked(engine, prompt("a", "b", "c"))

    assert (after.level, after.usage.promoted, after.usage.num_encoded_tokens) == (Level.EXACT, True, 0)
    figures = engine.stats().promotions
    assert (figures.num_combinations, figures.num_waiting, figures.num_hits) == (2, 0, 1)
    assert not asked(engine, prompt("a", "b", "c"), deterministic=True).usage.promoted


def test_a_call_that_cannot_promote_is_refused() -> None:
    """The error names the room that memory has, or the history that there is not; nothing waits for idle time."""
    with pytest.raises(InvalidValue, match='promote="auto" keeps KV in history'):
        asking.engine_of(promote="auto", history=False)
    model = tiny_model()
    small, long = (
        engine_of(model, store=StoreConfig(memory_bytes=num_tokens * model.shape.token_bytes))
        for num_tokens in (8, 400)
    )
    long.add_schema(TEXTS[0].replace("alpha", "a" * 300).replace("gamma", "c" * 300))  # it would evict itself
    none = asking.engine_of(model, schema=TEXTS[0], history=False)
    for engine, error, words in (
        (small, PromptCacheError, "no room"),
        (long, PromptCacheError, "no room"),
        (none, InvalidValue, "history=False"),
    ):
        with pytest.raises(error, match=words):
            engine.promote(prompt("a", "c"))
        asked(engine, prompt("a", "c"))
        work(engine)
        assert engine.stats().promotions == Promotions()


def test_a_long_conversation_stays_as_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that would lose much history keeps its modular plan; a new conversation is exact."""
    monkeypatch.setattr(module_of("promptcache.encode.repetition"), "MAX_LOST_TOKENS", 8)
    engine = engine_of(tiny_model())
    chat = engine.chat(prompt("a", "b", "c", text=""))
    for _ in range(2):
        chat.say("A question of some length", **GREEDY)
    work(engine)
    again = chat.say("And another one", **GREEDY)

    assert (again.level, again.usage.promoted) == (Level.MODULAR, False)
    assert again.usage.num_history_tokens > 8
    assert engine.chat(prompt("a", "b", "c", text="")).say("New?", **GREEDY).usage.promoted


def test_the_thread_promotes_in_idle_time() -> None:
    """Without any call, a combination that came is promoted; a service uses it. Calls of threads promote beside it."""
    engine = asking.engine_of(schema=TEXTS[0], promote="auto")
    assert not asked(engine, prompt("a", "b"), "service").usage.promoted
    wait_for(lambda: engine.stats().promotions.num_combinations == 1)

    assert asked(engine, prompt("a", "b"), "service").usage.promoted
    assert engine.stats().promotions.num_hits == 1
    combinations = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c")] * 2
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: engine.promote(prompt(*each)), combinations))
    assert all(is_promoted(engine, *each) for each in combinations)
    wait_for(lambda: not [each for each in threading.enumerate() if each.name == "promptcache-idle"])


def test_the_thread_does_not_keep_the_engine() -> None:
    engine = asking.engine_of(schema=TEXTS[0], promote="auto")
    with engine._executor.activity:
        engine.generate(prompt("a", "b"), **GREEDY)
        reference = weakref.ref(engine)
        del engine
        gc.collect()

        assert reference() is None
        wait_for(lambda: not [each for each in threading.enumerate() if each.name == "promptcache-idle"])


EXIT = """
import threading, time
from promptcache import Engine, StoreConfig
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

engine = Engine(tiny_model(), ByteTokenizer(), promote="auto")
long = "word " * 350
engine.add_schema(f'<schema name="s" context="guaranteed">Root.<module name="a">{long}</module><module name="b">{long}</module></schema>')
begun, original = threading.Event(), engine._executor._check
engine._executor._check = lambda check: (begun.set(), original(check))
for _ in range(2):
    engine.generate('<prompt schema="s"><a/><b/>Well?</prompt>', max_new_tokens=1)
assert begun.wait(60)
"""


@pytest.mark.process
def test_the_interpreter_ends_during_a_promotion() -> None:
    """At exit, a forward pass in idle time ends within a layer, and nothing is aborted."""
    ended = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120, check=False)

    assert (ended.returncode, ended.stderr.strip()) == (0, "")


class Worker:
    """Works until it is interrupted, a number of times."""

    def __init__(self, num_pieces: int) -> None:
        self.activity = Activity()
        self.begun: list[float] = []
        self.num_interrupted = 0
        self._num_pieces = num_pieces
        self.thread = IdleThread(self.work, self.activity)

    def work(self, check: Callable[[], None]) -> bool:
        self.begun.append(time.monotonic())
        try:
            while len(self.begun) < self._num_pieces:
                check()
                time.sleep(0.001)
        except Interrupted:
            self.num_interrupted += 1
            raise
        return False


def test_a_request_interrupts_work_which_goes_on_later() -> None:
    """Work stops at its next check, and begins again once it has been quiet. The end stops it for good."""
    worker = Worker(3)
    worker.thread.start()
    wait_for(lambda: len(worker.begun) == 1)
    with worker.activity:
        wait_for(lambda: worker.num_interrupted == 1)
        time.sleep(2 * QUIET_S)
        assert len(worker.begun) == 1
    ended = time.monotonic()
    wait_for(lambda: len(worker.begun) == 2)
    assert worker.begun[1] - ended > QUIET_S / 2
    worker.thread.end()
    worker.thread.start()
    time.sleep(2 * QUIET_S)

    assert len(worker.begun) == worker.num_interrupted == 2
