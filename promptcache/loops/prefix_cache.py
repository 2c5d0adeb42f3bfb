"""`PrefixCache`: reuses the KV of repeated prefixes in a loop of the caller over plain token IDs.

It is a thin layer over a `History` of its own and the passes of a `Batch`. Positions of a row count its tokens from 0,
as without a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from promptcache.diagnostics import ContextLengthExceeded, InvalidValue, Unpicklable, shown
from promptcache.encode import CHUNK_TOKENS
from promptcache.kv import KV, Store
from promptcache.layout import RequestTokens
from promptcache.locks import new_lock
from promptcache.loops.frequent_prefixes import FrequentPrefix, frequent_prefixes
from promptcache.model import Model, PositionedCache, step_cache
from promptcache.rows import Batch, History, Recalled

_MIN_SHARED = 64
"""If rows of a batch share more new tokens than this, one forward pass computes these before the batch."""

_GROWTH = 0.25
"""Spare room of history: rows branch more often than they continue."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class ServingEngine(Protocol):
    """Members of an engine that a prefix cache needs."""

    model: Model
    store: Store


class PrefixHit(Unpicklable):
    """A batch with the KV that the cache has of it.

    Attributes:
        inputs: Keywords for one forward pass: `out = engine.model.hf(**hit.inputs)`. It has the new tokens of all rows
            side by side, without padding: `input_ids` and `position_ids` `[1, N]`.
        num_cached: For each row the number of tokens whose KV is reused; the last token is always computed.
    """

    _instead = "call get in the process that runs the model"

    def __init__(self, cache: PrefixCache, rows: Sequence[tuple[int, ...]]) -> None:
        self._cache = cache
        found = [cache._recall(token_ids) for token_ids in rows]
        self._found: Sequence[Recalled] | None = found
        self.num_cached = tuple(each.num_found for each in found)
        self._own = Batch(cache._model)
        self._own_rows = [self._own.join(each.tokens, {}, each) for each in found]
        self._pass = self._own.open([(row, row.tokens.token_ids) for row in self._own_rows])
        model = cache._model
        # The pass does not hold this cache: a cycle would keep stored KV in use until the garbage collector runs.
        step = PositionedCache(layers=step_cache(self._pass, model.shape.num_layers).layers)
        step.place(self._pass.positions, model.hf, model.guard)
        self.inputs: dict[str, Any] = {
            "input_ids": self._pass.token_ids,
            "position_ids": self._pass.position_ids,
            "attention_mask": None,
            "past_key_values": step,
            "use_cache": True,
        }
        if model.takes_logits_to_keep:
            self.inputs["logits_to_keep"] = torch.tensor(self._pass.last(), device=model.device)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.num_cached)} rows: {sum(self.num_cached)} tokens cached>"

    def last_logits(self, out: Any) -> torch.Tensor:
        """Return the logits `[B, V]` of each row's last token.

        Args:
            out: The output of the forward pass.

        Raises:
            InvalidValue: `out` is not the output of these inputs.
        """
        self._check(out)
        logits: torch.Tensor = out.logits[0]
        return logits if len(logits) == len(self.num_cached) else logits[self._pass.last()]

    def _check(self, out: Any) -> None:
        """Refuse an output that is not that of `inputs`."""
        if getattr(out, "past_key_values", None) is not self.inputs["past_key_values"] or not self._pass.is_computed:
            raise InvalidValue(
                "out is not the output of this hit's inputs: out = engine.model.hf(**hit.inputs) is expected"
            )

    def _take(self, cache: PrefixCache, out: Any) -> list[tuple[Recalled, KV]]:
        """Return what `PrefixCache.update` stores, once: for each row what was known, and the KV behind it."""
        if self._cache is not cache:
            raise InvalidValue("hit is of another PrefixCache: update the cache whose get returned it")
        if self._found is None:
            raise InvalidValue("hit was used before: each hit updates the cache once. Call get for the next batch")
        self._check(out)
        self._pass.finish()
        taken = [(each, self._own.own_kv(row)) for each, row in zip(self._found, self._own_rows, strict=True)]
        self._found = None
        return taken


