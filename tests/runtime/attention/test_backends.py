"""Backends agree with each other and with dense attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.kv import KVShape
from promptcache.runtime.attention import (
    AttentionCall,
    AttentionSpec,
    CpuBackend,
    CudaBackend,
    ForwardMask,
    GroupedQueries,
    Kernel,
    KernelBackend,
    PortableBackend,
    RequestPositions,
    SegmentedAttention,
    SegmentMask,
    TritonBackend,
    choose_backend,
    choose_step_backend,
    kernel_calls,
    merge,
    register_backend,
    unregister_backend,
)
from tests.conftest import law_examples
from tests.devices import DEVICES
from tests.planted.targets import module_of
from tests.runtime.attention.dense import DenseBackend, dense_attention
from tests.runtime.attention.test_masks import placed_tokens
from tests.runtime.attention.views import View, random_slab


class GroupingBackend(CpuBackend):
    """The kernel for CPUs, which is given queries whose heads are not grouped, as kernels for GPUs are."""

    name = "cpu, groups"

    def kernel(self, spec: AttentionSpec) -> Kernel:
        """Return the same kernel, which then reads keys several times."""
        return replace(super().kernel(spec), groups_heads=True)


BACKENDS: Sequence[KernelBackend] = (CpuBackend(), GroupingBackend(), CudaBackend(), PortableBackend())
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
HEAD_DIM, SCALE, NUM_LAYERS = 8, 0.35, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One forward pass: its mask and its tensors, on a CPU in float64."""

    mask: ForwardMask
    queries: GroupedQueries
    call: AttentionCall


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw shapes, masks, soft caps and sinks; some segments are empty or attended to by no query."""
    queries = GroupedQueries(
        batch=draw(st.integers(1, 3)),
        num_tokens=draw(st.integers(1, 4)),
        num_kv_heads=draw(st.integers(1, 3)),
        num_groups=draw(st.integers(1, 3)),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    lengths = draw(st.lists(st.sampled_from([1, 2, 3, 3, 5]), max_size=6))
    slab = random_slab(kv_shape(queries, "cpu", torch.float64), sum(lengths) + len(lengths) + 1, generator)
    segments, start = [], 0
    for length in lengths:
        start += draw(st.integers(0, 1))
        segments.append(View(slab, start, tuple(range(start, start + length))))
        start += length
    num_own = queries.num_tokens + draw(st.integers(0, 3))
    shape = (queries.batch, queries.num_kv_heads, num_own, HEAD_DIM)
    heads = queries.num_kv_heads * queries.num_groups
    mask = ForwardMask(
        segments=tuple(segments),
        masks=tuple(draw(segment_masks(queries, length, generator)) for length in lengths),
        own_mask=draw(own_masks(queries, num_own, generator)),
    )
    return Case(
        mask=mask,
        queries=queries,
        call=AttentionCall(
            2 * random_states((queries.batch, heads, queries.num_tokens, HEAD_DIM), generator),
            random_states(shape, generator),
            random_states(shape, generator),
            SCALE,
            softcap=draw(st.none() | st.just(2.0)),
            sinks=random_states((heads,), generator) if draw(st.booleans()) else None,
        ),
    )


@st.composite
def segment_masks(
    draw: st.DrawFn, queries: GroupedQueries, length: int, generator: torch.Generator
) -> SegmentMask | None:
    """Draw a mask: whole, from some query on, some keys, some rows, random, or none."""
    if not draw(st.integers(0, 4)):
        return None
    start = draw(st.just(0) | st.integers(0, length))
    is_single = queries.num_tokens == 1
    rows = draw(st.none() | st.sets(st.integers(0, queries.batch - 1), min_size=1)) if is_single else None
    first_query = draw(st.integers(0, queries.num_tokens - 1))
    num_rows, num_queries = queries.batch if rows is None else len(rows), queries.num_tokens - first_query
    shapes = [(num_queries, length - start)] if rows is None else []
    shapes += [(num_rows, 1, length - start)] if is_single else []
    masked = draw(st.none() | st.sampled_from(shapes))
    return SegmentMask(
        first_query=first_query,
        start=start,
        stop=length,
        mask=None if masked is None else torch.rand(masked, generator=generator) < 0.6,
        rows=None if rows is None else np.array(sorted(rows)),
    )


@st.composite
def own_masks(
    draw: st.DrawFn, queries: GroupedQueries, num_own: int, generator: torch.Generator
) -> torch.Tensor | None:
    """Draw a mask of own tokens: causal, or random except for the query itself."""
    shape = (queries.num_tokens, num_own)
    if draw(st.booleans()):
        return None
    causal = torch.ones(shape, dtype=torch.bool).tril(num_own - queries.num_tokens)
    itself = causal & ~torch.ones(shape, dtype=torch.bool).tril(num_own - queries.num_tokens - 1)
    return (torch.rand(shape, generator=generator) < 0.6) & causal | itself


def kv_shape(queries: GroupedQueries, device: str, dtype: torch.dtype) -> KVShape:
    """The shape of stored KV for such queries."""
    return KVShape(
        num_layers=NUM_LAYERS,
        num_kv_heads=queries.num_kv_heads,
        head_dim=HEAD_DIM,
        dtype=dtype,
        device=torch.device(device),
    )


def spec_of(queries: GroupedQueries, dtype: torch.dtype, device: str, softcap: float | None = None) -> AttentionSpec:
    """The spec of such queries."""
    return AttentionSpec(queries=queries, head_dim=HEAD_DIM, dtype=dtype, device=torch.device(device), softcap=softcap)


def random_states(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return random numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def on_device(mask: ForwardMask, device: str) -> ForwardMask:
    """The same masks over the same segments on another device; one slab is copied once."""
    slabs = {each.slab: replace(each.slab, keys=each.slab.keys.to(device), values=each.slab.values.to(device))
             for each in mask.segments}  # fmt: skip
    segments = tuple(View(slabs[each.slab], each.start, tuple(each.position_array())) for each in mask.segments)
    return replace(mask, segments=segments)


@pytest.mark.law
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at_once", [0, 1 << 20], ids=["one by one", "at once"])
@given(case=cases(), layer=st.integers(0, NUM_LAYERS - 1))
@settings(max_examples=law_examples())
def test_backends_agree_with_each_other_and_with_dense_attention(
    device: str, at_once: int, case: Case, layer: int
) -> None:
    """Every backend that supports a forward pass computes dense attention; both ways of merging agree."""
    mask = on_device(case.mask, device)
    call = AttentionCall(*(each.to(device) if isinstance(each, torch.Tensor) else each for each in case.call))
    spec = spec_of(case.queries, torch.float64, device, call.softcap)
    expected = DenseBackend().prepare(mask, spec).run(layer, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_of(merge.__module__), "_MAX_NUMBERS_AT_ONCE", at_once)
        patch.setattr(module_of(kernel_calls.__module__), "_MAX_ROWS_AT_ONCE", max(1, at_once))
        found = {
            backend.name: backend.prepare(mask, spec).run(layer, call) for backend in BACKENDS if backend.supports(spec)
        }

    assert "portable" in found
    assert ("cpu" in found) is (device == "cpu" and call.softcap is None)
    for out in found.values():
        assert torch.allclose(out, expected, rtol=0, atol=1e-10 if device == "cuda" else 1e-12)


@pytest.mark.law
@pytest.mark.parametrize("device", DEVICES)
@given(
    placed=placed_tokens(),
    window=st.none() | st.integers(1, 40),
    chunk=st.integers(1, 6),
    softcap=st.none() | st.just(2.0),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=law_examples(0.5))
def test_requests_attend_by_position(
    device: str,
    placed: tuple[list[tuple[int, ...]], list[int]],
    window: int | None,
    chunk: int,
    softcap: float | None,
    seed: int,
) -> None:
    """Own tokens attend to themselves and to lower positions within the window, in any chunks."""
    stored, own = placed
    queries = GroupedQueries(batch=1, num_tokens=len(own), num_kv_heads=2, num_groups=2)
    generator = torch.Generator().manual_seed(seed)
    shape = kv_shape(queries, device, torch.float64)
    segments = [View(random_slab(shape, len(positions), generator), 0, positions) for positions in stored]
    query, own_keys, own_values = (
        random_states((1, heads, len(own), HEAD_DIM), generator).to(device) for heads in (4, 2, 2)
    )
    attention = SegmentedAttention(RequestPositions(segments, own))

    outs = [
        attention.run(
            1,
            AttentionCall(
                query[:, :, start : start + chunk],
                own_keys[:, :, : start + chunk],
                own_values[:, :, : start + chunk],
                SCALE,
                window,
                softcap,
            ),
        )
        for start in range(0, len(own), chunk)
    ]

    distance = torch.tensor(own)[:, None] - torch.tensor([place for places in stored for place in places] + own)
    mask = (distance >= 0) & (distance < (window or 1 << 30))
    keys, values = (
        torch.cat([*(view.layers().by_layer[1][index] for view in segments), tail], dim=2)
        for index, tail in enumerate((own_keys, own_values))
    )
    expected, _ = dense_attention(query, keys, values, scale=SCALE, mask=mask.to(device), softcap=softcap)
    assert torch.allclose(torch.cat(outs, dim=1), expected.transpose(1, 2), rtol=0, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kind", ["all", "causal", "mask"])
def test_kernels_equal_dense_attention(
    device: str, backend: KernelBackend, dtype: torch.dtype, softcap: float | None, kind: str
) -> None:
    """Output and log-sum-exp of every kernel equal dense attention, also for queries that attend to no key."""
    queries = GroupedQueries(batch=2, num_tokens=7, num_kv_heads=2, num_groups=1 if kind == "all" else 2)
    spec = spec_of(queries, dtype, device, softcap)
    if not backend.supports(spec):
        pytest.skip(f"{backend.name} does not support this")
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        random_states((2, heads, 7, HEAD_DIM), generator).to(device, dtype) for heads in (2 * queries.num_groups, 2, 2)
    )
    random_mask = torch.rand((7, 7), generator=generator) < 0.6
    random_mask[3] = False
    mask = {"all": None, "causal": torch.ones(7, 7).tril().bool(), "mask": random_mask}[kind]
    kernel = backend.kernel(spec)

    if kind == "all":
        out, lse = kernel.unmasked(query, key, value, scale=SCALE)
    else:
        out, lse = kernel.masked(
            query,
            key,
            value,
            scale=SCALE,
            mask=kernel.prepare_mask(random_mask) if kind == "mask" else None,
            causal=kind == "causal",
        )

    seen_keys = None if mask is None else mask.to(device)
    expected, expected_lse = dense_attention(query, key, value, scale=SCALE, mask=seen_keys, softcap=softcap)
    seen = expected_lse.isfinite()
    assert torch.equal(lse.isfinite(), seen)
    assert (out.double() - expected)[seen].abs().max() < TOLERANCE[dtype]
    assert (lse.double() - expected_lse)[seen].abs().max() < TOLERANCE[dtype]


def _like_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, causal: bool, *, scale: float
) -> tuple[torch.Tensor, ...]:
    """What PyTorch's FlashAttention computes on a GPU: the heads of a group may share keys, there is no mask."""
    assert dropout == 0
    mask = torch.ones(query.shape[2], key.shape[2]).tril().bool() if causal else None
    out, lse = dense_attention(query, key, value, scale=scale, mask=mask)
    return out.to(query.dtype), lse.float(), torch.empty(0)


