"""The fingerprint of a model: a sha256 over everything that its KV depends on, weights and additions included.

Additions are active adapters, hooks, replaced `forward`s and buffers that are not saved. What the code of hooks and
`forward`s computes cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel

from promptcache.kv import FORMAT_VERSION

_NOT_IDENTITY = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "use_cache")

_HARMLESS_HOOKS = ("accelerate.hooks.AlignDevicesHook", "accelerate.hooks.CpuOffload")
"""Hooks of accelerate that move weights and inputs between devices."""

_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_CHUNKS = 32


def model_fingerprint(model: PreTrainedModel, regime: str) -> str:
    """Return the fingerprint of `model`: a digest of its configuration, weights, dtype, RoPE regime and additions.

    Reading the weights takes about a second of one core for each gigabyte.

    Args:
        model: On any device; not changed.
        regime: Changes that were made to the model (pinned RoPE).
    """
    unused = tuple(  # the weights of inactive adapters, which no forward pass uses
        f"{name}.{attribute}.{adapter}."
        for name, layer in adapter_layers(model)
        for attribute in layer.adapter_layer_names
        if isinstance(held := getattr(layer, attribute, None), torch.nn.ModuleDict | torch.nn.ParameterDict)
        for adapter in held
        if adapter not in active_adapters(layer)
    )
    weights = {name: each for name, each in model.state_dict().items() if not f"{name}.".startswith(unused)}
    with ThreadPoolExecutor() as pool:
        described = sorted(pool.map(_described, weights, weights.values()))
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_IDENTITY}
    about = [FORMAT_VERSION, type(model).__name__, str(model.dtype), regime, config]
    return _digest_of([*about, _digest_of(described), _additions(model)])


def adapter_layers(hf: Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers of `peft` that have adapters, with their names."""
    for name, module in hf.named_modules():
        if hasattr(module, "_active_adapter") and hasattr(module, "_disable_adapters"):
            yield name, module


def active_adapters(layer: Any) -> tuple[str, ...]:
    """Return the names of the adapters of a layer that take part in a forward pass, unless they are merged."""
    if layer._disable_adapters:
        return ()
    active = layer._active_adapter
    return (active,) if isinstance(active, str) else tuple(active)


def adapter_settings(layer: Any) -> tuple[tuple[str, ...], list[Any], list[str]]:
    """Return the active adapters of a layer, their scales and the merged adapters."""
    active, scaling = active_adapters(layer), getattr(layer, "scaling", {})
    scales = [scaling.get(each) for each in active] if isinstance(scaling, dict) else []
    return active, scales, [*layer.merged_adapters]


def _additions(hf: Module) -> Mapping[str, object]:
    """Return a description of all additions to a model, for JSON; {} if there are none.

    With own code, each description is another one: no KV of another engine may be used.
    """
    settings = {name: adapter_settings(layer) for name, layer in adapter_layers(hf)}
    buffers: dict[str, list[object]] = {}
    for name, module in hf.named_modules():
        for own in sorted(module._non_persistent_buffers_set):
            if (buffer := module._buffers.get(own)) is None:
                continue
            about: list[object] = [str(buffer.dtype), *buffer.shape]
            if (
                buffer.is_floating_point()
            ):  # each machine computes them, with its rounding, so means of parts are rounded
                parts = buffer.detach().flatten().cpu().double().tensor_split(min(_CHUNKS, buffer.numel() or 1))
                about += [f"{float(each.mean()):.2e}" for each in parts]
            else:
                about.append(_tensor_digest(buffer))
            buffers[f"{name}.{own}"] = about
    found = {
        "adapters": {name: each for name, each in settings.items() if any(each)},
        "buffers": buffers,
        "own code": secrets.token_hex() if _has_own_code(hf) else None,
    }
    return {name: each for name, each in found.items() if each}


def is_harmless(hook: object) -> bool:
    """Whether a hook is from transformers, to record outputs of layers, or from this library, to set positions."""
    return str(getattr(hook, "__module__", "")).startswith(("transformers.", "promptcache.model."))


def runs_own_code(hf: Module) -> bool:
    """Whether a hook or a replaced `forward` runs code in each forward pass, which a recorded pass leaves out."""
    return _has_own_code(hf) or any("forward" in vars(module) for module in hf.modules())


def _has_own_code(hf: Module) -> bool:
    """Whether a hook or a replaced `forward` may change what the model computes."""
    hooks = [torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks]
    hooks += [each for module in hf.modules() for each in (module._forward_pre_hooks, module._forward_hooks)]
    has_hooks = any(not is_harmless(hook) for each in hooks for hook in each.values())
    return has_hooks or any([*replaced_forwards(module)] for module in hf.modules())


def replaced_forwards(module: Module) -> Iterator[object]:
    """Yield the functions that replace the `forward` of a module. accelerate wraps it to call hooks of its own."""
    forward = vars(module).get("forward")
    if (hook := vars(module).get("_hf_hook")) is not None:
        yield from (each for each in getattr(hook, "hooks", (hook,)) if _type_name(each) not in _HARMLESS_HOOKS)
        forward = vars(module).get("_old_forward")
    if forward is not None and getattr(forward, "__func__", None) is not type(module).forward:
        yield forward


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _digest_of(identity: object) -> str:
    """Return a digest of a value of JSON, and of others by their text."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()


def _described(name: str, tensor: torch.Tensor) -> list[Any]:
    """Describe a tensor and every bit of it for JSON."""
    return [name, str(tensor.dtype), *tensor.shape, _tensor_digest(tensor)]


def _tensor_digest(tensor: torch.Tensor) -> str:
    """Return a digest of every bit of a tensor; of a subclass, such as a quantized weight, of all that is in it."""
    if (inside := _inside(tensor)) is not None:
        names, about = inside
        described = [_described(name, getattr(tensor, name)) for name in names]
        return _digest_of([_type_name(tensor), _ADDRESS.sub("", repr(about)), described])
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().data).hexdigest()


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold the values of a tensor: those inside of a subclass, otherwise itself."""
    if (inside := _inside(tensor)) is None:
        yield tensor
    else:
        for name in inside[0]:
            yield from plain_tensors(getattr(tensor, name))


def _inside(tensor: Any) -> tuple[Sequence[str], object] | None:
    """Return the attributes of a subclass that hold its values, and its settings; None for a plain tensor."""
    return tensor.__tensor_flatten__() if hasattr(tensor, "__tensor_flatten__") else None
