"""`PrefixCache`: reuses the KV of repeated prefixes in a loop of the caller over plain token IDs.

It is a thin layer over a `History` of its own and the passes of a `Batch`. Positions of a row count its tokens from 0,
as without a cache.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch.nn.functional import pad

from promptcache.diagnostics import ContextLengthExceeded, InvalidValue, Unpicklable, shown, whole
from promptcache.encode import CHUNK_TOKENS, TOLERANCE
from promptcache.kv import KV, Store
from promptcache.layout import Encoding, KVPart, RequestTokens, num_shared
from promptcache.locks import new_lock
from promptcache.loops.frequent_prefixes import FrequentPrefix
from promptcache.model import Model, PositionedCache, PositionedDynamicCache, step_cache
from promptcache.rows import Batch, History, OwnKV, Pass, Recalled

_MIN_SHARED = 64
"""If rows of a batch share more new tokens than this, one forward pass computes these before the batch."""

_GROWTH = 0.25
"""Spare room of history: rows branch more often than they continue."""

_SAMPLE_TOKENS = 4
"""`add` computes so many last tokens of each row again."""

_TOKENS = whole(1, 2**31 - 1, unit="tokens") | None
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Tokens: TypeAlias = "FrequentPrefix | Sequence[int]"


class ServingEngine(Protocol):
    """Members of an engine that a prefix cache needs."""

    model: Model
    store: Store


class _TokenRow(NamedTuple):
    """The tokens of one row of a batch `[B, T]`, which are its columns from `start` on."""

    start: int
    token_ids: tuple[int, ...]


class PrefixHit(Unpicklable):
    """A batch with the KV that the cache has of it.

    Attributes:
        inputs: Keywords for one forward pass: `out = engine.model.hf(**hit.inputs)`. It has the new tokens of all rows
            side by side, without padding: `input_ids` and `position_ids` `[1, N]`.
        num_cached: For each row the number of tokens whose KV is reused; the last token is always computed.
    """

    _instead = "call get in the process that runs the model"

    def __init__(
        self, cache: PrefixCache, rows: Sequence[_TokenRow], input_ids: torch.Tensor, attention_mask: Any
    ) -> None:
        self._cache, self._rows = cache, rows
        self._batch = input_ids, torch.ones_like(input_ids) if attention_mask is None else attention_mask
        found = [cache._recall(row.token_ids) for row in rows]
        self._found: Sequence[Recalled] | None = found
        self.num_cached = tuple(each.num_found for each in found)
        self._own = Batch(cache._model)
        self._own_rows = [self._own.join(each.tokens, {}, each) for each in found]
        self._pass = self._own.open([(row, row.tokens.token_ids) for row in self._own_rows])
        self.inputs = _inputs(self._pass, cache._model)
        self._columns: PositionedDynamicCache | None = None

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

    @torch.no_grad()
    def generate_inputs(self) -> dict[str, Any]:
        """Return keywords for one call of transformers' `generate`, for `engine.model.hf`.

        They are `input_ids` and `attention_mask` of the batch, and a `DynamicCache` with a copy of the KV. It has the
        columns of the batch whose tokens are known in all rows.

        Raises:
            InvalidValue: A row has padding on the right, or `update` got this hit already.
        """
        found, model, (input_ids, mask) = self._unused(), self._cache._model, self._batch
        num_columns = input_ids.shape[1]
        for index, row in enumerate(self._rows):
            if row.start + len(row.token_ids) < num_columns:
                raise InvalidValue(
                    f"input_ids[{index}] has padding on the right, behind which generate would continue: pad on the "
                    "left (tokenizer.padding_side = 'left')"
                )
        num_held = min(row.start + each.num_found for row, each in zip(self._rows, found, strict=True))
        self._columns = PositionedDynamicCache()
        stored = [_known(each, model) for each in found]
        for layer in range(model.shape.num_layers if num_held else 0):
            keys, values = (
                torch.stack(
                    [
                        pad(kv[kind][layer][:, : max(0, num_held - row.start)], (0, 0, min(row.start, num_held), 0))
                        for row, kv in zip(self._rows, stored, strict=True)
                    ]
                )
                for kind in range(2)
            )  # [B, Hkv, T, D]
            self._columns.update(keys, values, layer)
        starts = torch.tensor([[row.start] for row in self._rows])
        token_ids = input_ids.to(model.device, torch.long)
        positions = (torch.arange(num_columns) - starts).numpy()
        self._columns.place(positions, model.hf, model.guard, token_ids=token_ids)
        return {
            "input_ids": token_ids,
            "attention_mask": mask.to(model.device, torch.long),
            "past_key_values": self._columns,
        }

    def _check(self, out: Any) -> None:
        """Refuse an output that is not that of `inputs`."""
        if getattr(out, "past_key_values", None) is not self.inputs["past_key_values"] or not self._pass.is_computed:
            raise InvalidValue(
                "out is not the output of this hit's inputs: out = engine.model.hf(**hit.inputs) is expected, or that "
                "of generate(**hit.generate_inputs(), return_dict_in_generate=True) or of a forward pass over these"
            )

    def _take(self, cache: PrefixCache, out: Any) -> Sequence[tuple[Recalled, Sequence[int], OwnKV]]:
        """Return what `PrefixCache.update` stores, once: for each row what was known, new answer tokens, and new KV."""
        if self._cache is not cache:
            raise InvalidValue("hit is of another PrefixCache: update the cache whose get returned it")
        found = self._unused()
        if self._columns is not None and getattr(out, "past_key_values", None) is self._columns:
            taken = self._take_columns(found, self._columns, out)
        else:
            self._check(out)
            self._pass.finish()
            own = (self._own.own_kv(row) for row in self._own_rows)
            taken = [(each, (), _by_layer(kv)) for each, kv in zip(found, own, strict=True)]
        self._found = None
        return taken

    def _take_columns(
        self, found: Sequence[Recalled], columns: Any, out: Any
    ) -> list[tuple[Recalled, Sequence[int], OwnKV]]:
        """Return the KV behind the known tokens of each row, and the tokens of its answer if `generate` made one."""
        num_columns, num_rows = self._batch[0].shape[1], len(columns.layers[0].keys)
        answers: list[list[int]] = [[]] * num_rows
        if (sequences := getattr(out, "sequences", None)) is not None:
            answers = sequences[:, num_columns : columns.get_seq_length()].tolist()
        if not len(answers) == num_rows == len(found):
            raise InvalidValue(
                f"out has {len(answers)} sequences of {len(found)} rows: update takes one for each row, without beams"
            )
        taken = list[tuple[Recalled, Sequence[int], OwnKV]]()
        for index, (row, each, answer) in enumerate(zip(self._rows, found, answers, strict=True)):
            new = slice(row.start + each.num_found, num_columns + _num_before_padding(answer))
            own = [(layer.keys[index, :, new], layer.values[index, :, new]) for layer in columns.layers]
            taken.append((each, answer, own))
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
    ) -> None:
        """Create an empty cache in the memory of an engine's store.

        Args:
            engine: An `Engine`. Its modules and its own history are not affected, except that all are in one budget.
            max_row_tokens: The most tokens of a row to keep, from its start; None keeps whole rows.

        Raises:
            InvalidValue: `engine` is no engine, or `max_row_tokens` is not allowed.
        """
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
            InvalidValue: The tensors are wrong; names the row.
            ContextLengthExceeded: A row has more tokens than the model has positions.
            ModelChanged: The model is not as it was when the engine was made.
        """
        rows = _read_rows(input_ids, attention_mask, self._model)
        self._model.check_unchanged()
        pairs = pairwise(sorted(row.token_ids for row in rows))
        shared = {first[: num_shared(first, second)] for first, second in pairs}
        most = self._memory.budget_bytes // self._model.shape.token_bytes
        for prefix in sorted((each for each in shared if _MIN_SHARED < len(each) <= most), key=len):
            self._fill(prefix, _MIN_SHARED)
        return PrefixHit(self, rows, input_ids, attention_mask)

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
        return sum(self._keep(*each) for each in taken)

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
        for index, each in enumerate(lists):
            if not isinstance(each, list | tuple) or not each or not all(type(token_id) is int for token_id in each):
                raise InvalidValue(
                    f"prefixes[{index}]={shown(each)} is not allowed: a list of token IDs is expected, at least one"
                )
            _check_tokens(each, f"prefixes[{index}]", 0, self._model)
        return sum(self._fill(tuple(each), 1) for each in sorted(lists, key=len))

    @torch.no_grad()
    def add(self, input_ids: torch.Tensor, past_key_values: Any, attention_mask: torch.Tensor | None = None) -> int:
        """Keep KV that was computed elsewhere with this model.

        It is compared with the model's own: all tokens in the first layer, and the last ones of each row in all layers.

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
        rows = _read_rows(input_ids, attention_mask, self._model)
        self._model.check_unchanged()
        given_kv = _read_kv(past_key_values, rows, input_ids.shape, self._model)
        self._check_given([row.token_ids for row in rows], given_kv)
        found = [self._recall(row.token_ids) for row in rows]
        return sum(
            self._keep(each, (), [(keys[:, each.num_found :], values[:, each.num_found :]) for keys, values in own])
            for each, own in zip(found, map(_by_layer, given_kv), strict=True)
        )

    def _recall(self, token_ids: tuple[int, ...]) -> Recalled:
        return self._history.recall(_tokens(token_ids))

    def _keep(self, found: Recalled, answer_ids: Sequence[int], own_kv: OwnKV) -> int:
        """Keep KV behind the known tokens of a row, up to the limit of a row; return the number of stored tokens."""
        room = sys.maxsize if self._max_row_tokens is None else max(0, self._max_row_tokens - found.num_found)
        return self._history.keep(found, answer_ids, [(keys[:, :room], values[:, :room]) for keys, values in own_kv])

    def _fill(self, prefix: tuple[int, ...], least: int) -> int:
        """Compute and keep a prefix if it lacks more than `least` tokens; return the number of computed ones."""
        found = self._recall(prefix[: self._max_row_tokens])
        if len(found.missing) <= least:
            return 0
        batch = Batch(self._model)
        row = batch.join(found.tokens, {}, found)
        for start in range(0, len(found.missing), CHUNK_TOKENS):
            batch.encode([(row, row.tokens.token_ids[start : start + CHUNK_TOKENS])])
        self._keep(found, (), _by_layer(batch.own_kv(row)))
        return row.num_own

    def _check_given(self, rows: Sequence[tuple[int, ...]], given_kv: Sequence[KV]) -> None:
        """Compare KV `[L, Hkv, T, D]` of rows with the model's own.

        The first layer of all tokens shows other tokens, positions and weights. The last tokens of each row are
        computed in all layers, over the given KV before them.
        """
        first, last = Batch(self._model), Batch(self._model)
        work = [(first.join(_tokens(token_ids), {}), token_ids) for token_ids in rows]
        layers = count()

        def check() -> None:
            if next(layers):
                raise _FirstLayerIsDone

        with suppress(_FirstLayerIsDone):
            first.encode(work, check)
        for index, (row, _) in enumerate(work):
            memory = first.tails.memory(row.tail)
            self._compare(KV(keys=memory.keys[:1], values=memory.values[:1]), given_kv[index], index, 0)
        work = []
        for token_ids, theirs in zip(rows, given_kv, strict=True):
            known = max(0, len(token_ids) - _SAMPLE_TOKENS)
            given = Encoding(token_ids=token_ids, position_ids=tuple(range(len(token_ids))))
            parts = (KVPart(given, 0, known),) if known else ()
            tokens = RequestTokens(parts=parts, token_ids=token_ids[known:], position_ids=given.position_ids[known:])
            handles = {given: theirs}
            work.append((last.join(tokens, handles), tokens.token_ids))
        last.encode(work)
        for index, (row, _) in enumerate(work):
            self._compare(last.own_kv(row), given_kv[index], index, row.tokens.position_ids[0])

    def _compare(self, computed: KV, given: KV, row: int, start: int) -> None:
        """Compare the KV of a row's tokens from `start` on, in the first layers, with the given one."""
        for layer, states in enumerate(_by_layer(computed)):
            for mine, theirs in zip(states, (given.keys[layer], given.values[layer]), strict=True):
                is_far = _is_far(theirs[:, start:], mine[:, : theirs.shape[1] - start])
                if is_far.any():
                    raise InvalidValue(
                        f"past_key_values[{layer}] differs from the KV of {self._model.facts.name} for token "
                        f"{start + int(is_far.nonzero()[0])} of input_ids[{row}]; nothing was stored. KV of exactly "
                        "these tokens and weights is expected, at positions that count the tokens of a row from 0, "
                        "without padding"
                    )


