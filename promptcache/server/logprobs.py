"""Log-probabilities in the two forms of OpenAI's API: those of chats, and those of completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from promptcache.answers import TokenLogprobs
from promptcache.tokenizer import Tokenizer

_REPLACEMENT = "�"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A token with its log-probability.

    Attributes:
        content: The bytes that the token adds behind the one before it; perhaps a part of a character.
    """

    token_id: int
    content: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The text, with an escape for each byte that is a part of a character."""
        return self.content.decode(errors="backslashreplace")

    @property
    def is_text(self) -> bool:
        """Whether the token consists of whole characters."""
        return self.text.encode() == self.content


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerToken:
    """One token of an answer.

    Attributes:
        start: Number of characters of the answer before the token.
        top: The most probable tokens, the most probable first.
    """

    start: int
    chosen: ScoredToken
    top: tuple[ScoredToken, ...]


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
        made = AnswerToken(
            start=max(num_before, num_known - len(self._text(token.token_id))),
            chosen=self._scored(token.token_id, token.logprob),
            top=tuple(self._scored(token_id, logprob) for token_id, logprob in token.top),
        )
        self._before = [token.token_id]
        self._tokens.append(made)

    def take(self, stop: int | None = None) -> tuple[AnswerToken, ...]:
        """Return and forget the tokens that begin before character `stop`; all of them if it is None."""
        number = len(self._tokens) if stop is None else sum(each.start < stop for each in self._tokens)
        taken = tuple(self._tokens[:number])
        del self._tokens[:number]
        return taken

    def _scored(self, token_id: int, logprob: float) -> ScoredToken:
        text, own = self._text(token_id), self._tokenizer.token_bytes(token_id)
        is_text = _REPLACEMENT not in own.decode(errors="replace") + text
        return ScoredToken(token_id=token_id, content=text.encode() if is_text else own, logprob=logprob)

    def _text(self, token_id: int) -> str:
        before, text = (self._tokenizer.detokenize(each) for each in (self._before, [*self._before, token_id]))
        if text.startswith(before):
            return text[len(before) :]
        return self._tokenizer.detokenize([token_id])


def chat_logprobs(tokens: Sequence[AnswerToken]) -> dict[str, Any]:
    """Return `logprobs` of a choice of a chat."""
    content = [{**_entry(each.chosen), "top_logprobs": list(map(_entry, each.top))} for each in tokens]
    return {"content": content, "refusal": None}


def plain_logprobs(tokens: Sequence[AnswerToken]) -> dict[str, Any]:
    """Return `logprobs` of a choice of a completion. Each token is among its most probable ones, as OpenAI has it."""
    return {
        "tokens": [_name(each.chosen) for each in tokens],
        "token_logprobs": [each.chosen.logprob for each in tokens],
        "top_logprobs": [_named((each.chosen, *each.top)) for each in tokens],
        "text_offset": [each.start for each in tokens],
    }


def _entry(token: ScoredToken) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.content)}


def _name(token: ScoredToken) -> str:
    return token.text if token.is_text else f"bytes:{token.text}"


def _named(tokens: Sequence[ScoredToken]) -> dict[str, float]:
    """Return log-probabilities by name. If a name is taken, the next token with it is named by its ID."""
    names: dict[str, int] = {}
    found = {}
    for token in tokens:
        name = _name(token)
        if names.setdefault(name, token.token_id) != token.token_id:
            name = f"token_id:{token.token_id}"
        found[name] = token.logprob
    return found
