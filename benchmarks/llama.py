"""The benchmark beside llama.cpp: `python -m benchmarks llama`.

Both sides have the same tokens and threads, and run in this process. llama.cpp is called through llama-cpp-python,
which is no dependency. What the server of llama.cpp does with a prompt that resembles the one before is done here with
the functions of its library.
"""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from benchmarks.common import BenchReport, last_logits, stock_attention
from promptcache.diagnostics import PromptCacheError
from promptcache.engine import Engine
from promptcache.layout import num_shared
from promptcache.progress import Progress, silent

CASES: Mapping[str, tuple[Sequence[int], Sequence[int]]] = {
    "new": ((0, 2, 4, 6), (1, 2, 5, 7)),
    "first is gone": ((0, 2, 4, 6), (2, 4, 6, 7)),
    "prefix repeats": ((0, 2, 4, 6), (0, 2, 5, 7)),
    "all repeats": ((0, 2, 4, 6), (0, 2, 4, 6)),
}
"""Modules of the request before, and of the one whose TTFT is measured. Questions always differ."""

MIN_SHIFTED = 64
"""Tokens in a row that llama.cpp moves at least, as with `--cache-reuse 64`: fewer than a module has."""

LLAMA, SHIFTING, LLAMA_PLAIN = "llama.cpp", "llama.cpp, shifting", "llama.cpp, plain"
OURS, OURS_PLAIN = "Prompt Cache", "transformers, plain"
DECODE, CLIENTS = "decode", "many requests"

_NAMES = (OURS, OURS_PLAIN, LLAMA, SHIFTING, LLAMA_PLAIN)
_NUM_MODULES = 8
_WORDS = (
    *("river", "market", "winter", "letter", "garden", "captain", "silver", "window", "bridge", "summer", "doctor"),
    *("forest", "island", "morning", "village", "teacher", "railway", "harbour", "kitchen", "mountain", "evening"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes:
    """Tokens of each of eight modules, of a question and of an answer, about; and the number of requests at once."""

    module_tokens: int
    question_tokens: int
    answer_tokens: int
    num_clients: int


class _Asked(NamedTuple):
    """A prompt of a schema, and all its tokens."""

    document: str
    token_ids: tuple[int, ...]


class _Way(NamedTuple):
    """What is done before the clock starts, and what is timed."""

    before: Callable[[], object]
    run: Callable[[], object]


class LlamaCpp:
    """A model in llama.cpp, with rows that keep the KV of their tokens."""

    def __init__(self, gguf: Path, threads: int, row_tokens: int, num_rows: int) -> None:
        """Load a model.

        Args:
            row_tokens: Room of each row.

        Raises:
            PromptCacheError: The package is missing, or it cannot read the file.
        """
        try:
            api: Any = import_module("llama_cpp.llama_cpp")
        except ImportError as error:
            raise PromptCacheError(f"llama.cpp is missing ({error}): pip install llama-cpp-python") from None
        self._api = api
        self._log = api.llama_log_callback(lambda *_said: None)  # kept, because llama.cpp calls it
        api.llama_log_set(self._log, ctypes.c_void_p(0))
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(str(gguf).encode(), api.llama_model_default_params())
        if not self._model:
            raise PromptCacheError(f"llama.cpp cannot read {gguf}")
        settings = api.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = row_tokens * num_rows, num_rows
        settings.n_threads = settings.n_threads_batch = threads
        self._context = api.llama_init_from_model(self._model, settings)
        self._memory = api.llama_get_memory(self._context)
        self._batch_tokens: int = settings.n_batch
        self._batch = api.llama_batch_init(self._batch_tokens, 0, 1)
        self._num_logits: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._kept: list[tuple[int, ...]] = [() for _ in range(num_rows)]

    def close(self) -> None:
        """Free its memory."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def clear(self) -> None:
        """Forget all rows."""
        self._api.llama_memory_clear(self._memory, True)
        self._kept = [() for _ in self._kept]

    def prefill(self, row: int, token_ids: tuple[int, ...], *, shifts: bool = False) -> int:
        """Compute a prompt over what its row has of it, and return the first token of the answer.

        Args:
            shifts: Move what the row has later than the prompt needs it, as the server does with `--cache-reuse`.
        """
        kept, last = self._kept[row], len(token_ids) - 1
        done = start = min(num_shared(kept, token_ids), last)
        while shifts and start < len(kept) and done < last:
            num_equal = num_shared(kept[start:], token_ids[done:last]) if kept[start] == token_ids[done] else 0
            if num_equal >= MIN_SHIFTED:
                self._api.llama_memory_seq_rm(self._memory, row, done, start)
                self._api.llama_memory_seq_add(self._memory, row, start, start + num_equal, done - start)
                done += num_equal
            start += max(1, num_equal if num_equal >= MIN_SHIFTED else 0)
        self._api.llama_memory_seq_rm(self._memory, row, done, -1)
        for first in range(done, len(token_ids), self._batch_tokens):
            part = token_ids[first : first + self._batch_tokens]
            self._decode([(row, place, token_id) for place, token_id in enumerate(part, first)])
        self._kept[row] = token_ids
        return self._best(-1)

    def step(self, tokens: Sequence[int]) -> list[int]:
        """Compute one token of each row, and return the next ones."""
        self._decode([(row, len(self._kept[row]), token_id) for row, token_id in enumerate(tokens)], all_logits=True)
        for row, token_id in enumerate(tokens):
            self._kept[row] += (token_id,)
        return [self._best(index) for index in range(len(tokens))]

    def _decode(self, tokens: Sequence[tuple[int, int, int]], *, all_logits: bool = False) -> None:
        """Run tokens, each with its row and its place in it, for the logits of the last one or of all."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, (row, place, token_id) in enumerate(tokens):
            batch.token[index], batch.pos[index] = token_id, place
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
            batch.logits[index] = all_logits or index == len(tokens) - 1
        if status := self._api.llama_decode(self._context, batch):
            raise PromptCacheError(f"llama.cpp fails with status {status}")

    def _best(self, index: int) -> int:
        logits = self._api.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, shape=(self._num_logits,)).argmax())


