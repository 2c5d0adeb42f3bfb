"""Promotion: an answer is the modular or the exact one, says which, and no request waits for a promotion."""

from __future__ import annotations

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
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from promptcache import Engine, StoreConfig
from promptcache.diagnostics import InvalidValue, PromptCacheError
from promptcache.encode import check_linking
from promptcache.encode.idle import QUIET_S, Activity, IdleThread, Interrupted
from promptcache.layout import Level
from promptcache.model import Model
from promptcache.model.reference import plain_logits
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.engine import asking
from tests.engine.promoting import GREEDY, TEXTS, PromotingEngine, asked, engine_of, num_combined, work
from tests.families import random_model
from tests.planted.targets import module_of

PATIENCE_S = 20.0


def prompt(*modules: str, text: str = "Well?") -> str:
    return f'<prompt schema="s">{"".join(f"<{each}/>" for each in modules)}{text}</prompt>'


def promote(engine: Engine, *modules: str) -> None:
    """Ask for a combination, and do the work that then waits."""
    asked(engine, prompt(*modules))
    work(engine)


def is_promoted(engine: Engine, *modules: str) -> bool:
    return asked(engine, prompt(*modules)).usage.promoted


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: It does not within `PATIENCE_S`.
    """
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


@pytest.mark.parametrize(
    ("kind", "positions"), [("llama", "closed"), ("llama", "fixed"), ("mistral", "closed"), ("gemma3, text", "closed")]
)
def test_a_promoted_answer_is_the_models_own(kind: str, positions: str) -> None:
    """In float32, the probabilities of a promoted answer are those of one causal pass, without gaps the model's own."""
    model = tiny_model(torch.float32) if kind == "llama" else Model(random_model(kind, torch.float32))
    check_linking(model)
    engine = engine_of(model, positions=positions)
    modules = ("a", "c") if positions == "fixed" else ("a", "b", "c")
    promote(engine, *modules)
    completion = asked(engine, prompt(*modules))
    expected = plain_logits(completion.plan.tokens, model)[-1].log_softmax(-1)
    if positions == "closed":
        with torch.no_grad():
            expected = model.hf(torch.tensor([completion.plan.tokens.used_ids])).logits[0, -1].log_softmax(-1)

    assert completion.usage.promoted
    assert completion.logprobs is not None
    first = completion.logprobs[0]
    assert abs(first.logprob - float(expected[first.token_id])) < 1e-5


def test_quantized_modules_are_promoted() -> None:
    """KV of history is as the model computes it, whatever the codec of the modules is, and the answer says so."""
    engine = engine_of(tiny_model())
    engine.add_schema(TEXTS[0], keep="int8")
    modular = asked(engine, prompt("a", "b", "c"))
    promote(engine, "a", "b", "c")
    completion = asked(engine, prompt("a", "b", "c"))

    assert (modular.level, modular.lossy) == (Level.MODULAR, True)
    assert (completion.usage.promoted, completion.level, completion.lossy) == (True, Level.EXACT, False)


