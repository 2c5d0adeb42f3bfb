"""Shape and initial weights of the demo model.

To read a fact, a model finds the last few tokens earlier in the text and copies the token that came next. Small models
spend most of their early training on learning that. Here the weights start near it. Heads of the first layer look 1,
2, 3 ... tokens back, by the biases of queries and keys. Queries and keys from the third layer on compare the tokens
that those heads bring. Tokens that differ only by a leading space start as neighbours, so they compare as equal. All
weights are trained afterwards.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from tools.demo.samples import MAX_POSITIONS
from tools.demo.tokenizer import BEGIN, END, PAD

_LOGIT_SCALE = 0.06  # of the final norm, since the embeddings are the output weights too
_SHARPNESS = 9.0  # amplitude of the looking-back biases: an offset wins by about e^6 over its neighbours
_MATCH = 1.6  # scale of the comparing queries and keys
_FADING = 0.9  # weight of a token in the comparison, per token further back
_COPY = 4.0  # how much stronger than the current token the copied one is written
_SPACE = 0.25  # share of the leading space in an embedding's squared length
_SLOW_PLANES = 0.34  # share of the rotary planes that turn too fast to compare by


def make_config(
    tokenizer: Tokenizer,
    *,
    hidden_size: int = 256,
    num_layers: int = 4,
    num_heads: int = 8,
    num_kv_heads: int = 4,
    head_dim: int = 64,
    intermediate_size: int = 512,
) -> LlamaConfig:
    """Return the configuration of the shipped model; tests make it smaller."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000_000.0},
        attention_bias=True,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The numbers of a configuration that the initial weights depend on."""

    hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    theta: float

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def code_size(self) -> int:
        """Number of directions that one looking-back head writes to: 5/8 of the hidden size, shared among the heads."""
        return self.hidden_size * 5 // 8 // self.num_heads

    @property
    def own_size(self) -> int:
        """Number of directions of the embeddings: those that no head writes to."""
        return self.hidden_size - self.num_heads * self.code_size

    @property
    def slow(self) -> Tensor:
        """Dimensions of a head in rotary planes slow enough to compare across a prompt."""
        planes = torch.arange(self.head_dim) % (self.head_dim // 2)
        return (planes >= int(_SLOW_PLANES * self.head_dim / 2) + 1).nonzero()[:, 0]


def _shape(config: LlamaConfig) -> _Shape:
    rope, num_kv_heads, head_dim = config.rope_parameters, config.num_key_value_heads, config.head_dim
    assert rope is not None
    theta = rope["rope_theta"]
    assert isinstance(theta, float)
    assert num_kv_heads is not None
    assert head_dim is not None
    return _Shape(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        theta=theta,
    )


@torch.no_grad()
def make_model(config: LlamaConfig, twins: Sequence[tuple[int, int]], seed: int) -> LlamaForCausalLM:
    """Return an untrained model whose weights start near looking back, comparing and copying.

    Args:
        config: Shape of the model.
        twins: IDs of tokens that differ only by a leading space, the bare one first.
        seed: Seed of all random numbers.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    shape, layers = _shape(config), model.model.layers
    directions = _orthogonal(shape.hidden_size).T  # rows are directions of the hidden state
    own, rest = directions[: shape.own_size], directions[shape.own_size :]
    basis = _orthogonal(shape.own_size) @ own
    code = basis[: shape.code_size]  # the part of a token that the heads copy
    model.model.embed_tokens.weight.copy_(_embeddings(shape, twins, basis))
    model.model.norm.weight.fill_(_LOGIT_SCALE)
    views = [code, *torch.split(rest, shape.code_size)]
    for layer in layers:
        layer.mlp.down_proj.weight.zero_()
    _look_back(layers[0].self_attn, shape, views)
    for layer in layers[1:2]:
        layer.self_attn.o_proj.weight.zero_()
    for layer in layers[2:]:
        _compare(layer.self_attn, shape, views, own)
    return model


def _embeddings(shape: _Shape, twins: Sequence[tuple[int, int]], basis: Tensor) -> Tensor:
    """Return random embeddings. Twins have the same one except for one direction, which is outside the code."""
    texts = torch.randn(shape.vocab_size, shape.own_size - 1) @ basis[:-1]
    space = math.sqrt(shape.own_size) * basis[-1]
    bare, spaced = torch.tensor(twins, dtype=torch.long).reshape(-1, 2).T
    shared = math.sqrt(1 - _SPACE) * texts[bare]
    texts[bare] = shared - math.sqrt(_SPACE) * space
    texts[spaced] = shared + math.sqrt(_SPACE) * space
    return texts * math.sqrt(shape.hidden_size / shape.own_size)


def _orthogonal(size: int) -> Tensor:
    orthogonal: Tensor = torch.linalg.qr(torch.randn(size, size)).Q
    return orthogonal


def _look_back(attention: LlamaAttention, shape: _Shape, views: list[Tensor]) -> None:
    """Let head `i` attend `i + 1` tokens back by its biases, and write its code where `views[i + 1]` reads it."""
    size, dim = shape.code_size, shape.head_dim
    attention.q_proj.bias.copy_(torch.cat([_rotated(shape, -(head + 1)) for head in range(shape.num_heads)]))
    attention.k_proj.bias.copy_(_rotated(shape, 0).repeat(shape.num_kv_heads))
    attention.o_proj.weight.zero_()
    for head in range(shape.num_heads):
        attention.o_proj.weight[:, head * dim : head * dim + size] = views[head + 1].T
    for kv_head in range(shape.num_kv_heads):
        attention.v_proj.weight[kv_head * dim : kv_head * dim + size] = views[0]


def _rotated(shape: _Shape, position: int) -> Tensor:
    """Return a vector of equal amplitude in all rotary planes, rotated to `position` (half-split order)."""
    angles = [position * shape.theta ** (-2 * i / shape.head_dim) for i in range(shape.head_dim // 2)]
    return _SHARPNESS * torch.tensor([*map(math.cos, angles), *map(math.sin, angles)])


def _compare(attention: LlamaAttention, shape: _Shape, views: list[Tensor], own: Tensor) -> None:
    """Let queries match keys one token further on, and copy the token found there.

    Each distance has its own random projection, so that only tokens at the same distance match. The KV heads compare
    different numbers of tokens. Only slow rotary planes are used, so that a match does not depend on the distance.
    """
    dim, slow = shape.head_dim, shape.slow
    for kv_head in range(shape.num_kv_heads):
        num_tokens = shape.num_heads - shape.num_kv_heads + 1 + kv_head
        query, key = torch.zeros(dim, shape.hidden_size), torch.zeros(dim, shape.hidden_size)
        for n in range(num_tokens):
            projection = _FADING**n * _columns(len(slow), shape.code_size)
            query[slow] += projection @ views[n]
            key[slow] += projection @ views[n + 1]
        scale = _MATCH * math.sqrt(8 / num_tokens)
        attention.k_proj.weight[kv_head * dim : (kv_head + 1) * dim] += scale * key
        value = _columns(dim, shape.own_size) @ own
        attention.v_proj.weight[kv_head * dim : (kv_head + 1) * dim] = value
        for head in range(kv_head * shape.group, (kv_head + 1) * shape.group):
            attention.q_proj.weight[head * dim : (head + 1) * dim] += scale * query
            attention.o_proj.weight[:, head * dim : (head + 1) * dim] = _COPY * value.T


def _columns(rows: int, columns: int) -> Tensor:
    """Return a random matrix `[rows, columns]` with orthonormal columns; orthonormal rows if there are fewer rows."""
    square = _orthogonal(max(rows, columns))
    return square[:rows, :columns]
