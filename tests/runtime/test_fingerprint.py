"""Fingerprints: whatever changes KV changes them, nothing else does, and no weight is read twice for one."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from promptcache import Engine
from promptcache.runtime.hf import fingerprint, origin
from promptcache.tokenizer import DEMO_FOLDER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder that may be changed."""
    return Path(shutil.copytree(DEMO_FOLDER, tmp_path / "model"))


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where digests are remembered, also of small models and at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(origin, "MIN_BYTES", 0)
    monkeypatch.setattr(origin, "SETTLED_S", 0.0)
    return tmp_path / "cache" / "promptcache" / "weights"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all weights that were read for a fingerprint."""
    sizes: list[int] = []
    digest = fingerprint._weight_digest

    def counted(tensor: torch.Tensor) -> str:
        sizes.append(tensor.nbytes)
        return digest(tensor)

    monkeypatch.setattr(fingerprint, "_weight_digest", counted)
    return sizes


def loaded(folder: Path, **options: object) -> str:
    """The fingerprint of a model and tokenizer as an engine finds them."""
    return Engine.from_pretrained(folder, device="cpu", **options).fingerprint  # type: ignore[arg-type] # any option


def flip_a_weight(folder: Path) -> None:
    """Change one bit of the last weight, and set the time of modification back."""
    path = folder / "model.safetensors"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def set_in(name: str, change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    """Return what changes a JSON file."""

    def changed(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        change(data)
        (folder / name).write_text(json.dumps(data))

    return changed


def another_template(folder: Path) -> None:
    """Say hello in every turn."""
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + " ")


def scale_rope(config: dict[str, object]) -> None:
    """Stretch positions."""
    config["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}


CHANGES = {
    "a bit of a weight": flip_a_weight,
    "RoPE": set_in("config.json", scale_rope),
    "norm": set_in("config.json", lambda config: config.update(rms_norm_eps=0.5)),
    "vocabulary": set_in("tokenizer.json", lambda data: data.update(normalizer={"type": "Lowercase"})),
    "chat template": another_template,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_kv_changes_the_fingerprint(folder: Path, records: Path, change: str) -> None:
    """A changed weight, setting, tokenizer or template has another fingerprint, also when all before it is remembered."""
    before = loaded(folder)
    assert loaded(folder) == before
    CHANGES[change](folder)

    assert loaded(folder) != before


def test_another_dtype_is_another_fingerprint(folder: Path, records: Path) -> None:
    """KV of one dtype is never met by another, whichever was there first."""
    prints = [loaded(folder, dtype=dtype) for dtype in ("float32", "bfloat16", "float32", "bfloat16")]

    assert prints[0] == prints[2] != prints[1] == prints[3]


def test_another_context_length_matters_where_rope_depends_on_it(folder: Path, records: Path) -> None:
    """Dynamic RoPE is pinned to the context length, and that is part of the fingerprint."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    set_in("config.json", lambda config: config.update(rope_parameters=rope))(folder)

    assert loaded(folder, context_length=1024) != loaded(folder, context_length=2048)


def test_names_and_copies_do_not_matter(folder: Path, tmp_path: Path, records: Path) -> None:
    """A copy of the folder under another name has the same fingerprint."""
    assert loaded(folder) == loaded(Path(shutil.copytree(folder, tmp_path / "copy")))


def test_weights_are_read_once_for_each_state_of_their_folder(folder: Path, records: Path, read: list[int]) -> None:
    """Later starts read no weight; a change of any file makes the next one read them all."""
    first = loaded(folder)
    once = len(read)
    assert loaded(folder) == first
    assert len(read) == once > 0

    flip_a_weight(folder)
    assert loaded(folder) != first
    assert len(read) == 2 * once


def test_a_file_replaced_by_one_of_the_same_size_and_times_is_seen(folder: Path, records: Path) -> None:
    """A file moved in place of another has another inode and time of change, whatever its time of modification says."""
    before = loaded(folder)
    path, other = folder / "model.safetensors", folder / "other"
    shutil.copy2(path, other)
    other.rename(path)
    flip_a_weight(folder)

    assert loaded(folder) != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(path.read_text().replace('"weights": "', '"weights": "0')),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["empty", "no record", "too deep", "changed", "no text", "a folder"],
)
def test_a_damaged_record_is_no_record(
    folder: Path, records: Path, read: list[int], damage: Callable[[Path], object]
) -> None:
    """Whatever became of the record, the fingerprint is right; the weights are read once more."""
    first, once = loaded(folder), len(read)
    (record,) = records.iterdir()
    damage(record)

    assert loaded(folder) == first
    assert len(read) == 2 * once


def test_no_place_to_remember_costs_only_time(
    folder: Path, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the user's cache folder cannot be written, or is a file, every start reads the weights."""
    first = loaded(folder)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert loaded(folder) == first


def test_weights_changed_in_memory_are_not_recalled(folder: Path, records: Path) -> None:
    """Whoever writes to the weights between loading and the fingerprint gets another one, and nobody else does."""
    prints = []
    for factor in (1, 2, 1):
        loading = origin.Loading.begin(folder)
        model = LlamaForCausalLM.from_pretrained(folder)
        found = loading.finish(model, {})
        with torch.no_grad():
            if factor != 1:
                next(model.parameters()).mul_(factor)
        prints.append(fingerprint.model_fingerprint(model, "", found))

    assert prints[0] == prints[2] != prints[1]


def test_files_that_may_still_change_are_not_remembered(
    folder: Path, records: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written a moment ago may be written again within the same tick of the file system's clock."""
    monkeypatch.setattr(origin, "SETTLED_S", 3600.0)
    loaded(folder)
    once = len(read)
    loaded(folder)

    assert len(read) == 2 * once
    assert not records.exists()


def test_writers_at_once_leave_one_whole_record(folder: Path, records: Path) -> None:
    """However many processes start at once, a record is whole at every moment."""
    loading = origin.Loading.begin(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    weights, found = model.state_dict(), loading.finish(model, {})
    assert found is not None
    found.remember(weights, "f" * 64)
    seen = []

    def work() -> None:
        for _ in range(50):
            found.remember(weights, "f" * 64)
            seen.append(found.recall(weights))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {"f" * 64}
    assert [path.suffix for path in records.iterdir()] == [".json"]


def test_weights_of_inference_mode_are_not_remembered(folder: Path, records: Path) -> None:
    """Nothing counts what is written to such weights, so their digest is computed each time."""
    loading = origin.Loading.begin(folder)
    with torch.inference_mode():
        model = torch.nn.Linear(3, 3)

    assert loading.finish(model, {}) is None
