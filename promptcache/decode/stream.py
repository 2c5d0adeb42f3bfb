"""Streaming: an answer in pieces of text, while a thread generates it.

A piece never ends inside a character.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeAlias

from promptcache.answers import AnswerSplit, IncrementalText, SplitText, whole_text
from promptcache.decode.completion import Completion
from promptcache.diagnostics import ServiceClosed, Unpicklable
from promptcache.locks import new_rlock


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

    def add(self, token_id: int) -> str:
        """Add a token and return the text of the answer that is certain now."""
        return self._answer(self._split.add(self._text.add(token_id)))

    def finish(self, token_ids: Sequence[int]) -> str:
        """Return the rest of the answer, whose tokens are these."""
        rest = self._text.finish(whole_text(self._decode, token_ids))
        return self._answer(self._split.add(rest)) + self._answer(self._split.rest())

    def _answer(self, part: SplitText) -> str:
        self.reasoning += part.reasoning
        return part.answer


class _Queue:
    """Queue from the generating thread to the reader: tokens, then the completion or an error."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[int | BaseException | Completion] = queue.SimpleQueue()
        self.closed = threading.Event()


GenerateAnswer: TypeAlias = Callable[[Callable[[int], object], Callable[[], bool]], Completion]
"""Generates an answer. It passes each token to a function, and ends early if another one returns true."""


class Stream(Unpicklable, Iterator[str]):
    """An answer that is being generated. Iterate over it for text; afterwards `completion` has the whole answer.

    The pieces are those of the answer. `reasoning` is the reasoning before it, as far as it was generated.

    Closing a stream stops the generation. Deleting an unread stream stops it, too.
    """

    _instead = "pickle its completion once it is exhausted"

    def __init__(
        self,
        answer: GenerateAnswer,
        text: Callable[[Sequence[int]], str],
        split: AnswerSplit,
        on_end: Callable[[Completion], None] | None = None,
    ) -> None:
        """Start to answer in a thread of its own.

        Args:
            answer: Generates the answer.
            text, split: As for `AnswerPieces`.
            on_end: Called in the reading thread with the completion, once all tokens are read.
        """
        self.completion: Completion | None = None
        self._on_end = on_end
        self._queue = _Queue()
        self._pieces = AnswerPieces(text, split)
        self._over = False
        self._reading = new_rlock()  # one thread waits for an item; others would wait for ever at the end
        self._thread = threading.Thread(
            target=_produce, args=(answer, self._queue), name="promptcache-stream", daemon=True
        )
        # The thread has no reference to the stream, so an unread stream can be deleted.
        weakref.finalize(self, self._queue.closed.set).atexit = False
        self._thread.start()

    @property
    def reasoning(self) -> str:
        """The reasoning before the answer, as far as it was generated."""
        return self._pieces.reasoning

    def __next__(self) -> str:
        with self._reading:
            while not self._over:
                if not self._thread.is_alive() and self._queue.items.empty():
                    raise ServiceClosed(
                        "this process was forked after the stream was made, without the thread that answers: make a "
                        "stream in each process, engine.stream()",
                        "worker_dead",
                    )
                item = self._queue.items.get()
                if isinstance(item, BaseException):
                    self.close()
                    raise item
                if isinstance(item, Completion):
                    self.completion = item
                    self.close()
                    if self._on_end is not None:
                        self._on_end(item)
                    piece = self._pieces.finish(item.token_ids)
                else:
                    piece = self._pieces.add(item)
                if piece:
                    return piece
        raise StopIteration

    def close(self) -> None:
        """Stop generating and discard the unread text."""
        self._over = True
        self._queue.closed.set()
        self._thread.join()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _produce(answer: GenerateAnswer, tokens: _Queue) -> None:
    leave = weakref.finalize(tokens, _leave, tokens.closed, threading.current_thread())
    try:
        tokens.items.put(answer(tokens.items.put, tokens.closed.is_set))
    except BaseException as error:  # noqa: BLE001 - raised again in the reading thread
        tokens.items.put(error)
    finally:
        leave.detach()


def _leave(closed: threading.Event, thread: threading.Thread) -> None:
    """Stop the generating thread at exit: the interpreter aborts if a thread is inside torch then."""
    closed.set()
    thread.join()
