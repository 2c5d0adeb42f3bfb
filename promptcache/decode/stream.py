"""Streaming: an answer in pieces of text, while a service generates it.

A piece never ends inside a character.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Generic, Self

from promptcache.answers import IncrementalText, TokenLogprobs, whole_text
from promptcache.decode.completion import Completion
from promptcache.decode.request import Request, RequestBuilder
from promptcache.decode.service import Service, ServiceState
from promptcache.diagnostics import ServiceClosed, Unpicklable
from promptcache.locks import new_rlock
from promptcache.settings import ServiceLimits
from promptcache.structured import Parsed


class AnswerStream(Unpicklable, Generic[Parsed]):
    """The text of an answer that is being generated.

    Attributes:
        completion: The whole answer, once it is there.
        reasoning: The reasoning before the answer, as far as it was generated.
    """

    _instead = "pickle its completion once it is exhausted"

    def __init__(self, request: Request) -> None:
        self.completion: Completion[Parsed] | None = None
        self.reasoning = ""
        self._over = False
        self._decode = request.text
        self._text = IncrementalText(request.text)
        self._split = request.reader.split()

    def _piece(self, item: int | TokenLogprobs | Completion) -> str:
        """Add what a listener gets, and return the text of the answer that is certain now; at the end, the rest."""
        if isinstance(item, Completion):
            parts = [self._split.add(self._text.finish(whole_text(self._decode, item.token_ids))), self._split.rest()]
        else:
            token_id = item.token_id if isinstance(item, TokenLogprobs) else item
            parts = [self._split.add(self._text.add(token_id))]
        self.reasoning += "".join(each.reasoning for each in parts)
        return "".join(each.answer for each in parts)


class Stream(AnswerStream[Parsed], Iterator[str]):
    """An answer that is being generated. Iterate over it for text; afterwards `completion` has the whole answer.

    The pieces are those of the answer. `reasoning` is the reasoning before it, as far as it was generated.

    Closing a stream stops the generation. Deleting an unread stream stops it, too.
    """

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
        super().__init__(request)
        self._on_end = on_end
        self._items: queue.SimpleQueue[int | TokenLogprobs | Completion | BaseException] = queue.SimpleQueue()
        self._reading = new_rlock()  # one thread waits for an item; others would wait for ever at the end
        self._service = Service(requests, ServiceLimits(max_rows=1))  # it ends with the stream
        self._service.submit_request(request, self._items.put)

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
                if piece := self._piece(item):
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
