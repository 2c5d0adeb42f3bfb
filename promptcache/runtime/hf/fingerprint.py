"""The fingerprint of a model: a digest over everything that its KV depends on.

Comes in: a loaded model. Goes out: a hexadecimal sha256 over configuration, all weights, dtype and RoPE regime.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import PreTrainedModel

from promptcache.kv.keys import FORMAT_VERSION

_NOT_IDENTITY = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "use_cache")


def model_fingerprint(model: PreTrainedModel, regime: str) -> str:
    """Return the digest of `model`; reads every weight once (about a second per two gigabytes).

    Args:
        model: On any device; not changed.
        regime: What else was done to the model (pinned RoPE).
    """
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_IDENTITY}
    tensors = sorted(model.state_dict().items())
    with ThreadPoolExecutor() as pool:
        weights = list(pool.map(_weight_digest, (tensor for _, tensor in tensors)))
    listed = [
        [name, str(tensor.dtype), *tensor.shape, digest]
        for (name, tensor), digest in zip(tensors, weights, strict=True)
    ]
    identity = [FORMAT_VERSION, type(model).__name__, str(model.dtype), regime, config, listed]
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()


def _weight_digest(tensor: torch.Tensor) -> str:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().data).hexdigest()
