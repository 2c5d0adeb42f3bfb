"""Read positions and the size of KV from `config.json` of a model's folder, without loading the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from promptcache.diagnostics import ModelNotFound, UnsupportedModel, size_text
from promptcache.tokenizer.files import read_json

LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "max_seq_len")
"""Names under which configurations declare the number of positions."""

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_WIDTH = ("hidden_size", "n_embd", "d_model")


class Dtype(StrEnum):
    """The dtype of weights and KV; `auto` is the dtype of the checkpoint."""

    AUTO = "auto"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


_ITEM_BYTES = {Dtype.FLOAT16: 2, Dtype.BFLOAT16: 2, Dtype.FLOAT32: 4, Dtype.FLOAT64: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The KV of one token, keys and values `[num_layers, num_kv_heads, head_dim]`, and the positions of a model.

    Attributes:
        name: As the user gave it.
        dtype: Of the KV.
        is_wider_on_cpu: Whether an engine on a CPU computes in float32: that of a float16 checkpoint with `auto` does.
        token_bytes: Keys and values of one token in all layers.
        max_positions: None if the configuration does not declare it.
    """

    name: str
    dtype: Dtype
    is_wider_on_cpu: bool
    num_layers: int
    num_kv_heads: int
    head_dim: int
    token_bytes: int
    max_positions: int | None

    def __str__(self) -> str:
        wider = ", twice on a CPU" if self.is_wider_on_cpu else ""
        return f"{self.name}, KV in {self.dtype}, {size_text(self.token_bytes)} per token{wider}"


def read_facts(model: str, folder: Path, dtype: Dtype) -> ModelFacts:
    """Read `config.json` of a model's folder.

    Raises:
        ModelNotFound: There is no such file.
        UnsupportedModel: It does not declare layers and heads.
    """
    config = _read_config(folder)
    text = config.get("text_config") or config
    layers, heads = _number(text, _LAYERS), _number(text, _HEADS)
    kv_heads = _number(text, _KV_HEADS) or heads
    head_dim = _number(text, ("head_dim",)) or (_number(text, _WIDTH) or 0) // (heads or 1)
    if not (layers and kv_heads and head_dim):
        raise UnsupportedModel(f"config.json of model '{model}' does not say what its KV looks like (layers, heads)")
    names = (each.get(field) for each in (config, text) for field in ("dtype", "torch_dtype"))  # older transformers
    declared = next((Dtype(name) for name in names if name in list(_ITEM_BYTES)), Dtype.FLOAT32)
    chosen = declared if dtype is Dtype.AUTO else dtype
    return ModelFacts(
        name=model,
        dtype=chosen,
        is_wider_on_cpu=dtype is Dtype.AUTO and chosen is Dtype.FLOAT16,
        num_layers=layers,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        token_bytes=2 * layers * kv_heads * head_dim * _ITEM_BYTES[chosen],
        max_positions=_number(text, LENGTH_NAMES),
    )


def declared_positions(folder: Path) -> int | None:
    """Return the number of positions, or None if the configuration does not declare it."""
    config = _read_config(folder)
    return _number(config.get("text_config") or config, LENGTH_NAMES)


def _read_config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").exists():
        raise ModelNotFound(f"model folder '{folder}' has no config.json")
    return read_json(folder / "config.json")


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)
