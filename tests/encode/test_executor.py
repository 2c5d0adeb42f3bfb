"""The executor: KV of encodings from any schema or none, encoded by any thread, in chains, batches and chunks."""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache import Engine
from promptcache.diagnostics import Cancelled, UnknownSchema
from promptcache.encode import encode as encode_module
from promptcache.encode.encode import Chain, compute, encoding_batches, num_tokens_of
from promptcache.encode.executor import Executor, Fetched
from promptcache.kv import KV, FileTier, KVMemory, Store
from promptcache.language import CheckedSchema, check_schema, parse_schema
from promptcache.layout import Encoding
from promptcache.model.model import Model
from promptcache.planning import ServedSchema, serve_schema
from promptcache.rows.coalesce import Copies
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests import strategies
from tests.laws.faults import RefusingStore, always

MODEL = tiny_model()


def executor(copies: Copies | None = None) -> Executor:
    return Executor(MODEL, Store(MODEL.shape), lambda: "tiny", copies)


def state_of(xml: str) -> ServedSchema:
    return serve_schema(check_schema(parse_schema(xml)), ByteTokenizer(), MODEL.context_length)


def test_an_encoding_without_memory_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass that ran out of memory is run again when KV was evicted."""
    (wanted, *_) = state_of('<schema name="one"><module name="a">A text.</module></schema>').encodings
    expected = executor().fetch([wanted]).kv_of[wanted]
    memory, failed = KVMemory(MODEL.shape), []
    made = executor(Copies(MODEL, memory))
    handle = memory.allocate(3, 1.0)
    assert handle is not None
    assert memory.keep("copies", handle, 1.0)
    encode = Model.encode

    def without_memory(*args: Any) -> None:
        encode(*args)
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Model, "encode", without_memory)
    found = made.fetch([wanted]).kv_of[wanted]

    assert failed
    assert torch.equal(found.keys, expected.keys)
    assert torch.equal(found.values, expected.values)


def test_locks_are_free_between_forward_passes() -> None:
    modules = "".join(f'<module name="m{number}">{"text " * 300}{number}</module>' for number in range(2))
    state, made = state_of(f'<schema name="s">{modules}</schema>'), executor()
    other: list[Fetched] = []

    def progress(*_: int) -> None:
        if not other:
            thread = threading.Thread(target=lambda: other.append(made.fetch(state.encodings)), daemon=True)
            thread.start()
            thread.join(60)

    fetched = made.fetch(state.encodings, progress)

    assert fetched.encoded | other[0].encoded == {*state.encodings}
    assert fetched.encoded
    assert other[0].encoded
    assert not fetched.encoded & other[0].encoded  # the rest was found


def sharing(folder: Path) -> Executor:
    """Return the executor of another replica, with memory of its own and a folder for all."""
    return Executor(MODEL, Store(MODEL.shape, (FileTier(folder),)), lambda: "tiny")


def test_replicas_encode_what_no_other_replica_encodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If two replicas miss modules of which they share one, each module is encoded once, and neither waits first."""
    modules = "".join(f'<module name="{name}">The text of {name}.</module>' for name in "abc")
    root, a, b, c = state_of(f'<schema name="s" context="guaranteed">{modules}</schema>').encodings
    sharing(tmp_path / "kept").fetch((root,))
    computed: list[tuple[str, Encoding]] = []
    begun, second_done = threading.Event(), threading.Event()

    def paused(model: Model, batch: Sequence[Chain], held: Mapping[Encoding, KV]) -> Iterator[tuple[Any, Any]]:
        name = threading.current_thread().name
        if name == "first":
            begun.set()
            assert second_done.wait(60)
        computed.extend((name, link) for chain in batch for link in chain)
        yield from compute(model, batch, held)
        if name == "second":
            second_done.set()

    monkeypatch.setattr("promptcache.encode.executor.compute", paused)
    fetched: dict[str, Fetched] = {}

    def fetch(name: str, wanted: tuple[Encoding, ...]) -> threading.Thread:
        made = sharing(tmp_path / "kept")
        thread = threading.Thread(target=lambda: fetched.update({name: made.fetch(wanted)}), name=name, daemon=True)
        thread.start()
        return thread

    threads = [fetch("first", (a, b))]
    assert begun.wait(60)
    threads.append(fetch("second", (b, c)))
    for thread in threads:
        thread.join(60)

    assert computed[0] == ("second", c)
    assert Counter(computed[1:]) == {("first", a): 1, ("first", b): 1}
    assert {name: (each.kv_of.keys(), each.encoded) for name, each in fetched.items()} == {
        "first": ({a, b}, {a, b}),
        "second": ({b, c}, {c}),
    }


