"""Additions to a model that can be read, besides its configuration and its weights.

These are adapters, hooks, replaced `forward`s and buffers that are not saved. They are described by values that are the
same in every process. A function is described by its place, its code and what it refers to in its package.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn import Module
from torch.nn.modules import module as torch_module

_HARMLESS_HOOKS = ("accelerate.hooks.AlignDevicesHook", "accelerate.hooks.CpuOffload")
"""Hooks of accelerate that move weights and inputs between devices."""

_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_MAX_DEPTH = 8
_CHUNKS = 32


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


def unused_weights(hf: Module) -> tuple[str, ...]:
    """Return the name prefixes of the weights of inactive adapters, which no forward pass uses."""
    return tuple(
        f"{name}.{attribute}.{adapter}"
        for name, layer in adapter_layers(hf)
        for attribute in layer.adapter_layer_names
        if isinstance(held := getattr(layer, attribute, None), torch.nn.ModuleDict | torch.nn.ParameterDict)
        for adapter in held
        if adapter not in active_adapters(layer)
    )


def additions(hf: Module) -> Mapping[str, object]:
    """Return a description of all additions to a model, for JSON; {} if there are none."""
    adapters = ((name, *adapter_settings(layer)) for name, layer in adapter_layers(hf))
    found = {
        "adapters": {
            name: [active, [*map(_value, scales)], merged]
            for name, active, scales, merged in adapters
            if active or merged
        },
        "hooks": [[name, *described] for name, described in _hooks(hf)],
        "forwards": [[name, _value(each)] for name, module in hf.named_modules() for each in replaced_forwards(module)],
        "buffers": {name: _buffer(each) for name, each in _unsaved_buffers(hf)},
    }
    return {name: each for name, each in found.items() if each}


def is_harmless(hook: object) -> bool:
    """Whether a hook is from transformers, to record outputs of layers, or from this library, to set positions."""
    return str(getattr(hook, "__module__", "")).startswith(("transformers.", "promptcache.model."))


def runs_own_code(hf: Module) -> bool:
    """Whether a hook or a replaced `forward` runs code in each forward pass, which a recorded pass leaves out."""
    return any(_hooks(hf)) or any("forward" in vars(module) for module in hf.modules())


def _hooks(hf: Module) -> Iterator[tuple[str, list[object]]]:
    places = [
        *((name, each._forward_pre_hooks, each._forward_hooks) for name, each in hf.named_modules()),
        ("(all modules)", torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks),
    ]
    for name, before, after in places:
        for kind, hooks in (("before", before), ("after", after)):
            yield from ((name, [kind, _value(each)]) for each in hooks.values() if not is_harmless(each))


def replaced_forwards(module: Module) -> Iterator[object]:
    """Yield the functions that replace the `forward` of a module. accelerate wraps it to call hooks of its own."""
    forward = vars(module).get("forward")
    if (hook := vars(module).get("_hf_hook")) is not None:
        yield from (each for each in getattr(hook, "hooks", (hook,)) if _type_name(each) not in _HARMLESS_HOOKS)
        forward = vars(module).get("_old_forward")
    if forward is not None and getattr(forward, "__func__", None) is not type(module).forward:
        yield forward


def _unsaved_buffers(hf: Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, module in hf.named_modules():
        for own in sorted(module._non_persistent_buffers_set):
            if (buffer := module._buffers.get(own)) is not None:
                yield f"{name}.{own}", buffer


def _buffer(buffer: torch.Tensor) -> list[object]:
    """Describe a buffer. Numbers that each machine computes may differ by rounding, so means of parts are rounded."""
    about: list[object] = [str(buffer.dtype), *buffer.shape]
    if not buffer.is_floating_point():
        return [*about, tensor_digest(buffer)]
    numbers = buffer.detach().flatten().cpu().double()
    return [*about, *(f"{float(each.mean()):.2e}" for each in numbers.tensor_split(min(_CHUNKS, len(numbers) or 1)))]


def _value(value: Any) -> object:
    """Describe a value for JSON."""
    return _Describer(_package(value)).describe(value)


class _Describer:
    """Describes a value for JSON: constants and tensors by content, functions by their code.

    Of functions and objects of one package, what they refer to is described, too, at its first place. Of others, the
    code or the type is.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._known: list[object] = []

    def describe(self, value: Any, depth: int = 0) -> object:
        """Return the description of a value."""
        if depth > _MAX_DEPTH:
            return "…"
        describe = partial(self.describe, depth=depth + 1)
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes():
                return [type(value).__name__, repr(value)]
            case tuple() | list():
                return [type(value).__name__, *map(describe, value)]
            case set() | frozenset():
                return [type(value).__name__, *sorted(json.dumps(describe(each)) for each in value)]
            case dict():
                return ["dict", *([describe(name), describe(each)] for name, each in value.items())]
            case torch.Tensor() if value.layout is torch.strided and not value.is_meta:
                return [str(value.dtype), *value.shape, tensor_digest(value)]
            case np.ndarray() if value.dtype != object:
                return ["array", str(value.dtype), *value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
            case CodeType():
                consts = [*map(describe, value.co_consts)]
                return digest_of([value.co_code.hex(), value.co_names, value.co_varnames, consts])
            case BuiltinFunctionType() | type():
                return [value.__module__, value.__qualname__]
        if any(each is value for each in self._known):
            return "…"
        self._known.append(value)
        return self._object(value, describe)

    def _object(self, value: Any, describe: Callable[[object], object]) -> object:
        is_own = _package(value) == self._package
        match value:
            case FunctionType():
                defaults = (value.__defaults__, *(value.__kwdefaults__ or {}).items())
                cells = tuple(_content(each) for each in value.__closure__ or ())
                about = [value.__module__, value.__qualname__, *map(describe, (value.__code__, defaults, cells))]
                return [*about, *map(describe, _globals_of(value.__code__, value.__globals__))] if is_own else about
            case MethodType():
                return ["method", describe(value.__func__), describe(value.__self__)]
            case partial():
                return ["partial", describe(value.func), describe(value.args), describe(value.keywords)]
            case Module() | ModuleType():
                return _type_name(value)
        call = type(value).__call__ if callable(value) else None
        return [_type_name(value), describe(call), describe(getattr(value, "__dict__", None) if is_own else None)]


def _package(value: Any) -> str:
    """Return the name of the package that a function, or the class of an object, is from."""
    if isinstance(value, partial):
        return _package(value.func)
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _globals_of(code: CodeType, known: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the global names that code, and the functions in it, refer to, with their values."""
    yield from ((name, known[name]) for name in code.co_names if name in known)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _globals_of(each, known)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def digest_of(identity: object) -> str:
    """Return a digest of a value of JSON, and of others by their text."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return a digest of every bit of a tensor; of a subclass, such as a quantized weight, of all that is in it."""
    if (inside := _inside(tensor)) is not None:
        names, about = inside
        parts = [(name, getattr(tensor, name)) for name in names]
        described = [[name, str(part.dtype), *part.shape, tensor_digest(part)] for name, part in parts]
        return digest_of([_type_name(tensor), _ADDRESS.sub("", repr(about)), described])
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