class _FirstLayerIsDone(Exception):
    """Ends a forward pass after the KV of the first layer."""


def _inputs(opened: Pass, model: Model) -> dict[str, Any]:
    """Return keywords for a forward pass of the transformers model; its logits are those of each row's last token.

    The pass does not hold them: a cycle would keep stored KV in use until the garbage collector runs.
    """
    cache = PositionedCache(layers=step_cache(opened, model.shape.num_layers).layers)
    cache.place(opened.positions[None], model.hf, model.guard)
    return {
        "input_ids": opened.token_ids,
        "position_ids": opened.position_ids,
        "attention_mask": None,
        "past_key_values": cache,
        "use_cache": True,
        **model.only_logits_of(opened.last()),
    }


def _tokens(token_ids: tuple[int, ...]) -> RequestTokens:
    return RequestTokens(parts=(), token_ids=token_ids, position_ids=tuple(range(len(token_ids))))


def _by_layer(kv: KV) -> OwnKV:
    return [*zip(kv.keys, kv.values, strict=True)]


def _known(found: Recalled, model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values `[L, Hkv, T, D]` that history has of a row."""
    stretch, none = found.stretches[0], KV.empty(model.shape, 0)
    held = [(stretch.kv_of[part.encoding], part.num_tokens) for part in stretch.parts]
    keys = torch.cat([none.keys, *(handle.keys[:, :, :size] for handle, size in held)], dim=2)
    values = torch.cat([none.values, *(handle.values[:, :, :size] for handle, size in held)], dim=2)
    return keys, values


def _num_before_padding(answer: Sequence[int]) -> int:
    """Return the length of an answer without a run of one token at its end, which pads rows that ended early."""
    length = len(answer)
    while length > 1 and answer[length - 1] == answer[length - 2]:
        length -= 1
    return length


def _read_rows(input_ids: object, attention_mask: object, model: Model) -> list[_TokenRow]:
    """Read a batch `[B, T]`. The mask is 0 for padding, which may be left or right; None means no padding."""
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
    rows = []
    for index, (ids, mask) in enumerate(zip(input_ids.tolist(), attention_mask.tolist(), strict=True)):
        columns = [column for column, is_token in enumerate(mask) if is_token]
        if not {*mask} <= {0, 1} or not columns or len(columns) != columns[-1] + 1 - columns[0]:
            raise InvalidValue(
                f"attention_mask[{index}]={shown(mask)} is not allowed: ones for the tokens of a row, at least one, "
                "and zeros for padding left or right of all of them are expected"
            )
        row = _TokenRow(columns[0], tuple(ids[columns[0] : columns[-1] + 1]))
        _check_tokens(row.token_ids, f"input_ids[{index}]", row.start, model)
        rows.append(row)
    return rows


def _check_tokens(token_ids: Sequence[int], name: str, start: int, model: Model) -> None:
    """Refuse tokens that the model does not know, and more than it has positions."""
    if len(token_ids) > model.context_length:
        raise ContextLengthExceeded(
            f"{name} has {len(token_ids):,} tokens, and {model.facts.name} has {model.context_length:,} positions: "
            "shorten it"
        )
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < model.num_known_tokens:
            raise InvalidValue(
                f"{name}[{start + index}]={shown(token_id)} is not a token of {model.facts.name}, which has tokens 0 "
                f"to {model.num_known_tokens - 1}: use its own tokenizer, and an attention_mask that is 0 for padding"
            )


def _read_kv(past_key_values: Any, rows: Sequence[_TokenRow], size: torch.Size, model: Model) -> list[KV]:
    """Return the KV of each row's tokens, a copy of the caller's; `size` is that of the batch."""
    shape = model.shape
    wanted = (size[0], shape.num_kv_heads, size[1], shape.head_dim)
    layers = getattr(past_key_values, "layers", past_key_values)
    layers = layers if isinstance(layers, list | tuple) else ()
    pairs = [(each.keys, each.values) if hasattr(each, "keys") else each for each in layers]
    found = [each for pair in pairs if isinstance(pair, list | tuple) for each in pair]
    given = [(*each.shape, each.dtype) if isinstance(each, torch.Tensor) else shown(each) for each in found]
    other = next((each for each in given if each != (*wanted, shape.dtype)), None)
    if len(found) != 2 * shape.num_layers or other is not None:
        raise InvalidValue(
            f"past_key_values={shown(past_key_values)} is not allowed{f', with {other}' if other else ''}: a "
            f"DynamicCache, or keys and values of each of {shape.num_layers} layers is expected, tensors {[*wanted]} "
            f"of {shape.dtype}: the rows, KV heads, tokens and head dim of input_ids and of the engine's model"
        )
    keys, values = (torch.stack(found[kind::2]).to(shape.device) for kind in range(2))  # [L, B, Hkv, T, D]
    columns = [slice(row.start, row.start + len(row.token_ids)) for row in rows]
    return [KV(keys=keys[:, row, :, some], values=values[:, row, :, some]) for row, some in enumerate(columns)]


def _is_far(given: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
    """Return for each token, bool `[T]`, whether states `[Hkv, T, D]` differ by more than rounding, or have a NaN."""
    tolerance_of, wide = given.dtype, torch.promote_types(given.dtype, torch.float32)
    given, computed = given.to(wide), computed.to(wide)
    distance, size = (torch.linalg.vector_norm(each, dim=(0, 2)) for each in (given - computed, computed))
    is_near: torch.Tensor = distance <= TOLERANCE.get(tolerance_of, 1e-3) * size
    return ~is_near
