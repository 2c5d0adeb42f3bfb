"""The Triton backend: two kernels in each layer, for any number of rows, segments and windows.

The kernels read segments by their addresses, so nothing is concatenated and no result is merged on the host. Prepared
attention holds what the addresses point to until the forward pass has ended.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import numpy as np
import torch

from promptcache.attention.backend import AttentionCall, AttentionSpec
from promptcache.attention.pass_tokens import PassTokens, RowChunk
from promptcache.attention.segment_lists import KeyRange, ListSizes, SegmentLists, key_ranges, make_lists
from promptcache.attention.torch_backends import PortableBackend
from promptcache.attention.transfer import to_device, write_to_device
from promptcache.diagnostics import first_line
from promptcache.kv import KV, KVShape

_MAX_GROUPS = 16
_OLDEST = 8, 0  # compute capability: Ampere
_FEW_ROWS, _MANY_ROWS = 16, 64  # queries times heads of a group, of one program

_LOG = logging.getLogger(__name__)


class TritonBackend:
    """Attention over lists of segments, on NVIDIA GPUs, for numbers of 16 bits without a soft cap."""

    name = "triton"
    dtypes = frozenset({torch.float16, torch.bfloat16})
    head_dims = frozenset({16, 32, 64, 128, 256})

    def supports(self, spec: AttentionSpec) -> bool:
        """Whether the kernels take these tensors, and run on their device."""
        return (
            spec.softcap is None
            and spec.num_groups <= _MAX_GROUPS
            and self.takes(spec.dtype, spec.head_dim, spec.device)
        )

    def takes(self, dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
        """Whether the kernels take KV of this kind, and run on its device."""
        return dtype in self.dtypes and head_dim in self.head_dims and self.runs_on(device)

    def runs_on(self, device: torch.device) -> bool:
        """Whether the kernels run on a device. The first call compiles them. The meta device stands for CUDA."""
        return _is_installed() if device.type == "meta" else device.type == "cuda" and _runs(device)

    def prepare(self, tokens: PassTokens, window: int | None, spec: AttentionSpec) -> TritonAttention:
        """Prepare the lists of one pass."""
        return TritonAttention(tokens, window, spec)


class ListedAttention:
    """Attention by lists that are on the device."""

    def __init__(self, spec: AttentionSpec, window: int | None) -> None:
        self._spec, self._window = spec, window
        self._block_m = _FEW_ROWS if spec.num_tokens * spec.num_groups <= _FEW_ROWS else _MANY_ROWS
        self._block_m = max(self._block_m, 1 << (spec.num_groups - 1).bit_length())
        self._tokens_at_once = max(1, self._block_m // spec.num_groups)

    def _load(self, lists: SegmentLists) -> None:
        """Copy lists to the device, and allocate the partial results of one layer."""
        self._lists, begins = lists, lists.begins  # holds the memory that they have addresses of
        self._places = [begins.ranges, begins.items, begins.tokens, begins.positions, lists.own_positions]
        self._merged = begins.starts, begins.entries
        self._numbers = to_device(lists.numbers, self._spec.device)
        self._allocate()

    def _allocate(self) -> None:
        size = self._lists.sizes.entries, self._spec.num_kv_heads * self._spec.num_groups
        device = self._spec.device
        accumulator = torch.promote_types(self._spec.dtype, torch.float32)
        self._partial = torch.empty((*size, self._spec.head_dim), dtype=accumulator, device=device)
        self._lse = torch.empty(size, dtype=accumulator, device=device)

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`."""
        query, keys, values = (
            each if each.stride(3) == 1 else each.contiguous() for each in (call.query, call.keys, call.values)
        )
        ops: Any = _operators()
        ops.attend(
            query,
            keys,
            values,
            self._partial,
            self._lse,
            self._numbers,
            layer,
            call.scale,
            self._window or 0,
            self._window is not None,
            self._places,
            self._lists.num_items,
            self._block_m,
        )
        out = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        ops.merge(out, self._partial, self._lse, self._numbers, call.sinks, *self._merged)
        return out


class TritonAttention(ListedAttention):
    """Attention of one pass."""

    def __init__(self, tokens: PassTokens, window: int | None, spec: AttentionSpec) -> None:
        super().__init__(spec, window)
        positions = tokens.positions
        chunks = ((positions[each.start], positions[each.stop - 1]) for each in tokens.chunks)
        compares_own = window is not None and any(last - first >= window for first, last in chunks)
        lists = make_lists(
            [*key_ranges(tokens, window)],
            positions,
            num_kv_heads=spec.num_kv_heads,
            tokens_at_once=self._tokens_at_once,
            compares_own=compares_own,
            holds=(*tokens.segments, *tokens.groups, *tokens.chunks),
        )
        self._load(lists)


