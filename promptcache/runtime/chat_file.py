"""Saved conversations: a JSON file with texts and token IDs, and their KV in a folder in the format of stores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from promptcache.atomic import atomic_write
from promptcache.diagnostics import InvalidValue, is_text, shown
from promptcache.kv import StoreConfig, open_store
from promptcache.language import CHAT_SCHEMA, Prompt, parse_prompt
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime.executor import Executor
from promptcache.runtime.history import OwnStretch
from promptcache.runtime.turns import ChatTurn

FORMAT = "promptcache chat"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedChat:
    """The content of a file.

    Attributes:
        kv_sizes: For each stretch of own tokens how many of its tokens are in the folder; empty without a folder.
        tokenizer: Fingerprint of the tokenizer of the answers' tokens; None in files without it.
    """

    prompt: Prompt
    turns: tuple[ChatTurn, ...]
    repair: str | None
    kv_sizes: tuple[int, ...]
    tokenizer: str | None


def write_chat(path: Path, chat: SavedChat) -> None:
    """Write a file atomically."""
    is_plain = chat.prompt.schema == CHAT_SCHEMA
    messages = [{"role": str(message.role), "content": message.text} for message in chat.prompt.messages]
    data = {
        "format": FORMAT,
        "version": VERSION,
        "prompt": None if is_plain else chat.prompt.to_xml(),
        "messages": messages if is_plain else [],
        "repair": chat.repair,
        "tokenizer": chat.tokenizer,
        "turns": [
            {"question": turn.question, "answer": turn.answer, "token_ids": turn.token_ids} for turn in chat.turns
        ],
        "kv_sizes": chat.kv_sizes,
    }
    with atomic_write(path) as file:
        file.write(json.dumps(data, indent=1, ensure_ascii=False).encode())


def read_chat(path: Path) -> SavedChat:
    """Read a file.

    Raises:
        InvalidValue: It cannot be read, or has another format.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be read: {error.strerror}") from error
    try:
        data = json.loads(content)
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError(f"its format is {shown(data['format'])}, version {shown(data['version'])}")
        messages = data["messages"]
        plain = Prompt.from_messages(CHAT_SCHEMA, messages) if messages else Prompt(CHAT_SCHEMA)
        return SavedChat(
            prompt=plain if data["prompt"] is None else parse_prompt(data["prompt"]),
            turns=tuple(_turn(each) for each in data["turns"]),
            repair=data["repair"],
            kv_sizes=tuple(map(int, data["kv_sizes"])),
            tokenizer=data.get("tokenizer"),
        )
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise InvalidValue(f"{path} is not a saved chat of version {VERSION}: {error}") from None


def _turn(data: dict[str, object]) -> ChatTurn:
    question, answer, token_ids = data["question"], data["answer"], data["token_ids"]
    if not (is_text(question) and is_text(answer) and isinstance(token_ids, list)):
        raise ValueError("a turn has a question, an answer and token_ids, and no lone surrogates")
    if not all(isinstance(each, int) and each >= 0 for each in token_ids):
        raise ValueError("token_ids are whole numbers")
    return ChatTurn(question=question, answer=answer, token_ids=tuple(token_ids))


def kv_folder(path: Path) -> Path:
    """Return the folder with the KV of the chat in `path`."""
    return path.with_name(f"{path.name}.kv")


def had_kv(path: Path) -> bool:
    """Whether a file is a saved chat with KV in its folder."""
    try:
        return bool(read_chat(path).kv_sizes)
    except InvalidValue:
        return False


def save_kv(executor: Executor, tokens: RequestTokens, salt: str | None, folder: Path) -> tuple[int, ...]:
    """Write what history has of a conversation; return for each stretch how many tokens were written.

    Other KV in the folder, that of an earlier save, is removed.
    """
    recalled = executor.recall(tokens, salt)
    stretches = () if recalled is None else recalled.stretches
    store = open_store(StoreConfig(folder=folder), executor.model.shape)
    older = set(store.keys())
    for stretch in stretches:
        if stretch.num_found:
            views = [(stretch.runs[part.encoding], part.num_tokens) for part in stretch.parts]
            keys = torch.cat([run.keys[:, :, :size] for run, size in views], dim=2)
            values = torch.cat([run.values[:, :, :size] for run, size in views], dim=2)
            recipe = executor.recipe(_encoding(tokens, stretch, stretch.num_found))
            store.put(recipe, keys, values)
            older.discard(recipe.key)
    for key in older:
        store.delete(key)
    return tuple(stretch.num_found for stretch in stretches)


def remove_kv(executor: Executor, folder: Path) -> None:
    """Remove all KV from a folder that `save_kv` has written."""
    store = open_store(StoreConfig(folder=folder), executor.model.shape)
    for key in tuple(store.keys()):
        store.delete(key)


def load_kv(executor: Executor, tokens: RequestTokens, salt: str | None, folder: Path, sizes: Sequence[int]) -> None:
    """Read into history what `save_kv` wrote. KV of another model or schema is not found, and prefilled later."""
    recalled = executor.recall(tokens, salt)
    if recalled is None or executor.history is None or not folder.is_dir():
        return
    store = open_store(StoreConfig(folder=folder), executor.model.shape)
    for stretch, size in zip(recalled.stretches, sizes, strict=False):
        if size > stretch.num_found:
            encoding = _encoding(tokens, stretch, size)
            run = store.get(executor.key(encoding)).run
            if run is not None:
                executor.history.add(stretch, encoding.token_ids, tuple(zip(run.keys, run.values, strict=True)))


def _encoding(tokens: RequestTokens, stretch: OwnStretch, size: int) -> Encoding:
    """Return the handle of the first tokens of a stretch."""
    own = slice(stretch.start, min(stretch.start + size, stretch.stop))
    return Encoding(token_ids=tokens.token_ids[own], position_ids=tokens.position_ids[own], context=stretch.context)
