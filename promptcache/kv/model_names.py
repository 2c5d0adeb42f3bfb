"""Names of the models whose KV is in one memory: fingerprints, but for the first model.

A fingerprint reads all weights. Most memories have KV of one model, which needs no fingerprint. That of the first model
is compared only when another model comes.
"""

from __future__ import annotations

from typing import Protocol
from weakref import ref

from promptcache.diagnostics import ModelChanged
from promptcache.locks import new_lock

_FIRST = "the first model of this memory"


class Fingerprinted(Protocol):
    """A model."""

    @property
    def fingerprint(self) -> str:
        """Digest of the model. It reads all weights, and raises `ModelChanged` if they were changed."""


class ModelNames:
    """The names of models. Models with one name have one fingerprint. Thread-safe."""

    def __init__(self) -> None:
        """Know no model."""
        self._first: ref[Fingerprinted] | None = None
        self._lock = new_lock()

    def name(self, model: Fingerprinted) -> str:
        """Return the name of a model.

        Args:
            model: As it was when it was first named. It is not kept alive.

        Raises:
            ModelChanged: The fingerprint is needed, and the model was changed.
        """
        with self._lock:
            if self._first is None:
                self._first = ref(model)
            first = self._first()
        if first is model:
            return _FIRST
        own = model.fingerprint
        try:
            return _FIRST if first is not None and first.fingerprint == own else own
        except ModelChanged:  # the first one cannot be compared now, so KV is not shared
            return own
