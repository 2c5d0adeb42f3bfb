"""Attributes that objects like ours have in other libraries: the error for one says what ours is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class NamedElsewhere:
    """Base class of objects whose methods have other names elsewhere.

    Attributes:
        _elsewhere: Those names, with ours.
    """

    __slots__ = ()
    _elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # type checkers would take any name

        def __getattr__(self, name: str) -> Any:
            ours = self._elsewhere.get(name)
            if ours is None:
                return object.__getattribute__(self, name)  # raises the error that Python has for it
            kind = type(self).__name__
            raise AttributeError(f"'{kind}' object has no attribute '{name}'; it is called {kind}.{ours} here")


def elsewhere(**theirs: str) -> Mapping[str, str]:
    """Return a table from names elsewhere to ours; each keyword is one of ours, with the others in one text."""
    return {each: ours for ours, text in theirs.items() for each in text.split()}