def compare_llama(
    engine: Engine, gguf: Path, sizes: Sequence[LlamaSizes], repeats: int, progress: Progress = silent
) -> BenchReport:
    """Compare TTFT in each of `CASES`, decoding of one request, and many requests at once.

    Args:
        gguf: The model of the engine, for llama.cpp.
        repeats: Rounds that count; one more warms up.

    Raises:
        PromptCacheError: llama.cpp cannot run the model.
    """
    rows = [row for each in sizes for row in _compare(engine, gguf, each, repeats, progress)]
    return BenchReport(
        name="llama",
        title=f"Beside llama.cpp: TTFT in ms, others in tokens per second, medians of {repeats} rounds",
        columns=("what", "cached", *_NAMES),
        cells=tuple(map(_cells, rows)),
        rows=tuple(rows),
    )


def _compare(
    engine: Engine, gguf: Path, sizes: LlamaSizes, repeats: int, progress: Progress
) -> Iterator[Mapping[str, Any]]:
    name, draw = f"words{sizes.module_tokens}", random.Random(0)
    texts = [_text(engine, draw, sizes.module_tokens) for _ in range(_NUM_MODULES)]
    modules = "".join(f'<module name="m{index}">{text}</module>' for index, text in enumerate(texts))
    engine.add_schema(f'<schema name="{name}">{modules}</schema>')
    engine.warm(name, pairs=True)

    def asked(indices: Sequence[int]) -> _Asked:
        question = _text(engine, draw, sizes.question_tokens)
        document = f'<prompt schema="{name}">{"".join(f"<m{each}/>" for each in indices)}{question}</prompt>'
        pieces = engine.plan(document).pieces
        return _Asked(document, tuple(token_id for piece in pieces for token_id in piece.token_ids))

    def measured(what: str, ways: Callable[[], Mapping[str, _Way]]) -> Mapping[str, Any]:
        seconds: dict[str, list[float]] = {}
        for number in range(repeats + 1):
            progress(f"{4 * sizes.module_tokens} tokens, {what}", number, repeats + 1)
            for way_name, way in ways().items():
                way.before()
                gc.collect()
                started = time.perf_counter()
                way.run()
                seconds.setdefault(way_name, []).append(time.perf_counter() - started)
        return {"what": what, **asdict(sizes), "seconds": {each: taken[1:] for each, taken in seconds.items()}}

    row_tokens = 5 * sizes.module_tokens + 2 * sizes.question_tokens + sizes.answer_tokens
    llama = LlamaCpp(gguf, torch.get_num_threads(), row_tokens, sizes.num_clients)
    try:
        for case, (before, now) in CASES.items():
            yield measured(case, lambda: _first_token(engine, llama, asked(before), asked(now)))  # noqa: B023
        yield measured(DECODE, lambda: _further_tokens(engine, llama, asked(CASES["new"][0]), sizes.answer_tokens))
        chosen = [sorted(draw.sample(range(_NUM_MODULES), 4)) for _ in range(sizes.num_clients)]
        yield measured(CLIENTS, lambda: _many(engine, llama, [*map(asked, chosen)], sizes.answer_tokens))
    finally:
        llama.close()


