"""The workload of the benchmarks: a schema of modules, of which a request selects some, and new tokens.

Text is random letters with one token each, so that sizes are exact.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcache.diagnostics import ContextLengthExceeded
from promptcache.kv import KVHandle, MemoryStore
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime import Executor, Model, SchemaState, choose_placement, schema_state
from promptcache.tokenizer import PlainTokenizer

_MAX_POSITIONS = 2**24


class LetterTokenizer(PlainTokenizer):
    """A tokenizer with one token for each character."""

    fingerprint = "letters"

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return one token ID for each character."""
        return tuple(ord(letter) for letter in text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the characters."""
        return "".join(map(chr, token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of modules and tokens.

    Attributes:
        num_modules: Modules that the request selects.
        module_tokens: Tokens of each module; their mean if `uneven`.
        new_tokens: Tokens of the request's own text.
        adjacent: Whether the selected modules are neighbours. Otherwise an absent module lies between any two.
        uneven: Whether all modules have different lengths, up to a quarter more or less than the mean.
    """

    num_modules: int
    module_tokens: int
    new_tokens: int
    adjacent: bool = False
    uneven: bool = False

    @property
    def title(self) -> str:
        """The sizes in words, for the progress bar."""
        return f"{self.num_modules:,} x {self.module_tokens:,} tokens, {self.new_tokens:,} new"

    def tokens_of(self, index: int) -> int:
        """Return the tokens of one selected module, or of the absent one behind it."""
        step = self.module_tokens // (4 * self.num_modules) if self.uneven else 0
        return self.module_tokens + (2 * index + 1 - self.num_modules) * step

    def __post_init__(self) -> None:
        """Refuse sizes that exceed the positions of any model, before text of that size is made."""
        needed = (1 if self.adjacent else 2) * self.cached_tokens + self.new_tokens
        if needed > _MAX_POSITIONS:
            raise ContextLengthExceeded(f"{needed:,} positions are needed: give smaller numbers of modules and tokens")

    @property
    def data(self) -> dict[str, Any]:
        """The sizes, for JSON."""
        return {
            "modules": self.num_modules,
            "cached_tokens": self.cached_tokens,
            "module_tokens": self.module_tokens,
            "new_tokens": self.new_tokens,
            "adjacent": self.adjacent,
            "uneven": self.uneven,
        }

    @property
    def cached_tokens(self) -> int:
        """Tokens that the request reuses."""
        return self.num_modules * self.module_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A schema with encoded modules, and one request against it."""

    sizes: Sizes
    state: SchemaState
    tokens: RequestTokens
    handles: Mapping[Encoding, KVHandle]


def letters(draw: random.Random, length: int) -> str:
    """Return random letters, one token each."""
    return "".join(draw.choices(string.ascii_lowercase, k=length))


def documents(sizes: Sizes) -> tuple[str, str]:
    """Return the text of a schema and of a prompt of these sizes."""
    draw = random.Random(0)
    stride = 1 if sizes.adjacent else 2
    modules = "".join(
        f'<module name="m{index}">{letters(draw, sizes.tokens_of(index // stride))}</module>'
        for index in range(stride * sizes.num_modules)
    )
    names = "".join(f"<m{stride * index}/>" for index in range(sizes.num_modules))
    return (
        f'<schema name="bench" separator="">{modules}</schema>',
        f'<prompt schema="bench">{names}{letters(draw, sizes.new_tokens)}</prompt>',
    )


def workload(model: Model, sizes: Sizes) -> Workload:
    """Encode the present modules of a schema of these sizes and plan a request."""
    schema_text, prompt_text = documents(sizes)
    schema = check_schema(parse_schema(schema_text))
    tokenizer = LetterTokenizer()
    state = schema_state(schema, tokenizer, model.context_length, placement=choose_placement(model))
    tokens = state.plan(resolve_prompt(parse_prompt(prompt_text), schema), tokenizer).tokens
    executor = Executor(model, MemoryStore(model.shape), lambda: "bench")
    executor.store.reserve([(executor.key(each), each.num_tokens) for each in state.encodings])
    handles = executor.fetch(part.encoding for part in tokens.parts).handles
    return Workload(sizes=sizes, state=state, tokens=tokens, handles=handles)
