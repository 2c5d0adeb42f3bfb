"""Token masks: the tokens that may come next, so that the answer gets its format.

llguidance computes a mask from the grammar of the format and the bytes of all tokens of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from promptcache.answers.call_style import control_tokens
from promptcache.attention import to_device
from promptcache.diagnostics import InvalidGeneration
from promptcache.structured import (
    CompiledGrammar,
    GrammarCache,
    OutputFormat,
    grammar_text,
    literal,
    refused_format,
)
from promptcache.tokenizer import Tokenizer

Mask: TypeAlias = NDArray[np.bool_]
"""Whether each token may come next, `[V]`."""

_SPACE = r"space: /[ \n]{0,4}/"

_MAX_FORCED = 256
"""Characters of a text that has to come, of which each mask tokenizes the beginning. A mask needs its first token."""


class TokenMatcher:
    """The state of one answer in its grammar. Not thread-safe."""

    def __init__(
        self, compiled: CompiledGrammar, num_tokens: int, ends: Sequence[int], matcher: LLMatcher | None = None
    ) -> None:
        self._compiled, self._num_tokens = compiled, num_tokens
        self._matcher = matcher or compiled.matcher()
        self._ends = np.array([each for each in ends if each < num_tokens], dtype=np.intp)

    def copy(self) -> TokenMatcher:
        """Return a matcher in the same state."""
        return TokenMatcher(self._compiled, self._num_tokens, self._ends.tolist(), self._matcher.deep_copy())

    def mask(self) -> Mask:
        """Return the tokens that may come next: an end token exactly where the answer is complete.

        Raises:
            InvalidGeneration: No token may come next, or the grammar needs more memory or steps than llguidance allows.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise refused_format(self._matcher.get_error())
        allowed = np.unpackbits(bits, count=self._num_tokens + 1, bitorder="little").view(np.bool_)
        mask = allowed[: self._num_tokens]
        mask[self._ends] = allowed[self._num_tokens]
        if not mask.any():
            raise InvalidGeneration("the format of the answer allows no further token here")
        return mask

    def add(self, token_id: int) -> bool:
        """Add a token to the answer. Return False if its format does not allow it; an end token is always taken."""
        return token_id in self._ends or bool(self._matcher.consume_token(token_id))


class TokenGrammars:
    """Compiled grammars of output formats for one tokenizer. Thread-safe."""

    def __init__(
        self, tokens: Sequence[bytes], tokenize: Callable[[str], Sequence[int]], controls: Mapping[str, int]
    ) -> None:
        """Create grammars; this takes about a second for a vocabulary of 150,000 tokens.

        Args:
            tokens: The bytes of each token, `[V]`; empty for tokens that are no text.
            controls: Written forms of control tokens that the template writes in answers, with their IDs.
            tokenize: Returns the token IDs of a text.
        """
        self._num_tokens, self._controls = len(tokens), controls
        # llguidance needs an end token. It gets one of its own, behind all others, because requests choose theirs.
        self._cache = GrammarCache(LLTokenizer(TokenizerWrapper(_Vocabulary([*tokens, b"<end>"], tokenize))))

    def matcher(
        self,
        output: OutputFormat,
        ends: Sequence[int],
        reasoning_tags: tuple[str, str] | None,
        *,
        is_open: bool,
        before: str = "",
    ) -> TokenMatcher:
        """Return a matcher at the start of an answer.

        Args:
            output: The format of the answer.
            ends: Tokens that end an answer.
            reasoning_tags: The texts around reasoning, which may come before the answer and has any form; None if there
                is none.
            is_open: Whether the prompt ends with the first of them.
            before: Text between the reasoning and the answer.

        Raises:
            InvalidGeneration: llguidance does not support the format, or no answer has it.
            QueueFull: The formats of other answers take too much memory.
        """
        if not ends:
            raise InvalidGeneration("the format of the answer needs an end token, and 'eos_token_id' names none")
        body = f"{literal(before, self._controls)} @body" if before else "@body"
        start = f"start: {body}"
        if reasoning_tags is not None:
            opening, closing = (literal(each, self._controls) for each in reasoning_tags)
            if closing.startswith("<["):  # no text has a control token
                reasoning = f"reasoning: reasoning_text {closing}\nreasoning_text: /(.|\\n)*/\n{_SPACE}"
            else:
                reasoning = f"reasoning[suffix={closing}]: /(.|\\n)*/\n{_SPACE}"
            before_body = "reasoning space" if is_open else f"(space {opening} reasoning space)?"
            start = f"start: {before_body} {body}\n{reasoning}"
        compiled = self._cache.compiled(grammar_text(output, {"lark_grammar": start}))
        if fault := compiled.fault:
            raise refused_format(fault, output)
        matcher = TokenMatcher(compiled, self._num_tokens, ends)
        matcher.mask()  # finds out whether an end token leaves no other one
        return matcher


class _Vocabulary:
    """What `TokenizerWrapper` reads."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], tokenize: Callable[[str], Sequence[int]]) -> None:
        self.tokens, self._tokenize = tokens, tokenize
        self.eos_token_id = len(tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        return list(self._tokenize(text[:_MAX_FORCED]))


def token_grammars(tokenizer: Tokenizer, num_tokens: int) -> TokenGrammars:
    """Return the grammars over the tokens of a model.

    Args:
        num_tokens: Number of tokens of the model. It may be larger than that of the tokenizer.
    """
    tokens = [
        b"" if token_id in tokenizer.control_ids else tokenizer.token_bytes(token_id) for token_id in range(num_tokens)
    ]
    controls = control_tokens(tokenizer, *(tokenizer.reasoning_tags or ()), tokenizer.answer_start)
    return TokenGrammars(tokens, tokenizer.tokenize, controls)


def masked(logits: torch.Tensor, masks: Sequence[Mask | None]) -> torch.Tensor:
    """Return logits `[R, V]` that are minus infinity for tokens which the mask of their row does not allow.

    Args:
        logits: `[R, V]`. Not changed.
        masks: That of each row; None for a row that may have all tokens.
    """
    if all(each is None for each in masks):
        return logits
    forbidden = np.zeros(logits.shape, np.bool_)
    for row, mask in zip(forbidden, masks, strict=True):
        if mask is not None:  # a model may have more outputs than tokens, or fewer
            row[len(mask) :] = True
            np.logical_not(mask[: len(row)], out=row[: len(mask)])
    return logits.masked_fill(to_device(torch.from_numpy(forbidden), logits.device), -torch.inf)
