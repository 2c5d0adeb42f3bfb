"""Streaming: an answer in pieces of text, while a service generates it.

A piece never ends inside a character.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Self

from promptcache.answers import AnswerSplit, IncrementalText, SplitText, TokenLogprobs, whole_text
from promptcache.decode.completion import Completion
from promptcache.decode.request import Request, RequestBuilder
from promptcache.decode.service import Service, ServiceState
from promptcache.diagnostics import ServiceClosed, Unpicklable
from promptcache.locks import new_rlock
from promptcache.settings import ServiceLimits
from promptcache.structured import Parsed


class AnswerPieces:
    """Turns the tokens of an answer into pieces of its text. `reasoning` is the reasoning before it up to now."""

    def __init__(self, text: Callable[[Sequence[int]], str], split: AnswerSplit) -> None:
        """Create the pieces of one answer.

        Args:
            text: Returns the text of tokens.
            split: Splits the reasoning from the answer.
        """
        self.reasoning = ""
        self._decode = text
        self._text = IncrementalText(text)
        self._split = split

    def add(self, item: int | TokenLogprobs | Completion) -> str:
        """Add what a listener gets, and return the text of the answer that is certain now; at the end, the rest."""
        if isinstance(item, Completion):
            rest = self._text.finish(whole_text(self._decode, item.token_ids))
            return self._answer(self._split.add(rest)) + self._answer(self._split.rest())
        token_id = item.token_id if isinstance(item, TokenLogprobs) else item
        return self._answer(self._split.add(self._text.add(token_id)))

    def _answer(self, part: SplitText) -> str:
        self.reasoning += part.reasoning
        return part.answer


class Stream(Unpicklable, Iterator[str], Generic[Parsed]):
    """An answer that is being generated. Iterate over it for text; afterwards `completion` has the whole answer.

    The pieces are those of the answer. `reasoning` is the reasoning before it, as far as it was generated.

    Closing a stream stops the generation. Deleting an unread stream stops it, too.
    """

    _instead = "pickle its completion once it is exhausted"

    def __init__(
        self, request: Request, requests: RequestBuilder, on_end: Callable[[Completion], None] | None = None
    ) -> None:
        """Start to answer, by a service of its own.

        Args:
            request: With one sequence.
            requests: The builder that made it.
            on_end: Called in the reading thread with the completion, once all tokens are read.
        """
        request.options.check_stream()
        self.completion: Completion[Parsed] | None = None
        self._on_end = on_end
        self._items: queue.SimpleQueue[int | TokenLogprobs | Completion | BaseException] = queue.SimpleQueue()
        self._pieces = AnswerPieces(request.text, request.reader.split())
        self._over = False
        self._reading = new_rlock()  # one thread waits for an item; others would wait for ever at the end
        self._service = Service(requests, ServiceLimits(max_rows=1))  # it ends with the stream
        self._service.submit_request(request, self._items.put)

    @property
    def reasoning(self) -> str:
        """The reasoning before the answer, as far as it was generated."""
        return self._pieces.reasoning

    def __next__(self) -> str:
        with self._reading:
            while not self._over:
                if self._service.state is ServiceState.DEAD and self._items.empty():
                    raise ServiceClosed(
                        "this process was forked after the stream was made, without the thread that answers: make a "
                        "stream in each process, engine.stream()",
                        "worker_dead",
                    )
                item = self._items.get()
                if isinstance(item, BaseException):
                    self.close()
                    raise item
                if isinstance(item, Completion):
                    self.completion = item
                    self.close()
                    if self._on_end is not None:
                        self._on_end(item)
                if piece := self._pieces.add(item):
                    return piece
        raise StopIteration

    def close(self) -> None:
        """Stop generating and discard the unread text."""
        self._over = True
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
