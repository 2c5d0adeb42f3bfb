"""Warming: encode all encodings of a schema, and more if asked, and write them to every tier of the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from promptcache.diagnostics import FLAG, FUNCTION, InvalidValue, Short
from promptcache.encode import Executor, Progress, grouped
from promptcache.kv import Tier, stored_bytes
from promptcache.layout import Encoding
from promptcache.planning import Catalog, ServedSchema

GROUP_TOKENS = 16_384
"""Maximum number of tokens that are fetched together. After each group, KV that the store does not keep is freed."""

PATIENCE_S = 1800.0
"""Seconds that warming waits for another process that encodes the same group."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WarmReport(Short):
    """Result of `Engine.warm` for one schema.

    Attributes:
        num_encodings: Number of the schema's encodings.
        num_encoded: Number of encodings that were computed.
        num_encoded_tokens: Tokens of these.
        nbytes: Stored bytes of all encodings of the schema.
        seconds: Time taken.
        found: Number of the other encodings by the tier that held them.
        not_kept: Number of encodings that a folder or URL of the store does not hold in the end, by its name.
        faults: Store faults, one sentence each. The last ones name the encodings that are not kept, and the reason.
    """

    schema: str
    num_encodings: int
    num_encoded: int
    num_encoded_tokens: int
    nbytes: int
    seconds: float
    found: Mapping[Tier, int]
    not_kept: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def warm(
    name: str | None,
    catalog: Catalog,
    executor: Executor,
    progress: Progress | None,
    *,
    members: bool,
    pairs: bool,
) -> tuple[WarmReport, ...]:
    """Encode a schema, or all of them if `name` is None; arguments and errors are those of `Engine.warm`."""
    FLAG.check("members", members, InvalidValue)
    FLAG.check("pairs", pairs, InvalidValue)
    (FUNCTION | None).check("progress", progress, InvalidValue)
    catalog.check_open()
    chosen = catalog.schemas if name is None else (catalog.find(name),)
    return tuple(_warm(each, catalog, executor, progress, members=members, pairs=pairs) for each in chosen)


def _warm(
    served: ServedSchema,
    catalog: Catalog,
    executor: Executor,
    progress: Progress | None,
    *,
    members: bool,
    pairs: bool,
) -> WarmReport:
    """Encode the missing encodings of a schema, group by group, and write them to every folder and URL of the store.

    An encoding that is in memory but missing in a folder or URL is written there. The report lists the encodings that
    a folder or URL does not hold in the end.

    Args:
        executor: The model and the store.
        progress: Called with the number of tokens done so far, found or encoded, and the number of all tokens.
            While they are counted, it is called with 0 and their number so far. If it raises, nothing more is encoded.
    """
    started = time.perf_counter()
    store = executor.store
    done, num_encoded, num_encoded_tokens = 0, 0, 0
    faults, found = list[str](), Counter[Tier]()
    executor.model.check_unchanged()
    lengths, total = dict[str, int](), 0

    def encodings() -> Iterator[Encoding]:  # made twice, so that very many need not be in memory together
        yield from served.encodings
        for path, encoding in served.more_encodings(members=members, pairs=pairs):
            catalog.describe(served.schema.name, {encoding: path})
            yield encoding

    def report(more: int, _: int = 0) -> None:
        if progress is not None:
            progress(min(done + more, total), total)

    for each in encodings():
        if (key := executor.key(each)) not in lengths:
            lengths[key] = each.num_tokens
            total += each.num_tokens
            report(0)
    keys = [*lengths]
    lacking = frozenset[str]().union(*store.lacking(keys).values())
    for group in grouped(encodings(), attrgetter("num_tokens"), GROUP_TOKENS):
        fetched = executor.fetch(group, report, patience_s=PATIENCE_S)
        num_encoded += len(fetched.encoded)
        num_encoded_tokens += fetched.num_encoded_tokens
        found.update(fetched.tiers.values())
        faults += fetched.faults
        for each, kv in fetched.kv_of.items():
            if each not in fetched.encoded and executor.key(each) in lacking:
                store.put(executor.recipe(each), kv.keys, kv.values)
        done += sum(each.num_tokens for each in group)
        report(0)
    not_kept = {place: len(lost) for place, lost in store.lacking(keys).items()}
    faults += store.faults()
    no_room = "its limit has no room for them beside newer ones; raise it"
    why = f"{faults[0]}; name another place" if faults else no_room
    for place, number in not_kept.items():
        faults.append(f"{number:,} of {len(keys):,} encodings are not kept in {place}: {why}")
    shape = executor.model.shape
    return WarmReport(
        schema=served.schema.name,
        num_encodings=len(keys),
        num_encoded=num_encoded,
        num_encoded_tokens=num_encoded_tokens,
        nbytes=sum(stored_bytes(served.codec, shape, number) for number in lengths.values()),
        seconds=time.perf_counter() - started,
        found=dict(found),
        not_kept=not_kept,
        faults=tuple(dict.fromkeys(faults)),
    )
