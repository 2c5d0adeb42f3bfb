"""Saved conversations: a JSON file with texts and token IDs, and their KV in a folder in the format of stores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from errno import EISDIR
from os import strerror
from pathlib import Path

import torch

from promptcache.atomic import atomic_write
from promptcache.diagnostics import InvalidValue, PromptCacheError, counted, is_text, shown
from promptcache.kv import StoreConfig, open_store
from promptcache.language import CHAT_SCHEMA, Prompt, Role, parse_prompt, split_question
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime.executor import Executor
from promptcache.runtime.history import OwnStretch, Recalled
from promptcache.runtime.turns import ChatTurn, chat_message
from promptcache.structured import ToolCall

FORMAT = "promptcache chat"
VERSION = 1
_ANSWER_FILE = "answer.schema.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedChat:
    """The content of a file.

    Attributes:
        question: The question that waits for the first answer.
        kv_sizes: For each stretch of own tokens how many of its tokens are in the folder; empty without a folder.
        positions: As for `Engine.chat`; None in files without it.
        tokenizer: Fingerprint of the tokenizer of the answers' tokens; None in files without it.
    """

    prompt: Prompt
    question: str | None
    turns: tuple[ChatTurn, ...]
    repair: str | None
    positions: str | None
    kv_sizes: tuple[int, ...]
    tokenizer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatKV:
    """The KV of a conversation that is written with it: `recalled` from history, or none."""

    executor: Executor
    recalled: Recalled | None

    @property
    def sizes(self) -> tuple[int, ...]:
        """For each stretch of own tokens how many of its first tokens have KV; empty if none has."""
        sizes = () if self.recalled is None else tuple(each.num_found for each in self.recalled.stretches)
        return sizes if any(sizes) else ()

    def write(self, folder: Path) -> frozenset[str]:
        """Put the KV into a folder in the format of stores, and return its keys."""
        if self.recalled is None or not self.sizes:
            return frozenset()
        inside, keys = _executor_of(folder, self.executor), set()
        for stretch in self.recalled.stretches:
            if stretch.num_found:
                views = [(stretch.handles[part.encoding], part.num_tokens) for part in stretch.parts]
                recipe = inside.recipe(_encoding(self.recalled.tokens, stretch, stretch.num_found))
                inside.store.put(
                    recipe,
                    torch.cat([handle.keys[:, :, :size] for handle, size in views], dim=2),
                    torch.cat([handle.values[:, :, :size] for handle, size in views], dim=2),
                )
                keys.add(recipe.key)
        return frozenset(keys)

    def keys(self, folder: Path) -> frozenset[str]:
        """Return the keys of all KV in a folder, which need not exist."""
        return frozenset(_executor_of(folder, self.executor).store.keys()) if folder.is_dir() else frozenset()

    def remove(self, folder: Path, keys: frozenset[str]) -> None:
        """Remove KV from a folder."""
        if keys:
            store = _executor_of(folder, self.executor).store
            for key in keys:
                store.delete(key)


def _executor_of(folder: Path, executor: Executor) -> Executor:
    """Return an executor of the same model over the folder of a chat, which has signatures of its own."""
    store = open_store(StoreConfig(folder=folder), executor.model.shape)
    return Executor(executor.model, store, lambda: executor.fingerprint)


def write_chat(path: Path, chat: SavedChat, kv: ChatKV) -> None:
    """Write a file and its KV. If this fails, the earlier file and its KV are as before."""
    is_plain = chat.prompt.schema == CHAT_SCHEMA
    said = chat.prompt.messages if is_plain else ()
    prompt, files = _without_folder(chat.prompt)
    answer = Prompt("plain", answer_format=prompt.answer_format) if is_plain and prompt.answer_format else None
    data = {
        "format": FORMAT,
        "version": VERSION,
        "prompt": None if is_plain else prompt.to_xml(),
        "answer": None if answer is None else answer.to_xml(),
        "files": files,
        "question": chat.question,
        "messages": [chat_message(each.role or Role.USER, each.text, each.reasoning) for each in said],
        "repair": chat.repair,
        "positions": chat.positions,
        "tokenizer": chat.tokenizer,
        "turns": [asdict(turn) for turn in chat.turns],
        "kv_sizes": chat.kv_sizes,
    }
    if path.is_dir():
        raise IsADirectoryError(EISDIR, strerror(EISDIR), str(path))
    folder = kv_folder(path)
    earlier = kv.keys(folder) if kv.sizes or _has_kv(path) else frozenset()
    try:
        with atomic_write(path) as file:
            file.write(json.dumps(data, indent=1, ensure_ascii=False).encode())
            written = kv.write(folder)
    except BaseException:
        kv.remove(folder, kv.keys(folder) - earlier)
        raise
    kv.remove(folder, earlier - written)


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
        messages, turns, files = data["messages"], data["turns"], data.get("files", {})
        if not isinstance(files, dict) or not all(map(is_text, files.values())):
            raise ValueError("files are texts by name")
        if not isinstance(turns, list):
            raise ValueError("turns are a list")
        plain = Prompt.from_messages(CHAT_SCHEMA, messages) if messages else Prompt(CHAT_SCHEMA)
        if (answer := data.get("answer")) is not None:
            plain = replace(plain, answer_format=parse_prompt(answer, folder=files).answer_format)
        prompt = plain if data["prompt"] is None else parse_prompt(data["prompt"], folder=files)
        if "question" not in data and not turns:  # an earlier version wrote it at the end of the prompt
            prompt, data["question"] = split_question(prompt)
        question = data.get("question")
        if not (question is None or (is_text(question) and not turns)):
            raise ValueError("question is the text that waits for the first answer, or null")
        return SavedChat(
            prompt=prompt,
            question=question,
            turns=_turns(turns),
            repair=data["repair"],
            positions=data.get("positions"),
            kv_sizes=tuple(map(int, data["kv_sizes"])),
            tokenizer=data.get("tokenizer"),
        )
    except (PromptCacheError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise not_a_chat(path, error) from None


def _without_folder(prompt: Prompt) -> tuple[Prompt, dict[str, str]]:
    """Return a prompt that names its file by a name of its own, and the text of this file by that name."""
    answer = prompt.answer_format
    if answer is None or answer.schema is None:
        return prompt, {}
    return replace(prompt, answer_format=replace(answer, src=_ANSWER_FILE)), {_ANSWER_FILE: answer.schema}


def not_a_chat(path: Path, why: object) -> InvalidValue:
    """Return the error for a file that is damaged, or something else."""
    return InvalidValue(f"{path} is not a saved chat of version {VERSION}: {why}")


def _turns(data: Sequence[dict[str, object]]) -> tuple[ChatTurn, ...]:
    turns = tuple(map(_turn, data))
    num_calls = 0  # of the answer before
    for number, turn in enumerate(turns):
        if turn.results and (turn.question or len(turn.results) != num_calls):
            raise ValueError(
                f"turns[{number}] has {counted(len(turn.results), 'result')}{' and a question' * bool(turn.question)}: "
                f"the answer before has {counted(num_calls, 'call')}; give a result for each and no question"
            )
        num_calls = len(turn.tool_calls)
    return turns


def _turn(data: dict[str, object]) -> ChatTurn:
    question, answer, token_ids, reasoning = data["question"], data["answer"], data["token_ids"], data.get("reasoning")
    if not (is_text(question) and is_text(answer) and isinstance(token_ids, list)):
        raise ValueError("a turn has a question, an answer and token_ids, and no lone surrogates")
    if not (reasoning is None or is_text(reasoning)):
        raise ValueError("the reasoning of a turn is text")
    if not all(isinstance(each, int) and each >= 0 for each in token_ids):
        raise ValueError("token_ids are whole numbers")
    calls, results = data.get("tool_calls", []), data.get("results", [])
    if not (isinstance(calls, list) and all(_is_call(each) for each in calls)):
        raise ValueError("tool_calls are pairs of a name and JSON of its arguments")
    if not (isinstance(results, list) and all(map(is_text, results))):
        raise ValueError("results are texts")
    return ChatTurn(
        question=question,
        answer=answer,
        token_ids=tuple(token_ids),
        reasoning=reasoning,
        tool_calls=tuple(ToolCall(*each) for each in calls),
        results=tuple(results),
    )


def _is_call(data: object) -> bool:
    return (
        isinstance(data, list) and len(data) == 2 and all(map(is_text, data)) and isinstance(json.loads(data[1]), dict)
    )


def kv_folder(path: Path) -> Path:
    """Return the folder with the KV of the chat in `path`."""
    return path.with_name(f"{path.name}.kv")


def _has_kv(path: Path) -> bool:
    """Whether a file is a saved chat with KV in its folder."""
    try:
        return bool(read_chat(path).kv_sizes)
    except InvalidValue:
        return False


def load_kv(executor: Executor, tokens: RequestTokens, salt: str | None, folder: Path, sizes: Sequence[int]) -> None:
    """Read into history what `ChatKV.write` wrote. KV of another model or schema is not found, and prefilled later."""
    recalled = executor.recall(tokens, salt, executor.follow())
    if recalled is None or executor.history is None or not folder.is_dir():
        return
    inside = _executor_of(folder, executor)
    for stretch, size in zip(recalled.stretches, sizes, strict=False):
        if size > stretch.num_found:
            encoding = _encoding(tokens, stretch, size)
            handle = inside.look_up([encoding])[encoding].handle
            if handle is not None:
                executor.history.add(stretch, encoding.token_ids, tuple(zip(handle.keys, handle.values, strict=True)))


def _encoding(tokens: RequestTokens, stretch: OwnStretch, size: int) -> Encoding:
    """Return the handle of the first tokens of a stretch."""
    own = slice(stretch.start, min(stretch.start + size, stretch.stop))
    return Encoding(token_ids=tokens.token_ids[own], position_ids=tokens.position_ids[own], context=stretch.context)