def _like_efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    with_lse: bool,
    dropout: float,
    causal: bool,
    *,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """What PyTorch's memory-efficient kernel computes: as many heads of keys, an aligned bias, more log-sum-exps."""
    batch, heads, num_queries, _ = query.shape
    assert (with_lse, dropout, causal) == (True, 0, False)
    assert key.shape[:2] == value.shape[:2] == (batch, heads)
    assert bias.shape == (batch, heads, num_queries, key.shape[2])
    assert bias.dtype == query.dtype
    assert all(stride % 8 == 0 for stride, size in zip(bias.stride()[:3], bias.shape[:3], strict=True) if size > 1)
    out, lse = dense_attention(query, key, value, scale=scale, mask=bias == 0)
    blind = ~(bias == 0).any(-1)
    out[blind], lse[blind] = torch.nan, torch.nan  # no promise is known about queries without a key
    padding = -num_queries % 32
    return out.to(query.dtype), torch.nn.functional.pad(lse.float(), (0, padding), value=7.0), torch.empty(0)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("kind", ["all", "causal", "mask", "mask of rows"])
def test_the_cuda_backend_calls_its_kernels_as_they_want(
    monkeypatch: pytest.MonkeyPatch, groups: int, kind: str
) -> None:
    """With stand-ins that check their arguments, output and log-sum-exp equal dense attention."""
    by_row = kind == "mask of rows"
    if by_row and groups > 1:
        pytest.skip("masks of rows are for grouped queries")
    module = module_of(CudaBackend.__module__)
    monkeypatch.setattr(module, "_FLASH", _like_flash)
    monkeypatch.setattr(module, "_EFFICIENT", _like_efficient)
    generator = torch.Generator().manual_seed(0)
    queries = GroupedQueries(batch=2, num_tokens=7, num_kv_heads=2, num_groups=groups)
    query, key, value = (random_states((2, heads, 7, HEAD_DIM), generator).bfloat16() for heads in (2 * groups, 2, 2))
    drawn = torch.rand((2, 1, 7, 7) if by_row else (7, 7), generator=generator) < 0.6
    drawn[..., 3, :] = False
    kernel = CudaBackend().kernel(spec_of(queries, torch.bfloat16, "cpu"))

    mask = {"all": None, "causal": torch.ones(7, 7).tril().bool()}.get(kind, drawn)
    if kind == "all":
        out, lse = kernel.unmasked(query, key, value, scale=SCALE)
    else:
        prepared = kernel.prepare_mask(drawn) if mask is drawn else None
        out, lse = kernel.masked(query, key, value, scale=SCALE, mask=prepared, causal=kind == "causal")

    expected, expected_lse = dense_attention(query, key, value, scale=SCALE, mask=mask)
    seen = expected_lse.isfinite()
    assert torch.equal(lse.isneginf(), ~seen)
    assert not out.isnan().any()
    assert (out.double() - expected)[seen].abs().max() < TOLERANCE[torch.bfloat16]
    assert (lse.double() - expected_lse)[seen].abs().max() < TOLERANCE[torch.bfloat16]


