"""The log-probabilities of texts that may continue a request.

Texts are computed together, in forward passes of at most `CHUNK_TOKENS` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from promptcache.diagnostics import InvalidValue, Kind, Short, is_text, shown
from promptcache.encode import CHUNK_TOKENS, Executor, grouped, prepare
from promptcache.layout import Encoding, Plan, RequestTokens
from promptcache.rows import Batch
from promptcache.tokenizer import Tokenizer

LOGITS_BYTES = 2**28
"""Maximum bytes of the logits that scoring holds at once, in float32."""

_CHOICES = Kind(
    "a list of texts, at least one and none of them empty,",
    lambda value: isinstance(value, list | tuple) and len(value) > 0 and all(is_text(each) and each for each in value),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Score(Short):
    """The log-probability of a text as the continuation of a prompt.

    Attributes:
        text: The text that was scored.
        token_ids: Its tokens.
        logprobs: The natural log-probability of each token, given the prompt and the tokens before it.
        is_greedy: Whether each token is the most probable one at its place, so that greedy decoding gives this text.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_greedy: bool

    @property
    def logprob(self) -> float:
        """The log-probability of the whole text."""
        return sum(self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """The log-probability per token: compares texts of different length."""
        return self.logprob / len(self.logprobs)


def tokenized_choices(choices: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the tokens of each text, which is tokenized by itself and has at least one."""
    _CHOICES.check("choices", choices, InvalidValue)
    tokenized = [tuple(tokenizer.tokenize(each)) for each in choices]
    if not all(tokenized):
        empty = choices[tokenized.index(())]
        raise InvalidValue(f"choices: {shown(empty)} has no tokens under this tokenizer; leave it out")
    return tokenized


def score(
    plan: Plan, texts: Sequence[str], choices: Sequence[tuple[int, ...]], executor: Executor
) -> tuple[Score, ...]:
    """Return the scores of texts that continue a prompt. `choices` has the tokens of each text, at least one."""
    executor.model.check_vocabulary([token_id for token_ids in choices for token_id in token_ids])
    logprobs: list[list[float]] = [[] for _ in choices]
    is_greedy = [True] * len(choices)
    for index, logits in _predictions(plan, choices, executor):
        start = len(logprobs[index])
        chosen = torch.tensor(choices[index][start : start + len(logits)], device=logits.device)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logprobs[index] += (wide.gather(1, chosen[:, None])[:, 0] - wide.logsumexp(1)).tolist()
        is_greedy[index] &= bool((wide.argmax(1) == chosen).all())
    return tuple(
        Score(text=text, token_ids=token_ids, logprobs=tuple(found), is_greedy=greedy)
        for text, token_ids, found, greedy in zip(texts, choices, logprobs, is_greedy, strict=True)
    )


def _predictions(
    plan: Plan, choices: Sequence[tuple[int, ...]], executor: Executor
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the index of each choice with logits `[n, V]` that predict its next n tokens, in one or several parts.

    The request's own tokens are computed once. Their KV is stored KV for the rows of the choices.
    """
    prepared = prepare(plan, executor)
    tokens, stored = prepared.plan.tokens, prepared.fetched.kv_of
    batch = Batch(executor.model, executor.copies)
    row = batch.join(tokens, stored)
    own_ids = tokens.token_ids
    for start in range(0, len(own_ids), CHUNK_TOKENS):
        last = batch.step([(row, own_ids[start : start + CHUNK_TOKENS])])
    for index in range(len(choices)):
        yield index, last
    own = Encoding(token_ids=own_ids, position_ids=tokens.position_ids, context=tokens.parts)
    held = {**stored, own: batch.own_kv(row)}
    # Other parts may lie between its tokens. No segment joins them: only the choices use this part, and `row` stays.
    parts, behind = (*tokens.parts, own.whole), tokens.position_ids[-1] + 1
    joining = (
        (index, RequestTokens(parts=parts, token_ids=fed, position_ids=tuple(range(behind, behind + len(fed)))))
        for index, fed in enumerate(token_ids[:-1] for token_ids in choices)
        if fed
    )
    limit = max(1, min(CHUNK_TOKENS, LOGITS_BYTES // (last.shape[1] * torch.float32.itemsize)))
    for group in grouped(joining, lambda each: len(each[1].token_ids), limit):  # one that is longer takes several steps
        rows = [batch.join(request, held) for _, request in group]
        for start in range(0, max(len(row.tokens.token_ids) for row in rows), limit):
            work = [(row, row.tokens.token_ids[start : start + limit]) for row in rows]
            logits = batch.step(work, num_last=None).split_with_sizes([len(token_ids) for _, token_ids in work])
            yield from zip((index for index, _ in group), logits, strict=True)
        for row in rows:
            batch.leave(row)
