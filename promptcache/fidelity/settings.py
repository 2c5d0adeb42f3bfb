"""Settings that are compared: the schema as it is, with one attribute changed, and with its prompts promoted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from promptcache.diagnostics import InvalidValue, shown
from promptcache.language import CheckedSchema, Context, Placement, Repair, check_schema

_ATTRIBUTES: Mapping[str, Callable[[str], Any]] = {
    "context": Context,
    "repair": lambda value: str(Repair.parse(value)),
    "positions": Placement,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Change of a schema that is compared with ordinary prefill.

    Attributes:
        name: "context=guaranteed", for example. It is also the name of the option `--setting`.
        attribute: The attribute of the schema's root element that changes; empty if none does.
        value: Its value.
    """

    name: str
    attribute: str = ""
    value: str = ""

    @classmethod
    def named(cls, name: str) -> Setting:
        """Return the setting of a name: "promoted", or an attribute with its value, such as "repair=first-8".

        Raises:
            InvalidValue: There is no such setting.
        """
        if name == PROMOTED.name:
            return PROMOTED
        attribute, _, value = name.partition("=")
        setting = cls(name, attribute, value)
        try:
            _ATTRIBUTES[attribute](value)
        except (KeyError, ValueError):
            names = ", ".join(each.name for each in SETTINGS)
            raise InvalidValue(f"there is no setting {shown(name)}; {names} or another repair is expected") from None
        return setting

    @property
    def xml(self) -> str:
        """The attribute as a schema has it."""
        return f'{self.attribute}="{self.value}"'

    def apply(self, schema: CheckedSchema) -> CheckedSchema:
        """Return the schema with the changed attribute.

        Raises:
            SchemaError: It is not valid.
        """
        if not self.attribute:
            return schema
        change: dict[str, Any] = {self.attribute: _ATTRIBUTES[self.attribute](self.value)}
        return check_schema(replace(schema.source, **change))


AS_IT_IS = Setting("as it is")
PROMOTED = Setting("promoted")
"""Each prompt is promoted, as by `Engine.promote`: the best that reuse can reach."""

SETTINGS = (
    *(Setting(f"context={each}", "context", str(each)) for each in (Context.GUARANTEED, Context.PREVIOUS)),
    *(Setting(f"repair={each}", "repair", each) for each in ("slots", "first-16", "attended-8", "attended-16", "all")),
    *(Setting(f"positions={each}", "positions", str(each)) for each in (Placement.CLOSED, Placement.FIXED)),
    PROMOTED,
)
"""Settings that are compared with the schema as it is, if they differ from it."""
