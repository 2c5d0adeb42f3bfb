"""Names of the models whose KV is in one memory: fingerprints, but for the first model.

A fingerprint reads all weights. Most memories have KV of one model, which needs no fingerprint. That of the first model
is compared only when another model comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

from promptcache.diagnostics import ModelChanged
from promptcache.locks import new_lock

_Model = TypeVar("_Model")

_FIRST = "the first model of this memory"


class ModelNames(Generic[_Model]):
    """The names of models. Models with one name have one fingerprint. Thread-safe."""

    def __init__(self) -> None:
        """Know no model."""
        self._first: ref[_Model] | None = None
        self._lock = new_lock()

    def name(self, model: _Model, fingerprint: Callable[[_Model], str]) -> str:
        """Return the name of a model.

        Args:
            model: As it was when it was first named. It is not kept alive.
            fingerprint: Returns the fingerprint of a model.

        Raises:
            ModelChanged: The fingerprint is needed, and the model was changed.
        """
        with self._lock:
            if self._first is None:
                self._first = ref(model)
            first = self._first()
        if first is model:
            return _FIRST
        own = fingerprint(model)
        try:
            return _FIRST if first is not None and fingerprint(first) == own else own
        except ModelChanged:  # the first one cannot be compared now, so KV is not shared
            return own
