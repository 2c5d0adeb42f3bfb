"""Audit of one request: how far it is from ordinary prefill, and where the distance comes from.

Distances are mean KL divergences in nats over the places of plain prefill's greedy answer. `advice.py` tries what would
reduce them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import torch

from promptcache.diagnostics import Short
from promptcache.layout import LayoutLeaf, LayoutNode, LeafKind, Level, Origin, Plan, Prefill, RequestTokens, recompute
from promptcache.runtime.executor import Executor
from promptcache.runtime.hf.linking import StopCheck, checked_cache
from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.tokenizer import Tokenizer

EQUAL_GAIN = 0.0001
"""Largest difference of two gains that count as equal, in nats: a tenth of a millinat, the last digit that is shown."""

EQUAL_GAIN_SHARE = 0.01
"""The same as a share of the request's distance.

Rounding is far below in float32: kernels of several CPUs give gains of the demo model that differ by 5e-7 of the
distance. What a gain on one prompt says about others is much coarser; see `MIN_GAIN_SHARE` of advice.
"""

_Item = TypeVar("_Item")


class Cause(StrEnum):
    """What a rung of the ladder changes: where texts are cut into tokens, their positions, or what modules see."""

    TOKENS = "tokens"
    POSITIONS = "positions"
    CONTEXT = "context"


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
        gain: By how much this is less than the divergence of the request; it may be negative.
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

    Gains are compared as `largest_first` does, which says what depends on the machine.
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


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """Adjacent tokens of a prompt that were tokenized together. A frame is BOS, or the header or footer of a turn."""

    token_ids: tuple[int, ...]
    is_frame: bool
    module: str


class Ladder:
    """Predictions of plain prefill at every place of its greedy answer, and distances from them.

    `Ladder(plan, …).of_plan(plan, executor)` is the distance of one request.

    Attributes:
        plan: The request.
        whole_ids: The tokens of plain prefill: the prompt's text, each text between two frames tokenized as a whole.
        answer_ids: Its greedy answer.
    """

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        max_new_tokens: int,
        check: StopCheck | None = None,
    ) -> None:
        """Compute the greedy answer after plain prefill.

        Args:
            check: Called in each layer of plain prefill. What it raises ends it.
        """
        self._check = check
        self.plan = plan
        self.model = executor.model
        self.pieces = tuple(prompt_pieces(plan, tokenizer))
        self._tokenizer = tokenizer
        self._executor = executor
        self.whole_ids = self._whole()
        self.answer_ids = _greedy(self.model, self.whole_ids, eos_ids, max_new_tokens, check)
        self.num_places = len(self.answer_ids)
        self._plain = self._predictions(self.whole_ids, range(len(self.whole_ids)))

    def rungs(self) -> tuple[Rung, ...]:
        """Return the rungs. A rung with the tokens and positions of the one before has its predictions, too."""
        cut = self.cut_ids
        positions = tuple(
            sorted(
                position
                for part in (*(each.part.position_ids for each in self.plan.reuse), self.plan.tokens.position_ids)
                for position in part
            )
        )
        apart = self._plain if cut == self.whole_ids else self._predictions(cut, range(len(cut)))
        placed = apart if positions == tuple(range(len(cut))) else self._predictions(cut, positions)
        cached = self._linked(self.plan.tokens, self._executor)
        rungs: list[Rung] = []
        before = 0.0
        for cause, found in zip(Cause, (apart, placed, cached), strict=True):
            distance = self._distance(found)
            share = distance.divergence - before
            rungs.append(Rung(cause=cause, divergence=distance.divergence, agreement=distance.agreement, share=share))
            before = distance.divergence
        return tuple(rungs)

    @property
    def cut_ids(self) -> tuple[int, ...]:
        """The tokens of the prompt as the schema cuts them."""
        return tuple(token_id for piece in self.pieces for token_id in piece.token_ids)

    def of_plan(self, plan: Plan, executor: Executor) -> Distance:
        """Return the distance of plain prefill from this plan of the prompt, or from another one."""
        return self._distance(self._linked(plan.tokens, executor))

    def of_tokens(self, token_ids: Sequence[int]) -> float:
        """Return the divergence of plain prefill from other tokens of the prompt, without gaps."""
        return self._distance(self._predictions(token_ids, range(len(token_ids)))).divergence

    def modules(self, divergence: float) -> Iterator[ModuleGain]:
        """Yield the gain of each reused module, for a request with this divergence."""
        layout = self.plan.layout
        counts: dict[str, dict[int, int]] = {}
        for reuse in self.plan.reuse:
            if not (layout.has_bos and reuse.run == 0):  # BOS attends to itself only
                runs = counts.setdefault(layout.runs[reuse.run].module, {})
                runs[reuse.run] = runs.get(reuse.run, 0) + reuse.part.num_tokens
        for module, runs in counts.items():
            found = self.of_plan(recompute(self.plan, runs), self._executor).divergence
            num_tokens = sum(runs.values())
            yield ModuleGain(module=module, num_tokens=num_tokens, divergence=found, gain=divergence - found)

    def _whole(self) -> tuple[int, ...]:
        token_ids: list[int] = []
        for is_frame, group in groupby(self.pieces, key=lambda piece: piece.is_frame):
            own = [token_id for piece in group for token_id in piece.token_ids]
            token_ids += own if is_frame else self._tokenizer.tokenize(self._tokenizer.detokenize(own))
        return tuple(token_ids)

    def _predictions(self, token_ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Return log-probabilities `[places, V]` from plain prefill of a prompt and the answer."""
        answer = self.answer_ids[:-1]
        after = range(positions[-1] + 1, positions[-1] + 1 + len(answer))
        logits = _plain_logits(self.model, (*token_ids, *answer), (*positions, *after), self.num_places, self._check)
        return logits.double().log_softmax(-1)

    def _linked(self, tokens: RequestTokens, executor: Executor) -> torch.Tensor:
        """Return log-probabilities `[places, V]` from linked KV."""
        answer = self.answer_ids[:-1]
        stop = tokens.position_ids[-1] + 1
        continued = RequestTokens(
            parts=tokens.parts,
            token_ids=(*tokens.token_ids, *answer),
            position_ids=(*tokens.position_ids, *range(stop, stop + len(answer))),
        )
        return executor.logits(continued)[-self.num_places :].double().log_softmax(-1)

    def _distance(self, found: torch.Tensor) -> Distance:
        if found is self._plain:
            return Distance(0.0, self.num_places, self.num_places)
        return compare_predictions(found, self._plain)