@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    by_query=st.booleans(),
)
def test_ungrouping_undoes_grouping(batch: int, tokens: int, kv_heads: int, groups: int, by_query: bool) -> None:
    """Grouping is a bijection, and ungrouping is its inverse, also where memory has the queries before the heads."""
    query = torch.arange(batch * kv_heads * groups * tokens * 2.0).view(batch, kv_heads * groups, tokens, 2)
    queries = GroupedQueries.of(query, kv_heads)
    grouped = queries.group(query)
    if by_query:  # as kernels for GPUs return their output
        grouped = grouped.transpose(1, 2).contiguous().transpose(1, 2)

    assert torch.equal(queries.ungroup(grouped), query.transpose(1, 2))


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "softcap", "name", "without_triton"),
    [
        ("cpu", torch.float32, 64, None, "cpu", "cpu"),
        ("cpu", torch.float32, 64, 30.0, "portable", "portable"),
        ("cuda", torch.bfloat16, 64, None, "triton", "cuda"),
        ("cuda", torch.float16, 256, None, "triton", "cuda"),
        ("cuda", torch.bfloat16, 96, None, "cuda", "cuda"),
        ("cuda", torch.bfloat16, 64, 30.0, "portable", "portable"),
        ("cuda", torch.bfloat16, 60, None, "portable", "portable"),
        ("cuda", torch.bfloat16, 512, None, "portable", "portable"),
        ("cuda", torch.float32, 64, None, "portable", "portable"),
        ("mps", torch.bfloat16, 64, None, "portable", "portable"),
    ],
)
def test_the_choice_goes_by_what_the_kernels_support(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: torch.dtype,
    head_dim: int,
    softcap: float | None,
    name: str,
    without_triton: str,
) -> None:
    """A kernel is chosen where there is one for the tensors and the device runs it, the portable backend otherwise."""
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    queries = GroupedQueries(batch=1, num_tokens=1, num_kv_heads=1, num_groups=1)
    spec = AttentionSpec(queries=queries, head_dim=head_dim, dtype=dtype, device=torch.device(device), softcap=softcap)

    for runs, expected in ((True, name), (False, without_triton)):
        monkeypatch.setattr(TritonBackend, "runs_on", lambda self, device, runs=runs: runs and device.type == "cuda")
        assert choose_backend(spec).name == expected