class _FixedAttention(ListedAttention):
    """Attention of any step with at most T tokens, in the layers with one window."""

    def __init__(self, spec: AttentionSpec, window: int | None) -> None:
        super().__init__(spec, window)
        room = ListSizes.room(spec.num_tokens, spec.num_kv_heads, self._tokens_at_once, has_window=window is not None)
        numbers = torch.zeros(sum(room), dtype=torch.int64, device=spec.device)  # lists without work
        self._load(SegmentLists(numbers=numbers, sizes=room, holds=()))

    def load(self, tokens: PassTokens) -> bool:
        """Write the lists of a step; return False if there is no room for them."""
        num_used, num_tokens = len(tokens.positions), self._spec.num_tokens
        positions = np.zeros(num_tokens, dtype=np.int64)
        positions[:num_used] = tokens.positions
        ranges = [*key_ranges(tokens, self._window)]
        if num_used < num_tokens:
            ranges.append(KeyRange(np.arange(num_used, num_tokens), num_used, num_tokens, None))
        lists = make_lists(
            ranges,
            positions,
            num_kv_heads=self._spec.num_kv_heads,
            tokens_at_once=self._tokens_at_once,
            compares_own=self._window is not None,
            holds=(),
        )
        numbers = lists.spread(self._lists)
        if numbers is None:
            return False
        write_to_device(self._numbers[: len(numbers)], numbers)
        return True

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`."""
        self._allocate()  # while recording, from memory that layers and recordings share
        found = super().run(layer, call)
        del self._partial, self._lse
        return found


def store_targets(places: Iterable[tuple[KV, int]]) -> torch.Tensor:
    """Return what `store` reads of each token, `[T, 4]`: addresses of its key and value, strides of layers and heads.

    The caller holds the memory.
    """
    targets = []
    for memory, index in places:
        layer, head, token, _ = memory.keys.stride()
        offset = index * token * memory.keys.element_size()
        targets.append((memory.keys.data_ptr() + offset, memory.values.data_ptr() + offset, layer, head))
    return torch.tensor(targets, dtype=torch.int64)


class TokenStore:
    """The places of a step's tokens in the memory of their rows, for a kernel that writes all of them at once."""

    def __init__(self, places: Iterable[tuple[KV, int]], device: torch.device) -> None:
        """Note where each token of a step is written: the keys and values of its row, and its index there."""
        self._holds = tuple(places)
        self._targets = to_device(store_targets(self._holds), device)

    def move(self, places: Iterable[tuple[KV, int]]) -> None:
        """Write as many tokens to other places from now on. The caller holds their memory."""
        write_to_device(self._targets, store_targets(places))

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values `[T, Hkv, D]` of one layer."""
        _operators().store(keys, values, self._targets, layer)


class FixedStep:
    """Attention of any step with at most T tokens, by operations that read the step from memory at fixed addresses.

    A CUDA graph runs kernels with the arguments that they had when it was captured. So everything that differs between
    steps lies in memory that the kernels read: the lists of segments, and the places of new KV. Tokens behind those of
    a step attend to each other, and their KV is written to spare memory.
    """

    def __init__(self, num_tokens: int, shape: KVShape, specs: Mapping[int | None, AttentionSpec]) -> None:
        """Allocate the memory.

        Args:
            num_tokens: T.
            shape: Shape of the KV.
            specs: Properties of a step with T tokens, for the layers with each window. The Triton backend takes them.
        """
        self.num_tokens = num_tokens
        self._spare = KV.empty(shape, 1)
        self._store = TokenStore([(self._spare, 0)] * num_tokens, shape.device)
        self._attention = {window: _FixedAttention(spec, window) for window, spec in specs.items()}

    def load(self, tokens: PassTokens, places: Iterable[tuple[KV, int]]) -> bool:
        """Write a step to the memory; return False if there is no room for its lists.

        The caller holds the KV of the step until the operations that read it are queued on the device. Later
        operations cannot overtake them, so the memory of the KV may be used for something else then.

        Args:
            places: For each token the KV of its row, and its index there.
        """
        if not all(each.load(tokens) for each in self._attention.values()):
            return False
        num_spare = self.num_tokens - len(tokens.positions)
        self._store.move([*places, *[(self._spare, 0)] * num_spare])
        return True

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`."""
        return self._attention[call.window].run(layer, call)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values `[T, Hkv, D]` of one layer."""
        self._store.write(layer, keys, values)


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None


@cache
def _runs(device: torch.device) -> bool:
    """Whether a CUDA device compiles the kernels, and computes what matrix products give.

    Compiling needs more than the package, for example a C compiler. Without it, other backends compute.
    """
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < _OLDEST or not _is_installed():
        return False
    try:
        is_right = computes_rightly(device, torch.float16)
    except kernel_faults() as error:
        _LOG.warning("the Triton kernels do not run on %s, so that slower ones compute: %s", device, first_line(error))
        return False
    if not is_right:
        _LOG.warning("the Triton kernels compute wrong numbers on %s, so that slower ones compute", device)
    return is_right


def kernel_faults() -> tuple[type[Exception], ...]:
    """Return the errors of kernels that do not compile or run. Triton is installed."""
    from triton.errors import TritonError

    return ImportError, OSError, RuntimeError, SubprocessError, TritonError


def kernel_versions() -> tuple[str, str, str]:
    """Return what the speed of the kernels depends on beside the device: PyTorch, Triton and their own source."""
    import triton

    source = Path(__file__).with_name("segments_kernel.py").read_bytes()
    return torch.__version__, triton.__version__, hashlib.sha256(source).hexdigest()[:16]


def computes_rightly(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels compute attention among three tokens as matrix products do."""
    states = torch.linspace(-2, 2, 6 * 16, dtype=dtype, device=device).view(1, 2, 3, 16)
    tokens = PassTokens(
        segments=(),
        users=np.zeros((0, 3), dtype=np.bool_),
        positions=np.arange(3),
        groups=(),
        chunks=(RowChunk(start=0, stop=3, older=None),),
        device=device,
    )
    call = AttentionCall(states, states.flip(2), states.flip(3), 0.25)
    spec = AttentionSpec.of(call)
    found, expected = (each.prepare(tokens, None, spec).run(0, call) for each in (TritonBackend(), PortableBackend()))
    return torch.allclose(found, expected, rtol=0, atol=1e-2)


@cache
def _operators() -> Any:
    """Return the operators of the kernels. The first use compiles them for the device."""
    from promptcache.attention.segments_kernel import OPERATORS  # imports triton

    return OPERATORS
