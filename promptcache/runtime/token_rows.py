"""Token IDs of a caller's batch: read, checked, and without padding. Errors name the row and the column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from promptcache.diagnostics import ContextLengthExceeded, InvalidValue, shown
from promptcache.runtime.hf.model import Model

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """The tokens of one row of a batch, which are its columns from `start` on."""

    token_ids: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenBatch:
    """A batch `[B, T]` of a caller, and the tokens of its rows."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    rows: tuple[TokenRow, ...]


def read_batch(input_ids: object, attention_mask: object, model: Model) -> TokenBatch:
    """Read a batch `[B, T]`. The mask is 0 for padding, which may be left or right.

    Raises:
        InvalidValue: The tensors are not of this kind, a row has no tokens or a hole, or the model does not know a
            token.
        ContextLengthExceeded: A row has more tokens than the model has positions.
    """
    if not isinstance(input_ids, torch.Tensor):
        raise InvalidValue(f"input_ids={shown(input_ids)} is not allowed: a tensor of token IDs [B, T] is expected")
    if input_ids.ndim != 2 or not input_ids.numel() or input_ids.dtype not in _INTEGERS:
        raise InvalidValue(
            f"input_ids is a tensor {_kind(input_ids)}: token IDs [B, T] with at least one token are expected, as "
            "int64. For one sequence pass input_ids[None]"
        )
    rows = input_ids.tolist()
    starts, stops = [0] * len(rows), [len(rows[0])] * len(rows)
    mask = None if attention_mask is None else _checked_mask(attention_mask, input_ids)
    if mask is not None:
        starts, stops = _ranges(mask)
    read = tuple(
        TokenRow(token_ids=_checked(row[start:stop], start, f"input_ids[{index}]", model), start=start)
        for index, (row, start, stop) in enumerate(zip(rows, starts, stops, strict=True))
    )
    return TokenBatch(input_ids=input_ids, attention_mask=mask, rows=read)


def read_tokens(token_ids: object, name: str, model: Model) -> tuple[int, ...]:
    """Return the tokens of one list; errors as for `read_batch`."""
    if not isinstance(token_ids, list | tuple) or not token_ids or not all(type(each) is int for each in token_ids):
        raise InvalidValue(f"{name}={shown(token_ids)} is not allowed: a list of token IDs is expected, at least one")
    return _checked(token_ids, 0, name, model)


def _checked(token_ids: Sequence[int], start: int, name: str, model: Model) -> tuple[int, ...]:
    if len(token_ids) > model.context_length:
        raise ContextLengthExceeded(
            f"{name} has {len(token_ids):,} tokens, and {model.facts.name} has {model.context_length:,} positions: "
            "shorten it"
        )
    if not 0 <= min(token_ids) <= max(token_ids) < model.num_known_tokens:
        wrong = next(index for index, each in enumerate(token_ids) if not 0 <= each < model.num_known_tokens)
        raise InvalidValue(
            f"{name}[{start + wrong}]={shown(token_ids[wrong])} is not a token of {model.facts.name}, which has tokens "
            f"0 to {model.num_known_tokens - 1}: use its own tokenizer, and an attention_mask that is 0 for padding"
        )
    return tuple(token_ids)


def _checked_mask(attention_mask: object, input_ids: torch.Tensor) -> torch.Tensor:
    if not isinstance(attention_mask, torch.Tensor):
        raise InvalidValue(
            f"attention_mask={shown(attention_mask)} is not allowed: a tensor [B, T] or None is expected"
        )
    if attention_mask.shape != input_ids.shape or attention_mask.is_complex():
        raise InvalidValue(
            f"attention_mask is a tensor {_kind(attention_mask)}: zeros and ones [{len(input_ids)}, "
            f"{input_ids.shape[1]}] are expected, as many as input_ids"
        )
    return attention_mask


def _ranges(attention_mask: torch.Tensor) -> tuple[list[int], list[int]]:
    """Return the first column and the end of the tokens of each row."""
    starts, stops = [], []
    for index, row in enumerate(attention_mask.tolist()):
        other = next((column for column, each in enumerate(row) if each not in (0, 1)), None)
        if other is not None:
            raise InvalidValue(
                f"attention_mask[{index}][{other}]={shown(row[other])} is not allowed: 1 is expected for tokens and 0 "
                "for padding"
            )
        if 1 not in row:
            raise InvalidValue(f"attention_mask[{index}] has no 1: a row needs at least one token; leave the row out")
        start = row.index(1)
        stop = len(row) - row[::-1].index(1)
        if 0 in row[start:stop]:
            raise InvalidValue(
                f"attention_mask[{index}][{row.index(0, start)}] is 0 between tokens: padding is left or right of a "
                "row. Remove the tokens from input_ids instead"
            )
        starts.append(start)
        stops.append(stop)
    return starts, stops


def _kind(tensor: torch.Tensor) -> str:
    return f"{[*tensor.shape]} of {str(tensor.dtype).removeprefix('torch.')}"