def equal_gain(distance: float) -> float:
    """Return the largest difference of two gains that count as equal, for a request with this distance."""
    return max(EQUAL_GAIN, EQUAL_GAIN_SHARE * distance)


def largest_first(items: Iterable[_Item], gain: Callable[[_Item], float], distance: float) -> tuple[_Item, ...]:
    """Return items in descending order of their gains; items of equal gains keep their order.

    CPUs round differently, so the last digits of a gain say nothing. Two gains are equal if they differ by at most
    `equal_gain(distance)`, or if a chain of other gains leads from one to the other in such steps.

    Two items whose gains are equal but for rounding therefore have the same order on every machine. The order of two
    others depends on rounding only if one of the steps between them is `equal_gain` but for rounding.

    An item may precede an item with a larger gain: at most by `equal_gain` for each item of the chain.
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


def compare_predictions(here: torch.Tensor, there: torch.Tensor) -> Distance:
    """Return the distance of `there` from `here`; both are log-probabilities `[places, V]`."""
    agreeing = here.argmax(-1) == there.argmax(-1)
    return Distance(mean_divergence(here, there), int(agreeing.sum()), len(agreeing))


def mean_divergence(here: torch.Tensor, there: torch.Tensor) -> float:
    """Return the mean KL divergence of `there` from `here` over places, in nats; both are log-probabilities
    `[places, V]`.
    """
    divergence = torch.nn.functional.kl_div(here, there, reduction="none", log_target=True).sum(-1).mean()
    return max(0.0, float(divergence))


def prompt_pieces(plan: Plan, tokenizer: Tokenizer) -> Iterator[TokenPiece]:
    """Yield the pieces of a prompt in position order."""
    owners = _TokenOwners(plan)
    tokens = [
        (position, token_id, owners.of_schema(place))
        for reuse in plan.reuse
        for position, place, token_id in zip(
            reuse.part.position_ids, reuse.places(plan.layout), reuse.part.token_ids, strict=True
        )
    ]
    for each in plan.prefill:
        for number, token_id in enumerate(each.token_ids):
            tokens.append((each.start + number, token_id, owners.of_new(each, each.place + number)))
    control = tokenizer.control_ids
    in_order = (
        (replace(owner, is_frame=True) if token_id in control else owner, token_id)
        for _, token_id, owner in sorted(tokens, key=itemgetter(0))
    )
    for owner, group in groupby(in_order, key=itemgetter(0)):
        yield TokenPiece(tuple(token_id for _, token_id in group), owner.is_frame, owner.module)


@dataclass(frozen=True, slots=True)
class _TokenOwner:
    """What a token was tokenized with: a piece of the schema, or a content or text of the prompt."""

    start: int
    is_of_prompt: bool
    is_frame: bool
    module: str


class _TokenOwners:
    """The owners of a prompt's tokens by their place in the layout."""

    def __init__(self, plan: Plan) -> None:
        layout = plan.layout
        runs = sorted(index for path in ("", *plan.selection.modules) for index in layout.runs_of[path])
        texts = (LeafKind.TEXT, LeafKind.SLOT)
        frames = {(leaf.run, leaf.start) for leaf in _leaves(layout.tree) if leaf.kind not in texts}
        self._owners = [
            _TokenOwner(piece.start, False, (run, piece.start) in frames, layout.runs[run].module)
            for run in runs
            for piece in layout.runs[run].pieces
        ]
        self._starts = [owner.start for owner in self._owners]

    def of_schema(self, place: int) -> _TokenOwner:
        """Return the owner of a token of the schema."""
        return self._owners[bisect_right(self._starts, place) - 1]

    def of_new(self, prefill: Prefill, place: int) -> _TokenOwner:
        """Return the owner of a new token: a content, a text that the prompt adds, or a text of the schema.

        Boundary tokens lie in the range of a slot. They have its module, and are no frame.
        """
        match prefill.origin:
            case Origin.ARGUMENT | Origin.DEFAULT | Origin.TEXT:
                return _TokenOwner(prefill.place, True, False, prefill.module)
            case Origin.HEADER | Origin.FOOTER:
                return _TokenOwner(prefill.place, True, True, "")
        return self.of_schema(place)


