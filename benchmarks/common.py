"""What benchmarks share: their report, requests of exact sizes, the clock, and the attention of transformers."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from promptcache.model import Model
from promptcache.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """The outcome of one benchmark.

    Attributes:
        name: The name of the command.
        title: What the cells mean, with their unit.
        columns: Headings of the table.
        cells: Rows of the table, as long as `columns`.
        rows: The same with the seconds of each run, for JSON.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[Mapping[str, Any], ...]


class CharacterTokenizer(Tokenizer):
    """A tokenizer with one token for each character."""

    fingerprint = "letters"

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return one token ID for each character."""
        return tuple(map(ord, text))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the characters."""
        return "".join(map(chr, token_ids))


def letters(draw: random.Random, length: int) -> str:
    """Return random letters, one token each."""
    return "".join(draw.choices(string.ascii_lowercase, k=length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Modules that a request selects, tokens of each, and tokens of the request's own text."""

    num_modules: int
    module_tokens: int
    new_tokens: int

    @property
    def cached_tokens(self) -> int:
        """Tokens that the request reuses."""
        return self.num_modules * self.module_tokens

    @property
    def data(self) -> dict[str, int]:
        """The sizes, for JSON."""
        counts = {"modules": self.num_modules, "cached_tokens": self.cached_tokens, "module_tokens": self.module_tokens}
        return {**counts, "new_tokens": self.new_tokens}


class RequestTexts(NamedTuple):
    """A schema and a prompt that selects every second module, and the texts that the prompt puts before the model."""

    schema: str
    prompt: str
    modules: str
    new: str


def documents(sizes: Sizes) -> RequestTexts:
    """Return documents of these sizes. An absent module lies between any two that are selected."""
    draw = random.Random(0)
    texts = [letters(draw, sizes.module_tokens) for _ in range(2 * sizes.num_modules)]
    new = letters(draw, sizes.new_tokens)
    modules = "".join(f'<module name="m{index}">{text}</module>' for index, text in enumerate(texts))
    used = "".join(f"<m{2 * index}/>" for index in range(sizes.num_modules))
    return RequestTexts(
        schema=f'<schema name="bench" separator="">{modules}</schema>',
        prompt=f'<prompt schema="bench">{used}{new}</prompt>',
        modules="".join(texts[::2]),
        new=new,
    )


@torch.no_grad()
def last_logits(model: Model, token_ids: Sequence[int], cache: Any, forward: Any = None) -> torch.Tensor:
    """Run tokens behind those of a cache through the model, and return the logits of the last one, `[1, 1, V]`.

    Args:
        forward: The model's forward pass; None means as it is.
    """
    given = torch.tensor([[*token_ids]], device=model.device)
    positions = torch.arange(given.shape[1], device=model.device)[None] + cache.get_seq_length()
    made = (forward or model.hf)(
        input_ids=given, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
    )
    logits: torch.Tensor = made.logits
    return logits


@contextmanager
def stock_attention(model: Model) -> Iterator[None]:
    """Give the model transformers' own attention for a while."""
    installed = model.hf.config._attn_implementation
    model.hf.set_attn_implementation(installed.removeprefix("promptcache_"))
    try:
        yield
    finally:
        model.hf.set_attn_implementation(installed)


class TokenClock:
    """A streamer of `generate` that reads the CPU time (all threads) at the start and at each token."""

    def __init__(self) -> None:
        self._read = [time.process_time()]

    def put(self, _value: torch.Tensor) -> None:
        """Read the time; the first call brings the prompt's tokens."""
        self._read.append(time.process_time())

    def end(self) -> None:
        """Called by `generate` at the end."""

    @property
    def first_token_s(self) -> float:
        """Seconds from the start to the first token."""
        return self._read[2] - self._read[0]

    @property
    def last_token_s(self) -> float:
        """Seconds from the start to the last token."""
        return self._read[-1] - self._read[0]
