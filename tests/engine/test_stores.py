"""Stores of an engine: all ways to name one, faults of stores, and stores that engines share or find again."""

import gc
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from promptcache import Engine, StoreConfig
from promptcache.decode.completion import KVSource
from promptcache.diagnostics import StoreError
from promptcache.kv import Store, Tier
from promptcache.model import model
from promptcache.testing.tiny_model import tiny_model
from tests.engine.asking import engine_of
from tests.kv.stored import DictTier

pytestmark = pytest.mark.long

TRAVEL = """<schema name="travel">You plan trips.<module name="plan">Stay three days.</module>
<module name="city"><module name="beach">Miami has beaches.</module>Cities are loud.</module></schema>"""
PROMPT = '<prompt schema="travel"><plan/><city><beach/></city>Where to?</prompt>'
GREEDY = {"do_sample": False, "max_new_tokens": 4}


def engine(store: Any, **keep: str) -> Engine:
    return engine_of(schema=TRAVEL, store=store, **keep)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "encodings").iterdir()}


@pytest.mark.parametrize("kind", ["text", "path", "config", "url", "file url", "tier"])
def test_a_place_can_be_named_in_every_way(tmp_path: Path, kind: str) -> None:
    """A path, a URL, a `StoreConfig` and a `BlobTier` name a store: the next engine encodes nothing, and says so."""
    folder = tmp_path / "kept"
    store = {
        "text": str(folder),
        "path": folder,
        "config": StoreConfig(folder=folder, memory_bytes=10**6, disk_bytes=10**7),
        "url": f"memory://{folder}",
        "file url": f"file://{folder}",
        "tier": DictTier(),
    }[kind]
    first, other = engine(store).generate(PROMPT, **GREEDY), engine(store)
    second, third = (other.generate(PROMPT, **GREEDY) for _ in range(2))

    tier = Tier.REMOTE if kind in ("url", "tier") else Tier.DISK
    found = [{(each.source, each.tier) for each in usage.modules} for usage in (first.usage, second.usage, third.usage)]
    hits = {(source, Tier.MEMORY) for source in (KVSource.HIT, KVSource.HISTORY)}
    assert found == [{(KVSource.MISS, None)}, {(KVSource.LOAD, tier)}, hits]
    loaded_bytes = second.usage.num_reused_tokens * other.model.shape.token_bytes
    assert (second.usage.moved_bytes, second.usage.num_encoded_tokens, third.usage.moved_bytes) == (loaded_bytes, 0, 0)
    assert first.token_ids == second.token_ids == third.token_ids


def of_shape(**other: Any) -> tuple[Store, str]:
    shape = tiny_model().shape
    store = Store(replace(shape, **other))
    return store, f"{re.escape(str(store.memory.shape))}.*{re.escape(str(shape))}"


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("", "the path of a folder, or a URL, is expected"),
        (17, "store=17 is not allowed: a path, a URL, a StoreConfig, a BlobTier"),
        (object(), r"a StoreConfig, a BlobTier or the store of another engine"),
        ("zip://x::{folder}/gone.zip", "cannot use this URL as a store"),
        ("{folder}/file", "is not a folder"),
        *(of_shape(**other) for other in ({"dtype": torch.bfloat16}, {"num_kv_heads": 7})),
        of_shape(device=torch.device("meta")),
    ],
)
def test_what_cannot_be_a_store_is_refused_by_name(tmp_path: Path, store: object, words: str) -> None:
    """An invalid store is refused when the engine is made, not by the first request."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=words):
        engine(store.format(folder=tmp_path) if isinstance(store, str) else store)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StoreConfig(url="file:///kept"), "a URL of another machine"),
        (lambda: StoreConfig(disk_bytes=5), "there is none"),
        (lambda: engine(None).add_schema(TRAVEL, keep="int9"), "one of full, int8, int4 is expected"),
    ],
)
def test_settings_are_checked(make: Callable[[], object], words: str) -> None:
    """Settings that do not go together, and unknown codecs, are refused when they are given."""
    with pytest.raises(StoreError, match=words):
        make()


@pytest.mark.parametrize("is_loaded", [False, True])
def test_modules_with_priority_stay_in_memory(tmp_path: Path, is_loaded: bool) -> None:
    """Of modules that cost the same, the one with priority stays within the budget, also if it came first."""
    modules = "".join(f'<module name="{name}">{name * 16}</module>' for name in "kabcde")
    schema = f'<schema name="p">{modules}</schema>'.replace('"k"', '"k" priority="100"')
    config = StoreConfig(folder=tmp_path, memory_bytes=60 * tiny_model().shape.token_bytes)
    made = engine_of(schema=schema, store=config)
    if is_loaded:
        made.warm()
        made = engine_of(schema=schema, store=config)
    for name in "kabcdeabcdeabcde":
        made.logits(f'<prompt schema="p"><{name}/>?</prompt>')

    assert not made.store.absent(made.keys("p", "k"))
    assert made.store.absent(made.keys("p"))
    assert made.stats().memory_bytes == made.store.memory.nbytes() <= made.stats().budget_bytes == config.memory_bytes


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_quantized_and_full_share_a_folder_and_never_meet(tmp_path: Path, codec: str) -> None:
    """KV of one codec is never used for another; answers name their codec, and quantized KV is smaller."""
    full, lossy = engine(tmp_path), engine(tmp_path, keep=codec)
    (whole,) = full.warm()
    full_bytes = sum(map(len, files(tmp_path).values()))
    (small,) = lossy.warm()

    assert small.num_encoded == whole.num_encoded > 0
    assert small.nbytes < whole.nbytes
    assert sum(map(len, files(tmp_path).values())) < 2 * full_bytes
    assert (full.generate(PROMPT, **GREEDY).lossy, lossy.generate(PROMPT, **GREEDY).lossy) == (False, True)


def test_warm_says_what_was_there_and_what_went_wrong(tmp_path: Path) -> None:
    """The report counts every encoding once, encoded or found; progress ends at the schema's tokens."""
    told: list[tuple[int, int]] = []
    made = engine(tmp_path)
    (cold,) = made.warm(progress=lambda done, total: told.append((done, total)))
    (hot,), (restarted,) = made.warm(), engine(tmp_path).warm()

    assert [(each.num_encoded, dict(each.found), each.faults) for each in (cold, hot, restarted)] == [
        (cold.num_encodings, {}, ()),
        (0, {Tier.MEMORY: cold.num_encodings}, ()),
        (0, {Tier.DISK: cold.num_encodings}, ()),
    ]
    assert told == sorted(told)
    assert len(told) > 1
    assert told[-1] == (cold.num_encoded_tokens, cold.num_encoded_tokens)