@pytest.mark.parametrize(("available", "capability"), [(False, (9, 0)), (True, (7, 5))])
def test_a_gpu_without_the_kernel_uses_the_portable_backend(
    monkeypatch: pytest.MonkeyPatch, available: bool, capability: tuple[int, int]
) -> None:
    """Builds without FlashAttention and GPUs that are too old for it."""
    monkeypatch.setattr(TritonBackend, "runs_on", lambda self, device: False)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    queries = GroupedQueries(batch=1, num_tokens=1, num_kv_heads=1, num_groups=1)

    assert choose_backend(spec_of(queries, torch.bfloat16, "cuda")).name == "portable"


def test_a_backend_without_a_kernel_computes_no_steps() -> None:
    """Steps of many requests use the kernel of the first backend that has one."""
    queries = GroupedQueries(batch=1, num_tokens=1, num_kv_heads=1, num_groups=1)
    spec = spec_of(queries, torch.float32, "cpu")
    backend = DenseBackend()
    register_backend(backend)
    try:
        assert choose_backend(spec) is backend
        assert choose_step_backend(spec).name == "cpu"
    finally:
        unregister_backend(backend.name)


def test_attention_is_prepared_once_for_each_window() -> None:
    """Layers with the same window share prepared attention. Without a window, the next single token shares it too."""
    backend = DenseBackend()
    attention = SegmentedAttention(RequestPositions([], [0, 1]))
    register_backend(backend)
    try:
        for num_own in (1, 2):
            for layer, window in enumerate((None, 4, None, 4)):
                _run(attention, layer, num_own, window)
    finally:
        unregister_backend(backend.name)

    runs = ["run 0", "prepare", "run 1", "run 2", "run 3"]
    assert backend.calls == ["prepare", *runs, *runs]


