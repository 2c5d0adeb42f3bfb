"""Streaming: an answer in pieces of text, while it is generated.

A piece never ends inside a character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Generic, Self

from promptcache.answers import IncrementalText, TokenLogprobs, whole_text
from promptcache.decode.completion import Completion
from promptcache.decode.job import job_of
from promptcache.decode.request import Request
from promptcache.decode.scheduler import Scheduler
from promptcache.diagnostics import Cancelled, Unpicklable
from promptcache.encode import Executor
from promptcache.locks import new_rlock
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

    The thread that reads a stream computes its pieces, and the request begins with the first one. Closing or deleting a
    stream stops the generation.
    """

    def __init__(
        self, request: Request, executor: Executor, on_end: Callable[[Completion], None] | None = None
    ) -> None:
        """Create the stream of an answer.

        Args:
            request: With one sequence.
            on_end: Called with the completion, once all tokens are read.
        """
        request.options.check_stream()
        super().__init__(request)
        self._items: deque[int | TokenLogprobs | Completion | BaseException] = deque()
        self._job = job_of(request, self._items.append, executor)
        self._pieces = self._generate(executor, on_end)
        self._reading = new_rlock()

    def _generate(self, executor: Executor, on_end: Callable[[Completion], None] | None) -> Generator[str]:
        scheduler = Scheduler(executor)
        scheduler.add(self._job)
        try:
            while self.completion is None:
                while not self._items:
                    scheduler.step()
                item = self._items.popleft()
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Completion):
                    self.completion = item
                    if on_end is not None:
                        on_end(item)
                if piece := self._piece(item):
                    yield piece
        finally:
            scheduler.fail_all(Cancelled("the stream was closed"))

    def __next__(self) -> str:
        with self._reading:
            return next(self._pieces)

    def close(self) -> None:
        """Stop generating and discard the unread text. A thread that reads it gets `Cancelled`."""
        self._job.is_cancelled = True
        with suppress(ValueError):  # another thread reads it, or a function that it calls closes it
            self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
