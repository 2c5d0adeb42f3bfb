"""The elements of a schema document: their attributes, and what stands inside what.

Comes in: nothing. Goes out: two tables, and help for what stands in the wrong place. This file reads nothing.
"""

from __future__ import annotations

from promptcache.language.syntax.nodes import Role
from promptcache.language.syntax.read_rules import RULE_ATTRIBUTES

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
    "parameter": (
        "name",
        "length",
        "default",
        "placeholder",
        "scaffold",
        "required",
        "type",
        "choices",
        "pattern",
        "message",
    ),
    "scaffold": ("name", "modules"),
    "include": ("href", "select", "prefix"),
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


def instead(element: str, parent: str) -> str | None:
    """Say what can be done about an element that cannot stand in another."""
    match parent, element:
        case "union", _:
            return "a union holds modules: put it into one"
        case "text" | "doc", _:
            return "write &lt; for a literal <, or use <![CDATA[…]]>"
        case _, "scaffold":
            return "write the scaffold outside the turn; its paths reach inside"
        case _, "rules" | "example":
            return f"write <{element}> directly in the schema; its paths reach everywhere"
        case _, "require" | "exclude" | "choose" | "assert":
            return "put it into <rules> at the top level of the schema"
        case _, "schema":
            return "a document has one <schema>, which is its root"
    return None
