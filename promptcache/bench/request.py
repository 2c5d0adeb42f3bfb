"""The request that is measured: a schema of modules, of which the request selects every second one, and new tokens.

Text is random letters with one token each, so that sizes are exact.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcache.diagnostics import ContextLengthExceeded
from promptcache.encode import Executor, prepare
from promptcache.kv import KV, Store
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Encoding, RequestTokens
from promptcache.model import Model
from promptcache.planning import choose_placement, serve_schema
from promptcache.tokenizer import Tokenizer

_MAX_POSITIONS = 2**24


class LetterTokenizer(Tokenizer):
    """A tokenizer with one token for each character."""

    fingerprint = "letters"

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return one token ID for each character."""
        return tuple(map(ord, text))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the characters."""
        return "".join(map(chr, token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSizes:
    """Modules that the request selects, tokens of each, and tokens of the request's own text."""

    modules: int
    module_tokens: int
    new_tokens: int

    def __post_init__(self) -> None:
        """Refuse sizes that exceed the positions of any model, before text of that size is made."""
        needed = 2 * self.cached_tokens + self.new_tokens
        if needed > _MAX_POSITIONS:
            raise ContextLengthExceeded(f"{needed:,} positions are needed: give smaller numbers of modules and tokens")

    @property
    def cached_tokens(self) -> int:
        """Tokens that the request reuses."""
        return self.modules * self.module_tokens

    @property
    def title(self) -> str:
        """The sizes in words, for the progress bar."""
        return f"{self.modules:,} x {self.module_tokens:,} tokens, {self.new_tokens:,} new"

    @property
    def data(self) -> dict[str, Any]:
        """The sizes, for JSON."""
        counts = {"modules": self.modules, "cached_tokens": self.cached_tokens, "module_tokens": self.module_tokens}
        return {**counts, "new_tokens": self.new_tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """The tokens of a request, and the KV of its modules."""

    tokens: RequestTokens
    kv_of: Mapping[Encoding, KV]


def plan_request(model: Model, sizes: RequestSizes) -> PlannedRequest:
    """Plan a request of these sizes, and encode its modules. An absent module lies between any two."""
    draw = random.Random(0)

    def letters(length: int) -> str:
        return "".join(draw.choices(string.ascii_lowercase, k=length))

    modules = "".join(f'<module name="m{n}">{letters(sizes.module_tokens)}</module>' for n in range(2 * sizes.modules))
    used = "".join(f"<m{2 * n}/>" for n in range(sizes.modules))
    schema = check_schema(parse_schema(f'<schema name="bench" separator="" repair="slots">{modules}</schema>'))
    prompt = parse_prompt(f'<prompt schema="bench">{used}{letters(sizes.new_tokens)}</prompt>')
    tokenizer = LetterTokenizer()
    served = serve_schema(schema, tokenizer, model.context_length, placement=choose_placement(model))
    plan = served.plan(resolve_prompt(prompt, schema))
    prepared = prepare(plan, Executor(model, Store(model.shape), lambda: "bench"))
    return PlannedRequest(tokens=plan.tokens, kv_of=prepared.fetched.kv_of)