def _text(engine: Engine, draw: random.Random, num_tokens: int) -> str:
    """Return random words of about so many tokens, which differ from all others in their first word."""
    words = [f"{draw.randrange(10**6)}"]
    while len(engine.tokenizer.tokenize(" ".join(words))) < num_tokens:
        words.append(draw.choice(_WORDS))
    return " ".join(words)


def _first_token(engine: Engine, llama: LlamaCpp, before: _Asked, now: _Asked) -> dict[str, _Way]:
    """Return ways to the first token of a request that follows another one."""

    def answered() -> None:
        engine.clear_history()
        engine.generate(before.document, max_new_tokens=1)

    def prefilled() -> None:
        llama.clear()
        llama.prefill(0, before.token_ids)

    def plain() -> None:
        with stock_attention(engine.model):
            last_logits(engine.model, now.token_ids, DynamicCache())

    return {
        OURS: _Way(answered, lambda: engine.generate(now.document, max_new_tokens=1)),
        OURS_PLAIN: _Way(lambda: None, plain),
        LLAMA: _Way(prefilled, lambda: llama.prefill(0, now.token_ids)),
        SHIFTING: _Way(prefilled, lambda: llama.prefill(0, now.token_ids, shifts=True)),
        LLAMA_PLAIN: _Way(llama.clear, lambda: llama.prefill(0, now.token_ids)),
    }


def _further_tokens(engine: Engine, llama: LlamaCpp, asked: _Asked, num_tokens: int) -> dict[str, _Way]:
    """Return ways to decode an answer behind a prompt that is prefilled."""
    stream = engine.stream(asked.document, max_new_tokens=num_tokens + 1, min_new_tokens=num_tokens + 1)

    def decoded() -> None:
        (best,) = first
        for _ in range(num_tokens):
            (best,) = llama.step([best])

    first: list[int] = []
    return {
        OURS: _Way(lambda: next(stream), lambda: [*stream]),
        LLAMA: _Way(lambda: first.append(llama.prefill(0, asked.token_ids)), decoded),
    }


def _many(engine: Engine, llama: LlamaCpp, asked: Sequence[_Asked], num_tokens: int) -> dict[str, _Way]:
    """Return ways to answer several requests with new combinations at once."""

    def theirs() -> None:
        best = [llama.prefill(row, each.token_ids) for row, each in enumerate(asked)]
        for _ in range(num_tokens - 1):
            best = llama.step(best)

    length: dict[str, Any] = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
    documents = [each.document for each in asked]
    return {
        OURS: _Way(engine.clear_history, partial(engine.generate_batch, documents, **length)),
        LLAMA: _Way(llama.clear, theirs),
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    medians = {name: statistics.median(seconds) for name, seconds in row["seconds"].items()}
    num_tokens = {DECODE: row["answer_tokens"], CLIENTS: row["answer_tokens"] * row["num_clients"]}.get(row["what"])
    shown = {
        name: f"{1e3 * seconds:,.1f}" if num_tokens is None else f"{num_tokens / seconds:,.1f}"
        for name, seconds in medians.items()
    }
    return row["what"], f"{4 * row['module_tokens']:,}", *(shown.get(name, "") for name in _NAMES)
