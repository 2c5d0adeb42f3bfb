"""Every kernel against dense float64 attention, and the merge of parts against the whole."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.runtime import attention, kernels
from promptcache.runtime.attention import Fold, attend_shared, merge
from promptcache.runtime.kernels import attend, kernel_for

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in float64, written out."""
    groups = query.shape[1] // key.shape[1]
    query, key, value = (
        query.double(),
        key.double().repeat_interleave(groups, 1),
        value.double().repeat_interleave(groups, 1),
    )
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        extra = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1).nan_to_num()
    return weights @ value, scores.logsumexp(-1)


def tensors(batch: int, queries: int, keys: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Queries `[B, 4, T, 16]`, keys and values `[B, 2, S, 16]`."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, 4, queries, 16), (batch, 2, keys, 16), (batch, 2, keys, 16))
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (2 * query).to(dtype), key.to(dtype), value.to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kind", ["all", "causal", "mask"])
def test_kernels_equal_dense_attention(dtype: torch.dtype, softcap: float | None, kind: str) -> None:
    """Output and log-sum-exp of every kernel are those of dense attention."""
    query, key, value = tensors(2, 7, 7, dtype)
    mask = {"all": None, "causal": torch.ones(7, 7).tril().bool(), "mask": torch.rand(7, 7) < 0.6}[kind]

    out, lse = attend(
        query, key, value, scale=0.25, mask=mask if kind == "mask" else None, causal=kind == "causal", softcap=softcap
    )

    expected, expected_lse = dense(query, key, value, mask, softcap)
    seen = expected_lse.isfinite()
    assert (out.double() - expected)[seen].abs().max() < TOLERANCE[dtype]
    assert (lse.double() - expected_lse)[seen].abs().max() < TOLERANCE[dtype]
    if kind == "all":
        chosen, chosen_lse = kernel_for(query, key, value, scale=0.25, softcap=softcap)(query, key, value)
        assert torch.equal(chosen, out)
        assert torch.equal(chosen_lse, lse)
    assert torch.equal(lse.isfinite(), seen)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("masked", [None, "shared", "each row"])
def test_one_query_equals_dense_attention(softcap: float | None, masked: str | None) -> None:
    """A single token, whose query groups are computed as rows over the same keys, attends as dense attention says."""
    query, key, value = tensors(3, 1, 9, torch.float64)
    shape = {"shared": (1, 9), "each row": (3, 1, 1, 9)}.get(masked or "")
    mask = None if shape is None else torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.7

    out, lse = attend(query, key, value, scale=0.25, mask=mask, softcap=softcap)

    expected, expected_lse = dense(query, key, value, mask, softcap)
    assert torch.allclose(out, expected, atol=1e-12)
    assert torch.allclose(lse, expected_lse, atol=1e-12)


@given(seed=st.integers(0, 2**16), queries=st.integers(1, 5), keys=st.integers(1, 9), masked=st.booleans())
@settings(max_examples=50)
def test_fused_and_portable_kernels_agree(seed: int, queries: int, keys: int, masked: bool) -> None:
    """The fused kernel computes what the portable one does, rows that see nothing included."""
    query, key, value = tensors(1, queries, keys, torch.float64, seed)
    mask = torch.rand((queries, keys), generator=torch.Generator().manual_seed(seed)) < 0.4 if masked else None

    fused = kernels._fused_cpu(query, key, value, 0.25, mask, False)
    portable = kernels._portable(query, key, value, 0.25, mask, False, None)

    seen = fused[1].isfinite()
    assert torch.equal(seen, portable[1].isfinite())
    assert torch.allclose(fused[0][seen], portable[0][seen], atol=1e-12)
    assert torch.allclose(fused[1][seen], portable[1][seen], atol=1e-12)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [None, "shared", "each row"])
def test_shared_keys_equal_keys_of_each_row(batch: int, masked: str | None) -> None:
    """Folding batch and groups into the query length changes no result."""
    query, key, value = tensors(batch, 5, 6, torch.float64)
    shape = {"shared": (5, 6), "each row": (batch, 5, 6)}.get(masked or "")
    mask = None if shape is None else torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.7
    fold = Fold.of(query, 2)

    part = attend_shared(fold.fold(query), fold, key[:1], value[:1], scale=0.25, mask=mask)

    rows = mask[:, None] if mask is not None and mask.ndim == 3 else mask
    expected, expected_lse = dense(query, key[:1].expand_as(key), value[:1].expand_as(value), rows)
    assert torch.allclose(fold.unfold(part.out), expected.transpose(1, 2), atol=1e-12)
    assert torch.allclose(part.lse, fold.fold_lse(expected_lse), atol=1e-12)


@given(batch=st.integers(1, 3), tokens=st.integers(1, 4), kv_heads=st.integers(1, 3), groups=st.integers(1, 3))
def test_unfolding_undoes_folding(batch: int, tokens: int, kv_heads: int, groups: int) -> None:
    """Every query is in one place of the fold, and comes back to its own."""
    query = torch.arange(batch * kv_heads * groups * tokens * 2.0).view(batch, kv_heads * groups, tokens, 2)
    fold = Fold.of(query, kv_heads)

    assert torch.equal(fold.unfold(fold.fold(query)), query.transpose(1, 2))


@pytest.mark.parametrize("at_once", [0, 1 << 20])
@pytest.mark.parametrize("with_sinks", [False, True])
@given(data=st.data(), seed=st.integers(0, 2**16), cuts=st.sets(st.integers(1, 11)))
@settings(max_examples=60)
def test_merged_parts_are_the_whole(
    with_sinks: bool, at_once: int, data: st.DataObject, seed: int, cuts: set[int]
) -> None:
    """Attention over parts of the keys, merged, is attention over all that a query sees; sinks take part once.

    The first part is seen by every query, others by the last tokens, by some rows, or not by some tokens of some rows.
    """
    batch, tokens = data.draw(st.integers(1, 3)), 5
    query, key, value = tensors(batch, tokens, 12, torch.float64, seed)
    sinks = torch.linspace(-1, 2, 4, dtype=torch.float64) if with_sinks else None
    fold = Fold.of(query, 2)
    mask = torch.ones(batch, 1, tokens, 12, dtype=torch.bool)
    parts = []
    for start, stop in itertools.pairwise([0, *sorted(cuts), 12]):
        first = data.draw(st.integers(0, tokens - 1)) if parts and batch == 1 else 0
        rows = sorted(data.draw(st.sets(st.integers(0, batch - 1), min_size=1))) if parts else list(range(batch))
        unseen = torch.zeros(len(rows), tokens - first, dtype=torch.bool)
        if parts and batch > 1:
            unseen[0, 0] = data.draw(st.booleans())
        seen = torch.zeros(batch, tokens, dtype=torch.bool)
        seen[rows, first:] = ~unseen
        mask[:, 0, :, start:stop] = seen[:, :, None]
        parts.append(
            attend_shared(
                fold.fold(query),
                fold,
                key[:1, :, start:stop],
                value[:1, :, start:stop],
                scale=0.25,
                first_token=first,
                rows=None if len(rows) == batch else torch.tensor(rows),
                unseen=unseen if unseen.any() else None,
            )
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_AT_ONCE", at_once)
        merged = fold.unfold(merge(parts, fold, sinks))

    expected = dense(query, key[:1].expand_as(key), value[:1].expand_as(value), mask, sinks=sinks)[0]
    assert torch.allclose(merged, expected.transpose(1, 2), atol=1e-12)
