"""Models with quantized weights: KV is that of their weights, or they are refused by name.

`make test-torchao` runs the tests with torchao. It is no dependency of the others: where it is installed, transformers
imports it, which takes a second and writes to stderr.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.ao.quantization import quantize_dynamic
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from promptcache import Engine
from promptcache.diagnostics import ModelChanged, UnsupportedModel
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cached import distance
from tests.engine.asking import engine_of


class Int8Weight(torch.Tensor):
    """A matrix as whole numbers `codes [out, in]` times a `scale [out, 1]`. It holds no numbers of its own."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> "Int8Weight":
        made: Int8Weight = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)
        return made

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    @classmethod
    def of(cls, weight: torch.Tensor) -> "Int8Weight":
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dense(self) -> torch.Tensor:
        return self.codes.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear:
            states, weight, *bias = args
            return linear(states, weight.dense(), *bias)
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes.detach(), args[0].scale.detach())
        raise NotImplementedError(f"{cls.__name__} does not implement {func}")


class ReadableInt8Weight(Int8Weight):
    def __tensor_flatten__(self) -> tuple[list[str], dict[str, object]]:
        return ["codes", "scale"], {"bits": 8, "kind": object()}

    @staticmethod
    def __tensor_unflatten__(inner: Any, about: Any, size: Any, stride: Any) -> "ReadableInt8Weight":
        return ReadableInt8Weight(inner["codes"], inner["scale"])


class RoundingLinear(Module):
    """A linear layer whose inputs are rounded to 8 bits, with a scale of all tokens of a forward pass."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: torch.Tensor) -> torch.Tensor:
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


SCHEMA = '<schema name="s"><module name="a">Alpha is the first letter.</module></schema>'
PROMPT = '<prompt schema="s"><a/>What is alpha?</prompt>'
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4}
KINDS: dict[str, Callable[[Any], Any]] = {
    "a subclass of tensors": quantized,
    "packed integers": lambda hf: with_layers(hf, PackedIntegers),
    "packed at the first pass": lambda hf: named_quantized(with_layers(hf, PackedAtFirstPass)),
    "torchao, 8 bits": lambda hf: torchao(hf, "Int8WeightOnlyConfig"),
    "torchao, 4 bits": lambda hf: torchao(hf, "IntxWeightOnlyConfig", weight_dtype=torch.int4),
    "torchao, floats of 8 bits": lambda hf: torchao(hf, "Float8WeightOnlyConfig"),
}


def named_quantized(hf: Any) -> Any:
    hf.hf_quantizer = "of a test"
    return hf


def torchao(hf: Any, config: str, **settings: Any) -> Any:
    library = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    if settings:
        settings["granularity"] = library.PerGroup(16)
    library.quantize_(hf, getattr(library, config)(**settings))
    return hf


def llama(dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    config = LlamaConfig(
        vocab_size=ByteTokenizer().vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made: Any = LlamaForCausalLM(config)
    return made.to(dtype).eval()


def engine(hf: Any, **options: Any) -> Engine:
    return engine_of(hf, schema=SCHEMA, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_weights_give_the_answers_of_the_reference(kind: str, tmp_path: Path) -> None:
    """Cached logits are those of the reference, and another engine for the same weights finds the KV in a folder."""
    one = engine(KINDS[kind](llama()), store=tmp_path)
    expected = one.reference(PROMPT)
    answer = one.generate(PROMPT, **GREEDY)
    other = engine(KINDS[kind](llama()), store=tmp_path)

    assert distance(one.logits(PROMPT), expected) < 1e-5
    assert other.fingerprint == one.fingerprint
    again = other.generate(PROMPT, **GREEDY)
    assert (again.token_ids, again.usage.num_encoded_tokens) == (answer.token_ids, 0)
    assert engine(KINDS[kind](llama(seed=1)), store=tmp_path).fingerprint != one.fingerprint


@pytest.mark.parametrize("part", ["codes", "scale"])
def test_a_write_into_a_quantized_weight_is_noticed(part: str) -> None:
    """Both parts of a weight are in the fingerprint, and an engine refuses a model with a write to one."""
    hf = quantized(llama())
    one = engine(hf)
    before = one.fingerprint
    one.generate(PROMPT, **GREEDY)
    for layer in hf.model.layers:
        getattr(layer.mlp.up_proj.weight, part).mul_(2)
    with pytest.raises(ModelChanged, match="other weights"):
        one.generate(PROMPT, **GREEDY)
    fresh = quantized(llama())
    for layer in fresh.model.layers:
        getattr(layer.mlp.up_proj.weight, part).mul_(2)

    assert engine(hf).fingerprint == engine(fresh).fingerprint != before


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_weight_is_not_packed(kind: str) -> None:
    hf = KINDS[kind](llama())
    kept = type(hf.model.layers[0].mlp.up_proj)
    one = engine(hf, pack=True)

    assert type(one.model.hf.model.layers[0].mlp.up_proj) is kept
    assert one.generate(PROMPT, **GREEDY).token_ids


def test_weights_that_cannot_be_read_are_refused() -> None:
    """The refusal names the weight and its class, before anything is computed."""
    with pytest.raises(UnsupportedModel, match=r"layers\.0.*' cannot be read, because Int8Weight has no __tensor_fl"):
        engine(quantized(llama(), Int8Weight))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    "quantize",
    [
        lambda hf: quantized(with_layers(hf, RoundingLinear)),
        lambda hf: quantize_dynamic(hf, {Linear}, dtype=torch.qint8),
        lambda hf: torchao(hf, "Int8DynamicActivationInt8WeightConfig"),
    ],
    ids=["a scale of all tokens", "torch", "torchao"],
)
def test_quantized_activations_are_refused_with_the_reason(quantize: Callable[[Any], Any]) -> None:
    """A model whose logits depend on the tokens that are computed together is refused, and the weights are named."""
    hf = quantize(llama())

    with pytest.raises(UnsupportedModel, match=r"is quantized.*, and with activations in 8 bits, .* its weights only"):
        engine(hf)