def test_warming_again_writes_what_could_not_be_written(tmp_path: Path) -> None:
    """After a failed write, warming again writes the KV from memory, or reports the encodings that are not stored."""
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "kept"
    made = engine(folder)
    failed = [made.warm()[0] for _ in range(2)]
    (tmp_path / "file").unlink()
    (written,), (restarted,) = made.warm(), engine(folder).warm()

    for report in failed:
        assert dict(report.not_kept) == {str(folder): report.num_encodings}
        assert f"{report.num_encodings} of {report.num_encodings} encodings are not kept in" in report.faults[-1]
        assert report.faults[-1].endswith("Not a directory; name another place")
    assert (written.num_encoded, dict(written.not_kept), written.faults) == (0, {}, ())
    assert dict(restarted.found) == {Tier.DISK: restarted.num_encodings}


@pytest.mark.parametrize("codec", ["full", "int4"])
def test_warming_fills_a_lost_folder_and_a_new_url(tmp_path: Path, codec: str) -> None:
    """A folder that was removed gets the same files again, and a URL what it lacks. Nothing is encoded."""
    folder, url = tmp_path / "kept", f"memory://{tmp_path}/{codec}"
    engine(folder, keep=codec).warm()
    before, both = {*files(folder)}, engine(StoreConfig(folder=folder, url=url), keep=codec)
    (filled,) = both.warm()
    shutil.rmtree(folder)
    (again,) = both.warm()

    assert {*files(folder)} == before
    for report in (filled, again):
        assert (report.num_encoded, dict(report.not_kept), report.faults) == (0, {}, ())
    for place, tier in ((folder, Tier.DISK), (url, Tier.REMOTE)):
        assert dict(engine(place, keep=codec).warm()[0].found) == {tier: filled.num_encodings}


def test_warming_says_what_a_limit_has_no_room_for(tmp_path: Path) -> None:
    """The report counts encodings that later ones evicted."""
    engine(tmp_path / "whole").warm()
    largest, tight = max(map(len, files(tmp_path / "whole").values())), tmp_path / "tight"
    (report,) = engine(StoreConfig(folder=tight, disk_bytes=largest)).warm()

    lost = report.num_encodings - len(files(tight))
    assert 0 < lost < report.num_encodings
    assert dict(report.not_kept) == {str(tight): lost}
    assert report.faults == (
        f"{lost} of {report.num_encodings} encodings are not kept in {tight}: "
        "its limit has no room for them beside newer ones; raise it",
    )


def encoded_by(second: Any, store: Any) -> int:
    return engine_of(second, schema=TRAVEL, store=store).generate(PROMPT, **GREEDY).usage.num_encoded_tokens


def test_kv_in_memory_needs_no_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are read for a folder only, before layers are packed."""
    digests: list[object] = []
    digest = model.model_fingerprint
    monkeypatch.setattr(model, "model_fingerprint", lambda *args: digests.append(args) or digest(*args))

    alone = Engine.from_pretrained(pack=True)
    alone.add_schema(TRAVEL)
    alone.warm(pairs=True)
    assert alone.generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0
    assert not digests
    kept = Engine.from_pretrained(pack=True, store=tmp_path)
    assert len(digests) == 1
    assert kept.fingerprint == alone.fingerprint
    assert len(digests) == 2


def test_engines_share_a_store_if_their_models_are_alike() -> None:
    """The second engine finds the KV of the first one if the weights are the same, and not if one weight differs."""
    first = engine_of(tiny_model(), schema=TRAVEL)
    assert first.generate(PROMPT, **GREEDY).usage.num_encoded_tokens > 0

    other = tiny_model().hf
    with torch.no_grad():
        other.model.norm.weight[0] += 1
    for _ in range(2):
        assert encoded_by(tiny_model(), first.store) == 0
    assert encoded_by(other, first.store) > 0
    assert encoded_by(first.model, first.store) == 0


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_store_of_a_model_that_cannot_be_compared_is_not_shared(change: str) -> None:
    """If the first model was changed, or is gone, KV of a model with the same weights is encoded again."""
    first = engine_of(tiny_model(), schema=TRAVEL)
    first.generate(PROMPT, **GREEDY)
    store = first.store
    if change == "changed":
        with torch.no_grad():
            first.model.hf.model.norm.weight.mul_(2)
    else:
        del first
        gc.collect()

    assert encoded_by(tiny_model(), store) > 0
