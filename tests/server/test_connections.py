"""The limit of connections, and of open files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from promptcache import Engine
from promptcache.diagnostics import InvalidValue
from promptcache.kv import StoreConfig, open_store
from promptcache.server.connections import raise_file_limit


def test_the_soft_limit_of_files_is_raised_and_a_low_hard_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections and the files of the store fit; otherwise the message has both numbers."""
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))

    raise_file_limit(512)
    with pytest.raises(InvalidValue, match=r"^1000 connections need 1381 open files, and this process may have 1000 "):
        raise_file_limit(1000)

    assert raised == [(1000, 1000)]


def test_a_store_with_more_files_than_the_limit_is_warmed(engine: Engine, tmp_path: Path) -> None:
    """What is stored is read from one file after another, so the limit of open files does not limit the store."""
    modules = "".join(f'<module name="m{number}">{number}</module>' for number in range(40))

    def started() -> Engine:
        made = Engine(
            engine.model, engine.tokenizer, store=open_store(StoreConfig(folder=tmp_path), engine.model.shape)
        )
        made.add_schema(f'<schema name="s"><union>{modules}</union></schema>')
        return made

    (first,) = started().warm()
    again = started()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, hard))
    try:
        (second,) = again.warm()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (first.num_encoded, second.num_encoded, second.faults) == (first.num_encodings, 0, ())
    assert first.num_encodings > 40
