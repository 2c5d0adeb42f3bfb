"""Backends agree with each other and with dense attention."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.attention import AttentionCall, AttentionSpec, TritonBackend
from promptcache.attention.kernel_calls import KernelAttention, KernelBackend
from promptcache.attention.pass_attention import choose_backend
from promptcache.attention.torch_backends import CpuBackend, CudaBackend, PortableBackend
from tests.attention.plans import HEAD_DIM, SCALE, PassPlan, dense_attention
from tests.conftest import law_examples
from tests.devices import DEVICES
from tests.planted.registry import module_of


class GroupingBackend(CpuBackend):
    """The kernel for CPUs, which is given queries whose heads are not grouped, as kernels for GPUs are."""

    name = "cpu, groups"
    groups_heads = True


BACKENDS: Sequence[KernelBackend] = (CpuBackend(), GroupingBackend(), CudaBackend(), PortableBackend())
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def spec_of(dtype: torch.dtype, device: str, softcap: float | None = None, head_dim: int = HEAD_DIM) -> AttentionSpec:
    return AttentionSpec(
        num_tokens=1,
        num_kv_heads=1,
        num_groups=1,
        head_dim=head_dim,
        dtype=dtype,
        device=torch.device(device),
        softcap=softcap,
    )


def random_states(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.law
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at_once", [0, 1 << 20], ids=["one by one", "at once"])
@given(seed=st.integers(0, 2**32), softcap=st.none() | st.just(2.0))
@settings(max_examples=law_examples(0.5))
def test_backends_compute_dense_attention_by_position(
    device: str, at_once: int, seed: int, softcap: float | None
) -> None:
    """Every backend that supports a random pass computes dense attention; both ways of merging agree."""
    plan = PassPlan(seed, torch.float64, device)
    plan.softcap = softcap
    with pytest.MonkeyPatch.context() as patch:
        module = module_of(KernelAttention.__module__)
        patch.setattr(module, "_MAX_NUMBERS_AT_ONCE", at_once)
        patch.setattr(module, "_MAX_TOKENS_AT_ONCE", max(1, at_once))
        found = {each.name: plan.distance(each) for each in BACKENDS}

    assert found["portable"] is not None
    assert (found["cpu"] is not None) is (device == "cpu" and softcap is None)
    assert max(each for each in found.values() if each is not None) < 1e-12


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kind", ["all", "causal", "mask"])
def test_kernels_equal_dense_attention(
    device: str, backend: KernelBackend, dtype: torch.dtype, softcap: float | None, kind: str
) -> None:
    """Output and log-sum-exp of every kernel equal dense attention, also for queries that attend to no key."""
    groups = 1 if kind == "all" else 2
    spec = spec_of(dtype, device, softcap)
    if not backend.supports(spec):
        pytest.skip(f"{backend.name} does not support this")
    check_kernel(backend, spec, groups, kind)


def check_kernel(backend: KernelBackend, spec: AttentionSpec, groups: int, kind: str) -> None:
    """Check output and log-sum-exp of a kernel for random states, of which one query attends to no key if masked."""
    generator, by_row = torch.Generator().manual_seed(0), kind == "mask of rows"
    query, key, value = (
        random_states((2, heads, 7, HEAD_DIM), generator).to(spec.device, spec.dtype) for heads in (2 * groups, 2, 2)
    )
    drawn = torch.rand((2, 1, 7, 7) if by_row else (7, 7), generator=generator) < 0.6
    drawn[..., 3, :] = False
    mask = {"all": None, "causal": torch.ones(7, 7).tril().bool()}.get(kind, drawn)

    prepared = backend.prepare_mask(drawn, spec) if mask is drawn else None
    call = AttentionCall(query, key, value, SCALE, softcap=spec.softcap)
    out, lse = backend.attend(query, key, value, call, prepared, kind == "causal")

    mask = None if mask is None else mask.to(spec.device)
    expected, expected_lse = dense_attention(query, key, value, scale=SCALE, mask=mask, softcap=spec.softcap)
    seen = expected_lse.isfinite()
    assert torch.equal(lse.isneginf(), ~seen)
    assert not out.isnan().any()
    assert (out.double() - expected)[seen].abs().max() < TOLERANCE[spec.dtype]
    assert (lse.double() - expected_lse)[seen].abs().max() < TOLERANCE[spec.dtype]


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
    if kind == "mask of rows" and groups > 1:
        pytest.skip("masks of rows are for grouped queries")
    module = module_of(CudaBackend.__module__)
    monkeypatch.setattr(module, "_FLASH", _like_flash)
    monkeypatch.setattr(module, "_EFFICIENT", _like_efficient)
    spec = spec_of(torch.bfloat16, "cpu")

    check_kernel(CudaBackend(), spec, groups, kind)


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
    spec = spec_of(dtype, device, softcap, head_dim)

    for runs, expected in ((True, name), (False, without_triton)):
        monkeypatch.setattr(TritonBackend, "runs_on", lambda self, device, runs=runs: runs and device.type == "cuda")
        assert choose_backend(spec).name == expected


@pytest.mark.parametrize(("available", "capability"), [(False, (9, 0)), (True, (7, 5))])
def test_a_gpu_without_the_kernel_uses_the_portable_backend(
    monkeypatch: pytest.MonkeyPatch, available: bool, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(TritonBackend, "runs_on", lambda self, device: False)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert choose_backend(spec_of(torch.bfloat16, "cuda")).name == "portable"
