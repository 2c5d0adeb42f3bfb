"""Pairs of modules are encoded in idle time, before a request has them one behind the other."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

import pytest

from promptcache import Engine
from promptcache.kv import MemoryStore, Store
from promptcache.runtime import Model, PairEncoder, PairsAhead
from promptcache.runtime.idle import Interrupted
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.engine.promoting import GREEDY, never

SCHEMA = f"""<schema name="s">Root.{"".join(f'<module name="{each}">text of {each}</module>' for each in "abcde")}
<collection name="notes"><module name="x">xi</module></collection></schema>"""


def engine_of(model: Model | None = None, store: Store | Path | None = None, **options: object) -> Engine:
    """Return an engine whose threads never work in idle time: the caller does."""
    with patch("promptcache.engine.choose_linking"):
        engine = Engine(model or tiny_model(), ByteTokenizer(), store=store, promote="auto", **options)  # type: ignore[arg-type]
    engine.add_schema(SCHEMA)
    assert engine._promoter is not None
    engine._promoter.end()
    encoder_of(engine).end()
    return engine


def encoder_of(engine: Engine) -> PairEncoder:
    assert engine._pair_encoder is not None
    return engine._pair_encoder


def ask(engine: Engine, modules: Iterable[str]) -> int:
    """Ask for modules, and return the number of tokens that were encoded for it."""
    prompt = f'<prompt schema="s">{"".join(f"<{each}/>" for each in modules)}?</prompt>'
    return engine.generate(prompt, **GREEDY).usage.num_encoded_tokens


def work(engine: Engine) -> None:
    while encoder_of(engine).work(never):
        pass


def waiting() -> Engine:
    """Return an engine whose pairs of three modules wait."""
    engine = engine_of()
    for module in "abc":
        ask(engine, module)
    encoder_of(engine).work(never)
    assert (stored_pairs(engine), engine.stats().pairs.num_waiting) == ([], 3)
    return engine


def stored_pairs(engine: Engine) -> list[str]:
    """Return the pairs that are in memory, such as "ac", the later module last."""
    pairs = engine._catalog.find("s").pair_encodings()
    return [pair.previous + pair.path for pair in pairs if not engine._executor.absent([pair.encoding])]


def test_requests_do_not_wait_for_pairs_of_known_modules() -> None:
    """Once requests have selected modules, in whatever company, all pairs of them are there."""
    engine = engine_of()
    for modules in ("ab", "c", "e"):
        ask(engine, modules)
    work(engine)

    assert [ask(engine, modules) for modules in ("abc", "ace", "be", "abce")] == [0, 0, 0, 0]
    assert "d" not in "".join(stored_pairs(engine))
    assert ask(engine, "ad") > 0


def test_figures_count_what_was_encoded() -> None:
    """Pairs that a request encoded are not among them."""
    engine = engine_of()
    ask(engine, "abc")
    work(engine)

    (found,) = (pair.encoding for pair in engine._catalog.find("s").pair_encodings({"a", "c"}))
    size = found.num_tokens * engine.model.shape.token_bytes
    assert engine.stats().pairs == PairsAhead(num_encoded=1, num_waiting=0, nbytes=size)


def test_near_modules_come_first() -> None:
    """Modules between which the fewest others can be are neighbours most often."""
    engine = engine_of()
    for module in "abce":
        ask(engine, module)
    order: list[str] = []
    for _ in range(7):  # the first one lists them
        encoder_of(engine).work(never)
        order += [each for each in stored_pairs(engine) if each not in order]

    assert order == ["ab", "bc", "ce", "ac", "be", "ae"]


def test_an_interrupted_pair_waits_again() -> None:
    """If a request arrives, nothing is stored, and the pair is encoded later."""
    engine = waiting()

    def check() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        encoder_of(engine).work(check)
    assert (stored_pairs(engine), engine.stats().pairs.num_waiting) == ([], 3)
    work(engine)
    assert stored_pairs(engine) == ["ab", "ac", "bc"]


@pytest.mark.parametrize("num_tokens", [0, 10, 30])
def test_their_kv_has_a_limit(num_tokens: int) -> None:
    """It is that of promotions."""
    limit = num_tokens * tiny_model().shape.token_bytes
    engine = engine_of(promote_bytes=limit)
    for module in "abcde":
        ask(engine, module)
    work(engine)

    assert engine.stats().pairs.num_encoded == num_tokens // 10
    assert engine.stats().pairs.nbytes <= limit


def test_evicted_pairs_leave_room_for_others() -> None:
    """The limit is one of the KV that is in memory."""
    engine = engine_of(promote_bytes=10 * tiny_model().shape.token_bytes)
    for module in "ab":
        ask(engine, module)
    work(engine)
    (pair,) = engine._catalog.find("s").pair_encodings({"a", "b"})
    engine.store.delete(engine._executor.key(pair.encoding))
    ask(engine, "c")
    work(engine)

    assert (stored_pairs(engine), engine.stats().pairs.num_encoded) == (["bc"], 2)


def test_they_do_not_evict_what_is_used() -> None:
    """With more than half of the memory budget in use, no pair is encoded ahead."""
    model = tiny_model()
    engine = engine_of(model, MemoryStore(model.shape, budget_bytes=120 * model.shape.token_bytes), history_bytes=0)
    for module in "abcde":
        ask(engine, module)
    work(engine)

    assert (stored_pairs(engine), engine.stats().pairs) == ([], PairsAhead())
    assert [ask(engine, module) for module in "abcde"] == [0] * 5


def test_a_new_member_changes_nothing() -> None:
    """Members come and go; the pairs of modules still wait."""
    engine = waiting()
    engine.add_member("s", "notes", "y", "ypsilon")
    work(engine)

    assert stored_pairs(engine) == ["ab", "ac", "bc"]


def test_a_replaced_schema_has_pairs_of_its_own() -> None:
    """What waited for the schema before is forgotten, and nothing of it is left."""
    engine = waiting()
    encoder_of(engine).work(never)
    (old,) = (pair for pair in engine._catalog.find("s").pair_encodings({"a", "b"}))
    engine.add_schema(SCHEMA.replace("text of", "other text of"))
    assert engine.stats().pairs == PairsAhead(num_encoded=1)
    assert engine._executor.absent([old.encoding])
    work(engine)
    assert stored_pairs(engine) == []
    ask(engine, "ac")
    work(engine)

    assert stored_pairs(engine) == ["ac"]


def test_folders_keep_them(tmp_path: Path) -> None:
    """An engine that starts again, or another one with the same folder, reads them."""
    first = engine_of(store=tmp_path)
    ask(first, "abc")
    work(first)
    second = engine_of(store=tmp_path)
    ask(second, "abc")
    with patch("promptcache.runtime.executor.compute", lambda *_: 1 / 0):
        work(second)

    assert second.stats().pairs.num_encoded == 1
    assert stored_pairs(second) == ["ab", "ac", "bc"]


def test_another_state_of_the_model_begins_again() -> None:
    """KV that waited for the weights of before is not encoded."""
    engine = waiting()
    with patch.object(engine._executor, "follow", lambda: -1):
        encoder_of(engine).work(never)

    assert engine.stats().pairs.num_waiting == 0


def test_a_failure_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the other pairs are encoded."""
    engine = waiting()
    with patch.object(engine._executor, "encode_in_idle_time", lambda *_, **__: 1 / 0):
        encoder_of(engine).work(never)
    work(engine)

    assert "module 'b' could not be encoded behind 'a'" in caplog.text
    assert stored_pairs(engine) == ["ac", "bc"]
    assert ask(engine, "ab") > 0


def test_without_promotion_nothing_is_encoded_ahead() -> None:
    """`promote="off"` does no work in idle time."""
    engine = Engine(tiny_model(), ByteTokenizer())
    engine.add_schema(SCHEMA)
    ask(engine, "abc")

    assert engine._pair_encoder is None
    assert engine.stats().pairs == PairsAhead()
