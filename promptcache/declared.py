"""Declared fields of dataclasses: a kind of values and a line of help beside the type and the default.

`promptcache.options` and `promptcache.settings` declare options of an answer and settings. Checks, options of commands,
bodies of the server and docs/settings.md are made from the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from promptcache.diagnostics import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What is known of a field besides its name, type and default.

    Attributes:
        kind: Its values, with their unit.
        words: What it does, in a line.
        on_command_line: Whether commands have it as an option.
        group: The heading above that option in the help of a command.
    """

    kind: Kind
    words: str
    on_command_line: bool = False
    group: str = "Options"


def declare(record: Declared, default: Any, **more: Any) -> Any:
    """Return a field of a dataclass; `more` are arguments of `field`."""
    return field(default=default, metadata={"declared": record}, **more)


def declared(owner: Any) -> Mapping[str, Any]:
    """Return what is known of each field of a dataclass, or of an object of one, by name."""
    return {each.name: each.metadata["declared"] for each in fields(owner)}


def defaults(owner: Any) -> Mapping[str, Any]:
    """Return the default of each field of a dataclass, by name."""
    return {each.name: each.default for each in fields(owner)}


def check_fields(record: Any, error: type[Exception]) -> None:
    """Refuse an object with a value that is not of the kind of its field.

    Raises:
        Exception: Of the class `error`, with the name, the value and the expected kind.
    """
    for name, each in declared(record).items():
        each.kind.check(name, getattr(record, name), error)
