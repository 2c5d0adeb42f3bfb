"""Adapters of peft: they are loaded from a folder and merged into the weights.

A merged adapter costs nothing at request time. The weights are others then, so KV of the model without it is not used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from promptcache.diagnostics import InvalidValue, Kind, ModelNotFound, UnsupportedModel, first_line
from promptcache.runtime.hf.facts import MODEL_FAULTS

ADAPTER = Kind("a folder", lambda value: isinstance(value, str | Path) and str(value) != "") | None

_CONFIG = "adapter_config.json"


def check_adapter(adapter: object) -> None:
    """Refuse a value that is no folder with an adapter, before a large model is loaded.

    Raises:
        InvalidValue: It is no path.
        ModelNotFound: There is no adapter in the folder.
        UnsupportedModel: peft is not installed.
    """
    ADAPTER.check("adapter", adapter, InvalidValue)
    if adapter is None:
        return
    assert isinstance(adapter, str | Path)
    if not _is_file(Path(adapter) / _CONFIG):
        raise ModelNotFound(f"adapter folder '{adapter}' has no {_CONFIG}; `promptcache adapt` makes one")
    if find_spec("peft") is None:
        raise UnsupportedModel(f"adapter '{adapter}' needs peft: pip install 'promptcache[adapt]'")


def merge_adapter(hf: PreTrainedModel, adapter: str | Path) -> Any:
    """Return the model with an adapter merged into its weights. The model is changed in place.

    Raises:
        UnsupportedModel: The adapter is for another model, or cannot be merged.
    """
    from peft import PeftModel

    try:
        with without_peft_warnings():
            return PeftModel.from_pretrained(hf, str(adapter)).merge_and_unload()
    except MODEL_FAULTS as error:
        name = type(hf).__name__
        raise UnsupportedModel(f"cannot merge adapter '{adapter}' into {name}: {first_line(error)}") from error


@contextmanager
def without_peft_warnings() -> Iterator[None]:
    """Hide warnings that peft causes in transformers while it adds an adapter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a null character
        return False