class PrefixCache(Unpicklable):
    """KV of the prefixes of sequences of tokens, for a loop that calls the model itself. Thread-safe.

    ```python
    hit = cache.get(input_ids, attention_mask)
    out = engine.model.hf(**hit.inputs)
    logits = hit.last_logits(out)
    cache.update(hit, out)
    ```
    """

    _instead = "make one in each process"

    def __init__(self, engine: ServingEngine) -> None:
        """Create an empty cache in the memory of an engine's store.

        Args:
            engine: An `Engine`. Its modules and its own history are not affected, except that all are in one budget.

        Raises:
            InvalidValue: `engine` is no engine.
        """
        model, store = getattr(engine, "model", None), getattr(engine, "store", None)
        if not isinstance(model, Model) or not isinstance(store, Store):
            raise InvalidValue(f"engine={shown(engine)} is not allowed: an Engine is expected")
        self._model = model
        self._memory = store.memory
        self._history = History(self._memory, _GROWTH)
        self._lock = new_lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._model.facts.name}: {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes of all KV, with spare room."""
        return self._history.nbytes

    @torch.no_grad()
    def get(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> PrefixHit:
        """Return a batch with the KV of the longest known prefix of each row.

        A prefix that several rows share is computed here, once, if it has more than 64 new tokens.

        Args:
            input_ids: `[B, T]`. It is not changed.
            attention_mask: `[B, T]`, 0 for padding, left or right; None means no padding.

        Raises:
            InvalidValue: The tensors are wrong; names the row.
            ContextLengthExceeded: A row has more tokens than the model has positions.
            ModelChanged: The model is not as it was when the engine was made.
        """
        rows = _read_rows(input_ids, attention_mask, self._model)
        self._model.check_unchanged()
        most = self._memory.budget_bytes // self._model.shape.token_bytes
        for each in frequent_prefixes(rows, min_tokens=_MIN_SHARED + 1):
            if len(each.token_ids) <= most:
                self._fill(each.token_ids, _MIN_SHARED)
        return PrefixHit(self, rows)

    @torch.no_grad()
    def update(self, hit: PrefixHit, out: Any) -> int:
        """Keep the KV of the tokens that a forward pass computed, as far as there is room.

        Args:
            hit: The result of `get` of this cache. Each hit can be used once.
            out: The output of the forward pass over its inputs.

        Returns:
            The number of tokens that were stored.

        Raises:
            InvalidValue: The hit is of another cache or was used before, or `out` is not its output.
            ModelChanged: As for `get`; nothing is stored.
        """
        if not isinstance(hit, PrefixHit):
            raise InvalidValue(f"hit={shown(hit)} is not allowed: the result of get is expected")
        self._model.check_unchanged()
        with self._lock:
            taken = hit._take(self, out)
        return sum(self._history.keep(found, (), own) for found, own in taken)

    @torch.no_grad()
    def build(self, prefixes: Sequence[FrequentPrefix | Sequence[int]]) -> int:
        """Compute and keep the KV of prefixes, as far as there is room.

        Args:
            prefixes: Lists of token IDs, or results of `frequent_prefixes`.

        Returns:
            The number of tokens that were computed.

        Raises:
            InvalidValue: A prefix is not a list of token IDs of the model.
            ContextLengthExceeded: A prefix has more tokens than the model has positions.
            ModelChanged: As for `get`.
        """
        if not isinstance(prefixes, list | tuple):
            raise InvalidValue(f"prefixes={shown(prefixes)} is not allowed: a list of lists of token IDs is expected")
        lists = [each.token_ids if isinstance(each, FrequentPrefix) else each for each in prefixes]
        for index, each in enumerate(lists):
            if not isinstance(each, list | tuple) or not each or not all(type(token_id) is int for token_id in each):
                raise InvalidValue(
                    f"prefixes[{index}]={shown(each)} is not allowed: a list of token IDs is expected, at least one"
                )
            _check_tokens(each, f"prefixes[{index}]", self._model)
        return sum(self._fill(tuple(each), 1) for each in sorted(lists, key=len))

    def _recall(self, token_ids: tuple[int, ...]) -> Recalled:
        position_ids = tuple(range(len(token_ids)))
        return self._history.recall(RequestTokens(parts=(), token_ids=token_ids, position_ids=position_ids))

    def _fill(self, prefix: tuple[int, ...], least: int) -> int:
        """Compute and keep a prefix if it lacks more than `least` tokens; return the number of computed ones."""
        found = self._recall(prefix)
        if len(found.missing) <= least:
            return 0
        batch = Batch(self._model)
        row = batch.join(found.tokens, {}, found)
        for start in range(0, len(found.missing), CHUNK_TOKENS):
            batch.encode([(row, row.tokens.token_ids[start : start + CHUNK_TOKENS])])
        self._history.keep(found, (), batch.own_kv(row))
        return row.num_own


def _read_rows(input_ids: object, attention_mask: object, model: Model) -> list[tuple[int, ...]]:
    """Return the tokens of each row of a batch `[B, T]`.

    Args:
        attention_mask: 0 for padding, which may be left or right; None means no padding.
    """
    if not isinstance(input_ids, torch.Tensor) or input_ids.ndim != 2 or input_ids.dtype not in _INTEGERS:
        raise InvalidValue(
            f"input_ids={shown(input_ids)} is not allowed: a tensor of token IDs [B, T] is expected, as int64. For one "
            "sequence pass input_ids[None]"
        )
    if not input_ids.numel():
        raise InvalidValue(f"input_ids is a tensor {[*input_ids.shape]}: at least one token is expected")
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.shape != input_ids.shape:
        raise InvalidValue(
            f"attention_mask={shown(attention_mask)} is not allowed: a tensor {[*input_ids.shape]} of zeros and ones "
            "is expected, as many as input_ids"
        )
    rows = list[tuple[int, ...]]()
    for index, (ids, mask) in enumerate(zip(input_ids.tolist(), attention_mask.tolist(), strict=True)):
        columns = [column for column, is_token in enumerate(mask) if is_token]
        if not {*mask} <= {0, 1} or not columns or len(columns) != columns[-1] + 1 - columns[0]:
            raise InvalidValue(
                f"attention_mask[{index}]={shown(mask)} is not allowed: ones for the tokens of a row, at least one, "
                "and zeros for padding left or right of all of them are expected"
            )
        rows.append(tuple(ids[columns[0] : columns[-1] + 1]))
        _check_tokens(rows[-1], f"input_ids[{index}]", model)
    return rows


def _check_tokens(token_ids: Sequence[int], name: str, model: Model) -> None:
    """Refuse tokens that the model does not know, and more than it has positions."""
    if len(token_ids) > model.context_length:
        raise ContextLengthExceeded(
            f"{name} has {len(token_ids):,} tokens, and {model.facts.name} has {model.context_length:,} positions: "
            "shorten it"
        )
    for token_id in token_ids:
        if not 0 <= token_id < model.num_known_tokens:
            raise InvalidValue(
                f"{name} has {shown(token_id)}, which is not a token of {model.facts.name}, with tokens 0 to "
                f"{model.num_known_tokens - 1}: use its own tokenizer, and an attention_mask that is 0 for padding"
            )
