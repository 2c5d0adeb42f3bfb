"""The error tree: whatever this library raises because of what it was given.

Comes in: diagnostics, or a message. Goes out: exceptions. This file finds no faults.

    PromptCacheError
    ├── InvalidValue             an argument of a Python call that is not of its kind; also a TypeError and ValueError
    │   └── InvalidGeneration    an option of `generate` that is unknown, or that this library cannot honour
    ├── LanguageError            carries diagnostics, each with code and span
    │   ├── SchemaError          a schema document, PC0xx to PC3xx, PC5xx
    │   └── PromptError          a prompt document, PC0xx, PC4xx, PC5xx
    ├── UnknownSchema            a prompt names a schema that the engine does not have
    ├── ModelError
    │   ├── ModelNotFound        no such folder or hub id, or files missing in it
    │   └── UnsupportedModel     a model or tokenizer that this library refuses, by name and with the reason
    ├── ContextLengthExceeded    positions or generated tokens beyond what the model has
    └── StoreError
        ├── CorruptEncoding      bytes that are not what their key promises
        └── TierUnavailable      a disk or remote place that does not answer, is full or read-only
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

from promptcache.diagnostics.excerpts import excerpt
from promptcache.diagnostics.kinds import instance
from promptcache.diagnostics.records import Diagnostic


class PromptCacheError(Exception):
    """Whatever this library raises because of what it was given."""


class InvalidValue(PromptCacheError, TypeError, ValueError):
    """An argument of a Python call that is not of its kind; the message says which values are."""


class InvalidGeneration(InvalidValue):
    """An option of `generate` that is unknown, that this library sets itself, or that it cannot honour."""


class Unpicklable:
    """An object that holds locks, threads or memory; to pickle or copy it is refused with what to do instead."""

    __slots__ = ()
    _instead: ClassVar[str]

    def __reduce__(self) -> NoReturn:
        raise InvalidValue(f"{type(self).__name__} cannot be pickled or copied: {self._instead}")


_DIAGNOSTICS = instance("a list of Diagnostic", Iterable)
_DIAGNOSTIC = instance("a Diagnostic", Diagnostic)


class LanguageError(PromptCacheError):
    """A schema or prompt document that cannot be used; every fault that was found is in `diagnostics`."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        _DIAGNOSTICS.check("diagnostics", diagnostics, InvalidValue)
        self.diagnostics = tuple(diagnostics)
        for diagnostic in self.diagnostics:
            _DIAGNOSTIC.check("diagnostic", diagnostic, InvalidValue)
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))

    def excerpt(self) -> str:
        """Return every fault as the command line prints it, with the lines of the documents that it is about."""
        return "\n".join(map(excerpt, self.diagnostics))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy what it was made of, so that it comes out of another process as it was raised there."""
        return type(self), (self.diagnostics,), self.__dict__


class SchemaError(LanguageError):
    """A schema document that cannot be used."""


class PromptError(LanguageError):
    """A prompt document that cannot be used with its schema."""


class UnknownSchema(PromptCacheError):
    """A prompt names a schema that is not there."""


class ModelError(PromptCacheError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """No model stands under this name."""


class UnsupportedModel(ModelError):
    """A model or tokenizer whose computation this library cannot reproduce; the message names it and says why."""


class ContextLengthExceeded(PromptCacheError):
    """A request needs positions that the model does not have."""


class StoreError(PromptCacheError):
    """A store cannot do what it was asked to."""


class CorruptEncoding(StoreError):
    """Stored bytes differ from what their key promises."""


class TierUnavailable(StoreError):
    """A place where encodings rest does not answer, is full or cannot be written; the message names it and says why."""
