"""An adapter for modules: LoRA weights that take part only where modules have not seen all modules before them.

These are modules behind stand-ins. An adapter for pairs also takes part in modules behind the module before them, if
there are more. It brings their KV nearer to the KV after plain prefill. All other tokens use the weights of the model
alone: new tokens, exact encodings, history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch.nn import Linear, Module, Parameter
from transformers import PreTrainedModel

from promptcache.atomic import atomic_write
from promptcache.diagnostics import InvalidValue, UnsupportedModel, first_line

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_MARK = "promptcache"
_BEHIND = ({"behind": ["stand-ins"]}, {"behind": ["stand-ins", "previous"]})
"""What an adapter says about itself, without and with modules behind the module before them."""
_PREFIX = "base_model.model."

_adapted: ContextVar[torch.Tensor | bool] = ContextVar("_adapted", default=False)
"""The tokens that use the adapter in the forward pass of this thread: all, none, or bool `[T]` of a batch of one."""


@contextmanager
def adapted(tokens: torch.Tensor | bool) -> Iterator[None]:
    """Use the adapter of a model for these tokens in forward passes of this thread.

    Args:
        tokens: All, none, or bool `[T]` for a pass over `[1, T]`.
    """
    token = _adapted.set(tokens)
    try:
        yield
    finally:
        _adapted.reset(token)


class AdaptedLinear(Module):
    """A linear layer with LoRA weights: `down [rank, in]` and `up [out, rank]`.

    Attributes:
        for_pairs: Whether they are also for modules behind the module before them.
    """

    def __init__(self, linear: Module, down: torch.Tensor, up: torch.Tensor, *, for_pairs: bool) -> None:
        super().__init__()
        self.train(linear.training)
        self.linear, self.for_pairs = linear, for_pairs
        self.down, self.up = Parameter(down, requires_grad=False), Parameter(up, requires_grad=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the layer's output `[..., out]` for `states [..., in]`."""
        result: torch.Tensor = self.linear(states)
        tokens = _adapted.get()
        if tokens is False:
            return result
        added = (states.to(self.down.dtype) @ self.down.mT @ self.up.mT).to(result.dtype)
        if tokens is not True:
            added = added * tokens.to(added).reshape(*states.shape[:-1], 1)
        return result + added


def adapted_layers(hf: Module) -> Mapping[str, AdaptedLinear]:
    """Return the layers of a model that have LoRA weights, by name."""
    return {name: each for name, each in hf.named_modules() if isinstance(each, AdaptedLinear)}


@torch.no_grad()
def layers_to_adapt(hf: PreTrainedModel) -> Sequence[str]:
    """Return the names of the linear layers below the output layer whose inputs have one row for each token.

    Experts of a mixture get some of the tokens, so they are left out. One forward pass over three tokens shows it.
    """
    base: Any = hf.base_model
    found: list[Module] = []
    token_ids = torch.zeros((1, 3), dtype=torch.long, device=hf.device)

    def note(layer: Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs and inputs[0].shape[:-1] == token_ids.shape:
            found.append(layer)

    linears = [each for each in base.modules() if type(each) is Linear]
    hooks = [each.register_forward_pre_hook(note) for each in linears]
    try:
        base(input_ids=token_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(name for name, each in hf.named_modules() if each in found)


def add_adapter(hf: Module, weights: Mapping[str, tuple[torch.Tensor, torch.Tensor]], *, for_pairs: bool) -> None:
    """Give linear layers of a model LoRA weights. The model is changed in place.

    Args:
        weights: `down` and `up` for each layer, by its name.
        for_pairs: Whether they are also for modules behind the module before them.

    Raises:
        InvalidValue: The model has no such linear layer.
    """
    for name, (down, up) in weights.items():
        parent, _, child = name.rpartition(".")
        try:
            linear = hf.get_submodule(name)
        except AttributeError as error:
            raise InvalidValue(f"the model has no layer '{name}'") from error
        if not isinstance(linear, Linear) or (down.shape[1], up.shape[0]) != (linear.in_features, linear.out_features):
            raise InvalidValue(f"layer '{name}' of the model is not linear, or has another size")
        setattr(hf.get_submodule(parent), child, AdaptedLinear(linear, down, up, for_pairs=for_pairs))


def remove_adapter(hf: Module) -> None:
    """Take the LoRA weights away from all layers of a model."""
    for name, layer in adapted_layers(hf).items():
        parent, _, child = name.rpartition(".")
        setattr(hf.get_submodule(parent), child, layer.linear)


def is_for_modules(folder: Path) -> bool:
    """Whether the adapter of a folder is one for modules, and not one of peft for all tokens."""
    return _mark(folder) is not None


def is_for_pairs(folder: Path) -> bool:
    """Whether the adapter of a folder is also for modules behind the module before them."""
    return _mark(folder) == _BEHIND[True]


def load_module_adapter(hf: Module, folder: Path) -> None:
    """Give a model the LoRA weights of a folder, in the dtype of its own weights.

    Raises:
        UnsupportedModel: The file cannot be read, or the adapter is for another model or other tokens.
    """
    if _mark(folder) not in _BEHIND:
        raise UnsupportedModel(f"adapter '{folder}' was trained by another version of promptcache; train it again")
    try:
        tensors = load_file(folder / WEIGHTS)
        names = sorted({name.rpartition(".lora_")[0] for name in tensors})
        like = next(hf.parameters())
        pairs = {
            name.removeprefix(_PREFIX): (
                tensors[f"{name}.lora_A.weight"].to(like),
                tensors[f"{name}.lora_B.weight"].to(like),
            )
            for name in names
        }
        add_adapter(hf, pairs, for_pairs=is_for_pairs(folder))
    except (OSError, SafetensorError, KeyError, InvalidValue) as error:
        name = type(hf).__name__
        raise UnsupportedModel(f"adapter '{folder}' does not fit {name}: {first_line(error)}") from error


def _mark(folder: Path) -> object:
    """Return what the adapter of a folder says about itself; None if it is not one for modules."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config.get(_MARK) if isinstance(config, dict) else None


def save_module_adapter(hf: Module, folder: Path) -> None:
    """Write the LoRA weights of a model in the form of peft. Each file is replaced as a whole."""
    layers = adapted_layers(hf)
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = layer.down.detach().contiguous()
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = layer.up.detach().contiguous()
    rank = max(len(layer.down) for layer in layers.values())
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        _MARK: _BEHIND[any(layer.for_pairs for layer in layers.values())],
    }
    with atomic_write(folder / WEIGHTS) as file:
        file.write(save(tensors))
    with atomic_write(folder / CONFIG) as file:
        file.write(json.dumps(config, indent=2).encode() + b"\n")
