"""The forms of rules that a `rules` element may hold, each with what it means.

Comes in: paths of modules. Goes out: elements, and whether a selection keeps the rule, said in Python and not by asking
the language. Knows nothing of the rest of a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from lxml import etree


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One form of a rule; `holds` and `attributes` take which modules are present, or their paths, and a number."""

    element: str
    holds: Callable[[Sequence[bool], int], bool]
    attributes: Callable[[Sequence[str], int], dict[str, str]]


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "exclude": Form(
            element="exclude",
            holds=lambda present, _: sum(present) <= 1,
            attributes=lambda paths, _: {"modules": " ".join(paths)},
        ),
        "choose at most": Form(
            element="choose",
            holds=lambda present, _: sum(present) < len(present),
            attributes=lambda paths, _: {"modules": " ".join(paths), "max": str(len(paths) - 1)},
        ),
        "choose at least": Form(
            element="choose",
            holds=lambda present, number: sum(present) >= min(number, 1),
            attributes=lambda paths, number: {"modules": " ".join(paths), "min": str(min(number, 1))},
        ),
        "require": Form(
            element="require",
            holds=lambda present, _: not present[0] or any(present[1:]),
            attributes=lambda paths, _: {"if": paths[0], "then": " or ".join(paths[1:])},
        ),
        "require if several": Form(
            element="require",
            holds=lambda present, _: not all(present[:-1]) or not present[-1],
            attributes=lambda paths, _: {"if": " and ".join(paths[:-1]), "then": f"not {paths[-1]}"},
        ),
        "assert": Form(
            element="assert",
            holds=lambda present, _: not (present[0] and present[1]) or present[-1],
            attributes=lambda paths, _: {"test": f"({paths[0]} and {paths[1]}) implies {paths[-1]}"},
        ),
        "assert not all": Form(
            element="assert",
            holds=lambda present, _: any(present) and not all(present),
            attributes=lambda paths, _: {"test": f"({' or '.join(paths)}) and not ({' and '.join(paths)})"},
        ),
    }
)


def write_form(root: etree._Element, form: Form, paths: Sequence[str], *, number: int, message: bool) -> None:
    """Write a rule into the `rules` element at the end of a schema."""
    rules = root[-1] if len(root) and root[-1].tag == "rules" else etree.SubElement(root, "rules")
    rule = etree.SubElement(rules, form.element, form.attributes(paths, number))
    if message:
        rule.set("message", f"Mind {form.element}.")
