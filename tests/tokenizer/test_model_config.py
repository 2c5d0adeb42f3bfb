"""Positions and KV sizes that `config.json` declares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from promptcache.diagnostics import ModelNotFound, UnsupportedModel
from promptcache.tokenizer import Dtype, read_facts

LLAMA = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}


@pytest.mark.parametrize(
    ("config", "token_bytes"),
    [
        (LLAMA, 2 * 4 * 2 * 8 * 4),
        (LLAMA | {"head_dim": 16, "dtype": "bfloat16"}, 2 * 4 * 2 * 16 * 2),
        (LLAMA | {"torch_dtype": "float16"}, 2 * 4 * 2 * 8 * 2),
        ({"n_layer": 2, "n_head": 4, "n_embd": 32}, 2 * 2 * 4 * 8 * 4),
        ({"text_config": LLAMA, "dtype": "bfloat16"}, 2 * 4 * 2 * 8 * 2),
    ],
    ids=["llama", "head_dim", "old dtype", "gpt2", "nested"],
)
def test_token_bytes_follow_the_configuration(tmp_path: Path, config: dict[str, Any], token_bytes: int) -> None:
    """One token takes keys and values of all layers and KV heads, in the checkpoint's dtype."""
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert read_facts("m", tmp_path, Dtype.AUTO).token_bytes == token_bytes


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"num_hidden_layers": "many"}'])
def test_configuration_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    """A configuration without layers and heads is refused by name."""
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(UnsupportedModel):
        read_facts("m", tmp_path, Dtype.AUTO)


def test_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    """A folder without config.json is no model."""
    with pytest.raises(ModelNotFound):
        read_facts("m", tmp_path, Dtype.AUTO)
