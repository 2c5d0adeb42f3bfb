"""Results of an audit: the distance of a request from plain prefill, its shares, and advice.

Distances are mean KL divergences in nats over the places of plain prefill's greedy answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple, TypeVar

from promptcache.diagnostics import Short
from promptcache.layout import Level

EQUAL_GAIN = 0.0001
"""Largest difference of two gains that count as equal, in nats: a tenth of a millinat, the last digit that is shown."""

EQUAL_GAIN_SHARE = 0.01
"""The same as a share of the request's distance.

Rounding is far below in float32: kernels of several CPUs give gains of the demo model that differ by 5e-7 of the
distance. What a gain on one prompt says about others is much coarser; see `MIN_GAIN_SHARE` of advice.
"""

_Item = TypeVar("_Item")


class Cause(StrEnum):
    """Change of a rung of the ladder: the cuts of texts into tokens, their positions, or the context of modules."""

    TOKENS = "tokens"
    POSITIONS = "positions"
    CONTEXT = "context"

    @property
    def meaning(self) -> str:
        """What changes, in words."""
        return _MEANINGS[self]


_MEANINGS = {
    Cause.TOKENS: "cut into tokens where the schema cuts",
    Cause.POSITIONS: "gaps in positions",
    Cause.CONTEXT: "text that modules have not seen",
}


class AdviceKind(StrEnum):
    """Kind of a change that reduces the distance, the lowest price first.

    A text in one piece costs nothing, and a promotion costs memory once. A repair costs time in each request. A shorter
    slot and a required module restrict which prompts are valid.
    """

    TEXT = "text"
    PROMOTE = "promote"
    REPAIR = "repair"
    SLOT = "slot"
    REQUIRES = "requires"


class Distance(NamedTuple):
    """Distance between two predictions of one answer, at the end of the prompt and at each token of the answer.

    Attributes:
        divergence: Mean KL divergence of the next token from the other prediction, in nats.
        num_agreeing: Places with the same most probable next token.
        num_places: All compared places.
    """

    divergence: float
    num_agreeing: int
    num_places: int

    @property
    def agreement(self) -> float:
        """Share of places with the same most probable next token."""
        return self.num_agreeing / self.num_places

    @property
    def same_answer(self) -> bool:
        """Whether the most probable token is the same at every place, so that greedy answers are equal."""
        return self.num_agreeing == self.num_places


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Rung(Short):
    """Rung of the ladder from plain prefill to the cached request.

    Attributes:
        cause: What this rung changes in the one before.
        divergence: Mean KL divergence of plain prefill from this rung, in nats.
        agreement: Share of places with the most probable token of plain prefill.
        share: `divergence` minus that of the rung before; it may be negative.
    """

    cause: Cause
    divergence: float
    agreement: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModuleGain(Short):
    """Effect of computing one module again in the context of this prompt.

    Attributes:
        module: Its path; "" is the schema's text outside modules.
        num_tokens: Reused tokens, which are computed again.
        divergence: Mean KL divergence of plain prefill from the request with this module computed again, in nats.
        gain: The divergence of the request minus this one; it may be negative.
    """

    module: str
    num_tokens: int
    divergence: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice(Short):
    """Change that was tried and reduces the distance of this prompt.

    Attributes:
        kind: What changes.
        words: What to do.
        price: What it costs.
        gain: Reduction of the divergence in nats: of the cached request, or for `AdviceKind.TEXT` of the rung `tokens`.
    """

    kind: AdviceKind
    words: str
    price: str
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Audit(Short):
    """Distance of a cached request from ordinary prefill of the same text.

    Attributes:
        schema: Name of the schema.
        level: Level of the request.
        divergence: Mean KL divergence of plain prefill from the request, in nats.
        agreement: Share of places with the same most probable token.
        num_places: Number of compared places: the tokens of plain prefill's greedy answer.
        answer: The text of that answer.
        rungs: From plain prefill to the request. Their shares add up to `divergence`.
        modules: The reused modules, the largest gain first. Modules of equal gains are in the order of the prompt.
        advice: Changes that reduce the distance, the largest gain first. Changes of equal gains are in the order of
            `AdviceKind`, the lowest price first.

    Gains are compared as in `largest_first`, which states what depends on the machine.
    """

    schema: str
    level: Level
    divergence: float
    agreement: float
    num_places: int
    answer: str
    rungs: tuple[Rung, ...]
    modules: tuple[ModuleGain, ...]
    advice: tuple[Advice, ...] = field(default=())

    @property
    def same_answer(self) -> bool:
        """Whether the greedy answer of the request is that of plain prefill."""
        return self.agreement == 1.0

    @property
    def causes(self) -> tuple[Rung, ...]:
        """The rungs, the largest share first; those of equal shares in the order of the ladder."""
        return largest_first(self.rungs, lambda rung: rung.share, self.divergence)


def equal_gain(distance: float) -> float:
    """Return the largest difference of two gains that count as equal, for a request with this distance."""
    return max(EQUAL_GAIN, EQUAL_GAIN_SHARE * distance)


def largest_first(items: Iterable[_Item], gain: Callable[[_Item], float], distance: float) -> tuple[_Item, ...]:
    """Return items in descending order of their gains; items of equal gains keep their order.

    CPUs round differently, so the last digits of a gain say nothing. Two gains are equal if they differ by at most
    `equal_gain(distance)`, or if a chain of other gains leads from one to the other in such steps.

    So two items whose gains differ only by rounding have the same order on every machine. The order of two others
    depends on rounding only if a step between them equals `equal_gain` within rounding. An item may precede an item
    with a larger gain. The difference is at most `equal_gain` for each item of the chain.
    """
    ranked = sorted(enumerate(items), key=lambda each: -gain(each[1]))
    groups: list[list[tuple[int, _Item]]] = []
    last = 0.0
    for index, item in ranked:
        if not groups or last - gain(item) > equal_gain(distance):
            groups.append([])
        groups[-1].append((index, item))
        last = gain(item)
    return tuple(item for group in groups for _, item in sorted(group, key=itemgetter(0)))
