"""Streaming: an answer in pieces of text, while it is generated.

A piece never ends inside a character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import Generic, Self

from promptcache.answers import IncrementalText, TokenLogprobs, whole_text
from promptcache.decode.completion import Completion
from promptcache.decode.job import Job, job_of
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

    The thread that reads a stream computes its pieces, and the request begins with the first one. A stream that is
    closed or dropped generates nothing more; history keeps the KV of one that is closed.
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
        items = deque[int | TokenLogprobs | Completion | BaseException]()
        self._job = job_of(request, items.append, executor)
        self._scheduler = Scheduler(executor)
        self._answer = _answer(self._job, items, self._scheduler)
        self._on_end = on_end
        self._reading = new_rlock()

    def __next__(self) -> str:
        with self._reading:
            while True:
                item = next(self._answer)
                if isinstance(item, Completion):
                    self.completion = item
                    if self._on_end is not None:
                        self._on_end(item)
                if piece := self._piece(item):
                    return piece

    def close(self) -> None:
        """Stop generating and discard the unread text. A thread that reads it gets `Cancelled`."""
        self._job.is_cancelled = True
        if self._reading.acquire(blocking=False):
            with suppress(ValueError), closing(self._answer):  # a function that is called while it is read closes it
                self._scheduler.fail_all(Cancelled("the stream was closed"))
            self._reading.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _answer(
    job: Job, items: deque[int | TokenLogprobs | Completion | BaseException], scheduler: Scheduler
) -> Generator[int | TokenLogprobs | Completion]:
    """Yield the tokens of a job, then its completion, which its listener puts into `items`.

    Nothing is to be done if it is dropped: the garbage collector may do that while the thread holds any lock.
    """
    scheduler.add(job)
    item: object = None
    while not isinstance(item, Completion):
        while not items:
            scheduler.step()
        item = items.popleft()
        if isinstance(item, BaseException):
            raise item
        yield item
