"""Claims of a remote tier over real file systems: replicas share the work, and no fault of a claim fails a request."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3fs

from promptcache.kv import DiskTier, MemoryStore, RemoteTier, TieredStore
from tests.kv.s3 import BUCKET, S3Server, s3_server
from tests.kv.stored import shape, small

WORK = [small(f"module {number}") for number in range(4)]
KEY = WORK[0].recipe.key
LEASE_S = 1.2


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    """Run one S3 server for this module."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return the S3 server, empty and without faults. The client repeats nothing by itself."""
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    running.empty()
    return running


@dataclass(frozen=True)
class Place:
    """A URL that replicas share."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def tier(self, lease_s: float = LEASE_S) -> RemoteTier:
        """Return the tier of another replica."""
        return RemoteTier(self.url, lease_s=lease_s, options=self.options)

    def claims(self) -> list[str]:
        """Return the names of the leases."""
        files, folder = self._folder()
        return [path.rpartition("/")[2] for path in files.ls(folder, detail=False)] if files.exists(folder) else []

    def renewals(self) -> int:
        """Return how often the lease of `KEY` was renewed. A local file that is being written counts as 0."""
        files, folder = self._folder()
        content = files.cat_file(f"{folder}/{KEY}")
        return json.loads(content)["renewals"] if content else 0

    def _folder(self) -> tuple[fsspec.AbstractFileSystem, str]:
        files, root = fsspec.core.url_to_fs(
            self.url, skip_instance_cache=True, use_listings_cache=False, **self.options
        )
        return files, f"{root}/claims"


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Return an empty place on each kind of file system."""
    if request.param == "s3":
        yield Place(f"s3://{BUCKET}/kept", request.getfixturevalue("s3").options())
    else:
        yield Place(f"file://{tmp_path}/kept")


def warm(tier: RemoteTier, made: Callable[[str], object]) -> None:
    """Write each missing encoding as the engine does: claim, look again, compute, write."""
    for each in WORK:
        key = each.recipe.key
        if tier.read(key) is None:
            with tier.claim(key, 60):
                if tier.read(key) is None:
                    time.sleep(0.02)  # time to encode
                    made(key)
                    tier.write(each)


def test_replicas_share_the_work_of_warming(place: Place) -> None:
    """Replicas that warm one URL at once compute each encoding once, and no lease is left."""
    made: list[str] = []
    tiers = [place.tier(lease_s=20) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda tier: warm(tier, made.append), tiers))

    assert sorted(made) == sorted(each.recipe.key for each in WORK)
    assert place.claims() == []


def test_a_store_claims_the_keys_that_are_free(place: Place, tmp_path: Path) -> None:
    """Machines with a folder each share the claims of the URL: each claims what no other one holds, without waiting."""
    keys = [each.recipe.key for each in WORK]
    one, other = (
        TieredStore(MemoryStore(shape()), (DiskTier(tmp_path / name), place.tier(20))) for name in ("one", "other")
    )
    with one.claim(keys[:2], 60) as claimed:
        assert claimed == {*keys[:2]}
        with other.claim(keys, 60) as rest:
            assert rest == {*keys[2:]}
            with one.claim(keys, 0.3) as none:
                assert none == frozenset()
    with other.claim(keys, 0) as everything:
        assert everything == {*keys}
    assert place.claims() == []


def test_a_claim_costs_three_requests(s3: S3Server) -> None:
    """A claim that no other replica wants costs a look, a creation and a removal."""
    tier = Place(f"s3://{BUCKET}/kept", s3.options()).tier(20)
    with tier.claim(KEY, 60) as held:
        assert held

    assert [method for method, path in s3.requests if "/claims/" in path] == ["HEAD", "PUT", "DELETE"]


FAULTS = {
    "all refused": ("refuse", ("HEAD", "GET", "PUT", "DELETE"), 1),
    "all answers lost": ("lose", ("HEAD", "GET", "PUT", "DELETE"), 1),
    "creations refused": ("refuse", ("PUT",), 1),
    "answers of creations lost": ("lose", ("PUT",), 0),  # the next look shows the lease
    "removals refused": ("refuse", ("DELETE",), 1),
    "answers of removals lost": ("lose", ("DELETE",), 0),
}
"""What fails, and the number of faults that are reported."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_claim_that_fails_fails_no_request(s3: S3Server, name: str) -> None:
    """If operations on a lease fail, the store goes on, with the claim or without it, and reports the fault."""
    what, methods, num_faults = FAULTS[name]
    place = Place(f"s3://{BUCKET}/kept", s3.options())
    store = TieredStore(MemoryStore(shape()), (place.tier(20),))
    s3.fault = lambda method, path: what if "/claims/" in path and method in methods else None

    with store.claim((KEY,), 5) as claimed:
        assert claimed == {KEY}

    faults = store.faults()
    assert len(faults) == num_faults
    assert all(re.match("remote: s3://shared/kept: cannot (release a )?claim: ", fault) for fault in faults)


def test_a_repeated_creation_is_recognised(s3: S3Server) -> None:
    """If the client repeats a creation whose answer was lost, the claimant still knows its own lease."""
    place = Place(f"s3://{BUCKET}/kept", s3.options(num_attempts=3))
    lost: list[str] = []

    def lose_first_creation(method: str, path: str) -> str | None:
        if method == "PUT" and "/claims/" in path and not lost:
            lost.append(path)
            return "lose"
        return None

    s3.fault = lose_first_creation
    with place.tier(20).claim(KEY, 0) as held:
        assert held
        assert lost
    assert place.claims() == []


def test_an_error_in_a_claim_stays_what_it_is(s3: S3Server) -> None:
    """If the removal of a lease fails after an error of the model, the error of the model is raised."""
    store = TieredStore(MemoryStore(shape()), (Place(f"s3://{BUCKET}/kept", s3.options()).tier(),))
    s3.fault = lambda method, path: "refuse" if method == "DELETE" else None

    with pytest.raises(ZeroDivisionError), store.claim((KEY,), 0):
        raise ZeroDivisionError
    assert len(store.faults()) == 1
