"""Attention over stored and new keys: the masks of a forward pass, and the backends that compute it.

This room works on tensors and positions. It does not use models, transformers, schemas or prompts.
"""

from promptcache.runtime.attention.backend import AttentionBackend, AttentionCall, AttentionSpec, PreparedAttention
from promptcache.runtime.attention.cpu import CpuBackend
from promptcache.runtime.attention.cuda import CudaBackend
from promptcache.runtime.attention.fixed_step import FixedStep
from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.kernel_calls import Kernel, KernelAttention, KernelBackend
from promptcache.runtime.attention.merge import merge
from promptcache.runtime.attention.pass_attention import (
    PassAttention,
    choose_backend,
    has_kernels,
    register_backend,
    token_store,
    unregister_backend,
    uses_kernels,
)
from promptcache.runtime.attention.pass_tokens import (
    KVView,
    PassTokens,
    PositionArray,
    RowChunk,
    SegmentMask,
    TailGroup,
    padded_positions,
)
from promptcache.runtime.attention.portable import PortableBackend
from promptcache.runtime.attention.transfer import to_device, write_to_device
from promptcache.runtime.attention.triton_backend import TokenStore, TritonBackend

__all__ = [
    "AttentionBackend",
    "AttentionCall",
    "AttentionSpec",
    "CpuBackend",
    "CudaBackend",
    "FixedStep",
    "GroupedQueries",
    "KVView",
    "Kernel",
    "KernelAttention",
    "KernelBackend",
    "PassAttention",
    "PassTokens",
    "PortableBackend",
    "PositionArray",
    "PreparedAttention",
    "RowChunk",
    "SegmentMask",
    "TailGroup",
    "TokenStore",
    "TritonBackend",
    "choose_backend",
    "has_kernels",
    "merge",
    "padded_positions",
    "register_backend",
    "to_device",
    "token_store",
    "unregister_backend",
    "uses_kernels",
    "write_to_device",
]
