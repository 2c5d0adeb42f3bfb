"""A check that a model is as it was when an engine was made.

It compares references and counters, which takes microseconds, and reads no weights but a few numbers of adapters. So it
does not notice that a hook behaves differently, nor a write through `weight.data`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules import module as torch_module

from promptcache.diagnostics import ModelChanged, UnsupportedModel
from promptcache.model.facts import check_mode
from promptcache.model.fingerprint import (
    active_adapters,
    adapter_layers,
    adapter_settings,
    is_harmless,
    plain_tensors,
    replaced_forwards,
)

_SAMPLE_SIZE = 8
_version, _training = attrgetter("_version"), itemgetter("training")


class ModelGuard:
    """Notices that a model was changed. If the change is undone, the model is as it was. Thread-safe."""

    _owners: Sequence[dict[str, Any]]
    _names: Sequence[str]

    def __init__(self, hf: Any) -> None:
        self._hf = hf
        self._layers = [layer for _, layer in adapter_layers(hf)]
        self._modules = modules = [*_modules_in_use(hf)]
        self._vars = [vars(each) for each in modules]
        self._classes: list[Any] = [*dict.fromkeys(map(type, modules))]
        self._hooks = [
            *(each for module in modules for each in (module._forward_pre_hooks, module._forward_hooks)),
            torch_module._global_forward_pre_hooks,
            torch_module._global_forward_hooks,
        ]
        self._owners, self._names = zip(*_places(modules, self._layers), strict=True)
        self._held = [*map(dict.get, self._owners, self._names)]
        held = [each for each in self._held if isinstance(each, torch.Tensor)]
        self._tensors = [part for each in held for part in plain_tensors(each)]
        self._counted = [each for each in self._tensors if not each.is_inference()]  # those have no version counter
        self._samples = [*_samples(self._layers)]
        self._state, self._numbers = self._read(), self._sampled_numbers()

    def check(self, *, numbers: bool = False) -> None:
        """Compare the model with what it was.

        Args:
            numbers: Compare a few numbers of adapters, too: peft's `hotswap_adapter` may leave no other trace. This
                waits for the device.

        Raises:
            ModelChanged: It is another one; says what has changed, and the fix.
        """
        is_same = all(map(is_, map(dict.get, self._owners, self._names), self._held)) and self._read() == self._state
        if not is_same or (numbers and self._sampled_numbers() != self._numbers):
            raise ModelChanged(self._change())

    def _read(self) -> tuple[object, ...]:
        hooks = chain.from_iterable(each.values() for each in self._hooks if each)
        return (
            [*map(adapter_settings, self._layers)],
            [each for each in hooks if not is_harmless(each)],
            [each for module in self._modules if "forward" in vars(module) for each in replaced_forwards(module)],
            [each.forward for each in self._classes],
            any(map(_training, self._vars)) or any("_compiled_call_impl" in each for each in self._vars),
            self._hf.config._attn_implementation,
            sum(map(_version, self._counted)),
            [*map(torch.Tensor.data_ptr, self._tensors)],
        )

    def _sampled_numbers(self) -> list[float]:
        numbers: list[float] = torch.cat(self._samples).tolist() if self._samples else []
        return numbers

    def _change(self) -> str:
        """Return the message of the error."""
        name = type(self._hf).__name__
        try:
            check_mode(self._hf)
        except UnsupportedModel as refusal:
            return str(refusal)
        names = ("adapters", "hooks", "forward functions", "forward functions", "mode", "attention implementation")
        changed = (each for each, now, was in zip(names, self._read(), self._state, strict=False) if now != was)
        what = next(changed, "weights or layers")
        return (
            f"{name} has other {what} than when this engine was made, and stored KV belongs to the model as it was: "
            "undo the change, or make another engine. Several engines, such as one for each adapter, may share a "
            "model; each answers while the model is as it was made with"
        )


def _parts(layer: Any) -> Iterator[tuple[Any, str]]:
    """Yield the container and the name of each adapter, for each part of it in a layer."""
    for container in layer.children():
        if isinstance(container, torch.nn.ModuleDict | torch.nn.ParameterDict):
            yield from ((container, name) for name in container)


def _modules_in_use(hf: Module) -> Iterator[Module]:
    """Yield the modules of a model without the containers of adapters, and without inactive adapters."""
    unused: set[Module] = set()
    for _, layer in adapter_layers(hf):
        active = active_adapters(layer)
        for container, name in _parts(layer):
            unused.add(container)
            if name not in active and isinstance(container[name], Module):
                unused.update(container[name].modules())
    return (each for each in hf.modules() if each not in unused)


def _places(modules: Iterable[Module], layers: Iterable[Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield where the modules, parameters and buffers are held that take part in a forward pass."""
    for module in modules:
        for held in (module._modules, module._parameters, module._buffers):
            yield from ((held, name) for name in held)
    for layer in layers:
        active = active_adapters(layer)
        for container, name in _parts(layer):
            if name in active:
                yield (container._modules if name in container._modules else container._parameters), name


def _samples(layers: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield a few numbers of the first and the last weight of each active adapter, as views."""
    weights: dict[str, list[torch.Tensor]] = {}
    for layer in layers:
        active = active_adapters(layer)
        for container, name in _parts(layer):
            if name in active:
                part = container[name]
                weights.setdefault(name, []).extend(part.parameters() if isinstance(part, Module) else [part])
    for own in weights.values():
        for weight in (own[0], own[-1]) if own else ():
            numbers = weight.detach().flatten()  # a view, because weights are contiguous
            yield numbers[:: max(1, len(numbers) // _SAMPLE_SIZE)]
