"""Loading only where it pays: figures are measured with a clock, kept in the folder, and used by whoever asks for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from promptcache import Engine, StoreConfig
from promptcache.diagnostics import StoreError
from promptcache.kv import DiskTier, KVShape, Pace, StoredEncoding, Tier, keep_pace, kept_pace, pace_name
from promptcache.runtime import pacing
from promptcache.runtime.completion import Source
from promptcache.runtime.pacing import Line, Load, line_through, measure_pace
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = '<schema name="books">The shelf holds:{}</schema>'.format(
    "".join(f'<module name="m{number}">Book {number}{" and more" * 2**number}.</module>' for number in range(6))
)
PROMPT = '<prompt schema="books"><m1/><m4/>Which?</prompt>'
LATENCY_S, BYTES_PER_S = 0.01, 2e6


@dataclass
class Clock:
    """Moves when it is told to, and a little whenever it is read."""

    now: float = 0.0
    tick_s: float = 0.0

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now


def engine(store: Any) -> Engine:
    """A small model that serves the books."""
    made = Engine(tiny_model(), ByteTokenizer(), store=store)
    made.add_schema(SCHEMA)
    return made


def keep(folder: Path, made: Engine, *, encode_tokens_per_s: float, fingerprint: str | None = None) -> None:
    """Say that the disk gives a million bytes a second, and how fast the model encodes."""
    pace = Pace(encode_tokens_per_s=encode_tokens_per_s, load_bytes_per_s={Tier.DISK: 1e6}, latency_s={})
    keep_pace(folder, pace_name(fingerprint or made.fingerprint, made.model.device), pace)


def sources(made: Engine) -> set[Source]:
    """Where the modules of a request came from."""
    return {each.source for each in made.generate(PROMPT, do_sample=False, max_new_tokens=2).usage.modules}


def test_kept_figures_say_where_to_load(tmp_path: Path) -> None:
    """With `pace="kept"` the disk is read where the folder's figures say that it is faster, and only there; nothing else
    is different."""
    first = engine(tmp_path)
    first.warm()
    answer = first.generate(PROMPT, do_sample=False, max_new_tokens=6).token_ids
    config = StoreConfig(folder=tmp_path, pace="kept")
    seen = []
    for encode_tokens_per_s in (None, 1e12, 1e-3):
        if encode_tokens_per_s is not None:
            keep(tmp_path, first, encode_tokens_per_s=encode_tokens_per_s)
        made = engine(config)
        seen.append(sources(made))
        assert made.generate(PROMPT, do_sample=False, max_new_tokens=6).token_ids == answer

    assert seen == [{Source.LOAD}, {Source.MISS}, {Source.LOAD}]


def test_nobody_goes_by_figures_without_asking(tmp_path: Path) -> None:
    """By default whatever is there is loaded, whatever figures the folder keeps; those of other models never count."""
    first = engine(tmp_path)
    first.warm()
    keep(tmp_path, first, encode_tokens_per_s=1e12)
    by_default = sources(engine(tmp_path))
    keep(tmp_path, first, encode_tokens_per_s=1e-3)
    keep(tmp_path, first, encode_tokens_per_s=1e12, fingerprint="another model")

    assert by_default == sources(engine(StoreConfig(folder=tmp_path, pace="kept"))) == {Source.LOAD}


def test_measuring_keeps_what_it_returns(tmp_path: Path) -> None:
    """An engine's figures are those that its folder keeps for the next one, and looking for them changes no encoding."""
    made = engine(StoreConfig(folder=tmp_path, disk_bytes=200_000))
    made.warm()
    files = {path: path.read_bytes() for path in (tmp_path / "encodings").iterdir()}

    pace = made.measure_pace("books")

    assert pace.encode_tokens_per_s > 0
    assert set(pace.load_bytes_per_s) == set(pace.latency_s) == {Tier.DISK}
    assert kept_pace(tmp_path, pace_name(made.fingerprint, made.model.device)) == pace
    assert {path: path.read_bytes() for path in (tmp_path / "encodings").iterdir()} == files


def test_encoding_is_measured_by_the_clock(tmp_path: Path) -> None:
    """Tokens per second are the tokens of one encoding with its context, over the middle time of several."""
    made = Engine(tiny_model(), ByteTokenizer(), store=tmp_path)
    made.add_schema('<schema name="one">Just this.</schema>')
    state = made._catalog.find("one")
    num_tokens = sum(each.num_tokens for each in state.encodings)  # its text attends to all that is before it

    pace = measure_pace(state, made._executor, tmp_path, Clock(tick_s=0.25))

    assert pace == Pace(encode_tokens_per_s=num_tokens / 0.25, load_bytes_per_s={}, latency_s={})


def test_loading_is_measured_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency and bytes per second are those of the place, told apart by encodings of many sizes."""
    made = engine(tmp_path)
    made.warm()
    clock = Clock(tick_s=1e-9)

    class SlowTier(DiskTier):
        """Takes its time."""

        def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
            found = super().read(key, shape)
            clock.now += LATENCY_S + (found.nbytes / BYTES_PER_S if found is not None else 0)
            return found

    monkeypatch.setattr(pacing, "open_blob_tiers", lambda config: (SlowTier(config.folder),))

    pace = measure_pace(made._catalog.find("books"), made._executor, StoreConfig(folder=tmp_path, pace="kept"), clock)

    assert pace.load_bytes_per_s == {Tier.DISK: pytest.approx(BYTES_PER_S, rel=1e-3)}
    assert pace.latency_s == {Tier.DISK: pytest.approx(LATENCY_S, rel=1e-3)}


@pytest.mark.parametrize(
    ("loads", "line"),
    [
        ([], None),
        ([(100, 0.5)], Line(200, 0)),
        ([(100, 3.0), (300, 5.0)], Line(100, 2.0)),
        ([(300, 5.0), (100, 3.0), (100, 3.0), (500, 7.0)], Line(100, 2.0)),
        ([(100, 0.5), (101, 0.5001)], Line(201 / 1.0001, 0)),  # sizes too much alike
        ([(100, 3.0), (300, 2.0)], Line(80, 0)),  # the larger one was faster
        ([(100, 0.1), (300, 5.0)], Line(400 / 5.1, 0)),  # nothing begins before it is asked for
    ],
)
def test_a_line_is_drawn_only_through_what_lies_apart(loads: Sequence[tuple[float, float]], line: Line | None) -> None:
    """Where sizes or times cannot tell a latency from a rate, all time is rate; no figure is ever below 0."""
    found = line_through([Load(*each) for each in loads])

    assert found == (None if line is None else pytest.approx(line))


@pytest.mark.parametrize("store", [None, "memory://nowhere", StoreConfig(memory_bytes=10**6)])
def test_figures_need_a_folder(store: Any) -> None:
    """An engine without a folder has no place to keep figures, and says so."""
    with pytest.raises(StoreError, match="this engine has none"):
        engine(store).measure_pace("books")
