"""Faults of stores that cost no answer: collected as sentences, and returned to the caller in the end."""

from __future__ import annotations

from collections.abc import Iterable

from promptcache.locks import new_lock


class Faults:
    """Sentences that say what went wrong, each once, in order; any thread may call any method."""

    def __init__(self, sentences: Iterable[str] = ()) -> None:
        self._sentences = dict.fromkeys(sentences)
        self._lock = new_lock()

    def __bool__(self) -> bool:
        return bool(self._sentences)

    def add(self, *sentences: str) -> None:
        """Add sentences."""
        with self._lock:
            self._sentences.update(dict.fromkeys(sentences))

    def all(self) -> tuple[str, ...]:
        """Return all sentences."""
        with self._lock:
            return tuple(self._sentences)

    def take(self) -> tuple[str, ...]:
        """Return all sentences and forget them."""
        if not self._sentences:
            return ()
        with self._lock:
            taken, self._sentences = tuple(self._sentences), {}
            return taken
