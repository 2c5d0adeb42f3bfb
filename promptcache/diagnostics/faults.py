"""A list of faults that ends the work on a document once it is long enough.

Describing a hundred thousand faults would take seconds, and the first hundred are enough to work on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from promptcache.diagnostics.errors import LanguageError
from promptcache.diagnostics.records import Diagnostic, in_order

MAX_FAULTS = 100
"""Faults that are reported of one document."""


class Faults(list[Diagnostic]):
    """What is wrong with a document; one fault more than `MAX_FAULTS` raises all of them.

    Raises:
        LanguageError: of the class `error`, from every method that adds; PC012 comes last.
    """

    def __init__(self, error: type[LanguageError]) -> None:
        super().__init__()
        self._error = error

    def append(self, fault: Diagnostic) -> None:
        """Add a fault."""
        if len(self) >= MAX_FAULTS:
            message = f"more than {MAX_FAULTS} faults: checking stops here"
            last = Diagnostic(code="PC012", message=message, span=fault.span, help="correct the others first")
            raise self._error([*in_order(each for each in self if each.code != last.code), last])
        super().append(fault)

    def extend(self, faults: Iterable[Diagnostic]) -> None:
        """Add faults, one after another: a generator that is too long is not read to its end."""
        for fault in faults:
            self.append(fault)

    def __iadd__(self, faults: Iterable[Diagnostic]) -> Self:  # type: ignore[misc,override]
        self.extend(faults)
        return self
