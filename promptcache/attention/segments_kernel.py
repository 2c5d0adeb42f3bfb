"""Triton kernels: attention over lists of segments, the merge of its partial results, and writing of new KV.

The file imports triton. The kernels are operators of PyTorch, `promptcache::…`, so that modes that record or count
operations see them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_N = 32
"""Keys that a program reads at once. With 64, some kernels spill registers."""

_ANY_NUMBER = (
    "layer",
    "window",
    "ranges",
    "items",
    "tokens",
    "positions",
    "own_positions",
    "q_head",
    "q_token",
    "own_head",
    "own_token",
)  # no kernel is compiled again because one of them is 1 or a multiple of 16


@triton.jit(do_not_specialize=_ANY_NUMBER)
def attend_kernel(
    query,
    own_keys,
    own_values,
    partial,
    lse,
    numbers,
    layer,
    window,
    ranges,
    items,
    tokens,
    positions,
    own_positions,
    q_head,
    q_token,
    own_head,
    own_token,
    GROUPS: tl.constexpr,  # noqa: N803 - constants of Triton are in capitals
    NUM_KV_HEADS: tl.constexpr,  # noqa: N803
    D: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    SCALE: tl.constexpr,  # noqa: N803
    HAS_WINDOW: tl.constexpr,  # noqa: N803
):
    item = numbers + items + tl.program_id(0).to(tl.int64) * 4
    head = tl.program_id(1).to(tl.int64)
    first_range, end_range = tl.load(item), tl.load(item + 1)
    entry, count = tl.load(item + 2), tl.load(item + 3)
    kind = query.dtype
    accumulator = partial.dtype.element_ty

    rows = tl.arange(0, BLOCK_M)
    is_row = rows < count * GROUPS
    token = tl.load(numbers + tokens + entry + rows // GROUPS, mask=is_row, other=0)
    q_heads = head * GROUPS + rows % GROUPS
    width = tl.arange(0, D)
    at = token * q_token + q_heads * q_head
    q = tl.load(query + at[:, None] + width[None, :], mask=is_row[:, None], other=0.0)
    end_own = tl.max(tl.where(is_row, token, 0), 0) + 1
    query_position = tl.zeros([BLOCK_M], tl.int64)
    if HAS_WINDOW:
        query_position = tl.load(numbers + positions + token, mask=is_row, other=0)

    highest = tl.full([BLOCK_M], -float("inf"), accumulator)
    total = tl.zeros([BLOCK_M], accumulator)
    out = tl.zeros([BLOCK_M, D], accumulator)
    for number in range(first_range, end_range):
        one = numbers + ranges + number * 3
        segment, start, stop = tl.load(one), tl.load(one + 1), tl.load(one + 2)
        is_own = segment < 0
        fields = numbers + tl.maximum(segment, 0) * 6
        is_stored = segment >= 0
        stored = layer * tl.load(fields + 2, mask=is_stored, other=0)
        stored += head * tl.load(fields + 3, mask=is_stored, other=0)
        offset = tl.multiple_of(tl.where(is_own, head * own_head, stored), 16)
        step = tl.multiple_of(tl.where(is_own, own_token, tl.load(fields + 4, mask=is_stored, other=0)), 16)
        where = tl.load(fields + 5, mask=is_stored, other=own_positions)
        k_address, v_address = tl.load(fields, mask=is_stored, other=0), tl.load(fields + 1, mask=is_stored, other=0)
        k_address = tl.where(is_own, own_keys.to(tl.int64), k_address)
        v_address = tl.where(is_own, own_values.to(tl.int64), v_address)
        keys, values = tl.multiple_of(k_address.to(kind), 16), tl.multiple_of(v_address.to(kind), 16)  # for wide loads
        limit = tl.where(is_own, token, 1 << 62)  # the own key of the query itself
        stop = tl.minimum(stop, tl.where(is_own, end_own, 1 << 62))
        end_compared = tl.where(where >= 0, stop, 0)
        for begin in range(start, stop, BLOCK_N):
            key = begin + tl.arange(0, BLOCK_N)
            is_key = key < stop
            at_keys = offset + key[:, None] * step + width[None, :]
            k = tl.load(keys + at_keys, mask=is_key[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee").to(accumulator) * SCALE
            seen = is_row[:, None] & is_key[None, :] & (key[None, :] <= limit[:, None])
            if HAS_WINDOW:
                key_position = tl.load(numbers + where + key, mask=key < end_compared, other=1 << 62)
                seen = seen & (query_position[:, None] - key_position[None, :] < window)
            scores = tl.where(seen, scores, -float("inf"))
            top = tl.maximum(highest, tl.max(scores, 1))
            safe = tl.where(top == -float("inf"), 0.0, top)
            weights = tl.exp(scores - safe[:, None])
            kept = tl.exp(highest - safe)
            total = total * kept + tl.sum(weights, 1)
            v = tl.load(values + at_keys, mask=is_key[:, None], other=0.0)
            out = out * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee").to(accumulator)
            highest = top

    is_seeing = total > 0.0
    safe_total = tl.where(is_seeing, total, 1.0)
    result = (entry + rows // GROUPS) * (NUM_KV_HEADS * GROUPS) + q_heads
    tl.store(partial + result[:, None] * D + width[None, :], out / safe_total[:, None], mask=is_row[:, None])
    tl.store(lse + result, tl.where(is_seeing, highest + tl.log(safe_total), -float("inf")), mask=is_row)


@triton.jit(do_not_specialize=("starts", "entries"))
def merge_kernel(
    out,
    partial,
    lse,
    numbers,
    sinks,
    starts,
    entries,
    NUM_HEADS: tl.constexpr,  # noqa: N803
    D: tl.constexpr,  # noqa: N803
    HAS_SINKS: tl.constexpr,  # noqa: N803
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = tl.arange(0, D)
    accumulator = partial.dtype.element_ty
    highest, total = -float("inf"), 0.0
    if HAS_SINKS:
        highest, total = tl.load(sinks + head).to(accumulator), 1.0
    merged = tl.zeros([D], accumulator)
    for index in range(tl.load(numbers + starts + token), tl.load(numbers + starts + token + 1)):
        result = tl.load(numbers + entries + index) * NUM_HEADS + head
        score = tl.load(lse + result)
        top = tl.maximum(highest, score)
        safe = tl.where(top == -float("inf"), 0.0, top)
        kept, weight = tl.exp(highest - safe), tl.exp(score - safe)
        merged = merged * kept + weight * tl.load(partial + result * D + width)
        total = total * kept + weight
        highest = top
    tl.store(out + (token * NUM_HEADS + head) * D + width, merged / total)


@triton.jit(do_not_specialize=("layer", "k_token", "k_head", "v_token", "v_head"))
def store_kernel(
    keys,
    values,
    targets,
    layer,
    k_token,
    k_head,
    v_token,
    v_head,
    D: tl.constexpr,  # noqa: N803
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    target = targets + token * 4  # addresses of the token's key and value in layer 0 and head 0; strides
    to_keys, to_values = tl.load(target).to(keys.dtype), tl.load(target + 1).to(keys.dtype)
    at = layer * tl.load(target + 2) + head * tl.load(target + 3)
    width = tl.arange(0, D)
    tl.store(to_keys + at + width, tl.load(keys + token * k_token + head * k_head + width))
    tl.store(to_values + at + width, tl.load(values + token * v_token + head * v_head + width))


_library = torch.library.Library("promptcache", "DEF")
_library.define(
    "attend(Tensor query, Tensor keys, Tensor values, Tensor(a!) partial, Tensor(b!) lse, Tensor numbers, int layer, "
    "float scale, int window, bool has_window, int[] places, int num_items, int block_m) -> ()"
)
_library.define(
    "merge(Tensor(a!) out, Tensor partial, Tensor lse, Tensor numbers, Tensor? sinks, int starts, int entries) -> ()"
)
_library.define("store(Tensor keys, Tensor values, Tensor targets, int layer) -> ()")


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    partial: torch.Tensor,
    lse: torch.Tensor,
    numbers: torch.Tensor,
    layer: int,
    scale: float,
    window: int,
    has_window: bool,
    places: list[int],
    num_items: int,
    block_m: int,
) -> None:
    if keys.stride() != values.stride():
        keys, values = keys.contiguous(), values.contiguous()  # one stride serves both
    kv_heads, groups = keys.shape[1], query.shape[1] // keys.shape[1]
    attend_kernel[(num_items, kv_heads)](
        query,
        keys,
        values,
        partial,
        lse,
        numbers,
        layer,
        window,
        *places,
        *query.stride()[1:3],
        *keys.stride()[1:3],
        GROUPS=groups,
        NUM_KV_HEADS=kv_heads,
        D=query.shape[3],
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_N,
        SCALE=scale,
        HAS_WINDOW=has_window,
        num_warps=num_warps(query.shape[3], block_m),
        num_stages=2,
    )


def num_warps(head_dim: int, block_m: int) -> int:
    """Return the number of warps of a program. With these, no registers are spilled on sm_80, sm_90 and sm_100."""
    return 8 if head_dim > 128 and block_m > 16 else 4


def _merge(
    out: torch.Tensor,
    partial: torch.Tensor,
    lse: torch.Tensor,
    numbers: torch.Tensor,
    sinks: torch.Tensor | None,
    starts: int,
    entries: int,
) -> None:
    _, num_tokens, heads, width = out.shape
    merge_kernel[(num_tokens, heads)](
        out,
        partial,
        lse,
        numbers,
        out if sinks is None else sinks,
        starts,
        entries,
        NUM_HEADS=heads,
        D=width,
        HAS_SINKS=sinks is not None,
        num_warps=1,
    )


def _store(keys: torch.Tensor, values: torch.Tensor, targets: torch.Tensor, layer: int) -> None:
    keys, values = (each if each.stride(2) == 1 else each.contiguous() for each in (keys, values))
    num_tokens, heads, width = keys.shape
    store_kernel[(num_tokens, heads)](
        keys, values, targets, layer, *keys.stride()[:2], *values.stride()[:2], D=width, num_warps=1
    )


def _nothing(*_: object) -> None:
    """Tensors without memory are counted and never computed."""


for _name, _function in (("attend", _attend), ("merge", _merge), ("store", _store)):
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _function, _device)
    _library.impl(_name, _nothing, "Meta")

OPERATORS = torch.ops.promptcache
"""`attend`, `merge` and `store`."""
