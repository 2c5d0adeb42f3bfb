"""A small random copy of a model: the same architecture and pattern of layers, with fewer heads, layers and tokens.

The self-test compares linked KV with the copy's own computation. The copy is in float32 on the CPU, so the result does
not depend on dtype, device or weights. The head dimension is kept, and so is RoPE. Windows are shortened, so that a
short text is longer than all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from promptcache.model.facts import MODEL_FAULTS
from promptcache.tokenizer import LENGTH_NAMES

_MAX_WINDOW = 8192  # a test beyond a longer window would take minutes
_MAX_WEIGHTS = 100_000_000
_WEIGHT_SCALE = 3.0  # with small weights attention is nearly uniform and hides wrong positions

_NUM_LAYERS = 8
_WIDTH = 64
_NUM_EXPERTS = 16
_NUM_TOKENS = 256
_NUM_SPECIAL_TOKENS = 16
_WINDOW = 12
_WINDOW_STEP = 4
_NUM_POSITIONS = 1024

_WINDOW_NAMES = ("window", "chunk", "block", "span", "local", "stride", "original_max_position")
_WIDTH_NAMES = ("intermediate", "ffn", "n_inner", "d_ff", "d_inner")
_SIZE_NAMES = (*_WIDTH_NAMES, "vocab", "hidden_size", "head", "rank")
_NO_NUMBER_OF_LAYERS = ("size", "interval", "freq", "pattern", "every", "step", "period")
_TOKEN_NAMES = ("_id", "_ids", "_index", "_indices", "_idx")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallCopy:
    """A small copy of a model.

    Attributes:
        hf: The copy, in float32 on the CPU.
        longest_window: The largest integer of its configuration that may be a window.
    """

    hf: PreTrainedModel
    longest_window: int


def small_copy(hf: PreTrainedModel, context_length: int) -> SmallCopy | None:
    """Return a small random copy of `hf`, or None if its class cannot be built that small.

    Args:
        hf: Not changed.
        context_length: Positions that `hf` may use. A window that is not shorter has no effect.
    """
    config = copy.deepcopy(hf.config)
    config.__dict__.pop("quantization_config", None)
    try:
        for part in _parts(config):
            _shrink(part)
        window = longest_window(_empty(type(hf), config), config, context_length)
        for part in _parts(config):
            for name in LENGTH_NAMES:
                if isinstance(getattr(part, name, None), int):
                    setattr(part, name, max(_NUM_POSITIONS, 2 * window))
        if sum(weight.numel() for weight in _empty(type(hf), config).parameters()) > _MAX_WEIGHTS:
            return None
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.inference_mode(mode=False):
            torch.manual_seed(0)
            made = _build(type(hf), config).eval()  # type: ignore[no-untyped-call] # torch does not annotate it
            made(input_ids=torch.zeros((1, 2), dtype=torch.long), use_cache=False)
    except MODEL_FAULTS:
        return None
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight.mul_(_WEIGHT_SCALE)
    return SmallCopy(hf=made, longest_window=window)


def longest_window(hf: PreTrainedModel, config: PretrainedConfig, context_length: int) -> int:
    """Return the largest integer of `config` that may be a window; 0 if there is none.

    An integer may be a window if it is shorter than the context and not the size of a weight. It is the size of a
    weight if the shape of a weight changes with it.

    Args:
        hf: Built from `config`; may be on the meta device.
        config: Not changed.
        context_length: Positions that may be used.
    """
    text: Any = config.get_text_config(decoder=True)
    shapes = _shapes(hf)
    sizes = {size for shape in shapes for size in shape}
    longest = 0
    for part in (config, text):
        for name, value in sorted(_integers(part), key=lambda item: -item[1]):
            is_window = _is_window(name)
            if not longest < value <= min(_MAX_WINDOW, context_length - 1) or name.endswith(_TOKEN_NAMES):
                continue
            if not is_window and any(word in name for word in (*_SIZE_NAMES, *LENGTH_NAMES)):
                continue
            if is_window or value not in sizes or not _is_size(type(hf), config, part, name, shapes):
                longest = value
    return longest


def _build(kind: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    build: Any = kind._from_config  # not annotated
    made: PreTrainedModel = build(copy.deepcopy(config), dtype=torch.float32, attn_implementation="eager")
    return made


def _empty(kind: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        return _build(kind, config)


def _shapes(model: PreTrainedModel) -> list[torch.Size]:
    return [weight.shape for weight in model.parameters()]


def _is_size(kind: type[PreTrainedModel], config: PretrainedConfig, part: Any, name: str, shapes: object) -> bool:
    """Whether the shapes of the weights depend on the integer `name` of `part`, a part of `config`."""
    value = getattr(part, name, None)
    if not isinstance(value, int):
        return False
    try:
        setattr(part, name, 2 * value)
        return _shapes(_empty(kind, config)) != shapes
    except MODEL_FAULTS:
        return False
    finally:
        setattr(part, name, value)


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from _parts(value)


def _integers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield the integers of a configuration with their names, except those of nested configurations."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _integers(each, name)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _integers(each, str(key))
    elif isinstance(value, PretrainedConfig) and not name:
        for key, each in vars(value).items():
            yield from _integers(each, key)


def _changed(value: Any, change: Callable[[str, int], int], name: str) -> Any:
    """Return `value` with every integer in it replaced by `change(name, integer)`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return change(name, value)
    if isinstance(value, (list, tuple)):
        return type(value)(_changed(each, change, name) for each in value)
    if isinstance(value, dict):
        return {key: _changed(each, change, str(key)) for key, each in value.items()}
    return value


