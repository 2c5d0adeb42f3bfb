"""Load a model and a tokenizer by name, wrap a loaded tokenizer, and describe functions for its chat template.

A model or tokenizer that cannot be loaded raises an error that names it and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException, get_json_schema

from promptcache.declared import declared
from promptcache.diagnostics import (
    InvalidValue,
    ModelNotFound,
    PromptCacheError,
    UnsupportedModel,
    did_you_mean,
    first_line,
    shown,
    suggest,
)
from promptcache.kv import StoreConfig
from promptcache.model.facts import MODEL_FAULTS, check_causal
from promptcache.settings import EngineSettings
from promptcache.tokenizer import HubTokenizer, Tokenizer, ask_hub, loads_quickly, local_folder

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_WHERE = ("revision", "cache_dir", "token", "subfolder", "local_files_only")
"""Options of `from_pretrained` that choose where files are looked up."""


def load_model(
    name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    **options: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model with its tokenizer.

    Args:
        name: "demo", a folder, or a hub id.
        device: For example "cpu" or "cuda"; None chooses a GPU if there is one.
        dtype: Dtype of the weights, one of `DTYPES` or its name. "auto" is the checkpoint's own dtype, or float32 for
            float16 on a CPU.
        options: Passed on to `from_pretrained` (`revision`, `trust_remote_code`, ...).

    Raises:
        ModelNotFound: There is no such folder or hub id, or files are missing in it.
        UnsupportedModel: The model or tokenizer cannot be cached by modules.
    """
    wanted = _checked_dtype(dtype)
    where = _checked_device(device)
    folder = local_folder(name)
    if folder is not None and not (folder / "config.json").is_file():
        raise ModelNotFound(f"model folder '{folder}' has no config.json; save a model there with save_pretrained")
    files = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if folder is not None and not any((folder / file).is_file() for file in files):
        raise ModelNotFound(
            f"model folder '{folder}' has no tokenizer (tokenizer.json); save the model's tokenizer there too"
        )
    source = str(folder or name)
    places = {name: options[name] for name in _WHERE if name in options}
    offline = folder is None and not ask_hub(source, **places)
    how = {**options, "local_files_only": True} if offline else options
    try:
        with nullcontext() if folder is None or not loads_quickly(folder) else _without_progress_bars():
            config = AutoConfig.from_pretrained(source, **how)
            check_causal(config, f"'{source}' ({config.model_type})")
            tokenizer = AutoTokenizer.from_pretrained(source, **how)
            if offline:  # if peft is installed, transformers looks for an adapter, with options of its own
                how = {"adapter_kwargs": {"local_files_only": True}, **how}
            stored = str(getattr(config, "dtype", "")).removeprefix("torch.")
            if wanted == "auto" and where.type == "cpu" and stored == "float16":  # is slow and coarse on a CPU
                wanted = torch.float32
            hf: Any = AutoModelForCausalLM.from_pretrained(source, dtype=wanted, **how)
            hf.to(where)
    except TypeError as error:
        raise _unknown_option(name, options, error) from error
    except OSError as error:
        raise ModelNotFound(f"cannot load model '{name}': {first_line(error)}") from error
    except MODEL_FAULTS as error:
        raise UnsupportedModel(f"cannot use model '{name}': {first_line(error)}") from error
    return hf, tokenizer


def wrap_tokenizer(tokenizer: PreTrainedTokenizerBase | Tokenizer, end_ids: Sequence[int] = ()) -> Tokenizer:
    """Return our tokenizer with the vocabulary, rules and chat template of a transformers tokenizer.

    Our own tokenizers are returned as they are.

    Args:
        end_ids: Tokens that end an answer according to the model.

    Raises:
        UnsupportedModel: `tokenizer` is neither, has no fast backend, or has several chat templates without a default.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        if not isinstance(tokenizer, Tokenizer):
            raise UnsupportedModel(f"an engine takes a loaded tokenizer, not {type(tokenizer).__name__}")
        return tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedModel(
            f"{type(tokenizer).__name__} has no fast (Rust) tokenizer behind it; convert it to a tokenizer.json first"
        )
    config = {key: str(value) for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    return HubTokenizer.from_parts(backend.to_str(), config, tokenizer.chat_template, end_ids)


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a function with type hints, and a docstring with a section `Args:` of Google's style.

    Raises:
        InvalidValue: It has no such docstring, or an argument has no type hint.
    """
    try:
        found: dict[str, Any] = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise InvalidValue(f"{getattr(function, '__name__', function)} cannot be a tool: {error}") from None
    return found


def _unknown_option(name: str | Path, options: Mapping[str, Any], error: TypeError) -> PromptCacheError:
    """Return the error for an option that transformers does not take, or for a model that it cannot make."""
    unknown = next((each for each in options if f"unexpected keyword argument '{each}'" in str(error)), None)
    if unknown is None:
        return UnsupportedModel(f"cannot use model '{name}': {first_line(error)}")
    known = ("device", "dtype", *declared(EngineSettings), *_WHERE)
    of_store = next((each for each in declared(StoreConfig) if each.startswith(unknown)), None)
    near = f"write store=StoreConfig({of_store}=…)" if of_store else did_you_mean(unknown, known)
    near = near or f"its options are {', '.join(known)}"
    return InvalidValue(f"from_pretrained() has no option '{unknown}', and neither has transformers: {near}")


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Hide progress bars of transformers."""
    bars: Any = logging  # not annotated
    enabled = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            bars.enable_progress_bar()


def _checked_dtype(asked: object) -> str | torch.dtype:
    known = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    if isinstance(asked, torch.dtype) and asked in DTYPES:
        return asked
    if isinstance(asked, str) and asked in ("auto", *known):
        return known.get(asked, asked)
    near = suggest(asked, known) if isinstance(asked, str) else None
    meant = "" if near is None else f"; did you mean '{near}'?"
    raise UnsupportedModel(f"dtype {shown(asked)} is not one of 'auto', {', '.join(map(repr, known))}{meant}")


def _checked_device(asked: Any) -> torch.device:
    if asked is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(1, device=device)
    except MODEL_FAULTS as error:
        raise UnsupportedModel(
            f"device {shown(asked)} cannot be used: {first_line(error)}; this machine has 'cpu' and "
            f"{torch.cuda.device_count()} CUDA devices"
        ) from error
    if device.type == "meta":
        raise UnsupportedModel("device 'meta' holds no values, so nothing can be computed on it; use 'cpu' or 'cuda'")
    return device
