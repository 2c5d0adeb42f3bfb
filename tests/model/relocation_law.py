"""The law of relocation: moved keys are those that the model computes at the new positions."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st

from promptcache.model.model import Model
from tests.families import FAMILIES, random_model

MOVING = tuple(family for family in FAMILIES if family != "gpt2")
"""The families whose keys can be moved."""

FAR = 100_000
"""The context length of the models of this law."""

TOLERANCE = 1e-5
"""For float32, relative, if the hidden states are the same at all positions."""

_ANGLE_ERROR = 2.0**-23
"""For each position: transformers rounds angles to float32, so attention depends a little on where a text is."""

_MAX_TOKENS = 24  # twice the windows of the families


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text with gaps between its positions, and the same text further ahead or back.

    Attributes:
        token_ids: Any number of tokens.
        position_ids: Of the tokens, ascending.
        shift: Distance from the positions to the new positions.
        moved: Indices of the tokens whose keys are moved; the law compares these.
        alone_at: For each token, the new position at which it has no context.
    """

    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    shift: int
    moved: tuple[int, ...]
    alone_at: tuple[int, ...]


@st.composite
def texts(draw: st.DrawFn) -> Text:
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5, 40]), min_size=1, max_size=_MAX_TOKENS))
    first, moved_first = (draw(st.integers(0, FAR - 1 - sum(gaps))) for _ in range(2))
    positions = tuple(first + sum(gaps[:index]) for index in range(len(gaps)))
    return Text(
        token_ids=tuple(draw(st.integers(3, 255)) for _ in gaps),
        position_ids=positions,
        shift=moved_first - first,
        moved=tuple(sorted(draw(st.sets(st.integers(0, len(gaps) - 1), min_size=1)))),
        alone_at=tuple(draw(st.integers(0, FAR - 1)) for _ in gaps),
    )


@cache
def far_model(family: str, dtype: torch.dtype = torch.float32) -> Model:
    """Return a model with `FAR` positions and four layers (SmolLM3's fourth has no positions), and read its rotations."""
    fields = FAMILIES[family][1]
    changes: dict[str, Any] = {"max_position_embeddings": FAR, "num_hidden_layers": 4}
    if "n_layer" in fields:
        changes = {"max_position_embeddings": FAR, "n_positions": FAR, "n_layer": 4}
    if "layer_types" in fields:
        changes["layer_types"] = fields["layer_types"] * 2
    model = Model(random_model(family, dtype, **changes))
    assert model.can_relocate
    return model


@torch.no_grad()
def encoded(model: Model, token_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    """Return the keys `[L, Hkv, B * T, D]` of texts `[B, T]`."""
    cache = model.plain_cache(model.shape.num_layers)
    model.encode(token_ids, position_ids, cache)
    return torch.stack([layer.keys for layer in cache.layers]).transpose(1, 2).flatten(2, 3)  # [L, Hkv, B * T, D]


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).double().norm() / expected.double().norm())


def moved_keys_are_the_models(model: Model, text: Text) -> None:
    """Keys of tokens alone and of a whole text equal those computed at the new positions, and come back."""
    token_ids, start = torch.tensor(text.token_ids), torch.tensor(text.position_ids)
    _check_tokens_alone(model, token_ids, start, torch.tensor(text.alone_at))
    moved, stop = torch.tensor(text.moved), start + text.shift
    keys, expected = (encoded(model, token_ids[None], each[None]) for each in (start, stop))
    room = torch.full((*keys.shape[:2], len(moved) + 7, keys.shape[3]), torch.nan)
    out = room[:, :, 3:-4]
    before = keys.clone()

    result = model.relocation.move(keys[:, :, moved], start[moved], stop[moved], out)

    assert result is out
    assert torch.equal(keys, before)
    assert room.isnan().sum() == room.numel() - out.numel()
    rounded = _ANGLE_ERROR * float(torch.cat((start, stop)).max())
    for layer, (actual, own) in enumerate(zip(out, expected[:, :, moved], strict=True)):
        assert distance(actual, own) <= TOLERANCE + (rounded if layer else 0)
    assert distance(model.relocation.move(out, stop[moved], start[moved]), keys[:, :, moved]) <= TOLERANCE


def _check_tokens_alone(model: Model, token_ids: torch.Tensor, start: torch.Tensor, stop: torch.Tensor) -> None:
    """A token without context has the same hidden states everywhere, so the keys of all layers must agree."""
    keys, expected = (encoded(model, token_ids[:, None], each[:, None]) for each in (start, stop))
    moved = model.relocation.move(keys, start, stop)
    assert max(map(distance, moved, expected)) <= TOLERANCE
