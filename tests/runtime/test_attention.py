"""Every kernel against dense float64 attention, and the merge of parts against the whole."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.runtime import attention
from promptcache.runtime.attention import Partial, attend, attend_shared, merge

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

    fused = attention._fused_cpu(query, key, value, 0.25, mask, False)
    portable = attention._portable(query, key, value, 0.25, mask, False, None)

    seen = fused[1].isfinite()
    assert torch.equal(seen, portable[1].isfinite())
    assert torch.allclose(fused[0][seen], portable[0][seen], atol=1e-12)
    assert torch.allclose(fused[1][seen], portable[1][seen], atol=1e-12)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_shared_keys_equal_keys_of_each_row(batch: int, masked: bool) -> None:
    """Folding batch and groups into the query length changes no result."""
    query, key, value = tensors(batch, 5, 6, torch.float64)
    mask = torch.ones(5, 6).tril(1).bool() if masked else None

    out, lse = attend_shared(query, key[0], value[0], scale=0.25, mask=mask)

    expected, expected_lse = dense(query, key[:1].expand_as(key), value[:1].expand_as(value), mask)
    assert torch.allclose(out, expected, atol=1e-12)
    assert torch.allclose(lse, expected_lse, atol=1e-12)


@pytest.mark.parametrize("with_sinks", [False, True])
@given(seed=st.integers(0, 2**16), cuts=st.sets(st.integers(1, 11)), first_row=st.integers(0, 4))
@settings(max_examples=40)
def test_merged_parts_are_the_whole(with_sinks: bool, seed: int, cuts: set[int], first_row: int) -> None:
    """Attention over parts of the keys, merged, is attention over all of them; sinks take part once."""
    query, key, value = tensors(2, 5, 12, torch.float64, seed)
    sinks = torch.linspace(-1, 2, 4, dtype=torch.float64) if with_sinks else None
    edges = [0, *sorted(cuts), 12]
    mask = torch.ones(5, 12, dtype=torch.bool)
    mask[:first_row, edges[-2] :] = len(edges) == 2
    parts = []
    for start, stop in itertools.pairwise(edges):
        row = first_row if stop == 12 and len(edges) > 2 else 0
        parts.append(
            Partial(row, *attend(query[:, :, row:], key[:, :, start:stop], value[:, :, start:stop], scale=0.25))
        )

    merged = merge(parts, 5, sinks)

    assert torch.allclose(merged, dense(query, key, value, mask, sinks=sinks)[0], atol=1e-12)
