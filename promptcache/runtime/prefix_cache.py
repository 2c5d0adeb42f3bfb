"""`PrefixCache`: reuses the KV of repeated prefixes in a loop of the caller over plain token IDs.

It uses a `History` of its own, and forward passes without padding (`PackedRows`). Positions of a row count its
tokens from 0, as without a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import torch

from promptcache.diagnostics import InvalidValue, Unpicklable, refuse_unknown, shown, whole
from promptcache.kv import KVHandle, Slab, Store
from promptcache.layout import Encoding, KVPart, RequestTokens
from promptcache.locks import new_lock
from promptcache.runtime.encode import CHUNK_TOKENS
from promptcache.runtime.frequent_prefixes import FrequentPrefix, shared_prefixes
from promptcache.runtime.hf.model import Model
from promptcache.runtime.history import History, OwnKV, Recalled
from promptcache.runtime.packed_rows import NewTokens, PackedRows
from promptcache.runtime.padded_rows import PaddedRows
from promptcache.runtime.segments import segments_of
from promptcache.runtime.self_test import TOLERANCE
from promptcache.runtime.token_rows import TokenBatch, TokenRow, read_batch, read_tokens

_MIN_SHARED = 64
"""If rows of a batch share more new tokens than this, one forward pass computes these before the batch."""

_GROWTH = 0.25
"""Spare room of history: rows branch more often than they continue."""

_SAMPLES, _SAMPLE_TOKENS = 4, 4
"""`add` computes so many samples of so many tokens of each row again."""

_TOKENS = whole(1, 2**31 - 1, unit="tokens") | None

Tokens: TypeAlias = "FrequentPrefix | Sequence[int]"


class _FirstLayerIsDone(Exception):
    """Ends a forward pass after the KV of the first layer."""


class _FirstLayer(PackedRows):
    """A forward pass that ends after the KV of the first layer, which depends on tokens and positions only."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> NoReturn:
        super().write(layer, keys, values)
        raise _FirstLayerIsDone


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

    def __init__(self, cache: PrefixCache, batch: TokenBatch, found: Sequence[Recalled], packed: PackedRows) -> None:
        self.inputs: Mapping[str, Any] = packed.inputs()
        self.num_cached = tuple(each.num_found for each in found)
        self._cache = cache
        self._batch = batch
        self._found: Sequence[Recalled] | None = found
        self._packed = packed
        self._padded: PaddedRows | None = None

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
        num_rows = len(self.num_cached)
        return logits if len(logits) == num_rows else logits[[stop - 1 for stop in self._packed.stops]]

    @torch.no_grad()
    def generate_inputs(self) -> dict[str, Any]:
        """Return keywords for one call of transformers' `generate`, for `engine.model.hf`.

        They are `input_ids` and `attention_mask` of the batch, and a `DynamicCache` with a copy of the KV. It has the
        columns of the batch whose tokens are known in all rows.

        Raises:
            InvalidValue: A row has padding on the right, or `update` got this hit already.
        """
        self._padded = PaddedRows(self._batch, self._unused(), self._cache._model)
        return self._padded.inputs()

    def _check(self, out: Any) -> None:
        """Refuse an output that is not that of `inputs`."""
        cache = self.inputs["past_key_values"]
        if getattr(out, "past_key_values", None) is not cache or not self._packed.is_computed:
            raise InvalidValue(
                "out is not the output of this hit's inputs: out = engine.model.hf(**hit.inputs) is expected, or that "
                "of generate(**hit.generate_inputs(), return_dict_in_generate=True) or of a forward pass over these"
            )

    def _take(self, cache: PrefixCache, out: Any) -> Sequence[tuple[Recalled, Sequence[int], OwnKV]]:
        """Return what `PrefixCache.update` stores, once: for each row what was known, new answer tokens, and new KV."""
        if self._cache is not cache:
            raise InvalidValue("hit is of another PrefixCache: update the cache whose get returned it")
        found, padded = self._unused(), self._padded
        if padded is not None and getattr(out, "past_key_values", None) is padded.cache:
            taken = padded.computed(out)
        else:
            self._check(out)
            taken = [(each, (), self._packed.own_kv(row)) for row, each in enumerate(found)]
        self._found = None
        return taken

    def _unused(self) -> Sequence[Recalled]:
        if self._found is None:
            raise InvalidValue("hit was used before: each hit updates the cache once. Call get for the next batch")
        return self._found