def test_a_failed_promotion_costs_no_answer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An error in idle time is logged, one of a call is raised; requests are answered as before, and may be promoted."""
    engine = engine_of(tiny_model())
    with monkeypatch.context() as patched:
        patched.setattr(engine._executor, "extend_history", lambda *_: 1 / 0)
        promote(engine, "a", "b", "c")
        with pytest.raises(ZeroDivisionError):
            engine.promote(prompt("a", "b", "c"))

    assert (engine.stats().promotions.num_waiting, engine.stats().promotions.num_combinations) == (0, 0)
    assert asked(engine, prompt("a", "b", "c")).level is Level.MODULAR
    assert "could not be promoted" in caplog.text
    assert engine.promote(prompt("a", "b", "c")) > 0
    assert is_promoted(engine, "a", "b", "c")


def test_a_promotion_serves_every_beginning() -> None:
    """The beginning of a promoted combination is exact at once, and a longer combination adds only what is behind it."""
    engine = engine_of(tiny_model())
    promote(engine, "a", "b")
    whole, beginning = (num_combined(engine.plan(prompt(*each))) for each in (("a", "b", "c"), ("a", "b")))

    assert engine.promote(prompt("a", "b", "c")) == whole - beginning
    promote(engine, "b", "c", "new")
    assert is_promoted(engine, "b", "c")


@pytest.mark.parametrize("positions", ["closed", "fixed"])
def test_a_combination_that_evicts_itself_ends(positions: str) -> None:
    """A combination that memory has no room for is given up, at once and in idle time."""
    model = tiny_model()
    store = StoreConfig(memory_bytes=400 * model.shape.token_bytes)
    engine = engine_of(model, store=store, positions=positions)
    texts = "".join(f'<module name="{name}">{name * 300}</module>' for name in "abcd")
    engine.add_schema(f'<schema name="long" context="guaranteed">{texts}</schema>')
    asked = '<prompt schema="long"><a/><b/><d/>Well?</prompt>'

    with pytest.raises(PromptCacheError, match="no room"):
        engine.promote(asked)
    for _ in range(2):
        engine.generate(asked, **GREEDY)
    work(engine)

    assert engine.stats().promotions.num_waiting == 0


def test_methods_without_answers_stay_modular() -> None:
    """Plans, logits, scores and links do not use promotions."""
    engine = engine_of(tiny_model())
    text = prompt("a", "b", "c")
    logits, scores = engine.logits(text), engine.score(text, ["yes"])
    promote(engine, "a", "b", "c")

    assert engine.plan(text).level is Level.MODULAR
    assert engine.logits(text).equal(logits)
    assert engine.score(text, ["yes"]) == scores
    assert is_promoted(engine, "a", "b", "c")


def test_promoted_kv_stays_in_memory(tmp_path: Path) -> None:
    """A folder has the schema's own KV only."""
    model = tiny_model()
    engine = engine_of(model, store=tmp_path)
    engine.warm()
    files = sorted(tmp_path.rglob("*.safetensors"))
    promote(engine, "a", "b", "c")

    assert is_promoted(engine, "a", "b", "c")
    assert files
    assert sorted(tmp_path.rglob("*.safetensors")) == files


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_a_call_promotes_at_once(mode: str) -> None:
    """`Engine.promote` computes what idle time would; with and without it, for cold and warm schemas."""
    engine = asking.engine_of(schema=TEXTS[0], promote=mode)
    before = asked(engine, prompt("a", "b"))
    figures = engine.stats().promotions

    assert engine.promote(prompt("a", "b", "c")) == num_combined(engine.plan(prompt("a", "b", "c")))
    assert engine.promote(prompt("a", "b", "c", text="Another text.")) == 0
    after = asked(engine, prompt("a", "b", "c"))

    assert (before.level, figures.num_combinations) == (Level.MODULAR, 0)
    assert (after.level, after.usage.promoted, after.usage.num_encoded_tokens) == (Level.EXACT, True, 0)
    figures = engine.stats().promotions
    waiting = int(mode == "auto")  # the first request
    assert (figures.num_combinations, figures.num_waiting, figures.num_hits) == (1, waiting, 1)
    assert not asked(engine, prompt("a", "b", "c"), deterministic=True).usage.promoted
    assert engine.promote(prompt("a", "b")) == 0  # the beginning of the other combination


def test_what_is_exact_needs_no_promotion() -> None:
    """One module, text without modules and a declared scaffold are exact: nothing is encoded."""
    engine = engine_of(tiny_model())
    engine.add_schema(TEXTS[0].replace("</schema>", '<scaffold modules="a b c"/></schema>'))

    assert [engine.promote(prompt(*each)) for each in ((), ("a",), ("new",), ("a", "b", "c"))] == [0, 0, 0, 0]
    assert engine.stats().promotions.num_combinations == 0


@pytest.mark.parametrize("is_called", [True, False])
def test_arguments_are_promoted_for_their_salt(is_called: bool) -> None:
    """Only requests with the same arguments and salt use the promotion, whatever their repair is."""
    engine = engine_of(tiny_model())
    text = '<prompt schema="s"><a/><b p="x"/><c/>Well?</prompt>'
    if is_called:
        engine.promote(text, salt="one")
    else:
        asked(engine, text, salt="one")
        work(engine)
    found = asked(engine, text, salt="one")

    assert (found.usage.promoted, found.level, found.usage.num_new_tokens) == (True, Level.EXACT, len("Well?"))
    assert asked(engine, text, salt="one", repair="first-1").usage.promoted
    assert not asked(engine, text, salt="two").usage.promoted
    assert not asked(engine, text.replace('"x"', '"y"'), salt="one").usage.promoted


