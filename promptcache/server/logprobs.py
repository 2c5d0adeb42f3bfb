"""Log-probabilities in the two forms of OpenAI's API: those of chats, and those of completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from promptcache.runtime import TokenLogprobs
from promptcache.tokenizer import Tokenizer

_REPLACEMENT = "�"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerToken:
    """One token of an answer.

    Attributes:
        start: Number of characters of the answer before the token.
        text: The text that the token adds behind the one before it; "�" for a part of a character.
        top: The most probable tokens as texts, with their log-probabilities, the most probable first.
    """

    start: int
    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]


class AnswerLogprobs:
    """The tokens of one answer that were not sent yet. A token is sent with the text that it begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # the last token: some tokenizers put spaces between tokens only
        self._tokens: list[AnswerToken] = []

    def add(self, token: TokenLogprobs, num_before: int, num_known: int) -> None:
        """Add a token. Control tokens are no part of an answer.

        Args:
            num_before: Characters of the answer that were known before the token.
            num_known: Characters that are known with it. Broken characters before the token become known with it, too.
        """
        if token.token_id in self._tokenizer.control_ids:
            return
        text = self._text(token.token_id)
        made = AnswerToken(
            start=max(num_before, num_known - len(text)),
            text=text,
            logprob=token.logprob,
            top=tuple((self._text(token_id), logprob) for token_id, logprob in token.top),
        )
        self._before = [token.token_id]
        self._tokens.append(made)

    def take(self, stop: int | None = None) -> tuple[AnswerToken, ...]:
        """Return and forget the tokens that begin before character `stop`; all of them if it is None."""
        number = len(self._tokens) if stop is None else sum(each.start < stop for each in self._tokens)
        taken = tuple(self._tokens[:number])
        del self._tokens[:number]
        return taken

    def _text(self, token_id: int) -> str:
        before, text = (self._tokenizer.detokenize(each) for each in (self._before, [*self._before, token_id]))
        if text.startswith(before):
            return text[len(before) :]
        return self._tokenizer.detokenize([token_id])


def chat_logprobs(tokens: Sequence[AnswerToken]) -> dict[str, Any]:
    """Return `logprobs` of a choice of a chat."""
    content = [
        {**_entry(each.text, each.logprob), "top_logprobs": [_entry(*other) for other in each.top]} for each in tokens
    ]
    return {"content": content, "refusal": None}


def plain_logprobs(tokens: Sequence[AnswerToken]) -> dict[str, Any]:
    """Return `logprobs` of a choice of a completion. Each token is among its most probable ones, as OpenAI has it."""
    return {
        "tokens": [each.text for each in tokens],
        "token_logprobs": [each.logprob for each in tokens],
        "top_logprobs": [{**dict(reversed(each.top)), each.text: each.logprob} for each in tokens],
        "text_offset": [each.start for each in tokens],
    }


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": None if _REPLACEMENT in text else list(text.encode())}