class PrefixCache(Unpicklable):
    """KV of the prefixes of token rows, for a loop that calls the model itself. Thread-safe.

    hit = cache.get(input_ids, attention_mask)
    out = engine.model.hf(**hit.inputs)
    logits = hit.last_logits(out)
    cache.update(hit, out)
    """

    _instead = "make one in each process"

    def __init__(
        self,
        engine: ServingEngine,
        *,
        max_row_tokens: int | None = None,
        **unknown: Any,
    ) -> None:
        """Create an empty cache in the memory of an engine's store.

        Args:
            engine: An `Engine`. Its modules and its own history are not affected, except that all are in one budget.
            max_row_tokens: The most tokens of a row to keep, from its start; None keeps whole rows.
            unknown: Refused.

        Raises:
            InvalidValue: `engine` is no engine, or `max_row_tokens` is not allowed.
        """
        refuse_unknown("PrefixCache", unknown, ("max_row_tokens",), InvalidValue)
        _TOKENS.check("max_row_tokens", max_row_tokens, InvalidValue)
        model, store = getattr(engine, "model", None), getattr(engine, "store", None)
        if not isinstance(model, Model) or not isinstance(store, Store):
            raise InvalidValue(f"engine={shown(engine)} is not allowed: an Engine is expected")
        self._model = model
        self._max_row_tokens = max_row_tokens
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
            InvalidValue: The tensors are wrong; names the row and the column.
            ContextLengthExceeded: A row has more tokens than the model has positions.
            ModelChanged: The model is not as it was when the engine was made.
        """
        batch = read_batch(input_ids, attention_mask, self._model)
        self._model.check_unchanged()
        rows = [row.token_ids for row in batch.rows]
        for prefix in shared_prefixes(rows, _MIN_SHARED):
            if len(prefix) * self._model.shape.token_bytes <= self._memory.budget_bytes:
                self._fill(prefix, _MIN_SHARED)
        return PrefixHit(self, batch, *self._pack(rows))

    @torch.no_grad()
    def update(self, hit: PrefixHit, out: Any) -> int:
        """Keep the KV of the tokens that a forward pass or `generate` computed, as far as there is room.

        Args:
            hit: The result of `get` of this cache. Each hit can be used once.
            out: The output of the forward pass over `inputs`, or over `generate_inputs()` without the tokens that its
                cache holds; or the output object of `generate` (`return_dict_in_generate=True`).

        Returns:
            The number of tokens that were stored.

        Raises:
            InvalidValue: The hit is of another cache or was used before, or `out` is not its output.
            ModelChanged: As for `get`; nothing is stored.
        """
        if not isinstance(hit, PrefixHit):
            raise InvalidValue(
                f"hit={shown(hit)} is not allowed: the result of get is expected; add(input_ids, past_key_values) "
                "keeps KV that was computed elsewhere"
            )
        self._model.check_unchanged()
        with self._lock:
            taken = hit._take(self, out)
        return self._keep(taken)

    @torch.no_grad()
    def build(self, prefixes: Sequence[Tokens]) -> int:
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
        read = [read_tokens(each, f"prefixes[{index}]", self._model) for index, each in enumerate(lists)]
        return sum(self._fill(each, 1) for each in sorted(read, key=len))

    @torch.no_grad()
    def add(self, input_ids: torch.Tensor, past_key_values: Any, attention_mask: torch.Tensor | None = None) -> int:
        """Keep KV that was computed elsewhere with this model.

        It is compared with the model's own: all tokens in the first layer, and samples of each row in all layers.

        Args:
            input_ids: `[B, T]`, as for `get`.
            past_key_values: A `DynamicCache`, or the keys and values `[B, Hkv, T, D]` of each layer, with the KV of
                exactly these tokens. It is not changed.
            attention_mask: As for `get`.

        Returns:
            The number of tokens that were stored.

        Raises:
            InvalidValue: The KV has another shape or dtype, or is not that of these tokens; nothing is stored.
            ModelChanged: As for `get`; nothing is stored.
        """
        rows = read_batch(input_ids, attention_mask, self._model).rows
        self._model.check_unchanged()
        slabs = self._read_slabs(past_key_values, rows, input_ids)
        self._check_first_layer([row.token_ids for row in rows], slabs)
        self._check_samples([row.token_ids for row in rows], slabs)
        num_stored = 0
        for row, slab in zip(rows, slabs, strict=True):
            (stretch,) = self._history.recall(_tokens(row.token_ids)).stretches
            own_kv = [*zip(slab.keys, slab.values, strict=True)]
            num_stored += self._history.add(stretch, row.token_ids[: self._max_row_tokens], own_kv)
        return num_stored

    def _pack(self, rows: Sequence[tuple[int, ...]]) -> tuple[list[Recalled], PackedRows]:
        """Return what is known of each row, and the forward pass over the other tokens."""
        found = [self._history.recall(_tokens(row)) for row in rows]
        new = [
            NewTokens(
                segments=segments_of(each.stretches[0].parts, each.handles),
                token_ids=row[each.num_found :],
                positions=np.arange(each.num_found, len(row)),
            )
            for each, row in zip(found, rows, strict=True)
        ]
        return found, PackedRows(new, self._model)

    def _keep(self, rows: Sequence[tuple[Recalled, Sequence[int], OwnKV]]) -> int:
        """Keep the KV of rows; return the number of stored tokens."""
        return sum(self._history.keep(found, answer, self._cut(found, own_kv)) for found, answer, own_kv in rows)

    def _cut(self, found: Recalled, own_kv: OwnKV) -> OwnKV:
        """Return the KV behind the known tokens of a row, as much of it as the limit of a row allows."""
        if self._max_row_tokens is None:
            return own_kv
        num_kept = max(0, self._max_row_tokens - found.num_found)
        return [(keys[:, :num_kept], values[:, :num_kept]) for keys, values in own_kv]

    def _fill(self, prefix: tuple[int, ...], least: int) -> int:
        """Compute and keep the tokens of a prefix if more than `least` are missing; return the number of computed ones.

        Long prefixes are computed in chunks.
        """
        prefix = prefix[: self._max_row_tokens]
        known = self._history.recall(_tokens(prefix)).num_found
        if len(prefix) - known <= least:
            return 0
        num_computed = 0
        for start in range(known, len(prefix), CHUNK_TOKENS):
            stop = min(len(prefix), start + CHUNK_TOKENS)
            found, packed = self._pack([prefix[:stop]])
            packed.encode()
            num_computed += packed.stops[-1]
            if found[0].num_found + self._keep([(found[0], (), packed.own_kv(0))]) < stop:
                break  # there is no more room
        return num_computed

    def _read_slabs(self, past_key_values: Any, rows: Sequence[TokenRow], input_ids: torch.Tensor) -> list[Slab]:
        """Return the KV of each row's tokens, a copy of the caller's."""
        layers = getattr(past_key_values, "layers", past_key_values)
        shape, (num_rows, num_columns) = self._model.shape, input_ids.shape
        if not isinstance(layers, list | tuple) or len(layers) != shape.num_layers:
            raise InvalidValue(
                f"past_key_values={shown(past_key_values)} is not allowed: a DynamicCache, or keys and values of "
                f"each of {shape.num_layers} layers, is expected"
            )
        size = (num_rows, shape.num_kv_heads, num_columns, shape.head_dim)
        pairs = [(each.keys, each.values) if hasattr(each, "keys") else each for each in layers]
        for index, pair in enumerate(pairs):
            _check_pair(pair, f"past_key_values[{index}]", size, shape.dtype)
        keys, values = (
            torch.stack(states).to(shape.device) for states in zip(*pairs, strict=True)
        )  # [L, B, Hkv, T, D]
        return [
            Slab(keys=keys[:, index, :, columns], values=values[:, index, :, columns])
            for index, columns in enumerate(slice(row.start, row.start + len(row.token_ids)) for row in rows)
        ]

    def _check_first_layer(self, rows: Sequence[tuple[int, ...]], slabs: Sequence[Slab]) -> None:
        """Compare the first layer of all tokens: finds other tokens, positions and weights."""
        packed = _FirstLayer(
            [NewTokens(segments=(), token_ids=row, positions=np.arange(len(row))) for row in rows], self._model
        )
        with suppress(_FirstLayerIsDone):
            packed.encode()
        for row, slab in enumerate(slabs):
            self._compare(packed.own_kv(row), slab, row, 0)

    def _check_samples(self, rows: Sequence[tuple[int, ...]], slabs: Sequence[Slab]) -> None:
        """Compute samples of each row in all layers, over the given KV before them, and compare."""
        samples = [
            (row, start)
            for row, token_ids in enumerate(rows)
            for start in sorted(
                {max(0, len(token_ids) - _SAMPLE_TOKENS) * n // (_SAMPLES - 1) for n in range(_SAMPLES)}
            )
        ]
        wholes = [Encoding(token_ids=each, position_ids=tuple(range(len(each))), context=()) for each in rows]
        new = []
        for row, start in samples:
            handle = KVHandle(slab=slabs[row], start=0, stop=start)
            parts = [KVPart(wholes[row], 0, start)] if start else []
            token_ids = rows[row][start : start + _SAMPLE_TOKENS]
            new.append(
                NewTokens(
                    segments=segments_of(parts, {wholes[row]: handle}),
                    token_ids=token_ids,
                    positions=np.arange(start, start + len(token_ids)),
                )
            )
        packed = PackedRows(new, self._model)
        packed.encode()
        for index, (row, start) in enumerate(samples):
            self._compare(packed.own_kv(index), slabs[row], row, start)

    def _compare(self, own_kv: OwnKV, slab: Slab, row: int, start: int) -> None:
        """Compare the KV of a row's tokens from `start` on, in the first layers, with that in a slab."""
        for layer, computed in enumerate(own_kv):
            for states, given in zip(computed, (slab.keys[layer], slab.values[layer]), strict=True):
                is_far = _is_far(given[:, start : start + states.shape[1]], states)
                if is_far.any():
                    token = start + int(is_far.nonzero()[0])
                    raise InvalidValue(
                        f"past_key_values[{layer}] differs from the KV of {self._model.facts.name} for token {token} "
                        f"of input_ids[{row}]; nothing was stored. KV of exactly these tokens and weights is expected, "
                        "at positions that count the tokens of a row from 0, without padding"
                    )


