"""Adapters: one of peft is merged into the weights, and one for modules is added to them.

Neither costs anything at request time. The weights are others then, so KV of the model without it is not used.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from promptcache.diagnostics import InvalidValue, Kind, ModelNotFound, UnsupportedModel, first_line
from promptcache.runtime.hf.facts import MODEL_FAULTS
from promptcache.runtime.hf.module_adapter import CONFIG, is_for_modules, load_module_adapter

ADAPTER = Kind("a folder", lambda value: isinstance(value, str | Path) and str(value) != "") | None


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
    if not _is_file(Path(adapter) / CONFIG):
        raise ModelNotFound(f"adapter folder '{adapter}' has no {CONFIG}; `promptcache adapt` makes one")
    if not is_for_modules(Path(adapter)) and find_spec("peft") is None:
        raise UnsupportedModel(f"adapter '{adapter}' needs peft: pip install 'promptcache[peft]'")


def with_adapter(hf: PreTrainedModel, adapter: str | Path) -> Any:
    """Return the model with an adapter. The model is changed in place.

    Raises:
        UnsupportedModel: The adapter is for another model, or cannot be merged.
    """
    if is_for_modules(Path(adapter)):
        load_module_adapter(hf, Path(adapter))
        return hf
    from peft import PeftModel

    try:
        with warnings.catch_warnings():  # of transformers, which peft causes
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            return PeftModel.from_pretrained(hf, str(adapter)).merge_and_unload()
    except MODEL_FAULTS as error:
        name = type(hf).__name__
        raise UnsupportedModel(f"cannot merge adapter '{adapter}' into {name}: {first_line(error)}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a null character
        return False
