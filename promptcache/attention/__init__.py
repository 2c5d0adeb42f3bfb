"""Attention over stored and new keys: the masks of a forward pass, and the backends that compute it.

This room works on tensors and positions. It does not use models, transformers, schemas or prompts.
"""

from promptcache.attention.backend import AttentionCall, AttentionSpec, Kernels, PreparedAttention, asked_kernels
from promptcache.attention.pass_attention import (
    PassAttention,
    has_kernels,
    register_backend,
    unregister_backend,
    uses_kernels,
)
from promptcache.attention.pass_tokens import (
    KVView,
    PassTokens,
    PlacedView,
    PositionArray,
    RowChunk,
    TailGroup,
    padded_positions,
)
from promptcache.attention.transfer import to_device, write_to_device
from promptcache.attention.triton_backend import FixedStep, TokenStore, TritonBackend, kernel_faults, kernel_versions
