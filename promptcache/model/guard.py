"""A check that a model is as it was when an engine was made.

It compares references and counters, which takes microseconds, and reads no weights but a few numbers of adapters. So it
does not notice that a hook behaves differently, nor a write through `weight.data`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        active, unused = list[tuple[Any, str]](), set[Module]()  # adapters with their containers; all else of adapters
        for layer in self._layers:
            used = active_adapters(layer)
            for container in layer.children():
                if isinstance(container, torch.nn.ModuleDict | torch.nn.ParameterDict):
                    unused.add(container)
                    active += [(container, name) for name in container if name in used]
                    inactive = (container[name] for name in container if name not in used)
                    unused.update(*(part.modules() for part in inactive if isinstance(part, Module)))
        self._modules = modules = [each for each in hf.modules() if each not in unused]
        self._vars = [vars(each) for each in modules]
        self._classes: list[Any] = [*dict.fromkeys(map(type, modules))]
        self._hooks = [
            *(each for module in modules for each in (module._forward_pre_hooks, module._forward_hooks)),
            torch_module._global_forward_pre_hooks,
            torch_module._global_forward_hooks,
        ]

        # The places of all modules, parameters and buffers that take part in a forward pass, and what is there.
        held_by = (each for module in modules for each in (module._modules, module._parameters, module._buffers))
        places = [(owner, name) for owner in held_by for name in owner]
        places += [(each._modules if name in each._modules else each._parameters, name) for each, name in active]
        self._owners, self._names = zip(*places, strict=True)
        self._held = [*map(dict.get, self._owners, self._names)]
        held = [each for each in self._held if isinstance(each, torch.Tensor)]
        self._tensors = [part for each in held for part in plain_tensors(each)]
        self._counted = [each for each in self._tensors if not each.is_inference()]  # those have no version counter

        # A few numbers of the first and the last weight of each active adapter, as views: weights are contiguous.
        weights: dict[str, list[torch.Tensor]] = {}
        for container, name in active:
            part = container[name]
            weights.setdefault(name, []).extend(part.parameters() if isinstance(part, Module) else [part])
        ends = [each.detach().flatten() for own in weights.values() if own for each in (own[0], own[-1])]
        self._samples = [each[:: max(1, len(each) // _SAMPLE_SIZE)] for each in ends]
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
        if is_same and (not numbers or not self._samples or self._sampled_numbers() == self._numbers):
            return
        name = type(self._hf).__name__
        try:
            check_mode(self._hf)
        except UnsupportedModel as refusal:
            raise ModelChanged(str(refusal)) from None
        kinds = ("adapters", "hooks", "forward functions", "forward functions", "mode", "attention implementation")
        changed = (each for each, now, was in zip(kinds, self._read(), self._state, strict=False) if now != was)
        raise ModelChanged(
            f"{name} has other {next(changed, 'weights or layers')} than when this engine was made, and stored KV "
            "belongs to the model as it was: undo the change, or make another engine. Several engines, such as one for "
            "each adapter, may share a model; each answers while the model is as it was made with"
        )

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