def test_many_small_modules_are_claimed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass has at most 64 chains where claims are made, so that open files do not run out; all are encoded."""
    modules = "".join(f'<module name="m{number}">m{number}</module>' for number in range(150))
    wanted = state_of(f'<schema name="s">{modules}</schema>').encodings
    passes: list[Sequence[Chain]] = []

    def noted(model: Model, batch: Sequence[Chain], held: Mapping[Encoding, KV]) -> Iterator[tuple[Any, Any]]:
        passes.append(batch)
        return compute(model, batch, held)

    monkeypatch.setattr("promptcache.encode.executor.compute", noted)
    sharing(tmp_path).fetch(wanted)
    claimed = [*passes]
    passes.clear()
    executor().fetch(wanted)

    assert Counter(each for batch in claimed for chain in batch for each in chain) == dict.fromkeys(wanted, 1)
    assert max(map(len, claimed)) <= 64
    assert len(passes) < len(claimed)


def test_a_wait_for_another_replica_can_be_ended(tmp_path: Path) -> None:
    """While another replica encodes, progress is reported; if it raises, the wait ends and nothing is claimed."""
    encoding = state_of('<schema name="s">The text.</schema>').encodings[0]
    holder, waiter = (sharing(tmp_path / "kept") for _ in range(2))
    reports: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        reports.append((done, total))
        if len(reports) == 2:
            raise Cancelled("the request was cancelled")

    with holder.store.claim([[holder.key(encoding)]], 0), pytest.raises(Cancelled):
        waiter.fetch([encoding], progress, patience_s=600)

    assert reports == [(0, encoding.num_tokens)] * 2
    assert waiter.fetch([encoding], patience_s=0).encoded == {encoding}


def test_a_removed_schema_is_gone() -> None:
    engine = Engine(MODEL, ByteTokenizer())
    shared = '<module name="a">A shared text.</module>'
    for name, more in (("one", '<module name="b">More.</module>'), ("two", "")):
        engine.add_schema(f'<schema name="{name}">{shared}{more}</schema>')
    engine.warm()
    kept = engine.keys("two")
    engine.remove_schema("one")

    assert list(engine.schemas) == ["two"]
    assert set(kept) <= set(engine.store.keys())
    for call in (engine.remove_schema, engine.warm):
        with pytest.raises(UnknownSchema, match="two"):
            call("one")


def test_a_refusal_of_a_store_costs_no_answer() -> None:
    """KV that a store refuses serves its own request, which names the fault. The next one encodes it again."""
    wanted = state_of('<schema name="s">Root.<module name="a">A text.</module></schema>').encodings
    made = Executor(MODEL, RefusingStore(Store(MODEL.shape), always), lambda: "tiny")
    first, again = made.fetch(wanted), made.fetch(wanted)

    assert first.encoded == again.encoded == {*wanted}
    assert all("refused" in fault for fault in first.faults)
    for each, kv in executor().fetch(wanted).kv_of.items():
        assert torch.equal(first.kv_of[each].keys, kv.keys)


@given(schema=strategies.schemas(), limit=st.integers(1, 200), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=100)
def test_batches_hold_every_encoding_once_after_its_context(
    schema: CheckedSchema, limit: int, tokenizer: ByteTokenizer
) -> None:
    """Each encoding is computed once, after its context or later in the same chain."""
    made = encodings_of(schema, tokenizer)

    done: list[Encoding] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "CHUNK_TOKENS", limit)
        found = tuple(encoding_batches(made))
    for batch in found:
        assert len(batch) == 1 or sum(map(num_tokens_of, batch)) <= limit
        for chain in batch:
            assert {part.encoding for part in chain[0].context} <= set(done)
            for position, link in enumerate(chain):
                assert link.context == (*chain[0].context, *(each.whole for each in chain[:position]))
        done.extend(link for chain in batch for link in chain)

    assert sorted(done, key=made.index) == list(made)


def encodings_of(schema: CheckedSchema, tokenizer: ByteTokenizer) -> tuple[Encoding, ...]:
    return serve_schema(schema, tokenizer, MODEL.context_length).encodings