def test_a_call_that_cannot_promote_is_refused() -> None:
    """The error names the room that memory has, or the history that there is not; nothing is left."""
    with pytest.raises(InvalidValue, match='promote="auto" keeps KV in history'):
        asking.engine_of(promote="auto", history=False)
    model = tiny_model()
    small = engine_of(model, store=StoreConfig(memory_bytes=8 * model.shape.token_bytes))
    none = asking.engine_of(model, schema=TEXTS[0], history=False)
    with pytest.raises(PromptCacheError, match="no room"):
        small.promote(prompt("a", "b"))
    with pytest.raises(InvalidValue, match="history=False"):
        none.promote(prompt("a", "b"))

    for engine in (small, none):
        figures = engine.stats().promotions
        assert (figures.num_combinations, figures.num_waiting) == (0, 0)


def test_text_that_is_not_cached_is_promoted() -> None:
    """A combination may begin with text that is not cached."""
    engine = Engine(tiny_model(), ByteTokenizer(bos=False))
    engine.add_schema(
        '<schema name="s" context="guaranteed"><module name="new" cache="false">late</module>'
        '<module name="a">alpha</module><module name="b">beta</module></schema>'
    )
    engine.promote(prompt("new", "a", "b"))

    assert is_promoted(engine, "new", "a", "b")


def test_threads_promote_together() -> None:
    """Calls of several threads, beside idle time, promote each combination once."""
    engine = asking.engine_of(schema=TEXTS[0], promote="auto")
    combinations = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c")] * 2
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: engine.promote(prompt(*each)), combinations))

    assert engine.stats().promotions.num_waiting == 0
    assert all(is_promoted(engine, *each) for each in combinations)


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
    """Without any call, a combination that came is promoted; a service uses it."""
    engine = asking.engine_of(schema=TEXTS[0], promote="auto")
    assert not asked(engine, prompt("a", "b"), "service").usage.promoted
    wait_for(lambda: engine.stats().promotions.num_combinations == 1)

    assert asked(engine, prompt("a", "b"), "service").usage.promoted
    assert engine.stats().promotions.num_hits == 1
    wait_for(lambda: not [each for each in threading.enumerate() if each.name == "promptcache-idle"])


def test_the_thread_does_not_keep_the_engine() -> None:
    """An engine is freed, and its thread ends, also while work waits for idle time."""
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
        self.interrupted: list[float] = []
        self._num_pieces = num_pieces
        self.thread = IdleThread(self.work, self.activity)

    def work(self, check: Callable[[], None]) -> bool:
        self.begun.append(time.monotonic())
        try:
            while len(self.begun) < self._num_pieces:
                check()
                time.sleep(0.001)
        except Interrupted:
            self.interrupted.append(time.monotonic())
            raise
        return False


def test_a_request_interrupts_work_which_goes_on_later() -> None:
    """Work stops at its next check, and begins again once it has been quiet."""
    worker = Worker(2)
    worker.thread.start()
    wait_for(lambda: len(worker.begun) == 1)
    with worker.activity:
        wait_for(lambda: len(worker.interrupted) == 1)
        time.sleep(2 * QUIET_S)
        assert len(worker.begun) == 1
    ended = time.monotonic()
    wait_for(lambda: len(worker.begun) == 2)

    assert worker.begun[1] - ended > QUIET_S / 2


def test_the_end_interrupts_work() -> None:
    """`end` returns once the thread has ended, and no later `start` has an effect."""
    worker = Worker(2)
    worker.thread.start()
    wait_for(lambda: len(worker.begun) == 1)
    worker.thread.end()
    worker.thread.start()
    time.sleep(2 * QUIET_S)

    assert len(worker.begun) == len(worker.interrupted) == 1
