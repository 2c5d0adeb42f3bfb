"""The fingerprint of a model: a digest over everything that its KV depends on.

Comes in: a loaded model. Goes out: a hexadecimal sha256 over configuration, all weights, dtype and RoPE regime.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import PretrainedConfig, PreTrainedModel

from promptcache.kv import FORMAT_VERSION
from promptcache.runtime.hf.origin import Origin

_NOT_IDENTITY = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "use_cache")


def model_fingerprint(model: PreTrainedModel, regime: str, origin: Origin | None = None) -> str:
    """Return the digest of `model`; reads every weight once (about a second per two gigabytes), or none at all.

    Args:
        model: On any device; not changed.
        regime: What else was done to the model (pinned RoPE).
        origin: Where its weights came from, and so may have their digest from an earlier start.
    """
    tensors = model.state_dict()
    weights = origin.recall(tensors) if origin is not None else None
    if weights is None:
        weights = weights_digest(tensors)
        if origin is not None:
            origin.remember(tensors, weights)
    identity = [FORMAT_VERSION, type(model).__name__, str(model.dtype), regime, config_identity(model.config), weights]
    return _digest_of(identity)


def config_identity(config: PretrainedConfig) -> dict[str, object]:
    """Return the fields of a configuration that the KV of a model depends on, its weights and dtype apart."""
    return {name: value for name, value in config.to_dict().items() if name not in _NOT_IDENTITY}


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a digest over names, dtypes, shapes and every bit of the weights."""
    named = sorted(tensors.items())
    with ThreadPoolExecutor() as pool:
        digests = pool.map(_weight_digest, (tensor for _, tensor in named))
        return _digest_of(
            [
                [name, str(tensor.dtype), *tensor.shape, digest]
                for (name, tensor), digest in zip(named, digests, strict=True)
            ]
        )


def _digest_of(identity: object) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()


def _weight_digest(tensor: torch.Tensor) -> str:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().data).hexdigest()
