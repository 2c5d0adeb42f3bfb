"""Packed linear layers compute what plain ones do."""

import copy

import pytest
import torch
from torch.nn import Embedding, Linear, Module, Sequential

from promptcache import Engine
from promptcache.model import Model, load_model, packed
from promptcache.model.fingerprint import model_fingerprint
from promptcache.model.packed import PackedLinear, pack_linears
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import DEMO_FOLDER

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}


def usable(dtype: torch.dtype) -> None:
    """Skip if this processor has no such kernels."""
    if not packed._is_usable(dtype):
        pytest.skip(f"no packed kernels for {dtype} on this processor")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "states",
    [
        *(torch.randn(shape) for shape in ((40,), (1, 40), (2, 3, 40), (1, 300, 40), (0, 40))),
        *(torch.randn(2, 5, 40)[:, -1:], torch.randn(2, 40, 5).transpose(1, 2)),
    ],
    ids=lambda states: f"{[*states.shape]}",
)
@torch.no_grad()
def test_a_packed_layer_computes_the_same(dtype: torch.dtype, bias: bool, states: torch.Tensor) -> None:
    """A packed layer equals the plain one within rounding, for any shape of the input, also of a view."""
    usable(dtype)
    plain, states = Linear(40, 24, bias=bias, dtype=dtype), states.to(dtype)

    out = PackedLinear(plain)(states)

    expected = plain(states)
    assert out.shape == expected.shape
    assert torch.allclose(out, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


class Tied(Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output, shared = Embedding(50, 16), Linear(16, 50, bias=False), Linear(16, 16)
        self.output.weight = self.embedding.weight
        self.inner = Sequential(shared, shared)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.output(self.inner(self.embedding(token_ids)))


@torch.no_grad()
def test_shared_weights_stay_what_they_are() -> None:
    """A tied embedding keeps its weight, a repeated layer is packed once, and the state dict is the same."""
    usable(torch.float32)
    model = Tied()
    plain, state = copy.deepcopy(model), copy.deepcopy(model.state_dict())

    assert pack_linears(model, every=True) == 2

    token_ids = torch.arange(50)[None]
    assert torch.allclose(model(token_ids), plain(token_ids), atol=1e-5)
    assert model.inner[0] is model.inner[1]
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def num_packed(model: Module) -> int:
    return sum(isinstance(each, PackedLinear) for each in model.modules())


def test_a_packed_model_keeps_its_fingerprint() -> None:
    usable(torch.float32)
    model, again, plain = (Model(load_model(name, device="cpu")[0]) for name in ("demo", DEMO_FOLDER, "demo"))
    model.pack_weights(True)
    again.pack_weights(True)

    assert isinstance(model.hf.lm_head, PackedLinear)
    assert model_fingerprint(again.hf, "") == model.fingerprint  # computed again, from packed weights
    assert model.fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("dtype", "inner", "expected"), [(torch.float32, 4096, 1), (torch.float32, 4095, 0), (torch.bfloat16, 8, 1)]
)
def test_layers_are_packed_if_it_pays(dtype: torch.dtype, inner: int, expected: int) -> None:
    """By default, small layers in float32 stay plain: passes over one token are slower with packed ones."""
    usable(dtype)

    assert pack_linears(Sequential(Linear(512, inner, bias=False, dtype=dtype)), every=False) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_packs_what_it_is_asked_to(dtype: torch.dtype) -> None:
    """True packs all layers, False none, and None those for which it pays; a model that is handed over stays plain."""
    usable(dtype)
    num_linears = sum(type(each) is Linear for each in tiny_model(dtype).hf.modules())
    pays = num_linears if dtype is torch.bfloat16 else 0

    for given, expected in (({}, 0), ({"pack": False}, 0), ({"pack": None}, pays), ({"pack": True}, num_linears)):
        assert num_packed(Engine(tiny_model(dtype), ByteTokenizer(), **given).model.hf) == expected
    engine = Engine.from_pretrained("demo", device="cpu", dtype=dtype)
    assert bool(num_packed(engine.model.hf)) == bool(pays)
    assert num_packed(Engine.from_pretrained("demo", device="cpu", dtype=dtype, pack=False).model.hf) == 0


def test_dtypes_without_kernels_stay_plain() -> None:
    assert pack_linears(Sequential(Linear(8, 8, dtype=torch.float64)), every=True) == 0