def _is_window(name: str) -> bool:
    return any(word in name for word in _WINDOW_NAMES)


def _shrink(config: Any) -> None:
    """Reduce layers, heads, tokens and windows of a configuration, or of one part of it, in place."""
    _shorten(config)
    sizes = _smaller_sizes(config)
    windows = sorted({value for name, value in _integers(config) if _is_window(name) and value > _WINDOW})

    def smaller(name: str, value: int) -> int:
        if _is_window(name):
            return _WINDOW + _WINDOW_STEP * windows.index(value) if value in windows else value
        if name.endswith(_TOKEN_NAMES):
            is_kept = value < _NUM_TOKENS - _NUM_SPECIAL_TOKENS
            return value if is_kept else _NUM_TOKENS - 1 - value % _NUM_SPECIAL_TOKENS
        if "vocab" in name:
            return min(value, _NUM_TOKENS)
        if any(word in name for word in _WIDTH_NAMES):
            return min(value, _WIDTH)
        if "expert" in name and "size" not in name:
            return min(value, _NUM_EXPERTS // 2 if "per_tok" in name else _NUM_EXPERTS)
        return value if name in LENGTH_NAMES else sizes.get(("head" in name and "dim" not in name, value), value)

    for name, value in list(vars(config).items()):
        if not name.startswith("_") and (changed := _changed(value, smaller, name)) != value:
            setattr(config, name, changed)


def _shorten(config: Any) -> None:
    """Drop layers at the end; keep every kind of layer that a list names for each layer."""
    total = getattr(config, "num_hidden_layers", None)
    if not isinstance(total, int):
        return
    fields = [(name, value) for name, value in vars(config).items() if not name.startswith("_")]
    lists = {name: value for name, value in fields if isinstance(value, (list, tuple)) and len(value) == total}
    first = (value.index(kind) + 1 for value in lists.values() for kind in value)
    kept = min(total, max(_NUM_LAYERS, max(first, default=0)))
    for name, value in fields:
        if name in lists:
            setattr(config, name, value[:kept])
        elif "layer" not in name or any(word in name for word in _NO_NUMBER_OF_LAYERS):
            continue
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            setattr(config, name, max(1, value * kept // total))
        elif isinstance(value, (list, tuple)) and value and all(isinstance(each, int) for each in value):
            setattr(config, name, [each for each in value if each < kept] or [min(value) * kept // total])
    config.num_hidden_layers = kept


def _smaller_sizes(config: Any) -> dict[tuple[bool, int], int]:
    """Return smaller numbers of heads (True) and a smaller hidden size (False), with the same head dimension."""
    heads, hidden = (getattr(config, name, None) for name in ("num_attention_heads", "hidden_size"))
    if not isinstance(heads, int) or not isinstance(hidden, int):
        return {}
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    is_grouped = 1 < kv_heads < heads
    kept = min(heads, 4 if is_grouped else 2)
    width = -(-hidden // heads)
    return {(True, kv_heads): min(kv_heads, 2), (True, heads): kept, (False, hidden): kept * width}
