"""Attention over stored and new keys: the masks of a forward pass, and the backends that compute it.

This room works on tensors and positions. It does not use models, transformers, schemas or prompts.
"""

from promptcache.runtime.attention.backend import AttentionBackend, AttentionCall, AttentionSpec, PreparedAttention
from promptcache.runtime.attention.cpu import CpuBackend
from promptcache.runtime.attention.cuda import CudaBackend
from promptcache.runtime.attention.fixed_step import FixedStep
from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.kernel_calls import Kernel, KernelAttention, KernelBackend, kernel_calls
from promptcache.runtime.attention.masks import (
    ForwardMask,
    KVView,
    PositionArray,
    Positions,
    RequestPositions,
    SegmentMask,
)
from promptcache.runtime.attention.merge import merge
from promptcache.runtime.attention.portable import PortableBackend
from promptcache.runtime.attention.segmented_attention import (
    Append,
    SegmentedAttention,
    append_function,
    choose_backend,
    choose_step_backend,
    has_kernels,
    register_backend,
    token_store,
    unregister_backend,
    uses_kernels,
)
from promptcache.runtime.attention.step import StepAttention
from promptcache.runtime.attention.step_tokens import RowChunk, StepTokens, TailGroup, padded_positions
from promptcache.runtime.attention.transfer import to_device, write_to_device
from promptcache.runtime.attention.triton_backend import TokenStore, TritonBackend

__all__ = [
    "Append",
    "AttentionBackend",
    "AttentionCall",
    "AttentionSpec",
    "CpuBackend",
    "CudaBackend",
    "FixedStep",
    "ForwardMask",
    "GroupedQueries",
    "KVView",
    "Kernel",
    "KernelAttention",
    "KernelBackend",
    "PortableBackend",
    "PositionArray",
    "Positions",
    "PreparedAttention",
    "RequestPositions",
    "RowChunk",
    "SegmentMask",
    "SegmentedAttention",
    "StepAttention",
    "StepTokens",
    "TailGroup",
    "TokenStore",
    "TritonBackend",
    "append_function",
    "choose_backend",
    "choose_step_backend",
    "has_kernels",
    "kernel_calls",
    "merge",
    "padded_positions",
    "register_backend",
    "to_device",
    "token_store",
    "unregister_backend",
    "uses_kernels",
    "write_to_device",
]
