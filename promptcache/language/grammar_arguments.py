"""The parameters of one module to the RELAX NG of its arguments.

Comes in: parameters. Goes out: patterns for the attributes and `<arg>` elements that fill them. This file knows no
modules.

RELAX NG cannot count elements of one name in any order. So up to `MAX_EXACT` parameters every way to give them is
written out: each of them once, as an attribute or as an element. For more, an attribute that is missing is excused by
any `<arg>`, and an argument given twice goes unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations

from lxml import etree
from lxml.builder import ElementMaker

from promptcache.language.schema import Parameter

NAMESPACE = "http://relaxng.org/ns/structure/1.0"
MAX_EXACT = 3

_DATATYPES = "http://www.w3.org/2001/XMLSchema-datatypes"
_NOTES = "http://relaxng.org/ns/compatibility/annotations/1.0"

RNG = ElementMaker(namespace=NAMESPACE, nsmap={None: NAMESPACE, "a": _NOTES})
"""Makes the elements of a grammar."""


def arguments(parameters: Iterable[Parameter]) -> etree._Element:
    """Return the pattern of the arguments for a module's parameters, of which there is one at least."""
    known = tuple(parameters)
    if len(known) > MAX_EXACT:
        return _many(known)
    return RNG.choice(*(_way(known, given) for count in range(len(known) + 1) for given in permutations(known, count)))


def documented(pattern: etree._Element, text: str | None) -> None:
    """Put documentation that editors show into a pattern."""
    if text:
        note = etree.Element(f"{{{_NOTES}}}documentation")
        note.text = text
        pattern.insert(0, note)


def named(choice: Callable[..., etree._Element], names: Sequence[str]) -> etree._Element:
    """Return the name class of `names`."""
    return choice(*(RNG.name(name) for name in names))


def _way(known: Sequence[Parameter], given: Sequence[Parameter]) -> etree._Element:
    """Return the way to give `given` as elements, in this order, and the others as attributes."""
    attributes = (_attribute(each, optional=not each.required) for each in known if each not in given)
    return RNG.group(*attributes, *(_element([each]) for each in given), RNG.empty())


def _many(known: Sequence[Parameter]) -> etree._Element:
    strict = RNG.group(*(_attribute(each, optional=not each.required) for each in known))
    loose = RNG.group(*(_attribute(each, optional=True) for each in known), RNG.oneOrMore(_element(known)))
    return RNG.choice(strict, loose)


def _attribute(parameter: Parameter, *, optional: bool) -> etree._Element:
    attribute = RNG.attribute(_value(parameter), name=parameter.name)
    documented(attribute, _description(parameter))
    return RNG.optional(attribute) if optional else attribute


def _element(parameters: Sequence[Parameter]) -> etree._Element:
    names = [RNG.value(each.name, type="string") for each in parameters]
    content = _value(parameters[0]) if len(parameters) == 1 else RNG.text()
    element = RNG.element(RNG.attribute(RNG.choice(*names), name="name"), content, name="arg")
    documented(element, "\n".join(f"{each.name}: {_description(each)}" for each in parameters))
    return element


def _value(parameter: Parameter) -> etree._Element:
    """Return what an argument can be: a choice, and text where it is required. Other types are the checker's."""
    if parameter.required and not parameter.choices:
        return RNG.data(RNG.param("1", name="minLength"), type="string", datatypeLibrary=_DATATYPES)
    if not parameter.choices:
        return RNG.text()
    return RNG.choice(*(RNG.value(each, type="string") for each in parameter.choices))


def _description(parameter: Parameter) -> str:
    return ", ".join(_facts(parameter))


def _facts(parameter: Parameter) -> Iterator[str]:
    if parameter.required:
        yield "required"
    yield f"at most {parameter.length} tokens"
    if parameter.default is not None:
        yield f"by default {parameter.default!r}"
