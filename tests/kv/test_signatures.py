"""Every tier records signatures of models beside its encodings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from promptcache.kv import (
    BlobTier,
    Codec,
    MemoryStore,
    StoredEncoding,
    TieredStore,
    signature,
)
from promptcache.kv.files.disk import DiskTier
from promptcache.kv.files.remote import RemoteTier
from tests.kv.stored import random_stored, write

KEYS, VALUES = (torch.rand(2, 1, 3, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
TIERS: dict[str, Callable[[Path], BlobTier]] = {
    "disk": lambda folder: DiskTier(folder, budget_bytes=1),
    "file": lambda folder: RemoteTier(f"file://{folder}"),
    "object": lambda folder: RemoteTier(f"memory://{folder}"),
}


def computed(fingerprint: str = "model", error: float = 0.0) -> StoredEncoding:
    """Return the signature of a model that computes with an error."""
    return signature(fingerprint, (0, 1, 9), KEYS * (1 + error), VALUES)


FIRST, ROUNDED, OTHER, ANOTHER = computed(), computed(error=1e-5), computed(error=0.01), computed("another")


def store(*tiers: BlobTier) -> TieredStore:
    """Return a store over tiers, as a process opens it."""
    return TieredStore(MemoryStore(replace(FIRST.shape, device=torch.device("cpu"))), tiers)


def keys(tier: BlobTier, fingerprint: str = FIRST.recipe.fingerprint) -> list[str]:
    """Return the keys of the recorded signatures of a fingerprint."""
    place = tier.signatures(fingerprint)
    return [] if place is None else [*place.keys()]


@pytest.mark.parametrize("tier", TIERS)
def test_a_store_recognizes_the_models_that_it_has_seen(tier: str, tmp_path: Path) -> None:
    """A signature that agrees within rounding is recognized after a restart; others get keys of their own."""
    for each, known in ((FIRST, FIRST), (ROUNDED, FIRST), (OTHER, OTHER), (ANOTHER, ANOTHER), (FIRST, FIRST)):
        assert store(TIERS[tier](tmp_path)).recognize(each) == (known.recipe.key,)
    again = TIERS[tier](tmp_path)

    assert {*keys(again)} == {FIRST.recipe.key, OTHER.recipe.key}
    assert keys(again, ANOTHER.recipe.fingerprint) == [ANOTHER.recipe.key]
    assert (again.nbytes(), list(again.keys())) == (0, [])  # they are no encodings


@pytest.mark.parametrize("tier", ["disk", "file"])
def test_a_damaged_signature_is_recorded_again(tier: str, tmp_path: Path) -> None:
    """A damaged file is not compared, and hides no other."""
    recognize = lambda each: store(TIERS[tier](tmp_path)).recognize(each)  # noqa: E731 # each time a restart
    for each in (FIRST, OTHER):
        recognize(each)
    (path,) = (each for each in tmp_path.rglob(f"{FIRST.recipe.key}.*") if each.suffix == ".safetensors")
    before = path.read_bytes()
    path.write_bytes(before[:-1] + b"?")

    assert recognize(OTHER) == (OTHER.recipe.key,)
    assert recognize(FIRST) == (FIRST.recipe.key,)
    assert path.read_bytes() == before


def test_a_forged_signature_is_not_compared(tmp_path: Path) -> None:
    """A signature of another codec, or of other positions, is no fault and no signature of the model."""
    forgeries = [
        random_stored(replace(FIRST.recipe, codec=Codec.INT4), FIRST.shape),
        replace(FIRST, recipe=replace(FIRST.recipe, last_position=11)),
        random_stored(FIRST.recipe, replace(FIRST.shape, head_dim=4)),
    ]
    place = DiskTier(tmp_path).signatures(FIRST.recipe.fingerprint)
    for each in forgeries:
        write(place, each)

    assert store(DiskTier(tmp_path)).recognize(OTHER) == (OTHER.recipe.key,)


def test_tiers_together_recognize_what_one_has_seen(tmp_path: Path) -> None:
    """All signatures that agree are returned, those of the slowest tier first, and that one is written to all tiers."""
    tiers = [TIERS[name](tmp_path / name) for name in ("disk", "file")]
    store(tiers[0]).recognize(FIRST)
    store(tiers[1]).recognize(ROUNDED)

    assert store(*tiers).recognize(FIRST) == (ROUNDED.recipe.key, FIRST.recipe.key)
    assert {*keys(tiers[0])} == {FIRST.recipe.key, ROUNDED.recipe.key}
    assert keys(tiers[1]) == [ROUNDED.recipe.key]


def test_stores_without_records_take_every_model_for_itself() -> None:
    """A store in memory serves one process, where equal models compute equal KV."""
    in_memory = MemoryStore(replace(FIRST.shape, device=torch.device("cpu")))

    for each in (FIRST, ROUNDED, OTHER):
        assert store().recognize(each) == in_memory.recognize(each) == (each.recipe.key,)
