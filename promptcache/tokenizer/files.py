"""The files of a model's folder that describe its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptcache.diagnostics import ModelNotFound, UnsupportedModel


def read_tokenizer_files(folder: Path) -> tuple[str, dict[str, Any], Mapping[str, str], tuple[int, ...]]:
    """Read the tokenizer files of a model's folder.

    Returns:
        The content of `tokenizer.json`; the settings of `tokenizer_config.json` and below them the special tokens of
        `special_tokens_map.json`; Jinja2 sources of chat templates by name; and the tokens where generation stops.

    Raises:
        ModelNotFound: no such folder, or no `tokenizer.json` in it.
        UnsupportedModel: a file in it has a wrong format.
    """
    if not folder.is_dir():
        raise ModelNotFound(f"there is no folder '{folder}'")
    tokenizer_json = _read(folder / "tokenizer.json")
    if tokenizer_json is None:
        raise ModelNotFound(f"folder '{folder}' has no tokenizer.json: save the model's tokenizer there, too")
    config = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    ends = list[int]()
    for name in ("generation_config.json", "config.json"):
        token_ids = read_json(folder / name).get("eos_token_id")
        ends += token_ids if isinstance(token_ids, list) else [token_ids] if isinstance(token_ids, int) else []
    return tokenizer_json, config, _chat_templates(folder, config), tuple(dict.fromkeys(ends))


DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of chat templates: the one that is used, and the one that is used instead where a conversation has tools."""


def named_templates(templates: object) -> Mapping[str, str]:
    """Return chat templates by name; empty if there is none.

    Args:
        templates: Jinja2 source, a mapping of names, a list of `{"name", "template"}`, or None.

    Raises:
        UnsupportedModel: There are several and none is named "default"; transformers refuses them too.
    """
    if isinstance(templates, list):
        templates = {entry["name"]: entry["template"] for entry in templates}
    if not isinstance(templates, Mapping):
        templates = {DEFAULT: templates}
    found = {name: each for name, each in templates.items() if isinstance(each, str) and each}
    if found and DEFAULT not in found:
        raise UnsupportedModel(
            f"none of the chat templates {', '.join(map(repr, sorted(found)))} is named 'default'; save the "
            "one to use as chat_template.jinja in the model's folder"
        )
    return found


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the chat templates from the places where transformers stores them, the newest place first."""
    beside = {path.stem: _read(path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if source := _read(folder / "chat_template.jinja"):
        return named_templates({**beside, DEFAULT: source})
    return (
        named_templates(read_json(folder / "chat_template.json").get("chat_template"))
        or named_templates(config.get("chat_template"))
        or named_templates(beside)
    )


def _read(path: Path) -> str | None:
    """Return a file's text, or None if there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UnsupportedModel(f"'{path}' is not UTF-8 text: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, empty if there is no such file."""
    text = _read(path)
    try:
        value = {} if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise UnsupportedModel(f"'{path}' is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedModel(f"'{path}' is not a JSON object")
    return value
