"""Linear layers whose weights are stored in the order in which the processor's kernels read them.

With few new tokens, reading weights takes most of a forward pass. oneDNN reads blocks, and gathers them again at every
call if the weight is a plain matrix. In float32, a pass over one token does not gather, and small layers are slower
packed. docs/decisions.md says which. The plain matrix is dropped, so memory does not grow; only a weight that an
embedding shares is stored twice.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn import Linear, Module, Parameter

_FEW_TOKENS = 16  # the order is chosen for this number; other numbers gain as well
_CHECKED = {torch.float32: 1e-4, torch.bfloat16: 0.05}
_LEAST_BYTES = {torch.float32: 8 * 2**20, torch.bfloat16: 0}  # of a weight: below, packing does not pay


class PackedLinear(Module):
    """A linear layer with a packed weight and no gradients."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.train(linear.training)
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _FEW_TOKENS)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as a plain matrix `[out, in]`, unpacked at every call."""
        dense: torch.Tensor = self._packed.to_dense()
        return dense

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return `states [..., in]` times the weight, plus the bias: `[..., out]`."""
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(states, self._packed, self.bias, "none", [], "")
        return result

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save the plain weight: the state dict equals that of the replaced layer."""
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias if keep_vars else self.bias.detach()


def pack_linears(model: Module, *, every: bool) -> int:
    """Pack linear layers of `model` for which this processor has kernels; return their number.

    Args:
        model: On the CPU; changed in place. Its layers compute the same within rounding, and have no gradients
            afterwards.
        every: Pack all of them, not only those whose size and dtype make it pay.
    """
    packed: dict[Module, PackedLinear] = {}  # one layer may have several parents
    for parent in list(model.modules()):
        for name, child in tuple(parent._modules.items()):  # `named_children` skips repeated modules
            if type(child) is Linear and type(child.weight) is Parameter and _is_usable(child.weight.dtype):
                if not every and child.weight.nbytes < _LEAST_BYTES[child.weight.dtype]:
                    continue
                if child not in packed:
                    packed[child] = PackedLinear(child)
                setattr(parent, name, packed[child])
    return len(packed)


@cache
def _is_usable(dtype: torch.dtype) -> bool:
    """Whether packed layers of this dtype work here and agree with plain ones."""
    if dtype not in _CHECKED:
        return False
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.autocast("cpu", enabled=False):
        torch.manual_seed(0)
        plain = Linear(64, 48, dtype=dtype)
        states = torch.randn(3, 64, dtype=dtype)
        try:
            packed = PackedLinear(plain)
            far = (packed(states) - plain(states)).abs().max()
            same = torch.equal(packed.weight, plain.weight)
        except (RuntimeError, AttributeError):  # this build or processor has no such kernel
            return False
        return same and float(far) < _CHECKED[dtype]
