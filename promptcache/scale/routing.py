"""The router: an order of replicas for each schema, by rendezvous hashing and load.

Requests of one schema meet the same replica, whose memory has its modules. If a replica is added or removed, only the
schemas that it gets or had move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import TypeVar

_T = TypeVar("_T")

SLACK = 4
"""Requests that the first replica of a schema may have more than the second one before the second one is preferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica as the router sees it.

    Attributes:
        name: Stays the same as long as the replica keeps its memory.
        load: Requests that it answers or that wait there.
        is_up: False if no request should go there at present.
    """

    name: str
    load: int = 0
    is_up: bool = True


def by_hash(schema: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the names of replicas, those with the largest weight for a schema first. Their given order is ignored."""
    start = f"{len(schema)}:{schema}"
    weights = {name: blake2b(f"{start}{name}".encode(errors="surrogatepass"), digest_size=8).digest() for name in names}
    return tuple(sorted(names, key=lambda name: (weights[name], name), reverse=True))


def is_crowded(load: int, mean: float) -> bool:
    """Return whether a replica has so many more requests than the mean that others should be preferred."""
    return load > mean + max(SLACK, mean / 4)


def by_load(order: Iterable[_T], load: Callable[[_T], int], mean: float) -> Iterator[_T]:
    """Yield replicas that are up in the order of `route`. Two replicas are read ahead, and no others.

    Args:
        order: All of them, by hash.
        load: Returns the requests of a replica.
        mean: The mean of their loads.
    """
    others = iter(order)
    preferred = [*islice(others, 2)]
    if len(preferred) == 2 and load(preferred[0]) - load(preferred[1]) > SLACK:
        preferred.reverse()
    crowded = []
    for each in chain(preferred, others):
        if is_crowded(load(each), mean):
            crowded.append(each)
        else:
            yield each
    yield from crowded


def route(schema: str, replicas: Collection[Replica]) -> tuple[Replica, ...]:
    """Return all replicas in the order in which a request should try them.

    1. The first two by hash, the second one before the first if it has at least 5 requests less.
    2. All others by hash.
    3. Replicas that are crowded: a schema that is asked more than two replicas can answer spreads further.
    4. Replicas that are down.

    Args:
        schema: The name of a schema, or any other text whose requests should meet the same replica.
    """
    by_name = {each.name: each for each in replicas}
    up = [by_name[name] for name in by_hash(schema, [each.name for each in replicas if each.is_up])]
    mean = sum(each.load for each in up) / max(1, len(up))
    down = [by_name[name] for name in by_hash(schema, [each.name for each in replicas if not each.is_up])]
    return (*by_load(up, lambda each: each.load, mean), *down)
