"""One rule for every store that cannot be used: one warning for each reason, and `probe` raises."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from promptcache.diagnostics import TierUnavailable
from promptcache.engine import Engine
from promptcache.kv import BlobTier
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = '<schema name="t"><module name="a">Hi.</module></schema>'
PROMPT = '<prompt schema="t"><a/> x</prompt>'


def nobody_listens(_: Path) -> str:
    """A URL whose server does not answer."""
    return "ftp://127.0.0.1:1/x"


def below_a_file(folder: Path) -> str:
    """A folder that cannot be made."""
    (folder / "file").touch()
    return str(folder / "file" / "kept")


def without_a_subfolder(folder: Path) -> str:
    """A URL of a folder in which a file is where a folder is to be made."""
    (folder / "incoming").touch()
    return f"file://{folder}"


class Full(BlobTier):
    """The tier of a caller, without room."""

    def read(self, key: str) -> None:
        return None

    def write(self, key: str, data: bytes) -> None:
        raise OSError("no room")

    def delete(self, key: str) -> None:
        """Delete nothing."""

    def keys(self) -> tuple[str, ...]:
        return ()

    def probe(self) -> None:
        raise TierUnavailable("no room")


BAD = [nobody_listens, below_a_file, without_a_subfolder, lambda _: Full()]


def engine_of(store: object) -> Engine:
    """Return an engine over a store."""
    made = Engine(tiny_model(), ByteTokenizer(), store=store)  # type: ignore[arg-type] # a place or a config
    made.add_schema(SCHEMA)
    return made


@pytest.mark.parametrize("place", BAD)
def test_a_store_that_cannot_be_used_costs_one_warning_and_no_answer(
    place: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are answered. The log has one line for each reason, usage has the faults, and `warm` says what is lost."""
    with caplog.at_level(logging.WARNING):
        engine = engine_of(place(tmp_path))
        answers = [engine.generate(PROMPT, max_new_tokens=2) for _ in range(3)]
        (report,) = engine.warm()

    reasons = [record.getMessage().partition(": cannot ")[2].partition(": ")[2] for record in caplog.records]
    assert 1 <= len(reasons) == len({*reasons})
    assert answers[0].usage.faults
    assert list(report.not_kept.values()) == [report.num_encodings]
    with pytest.raises(TierUnavailable):
        engine.store.probe()
