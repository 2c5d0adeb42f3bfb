"""Short representations: of any value for a message, and of records for the interactive prompt.

Both are one line, take no time whatever the value, and never raise.
"""

from __future__ import annotations

import re
import reprlib
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields
from enum import Enum
from typing import Any

from promptcache.diagnostics.records import Span

SURROGATE = re.compile("[\ud800-\udfff]")
_LENGTH = 60


class _Repr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxstring = self.maxother = self.maxlong = _LENGTH

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"<int of more than {sys.get_int_max_str_digits()} digits>"

    def repr_str(self, x: str, level: int) -> str:
        found = None if x.isascii() else SURROGATE.search(x)
        return super().repr_str(x if found is None else x[max(0, found.start() - _LENGTH // 4) :], level)


def shown(value: object) -> str:
    """Return a short representation; of text with a lone surrogate, the part around it."""
    return _Repr().repr(value)


class Short:
    """A record, made with `@dataclass(repr=False)`, that shows its fields cut short.

    Collections are counted ("21 modules"), and a record inside that has a name is shown by it. What is None, empty or
    False, and places in a source, are left out.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        record: Any = self
        shown_fields = (_field(each.name, getattr(self, each.name)) for each in fields(record) if each.repr)
        return f"{type(self).__name__}({', '.join(filter(None, shown_fields))})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the same in Hypothesis and IPython, which would go through the fields."""
        printer.text(repr(self))


def _field(name: str, value: object) -> str | None:
    match value:
        case None | False | Span():
            return None
        case str() | bytes() | Enum():
            return f"{name}={shown(str(value) if isinstance(value, Enum) else value)}" if value else None
        case Sequence() | Mapping() | Set():
            return f"{len(value)} {name}" if value else None
        case float():
            return f"{name}={value:.4g}"
        case Short():
            named = getattr(value, "name", None)
            return f"{name}={value!r}" if named is None else f"{name}={shown(named)}"
        case _:
            return f"{name}={shown(value)}"
