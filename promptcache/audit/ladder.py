"""The ladder from plain prefill to a cached request: its tokens, then its positions, then what its modules see.

`advice.py` tries what would reduce the distance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch

from promptcache.audit.report import Cause, Distance, ModuleGain, Rung
from promptcache.layout import (
    LayoutLeaf,
    LayoutNode,
    LeafKind,
    Origin,
    Plan,
    Prefill,
    RequestTokens,
    recompute,
    runs_in_use,
)
from promptcache.runtime import Executor, Model, token_tensor
from promptcache.tokenizer import Tokenizer


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
    ) -> None:
        """Compute the greedy answer after plain prefill."""
        self.plan = plan
        self.model = executor.model
        self.pieces = tuple(prompt_pieces(plan, tokenizer))
        self._executor = executor
        self.whole_ids = joined_ids(self.pieces, tokenizer)
        self.answer_ids = _greedy(self.model, self.whole_ids, eos_ids, max_new_tokens)
        self.num_places = len(self.answer_ids)
        self._plain = self._predictions(self.whole_ids, range(len(self.whole_ids)))

    def rungs(self) -> tuple[Rung, ...]:
        """Return the rungs. A rung with the tokens and positions of the rung before it has the same predictions."""
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
        """Return the distance of plain prefill from this plan or another plan of the prompt."""
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

    def _predictions(self, token_ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Return log-probabilities `[places, V]` from plain prefill of a prompt and the answer."""
        answer = self.answer_ids[:-1]
        after = range(positions[-1] + 1, positions[-1] + 1 + len(answer))
        logits = _plain_logits(self.model, (*token_ids, *answer), (*positions, *after), self.num_places)
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


def joined_ids(pieces: Sequence[TokenPiece], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens of the text of pieces, with each text between two frames tokenized as a whole."""
    token_ids: list[int] = []
    for is_frame, group in groupby(pieces, key=lambda piece: piece.is_frame):
        own = [token_id for piece in group for token_id in piece.token_ids]
        token_ids += own if is_frame else tokenizer.tokenize(tokenizer.detokenize(own))
    return tuple(token_ids)


@dataclass(frozen=True, slots=True)
class _TokenOwner:
    """Text that a token belongs to: a piece of the schema, or a content or text of the prompt."""

    start: int
    is_of_prompt: bool
    is_frame: bool
    module: str


class _TokenOwners:
    """The owners of a prompt's tokens by their place in the layout."""

    def __init__(self, plan: Plan) -> None:
        layout = plan.layout
        texts = (LeafKind.TEXT, LeafKind.SLOT)
        frames = {(leaf.run, leaf.start) for leaf in _leaves(layout.tree) if leaf.kind not in texts}
        self._owners = [
            _TokenOwner(piece.start, False, (run.index, piece.start) in frames, run.module)
            for run in runs_in_use(layout, plan.selection.modules)
            for piece in run.pieces
        ]
        self._starts = [owner.start for owner in self._owners]

    def of_schema(self, place: int) -> _TokenOwner:
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
def _plain_logits(model: Model, token_ids: Sequence[int], positions: Sequence[int], num_last: int) -> torch.Tensor:
    """Return the logits `[num_last, V]` of the last tokens, from one plain causal pass at explicit positions."""
    start = len(token_ids) - num_last
    cache = model.plain_cache(model.shape.num_layers)
    if start:
        tokens, places, mask = _inputs(model, token_ids, positions, 0, start)
        model.encode(tokens, places, cache, mask)
    tokens, places, mask = _inputs(model, token_ids, positions, start, len(token_ids))
    return model.forward(tokens, places, cache, mask)[0]


@torch.no_grad()
def _greedy(model: Model, token_ids: Sequence[int], eos_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
    """Return the most probable continuation of a prompt, the end token included."""
    cache = model.plain_cache(model.shape.num_layers)
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