def _leaves(nodes: Sequence[LayoutNode | LayoutLeaf]) -> Iterator[LayoutLeaf]:
    for node in nodes:
        if isinstance(node, LayoutLeaf):
            yield node
        else:
            yield from _leaves(node.children)


@torch.no_grad()
def _plain_logits(
    model: Model, token_ids: Sequence[int], positions: Sequence[int], num_last: int, check: StopCheck | None
) -> torch.Tensor:
    """Return the logits `[num_last, V]` of the last tokens, from one plain causal pass at explicit positions."""
    start = len(token_ids) - num_last
    cache = checked_cache(model.plain_cache(model.shape.num_layers), check)
    if start:
        tokens, places, mask = _inputs(model, token_ids, positions, 0, start)
        model.encode(tokens, places, cache, mask)
    tokens, places, mask = _inputs(model, token_ids, positions, start, len(token_ids))
    return model.forward(tokens, places, cache, mask)[0]


@torch.no_grad()
def _greedy(
    model: Model, token_ids: Sequence[int], eos_ids: Sequence[int], max_new_tokens: int, check: StopCheck | None
) -> tuple[int, ...]:
    """Return the most probable continuation of a prompt, the end token included."""
    cache = checked_cache(model.plain_cache(model.shape.num_layers), check)
    all_ids, start = list(token_ids), 0
    while len(all_ids) < len(token_ids) + max_new_tokens and not (start and all_ids[-1] in eos_ids):
        stop = len(all_ids)
        if start == 0 and stop > 1:
            tokens, places, mask = _inputs(model, all_ids, range(stop), 0, stop - 1)
            model.encode(tokens, places, cache, mask)
            start = stop - 1
        tokens, places, mask = _inputs(model, all_ids, range(stop), start, stop)
        all_ids.append(int(model.forward(tokens, places, cache, mask)[0, -1].argmax()))
        start = stop
    return tuple(all_ids[len(token_ids) :])


def _inputs(
    model: Model, token_ids: Sequence[int], positions: Sequence[int], start: int, stop: int
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return token IDs and positions `[1, T]` of the tokens `[start, stop)`, and their causal mask over `stop` keys."""
    places = torch.tensor(list(positions[:stop]))
    sees = torch.ones((stop - start, stop), dtype=torch.bool).tril(start)
    mask = model.attention_masks(sees, places[start:, None] - places[None, :])
    return (
        token_tensor(token_ids[start:stop], model.device),
        token_tensor(list(positions[start:stop]), model.device),
        mask,
    )