def test_prepared_attention_serves_only_tokens_that_attend_to_everything() -> None:
    """Attention is prepared for a token below a segment, for the first one above it, for several, and after a crop."""
    backend = DenseBackend()
    queries = GroupedQueries(batch=1, num_tokens=1, num_kv_heads=2, num_groups=1)
    segment = View(random_slab(kv_shape(queries, "cpu", torch.float32), 4, torch.Generator()), 0, (1, 2, 3, 4))
    attention = SegmentedAttention(RequestPositions([segment], [0, 7, 9]))
    is_prepared = []
    register_backend(backend)
    try:
        for num_own, num_queries in ((1, 1), (2, 1), (3, 1), (9, 1), (2, 1), (1, 1), (2, 1), (4, 2), (5, 1)):
            before = backend.calls.count("prepare")
            _run(attention, 0, num_own, None, num_queries)
            is_prepared.append(backend.calls.count("prepare") > before)
    finally:
        unregister_backend(backend.name)

    assert is_prepared == [True, True, False, False, False, True, True, True, True]


def _run(
    attention: SegmentedAttention, layer: int, num_own: int, window: int | None, num_queries: int = 1
) -> torch.Tensor:
    query, own = torch.zeros(1, 2, num_queries, HEAD_DIM), torch.zeros(1, 2, num_own, HEAD_DIM)
    return attention.run(layer, AttentionCall(query, own, own, SCALE, window))
