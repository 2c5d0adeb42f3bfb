"""The error tree, and the list that collects the faults of a document.

PromptCacheError
├── InvalidValue             a Python argument with a wrong type or value; also a TypeError and ValueError
│   └── InvalidGeneration    an option of `generate` that is unknown or not supported
├── LanguageError            carries diagnostics, each with code and span
│   ├── SchemaError          a schema document, PC0xx to PC3xx, PC5xx
│   └── PromptError          a prompt document, PC0xx, PC4xx, PC5xx
├── UnknownSchema            a prompt names a schema that the engine does not have
├── EngineClosed             a call of an engine that was closed
├── ModelError
│   ├── ModelNotFound        no such folder or hub id, or files missing in it
│   ├── UnsupportedModel     a model or tokenizer that this library refuses, with its name and the reason
│   ├── ModelChanged         the model is not as it was when the engine was made, for example by another adapter
│   └── NotFinite            the model computes infinities or NaN for a text; also a FloatingPointError
├── TemplateRefusal          the chat template does not render a conversation
│   └── TextNotInPlace       it renders the conversation, and does not write each text once and in its place
├── InvalidOutput            an answer without the format that was asked for; also a ValueError
├── ContextLengthExceeded    positions or generated tokens beyond those of the model
├── ServiceError
│   ├── QueueFull            too many requests wait
│   ├── QueueTimeout         a request waited too long
│   ├── ServiceClosed        the service ends, or has failed
│   └── Cancelled            the caller cancelled the request
└── StoreError
    ├── CorruptEncoding      stored bytes that do not match their key
    └── TierUnavailable      a folder or remote store that does not answer, is full or read-only
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, Self

from promptcache.diagnostics.excerpts import excerpt
from promptcache.diagnostics.records import Diagnostic, Span, diagnostic, in_order
from promptcache.diagnostics.values import instance


class PromptCacheError(Exception):
    """Base class of all errors that this library raises because of its input."""


class InvalidValue(PromptCacheError, TypeError, ValueError):
    """An argument of a Python call with a wrong type or value; the message names the allowed values."""


class InvalidGeneration(InvalidValue):
    """An option of `generate` that is unknown, that this library sets itself, or that it cannot support."""


class InvalidOutput(PromptCacheError, ValueError):
    """An answer without the format that was asked for: it was cut, or the type of the caller refuses it."""


class Unpicklable:
    """Base class of objects with locks, threads or memory.

    Pickling or copying one raises an error that names the alternative.
    """

    __slots__ = ()
    _instead: ClassVar[str]

    def __reduce__(self) -> NoReturn:
        raise InvalidValue(f"{type(self).__name__} cannot be pickled or copied: {self._instead}")


_DIAGNOSTICS = instance("a list of Diagnostic", Iterable)
_DIAGNOSTIC = instance("a Diagnostic", Diagnostic)


class LanguageError(PromptCacheError):
    """A schema or prompt document that cannot be used. `diagnostics` has every fault that was found."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        _DIAGNOSTICS.check("diagnostics", diagnostics, InvalidValue)
        self.diagnostics = tuple(diagnostics)
        for each in self.diagnostics:
            _DIAGNOSTIC.check("diagnostic", each, InvalidValue)
        super().__init__("\n".join(map(str, self.diagnostics)))

    def excerpt(self) -> str:
        """Return every fault as the command line prints it, with the lines of the document."""
        return "\n".join(map(excerpt, self.diagnostics))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the diagnostics, so that the error is the same in another process."""
        return type(self), (self.diagnostics,), self.__dict__


@contextmanager
def inside(place: str) -> Iterator[None]:
    """Put a place before the messages of errors, such as the index of a prompt in a batch."""
    try:
        yield
    except LanguageError as error:
        spans = [replace(each.span, source=f"{place}, {each.span.source}") for each in error.diagnostics]
        found = zip(error.diagnostics, spans, strict=True)
        raise type(error)(replace(each, span=span) for each, span in found) from None
    except PromptCacheError as error:
        error.args = (f"{place}: {error}", *error.args[1:])
        raise


class SchemaError(LanguageError):
    """A schema document that cannot be used."""


class PromptError(LanguageError):
    """A prompt document that cannot be used with its schema."""


class UnknownSchema(PromptCacheError):
    """A prompt names a schema that was not added."""


class EngineClosed(PromptCacheError):
    """An engine was used after `close`, or after its `with` block."""


class ModelError(PromptCacheError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """There is no model of this name."""


class UnsupportedModel(ModelError):
    """A model or tokenizer whose computation this library cannot reproduce. The message has its name and the reason."""


class ModelChanged(ModelError):
    """The model is not as it was when the engine was made. The message says what has changed, and the fix."""


class NotFinite(ModelError, FloatingPointError):
    """The model computes keys, values or logits that are not finite, as after an overflow in float16."""


class TemplateRefusal(PromptCacheError):
    """The chat template of the model does not render a conversation. The message has its reason."""


class TextNotInPlace(TemplateRefusal):
    """The chat template does not write each text of a conversation once and in its place."""


class ContextLengthExceeded(PromptCacheError):
    """A request needs more positions than the model has."""


class _WithReason(PromptCacheError):
    """Base class of errors with a `reason` for programs, by default the message."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.reason)


class ServiceError(PromptCacheError):
    """A service did not answer a request."""


class QueueFull(_WithReason, ServiceError):
    """Too many requests or tokens wait. `reason` is "queue_full" or "queue_tokens_full"."""


class QueueTimeout(ServiceError):
    """A request waited longer than the service allows."""


class ServiceClosed(_WithReason, ServiceError):
    """The service takes no requests. `reason` is "draining" or "worker_dead"; for a server also "starting"."""


class Cancelled(ServiceError):
    """The caller cancelled a request."""


class StoreError(PromptCacheError):
    """A store could not carry out a request."""


class CorruptEncoding(StoreError):
    """Stored bytes do not match their key."""


class TierUnavailable(_WithReason, StoreError):
    """A folder or remote store does not answer, is full, or is read-only. The message has its name and the reason.

    `reason` is the reason alone. All operations that fail for one reason have the same.
    """


MAX_FAULTS = 100
"""Maximum number of faults reported for one document. Describing a hundred thousand faults would take seconds."""


class FaultList(list[Diagnostic]):
    """The faults of one document. Adding a fault beyond `MAX_FAULTS` raises all of them.

    Raises:
        LanguageError: Of the class `error`, from `add`, `append` and `+=`; PC012 comes last.
    """

    def __init__(self, error: type[LanguageError]) -> None:
        super().__init__()
        self._error = error

    def add(
        self, code: str, message: str, span: Span, fix: str | None = None, related: tuple[tuple[Span, str], ...] = ()
    ) -> None:
        """Add a fault; the arguments are those of `diagnostic`."""
        self.append(diagnostic(code, message, span, fix, related))

    def append(self, fault: Diagnostic) -> None:
        """Add a fault."""
        if len(self) >= MAX_FAULTS:
            message = f"more than {MAX_FAULTS} faults: checking stops here"
            last = diagnostic("PC012", message, fault.span, "correct the others first")
            raise self._error([*in_order(each for each in self if each.code != last.code), last])
        super().append(fault)

    def __iadd__(self, faults: Iterable[Diagnostic]) -> Self:  # type: ignore[misc,override]
        """Add faults one by one, so that a long generator is not read to its end."""
        for fault in faults:
            self.append(fault)
        return self