def _tokens(token_ids: tuple[int, ...]) -> RequestTokens:
    return RequestTokens(parts=(), token_ids=token_ids, position_ids=tuple(range(len(token_ids))))


def _check_pair(pair: Any, name: str, size: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(each, torch.Tensor) for each in pair):
        raise InvalidValue(f"{name}={shown(pair)} is not allowed: keys and values are expected")
    for states in pair:
        if (*states.shape,) != size or states.dtype != dtype:
            raise InvalidValue(
                f"{name} has a tensor {[*states.shape]} of {states.dtype}: {[*size]} of {dtype} is expected, the rows, "
                "KV heads, tokens and head dim of input_ids and of the engine's model"
            )


def _is_far(given: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
    """Return for each token, bool `[T]`, whether states `[Hkv, T, D]` differ by more than rounding, or have a NaN."""
    tolerance = TOLERANCE.get(given.dtype, 1e-3)
    wide = torch.promote_types(given.dtype, torch.float32)
    distance, size = (_norm_by_token(each.to(wide)) for each in (given.to(wide) - computed, computed))
    return ~(distance <= tolerance * size)


def _norm_by_token(states: torch.Tensor) -> torch.Tensor:
    """Return the norm of the states `[Hkv, T, D]` of each token, `[T]`."""
    norm: torch.Tensor = torch.linalg.vector_norm(states, dim=(0, 2))
    return norm
