"""Weights in 8 bits, as a subclass of tensors: like those of quantization libraries, it knows few operations of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import linear


class Int8Weight(torch.Tensor):
    """A matrix as whole numbers `codes [out, in]` times a `scale [out, 1]`. It holds no numbers of its own."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Int8Weight:
        made: Int8Weight = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)
        return made

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    @classmethod
    def of(cls, weight: torch.Tensor) -> Int8Weight:
        """Return a quantized matrix."""
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dense(self) -> torch.Tensor:
        """Return the matrix as a plain tensor."""
        return self.codes.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Multiply by the dense matrix."""
        if func is linear:
            states, weight, *bias = args
            return linear(states, weight.dense(), *bias)
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Know `detach` only."""
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes.detach(), args[0].scale.detach())
        raise NotImplementedError(f"{cls.__name__} does not implement {func}")


class ReadableInt8Weight(Int8Weight):
    """One whose parts can be read."""

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, object]]:
        """Return the names of its parts, and its settings."""
        return ["codes", "scale"], {"bits": 8, "kind": object()}

    @staticmethod
    def __tensor_unflatten__(inner: Any, about: Any, size: Any, stride: Any) -> ReadableInt8Weight:
        """Return a weight of these parts."""
        return ReadableInt8Weight(inner["codes"], inner["scale"])


class RoundingLinear(Module):
    """A linear layer whose inputs are rounded to 8 bits, with a scale of all tokens of a forward pass."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return `states [..., in]` times the weight."""
        scale = states.abs().amax() / 127
        result: torch.Tensor = self.layer((states / scale).round() * scale)
        return result


class PackedIntegers(Module):
    """A linear layer as checkpoints of GPTQ have it: four whole numbers of 8 bits in each of 32."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        weight = Int8Weight.of(layer.weight.detach())
        self.register_buffer("qweight", weight.codes.contiguous().view(torch.int32))
        self.register_buffer("scales", weight.scale)
        self.train(layer.training)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return `states [..., in]` times the weight."""
        codes, scales = self.get_buffer("qweight").view(torch.int8), self.get_buffer("scales")
        return linear(states, codes.to(scales.dtype) * scales)


class PackedAtFirstPass(Module):
    """A linear layer like those of bitsandbytes on a CPU: its first pass reorders the weight, a state dict undoes it."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.weight = Parameter(layer.weight.detach(), requires_grad=False)
        self.is_packed = False
        self.train(layer.training)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return `states [..., in]` times the weight."""
        if not self.is_packed:
            self.weight.data, self.is_packed = self.weight.data.t().contiguous(), True
        return states @ self.weight

    def _save_to_state_dict(self, *args: Any) -> None:
        if self.is_packed:
            self.weight.data, self.is_packed = self.weight.data.t().contiguous(), False
        super()._save_to_state_dict(*args)


def quantized(hf: Any, kind: type[Int8Weight] = ReadableInt8Weight) -> Any:
    """Return a model whose linear layers have quantized weights; it is changed in place."""
    for layer in hf.model.layers.modules():
        if isinstance(layer, Linear):
            layer.weight = Parameter(kind.of(layer.weight.detach()), requires_grad=False)
    return hf


def with_layers(hf: Any, kind: type[Module]) -> Any:
    """Return a model with other modules in place of its linear layers; it is changed in place."""
    for parent in [*hf.model.layers.modules()]:
        for name, layer in [*parent.named_children()]:
            if isinstance(layer, Linear):
                setattr(parent, name, kind(layer))
    return hf
