"""The elements of `rules` to declared rules.

Comes in: one element of it. Goes out: the declared rule, and a diagnostic for every attribute that cannot stand. This
file does not read conditions and follows no path.
"""

from __future__ import annotations

from promptcache.diagnostics import Diagnostic
from promptcache.language.syntax.attributes import AttributeReader
from promptcache.language.syntax.nodes import Assert, Choose, Combination, Exclude, Require
from promptcache.language.syntax.xml import Element

RULE_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "require": ("if", "then", "message"),
    "exclude": ("modules", "message"),
    "choose": ("modules", "min", "max", "message"),
    "assert": ("test", "message"),
}
"""The elements that stand in `rules`, and the attributes of each."""


def read_rule(element: Element, faults: list[Diagnostic]) -> Combination:
    """Read one rule; what is wrong with its attributes goes to `faults`."""
    attributes = AttributeReader(element, RULE_ATTRIBUTES[element.name], faults)
    span, message, places = element.span, attributes.text("message"), attributes.places
    match element.name:
        case "require":
            condition, consequence = attributes.needed("if"), attributes.needed("then")
            return Require(condition=condition, consequence=consequence, span=span, message=message, places=places)
        case "assert":
            return Assert(test=attributes.needed("test"), span=span, message=message, places=places)
        case "exclude":
            attributes.needed("modules")
            return Exclude(modules=attributes.words("modules"), span=span, message=message, places=places)
        case _:
            attributes.needed("modules")
            attributes.needed_one_of("min", "max")
            return Choose(
                modules=attributes.words("modules"),
                span=span,
                minimum=attributes.number("min", least=0),
                maximum=attributes.number("max"),
                message=message,
                places=places,
            )
