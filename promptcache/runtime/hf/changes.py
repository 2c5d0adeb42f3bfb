"""Changes of a model between two requests: adapters, hooks, replaced `forward`s and weights.

A check takes microseconds. It compares all modules, hooks and functions, and samples of the weights, with a snapshot.
So it detects that all weights were loaded or trained, but not a write to one weight or through `weight.data`. It also
reads a few numbers of adapters. It does not detect that a hook behaves differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from operator import attrgetter, is_not, itemgetter
from typing import Any, TypeAlias

import torch
from torch.nn import Module
from torch.nn.modules import module as torch_module

from promptcache.locks import new_lock
from promptcache.runtime.hf.additions import adapter_ends, adapter_layers, is_harmless, plain_tensors
from promptcache.runtime.hf.facts import check_mode

_MAX_STATES = 1024
_NUM_WEIGHTS, _SAMPLE_SIZE = 32, 8
_version = attrgetter("_version")
_training = itemgetter("training")
_active = attrgetter("_active_adapter", "_disable_adapters")
_merged = attrgetter("merged_adapters")

_State: TypeAlias = tuple[int, str, tuple[int, ...]]
"""Generation of the weights and replaced functions, settings of the adapters, and IDs of the hooks."""


class Changes:
    """Assigns numbers to the states of a model. Thread-safe.

    A model that returns to an earlier state, because adapters are switched or a hook is removed, gets its number again.
    Every other change gives a new number.
    """

    def __init__(self, hf: Module) -> None:
        self._hf = hf
        self._lock = new_lock()
        self._generation = 0
        self._numbers: dict[_State, int] = {}
        self._next = count()
        self._last = self._numbered(_Snapshot(hf))

    def number(self) -> int:
        """Return the number of the model's state now.

        Raises:
            UnsupportedModel: A part of the model is compiled or in training mode.
        """
        snapshot, number = self._last
        if snapshot.is_current():
            return number
        with self._lock:
            snapshot, number = self._last
            if not snapshot.is_current():
                check_mode(self._hf)
                self._generation += not snapshot.has_same_parts()
                self._last = snapshot, number = self._numbered(_Snapshot(self._hf))
            return number

    def accept(self) -> None:
        """Keep the last number, although the model has changed."""
        with self._lock:
            self._last = (_Snapshot(self._hf), self._last[1])

    def _numbered(self, snapshot: _Snapshot) -> tuple[_Snapshot, int]:
        if len(self._numbers) >= _MAX_STATES:
            self._numbers.clear()
        state = (self._generation, repr(snapshot.settings), snapshot.own_hooks())
        if state not in self._numbers:
            self._numbers[state] = next(self._next)
        return snapshot, self._numbers[state]


class _Snapshot:
    """References of the modules of a model at one moment.

    A check reads memory that forward passes have evicted from the processor's caches. So it touches few objects of each
    module, and samples of the weights.
    """

    def __init__(self, hf: Module) -> None:
        modules = tuple(hf.modules())
        layers = [layer for _, layer in adapter_layers(hf)]
        inside = {each for layer in layers for each in layer.modules()}
        ends = [*adapter_ends(hf)]
        weights = [*hf.parameters(), *hf.buffers()]
        sampled = {*weights[:: max(1, len(weights) // _NUM_WEIGHTS)]}
        self._dicts: list[dict[str, Any]] = [
            *(each._modules for each in modules if each._modules and each not in inside),
            *(each for module in modules for each in _tensors_of(module) if not sampled.isdisjoint(each.values())),
            *(
                each
                for layer, _ in ends
                for module in layer.modules()
                for each in (module._modules, *_tensors_of(module))
            ),
            *(each.scaling for each in layers if isinstance(getattr(each, "scaling", None), dict)),
            getattr(hf, "peft_config", {}),
        ]
        self._held = [dict(each) for each in self._dicts]
        tensors = [each for held in self._held for each in held.values() if isinstance(each, torch.Tensor)]
        plain = [part for each in tensors for part in plain_tensors(each)]
        self._tensors = [each for each in plain if not each.is_inference()]  # those have no version counter
        self._versions = [*map(_version, self._tensors)]
        self._adapters = [each for _, own in ends if own for each in (own[0], own[-1])]
        self._samples = [*map(_sample, self._adapters)]
        self._numbers = self._sampled_numbers()
        self._vars = [vars(each) for each in modules]
        self._sizes = [*map(len, self._vars)]
        self._with_forward = [each for each in self._vars if "forward" in each]
        self._classes = tuple({type(each): None for each in modules})
        self._forwards = [*self._functions()]
        self._hooks = [
            *(each for module in modules for each in (module._forward_pre_hooks, module._forward_hooks)),
            torch_module._global_forward_pre_hooks,
            torch_module._global_forward_hooks,
        ]
        self._hook_ids = self._ids_of_hooks()
        self._layers = layers
        self.settings = [([*active] if isinstance(active, list) else active, off) for active, off in self._settings()]
        self._merged = [[*each.merged_adapters] for each in layers]

    def is_current(self) -> bool:
        """Whether the model has not changed since the snapshot."""
        return (
            [*map(len, self._vars)] == self._sizes  # a replaced `forward` is one more attribute
            and self._has_same_references()
            and [*self._settings()] == self.settings
            and self._ids_of_hooks() == self._hook_ids
            and not any(map(_training, self._vars))
        )

    def has_same_parts(self) -> bool:
        """Whether the same modules have the same weights, functions, scales and merged adapters."""
        num_replaced = sum("forward" in each for each in self._vars)
        return num_replaced == len(self._with_forward) and self._has_same_references()

    def _has_same_references(self) -> bool:
        return (
            self._has_same_items()
            and [*map(_version, self._tensors)] == self._versions
            and not any(map(is_not, self._functions(), self._forwards))
            and [*map(_merged, self._layers)] == self._merged
            and self._sampled_numbers() == self._numbers
        )

    def own_hooks(self) -> tuple[int, ...]:
        """Return the IDs of the hooks that may change what the model computes."""
        return tuple(number for each in self._hooks for number, hook in each.items() if not is_harmless(hook))

    def _has_same_items(self) -> bool:
        try:
            return self._dicts == self._held  # fast: identical objects are not compared
        except RuntimeError:  # a tensor was replaced
            return False

    def _ids_of_hooks(self) -> list[int]:
        return [*chain.from_iterable(filter(None, self._hooks))]

    def _functions(self) -> Iterator[object]:
        """Yield the functions that are called in place of a class's `forward`, and the `forward` of each class."""
        return chain((each.get("forward") for each in self._with_forward), (each.forward for each in self._classes))

    def _settings(self) -> Iterator[tuple[Any, bool]]:
        return map(_active, self._layers)

    def _sampled_numbers(self) -> tuple[list[int], bytes]:
        """Return addresses and a few numbers of each adapter: peft's `hotswap_adapter` may leave no other trace."""
        numbers = torch.cat(self._samples).cpu().view(torch.uint8).numpy().tobytes() if self._samples else b""
        return [each.data_ptr() for each in self._adapters], numbers


def _tensors_of(module: Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._parameters, module._buffers


def _sample(weight: torch.Tensor) -> torch.Tensor:
    numbers = weight.detach().flatten()  # a view, because weights are contiguous
    return numbers[:: max(1, len(numbers) // _SAMPLE_SIZE)]
