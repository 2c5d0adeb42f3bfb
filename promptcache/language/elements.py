"""The elements of a schema document: their attributes, and what stands inside what.

Comes in: nothing. Goes out: two tables. This file reads nothing.
"""

from __future__ import annotations

from promptcache.language.read_rules import RULE_ATTRIBUTES
from promptcache.language.schema import Role

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "schema": ("name", "version", "whitespace", "separator", "context"),
    "module": (
        "name",
        "required",
        "requires",
        "excludes",
        "after",
        "cache",
        "src",
        "reserve",
        "context",
        "whitespace",
        "separator",
    ),
    "union": ("name", "required", "default", "scaffold"),
    "parameter": ("name", "length", "default", "placeholder", "scaffold", "required", "type", "choices", "pattern"),
    "scaffold": ("name", "modules"),
    "example": ("name", "valid", "contains"),
    "rules": (),
    **RULE_ATTRIBUTES,
    "system": (),
    "user": (),
    "assistant": (),
    "text": (),
    "doc": (),
}
"""The elements of a schema document and the attributes of each."""

_ANYTHING = frozenset(ATTRIBUTES) - {"schema", "rules", "example"} - RULE_ATTRIBUTES.keys()
CHILDREN = {
    "schema": _ANYTHING | {"rules", "example"},
    "rules": frozenset({*RULE_ATTRIBUTES, "doc"}),
    "module": _ANYTHING,
    "union": frozenset({"module", "doc"}),
    **{role.value: _ANYTHING - {"scaffold"} for role in Role},
}
"""What may stand in an element besides text; the elements that are not here hold text or nothing."""
