"""Names of models and their folders. A name is `demo`, a folder, or a hub id."""

from __future__ import annotations

import os
from pathlib import Path

from promptcache.diagnostics import PATH, Kind, ModelNotFound, first_line

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parents[1] / "demo" / "model"
_NAME = Kind(f"'{DEMO}', a model's folder or a hub id", PATH.takes)
_TIMEOUT_S = 10.0
_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/default.jinja",
    "additional_chat_templates/tool_use.jinja",
    "additional_chat_templates/rag.jinja",
)
_WEIGHTS = {".bin", ".safetensors"}
_QUICK_BYTES = 2**30


def model_folder(name: str | Path) -> Path:
    """Return a folder with the tokenizer and `config.json` of a model. Files of a hub id are downloaded.

    Raises:
        ModelNotFound: No such folder or hub id, or the hub does not answer and the local cache does not have it.
    """
    folder = local_folder(name)
    if folder is not None:
        return folder
    online = ask_hub(str(name))
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(_FILES), local_files_only=not online))
    except _hub_errors() as error:
        raise ModelNotFound(f"cannot download the tokenizer of model '{name}': {first_line(error)}") from None


def local_folder(name: str | Path) -> Path | None:
    """Return the folder of a name, or None for a hub id.

    Raises:
        ModelNotFound: It is no name, or a path that leads to no folder.
    """
    _NAME.check("model", name, ModelNotFound)
    if os.fspath(name) == DEMO:
        return DEMO_FOLDER
    place = os.path.expanduser(name)  # noqa: PTH111 - Path.expanduser raises where there is no such user
    path = Path(place)
    if os.path.isdir(path):  # noqa: PTH112 - too long a name is no error here
        return path
    if path.suffix == ".gguf":
        fix = "give a folder with config.json and safetensors, or the hub id of such a model"
        raise ModelNotFound(f"'{place}' is a model for llama.cpp, which this library does not read; {fix}")
    if os.path.isfile(path):  # noqa: PTH113 - as above
        raise ModelNotFound(f"model '{place}' is a file; give the folder with config.json, or a hub id")
    if not isinstance(name, str) or path.is_absolute() or os.path.exists(path) or name.startswith((".", "~")):  # noqa: PTH110
        raise ModelNotFound(f"model folder '{place}' does not exist; give a folder with config.json, or a hub id")
    return None


def loads_quickly(folder: Path) -> bool:
    """Whether the weights in a model's folder load in a moment, so that no bar of transformers is needed."""
    weights = [each for each in folder.glob("*") if each.suffix in _WEIGHTS and each.is_file()]
    return sum(each.stat().st_size for each in weights) < _QUICK_BYTES


def ask_hub(
    name: str,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    subfolder: str = "",
    local_files_only: bool = False,
) -> bool:
    """Return whether the hub has a model; False if the hub does not answer and the local cache has the model.

    One request without retries, so that a wrong name or a machine without network is reported at once.

    Args:
        revision: Of the model; None is the newest. All arguments are those of `from_pretrained`.

    Raises:
        ModelNotFound: Neither the hub nor the local cache has it; says which of them was asked.
    """
    from huggingface_hub import HfApi, errors, try_to_load_from_cache

    config = f"{subfolder}/config.json" if subfolder else "config.json"
    try:
        cached = try_to_load_from_cache(name, config, cache_dir=cache_dir, revision=revision)
        if local_files_only:
            reason = "with local_files_only, the hub is not asked"
        else:
            HfApi().model_info(name, revision=revision, token=token, timeout=_TIMEOUT_S)
            return True
    except errors.HFValidationError:
        raise ModelNotFound(f"model '{name}' is neither '{DEMO}', nor a folder here, nor a hub id") from None
    except errors.RevisionNotFoundError:
        raise ModelNotFound(f"model '{name}' has no revision '{revision}' on the hub") from None
    except errors.RepositoryNotFoundError:
        reason = "the hub has no such model (a private one needs `hf auth login`)"
    except _hub_errors() as error:
        reason = f"the hub cannot be reached: {first_line(error)}"
    if isinstance(cached, str):
        return False
    places = f"neither '{DEMO}', nor a folder here, nor in the local cache"
    raise ModelNotFound(f"model '{name}' is {places}; {reason}; name a folder with config.json")


def _hub_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a request to the hub. The last one is the base class of httpx in the installed version."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return OSError, ValueError, HTTPError
