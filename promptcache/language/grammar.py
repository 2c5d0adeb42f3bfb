"""Write the RELAX NG grammar of schemas and prompts from the declarations of their elements, for XML editors.

It covers the structure of documents: elements, attributes and values. Names, paths and rules are checked by
`check_schema` only. `prompt_grammar` writes the grammar of the prompts for one schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lxml import etree
from lxml.builder import ElementMaker

from promptcache.diagnostics import plain_text
from promptcache.language.syntax.attributes import AttributeType, attributes_of
from promptcache.language.syntax.elements import ELEMENTS, PROMPT_ELEMENTS
from promptcache.language.syntax.names import RESERVED_MODULES
from promptcache.language.syntax.nodes import ParameterType, Role

_NAMESPACE = "http://relaxng.org/ns/structure/1.0"
_NOTES = "http://relaxng.org/ns/compatibility/annotations/1.0"
_DATATYPES = "http://www.w3.org/2001/XMLSchema-datatypes"
_MAX_ON_A_LINE = 20  # elements
_IN_TURN, _MEMBER = "-in-turn", "-of-collection"
_FORMS = (("module", _IN_TURN), ("union", _IN_TURN), ("module", _MEMBER))
"""Elements that have another content inside of turns, or as members of a collection."""

RNG = ElementMaker(namespace=_NAMESPACE, nsmap={None: _NAMESPACE, "a": _NOTES})
"""Factory for the elements of a grammar."""


def document_grammar() -> str:
    """Return the RELAX NG grammar of all schemas and prompts."""
    forms = (*((name, "") for name in ELEMENTS), *_FORMS)
    elements = [define(name + form, element_pattern(name, form)) for name, form in forms]
    return write_grammar(RNG.choice(ref("schema"), ref("prompt")), [*elements, *_prompts(), *prompt_text()])


def write_grammar(start: etree._Element, definitions: Iterable[etree._Element]) -> str:
    """Return the text of a grammar. Patterns of few elements stay on one line."""
    grammar = RNG.grammar(RNG.start(start), *definitions, datatypeLibrary=_DATATYPES)
    _indent(grammar, "\n")
    return etree.tostring(grammar, encoding="unicode") + "\n"


def _indent(element: etree._Element, line: str) -> None:
    if sum(1 for _ in element.iter()) > _MAX_ON_A_LINE:
        element.text = f"{line}  "
        for child in element:
            _indent(child, f"{line}  ")
            child.tail = f"{line}  "
        element[-1].tail = line


def define(name: str, *patterns: etree._Element) -> etree._Element:
    return RNG.define(*patterns, name=name)


def ref(name: str) -> etree._Element:
    return RNG.ref(name=name)


def one_of(values: Iterable[str]) -> etree._Element:
    """Return the pattern of some texts."""
    return RNG.choice(*(RNG.value(each, type="string") for each in values))


def documented(pattern: etree._Element, text: str | None) -> etree._Element:
    """Add documentation to a pattern, which XML editors show, and return the pattern."""
    if text:
        note = etree.Element(f"{{{_NOTES}}}documentation")
        note.text = text
        pattern.insert(0, note)
    return pattern


def prompt_text() -> Iterator[etree._Element]:
    """Yield the definitions of the text and the turns of prompts."""
    yield define("words", RNG.mixed(RNG.zeroOrMore(RNG.element(RNG.text(), name="text"))))
    yield define("turn", RNG.choice(*(RNG.element(ref("words"), name=role.value) for role in Role)))


def element_pattern(name: str, form: str = "") -> etree._Element:
    """Return the pattern of an element of schemas."""
    element = ELEMENTS[name]
    known = {each.name: each for each in attributes_of(element.node) if form != _MEMBER or each.of_members}
    dependent = [*_dependent(name, known), *_content(name, form, known)]
    return documented(RNG.element(*map(_attribute, known.values()), *dependent, name=name), plain_text(element.words))


def _attribute(attribute: AttributeType, *values: str, required: bool = False) -> etree._Element:
    """Return the pattern of an attribute with one of some values, or of those of its kind."""
    kind, value = attribute.kind, RNG.text()
    if kind.facets:
        value = RNG.data(*(RNG.param(text, name=name) for name, text in kind.facets), type="string")
    elif kind.values:
        value = one_of(values or kind.values)
    pattern = documented(RNG.attribute(value, name=attribute.name), plain_text(attribute.words))
    return pattern if required or attribute.required else RNG.optional(pattern)


def _dependent(name: str, known: dict[str, AttributeType]) -> Iterator[etree._Element]:
    """Yield the patterns of attributes that depend on each other, and remove these attributes from `known`."""
    if "placeholder" in known:
        names = [_attribute(known.pop(each), required=True) for each in ("placeholder", "scaffold")]
        yield RNG.optional(RNG.choice(*names))
    if "choices" in known:
        kind, choices, pattern = (known.pop(each) for each in ("type", "choices", "pattern"))
        choice = RNG.group(_attribute(kind, ParameterType.CHOICE, required=True), _attribute(choices, required=True))
        others = (each for each in ParameterType if each is not ParameterType.CHOICE)
        types = RNG.choice(choice, _attribute(kind, *others))
        if name == "answer":
            yield RNG.choice(_attribute(known.pop("src"), required=True), RNG.group(types, _attribute(pattern)))
        else:
            message = _attribute(known.pop("message"))
            yield from (types, RNG.optional(RNG.group(_attribute(pattern, required=True), message)))
    if name == "choose":
        least, most = known.pop("min"), known.pop("max")
        least_first = RNG.group(_attribute(least, required=True), _attribute(most))
        yield RNG.choice(least_first, _attribute(most, required=True))


def _content(name: str, form: str, known: dict[str, AttributeType]) -> Iterator[etree._Element]:
    """Yield the content of an element. Attributes that it depends on are part of it, and are removed from `known`."""
    inside = _IN_TURN if name in [*Role] else _MEMBER if name == "collection" else form
    children = ["text", "doc"] if form == _MEMBER else [*ELEMENTS[name].children]
    if inside == _IN_TURN:
        children = [child for child in children if child not in [*Role]]
    children = [f"{child}{inside}" if (child, inside) in _FORMS else child for child in children]

    def any_but(*others: str) -> etree._Element:
        text = [RNG.text()] if "text" in children else []
        return RNG.zeroOrMore(RNG.choice(*text, *(ref(child) for child in children if child not in others)))

    match name:
        case "text" | "doc":
            yield RNG.text()
        case "schema":
            yield from (any_but("answer"), RNG.optional(RNG.group(ref("answer"), any_but("answer"))))
        case "module":
            source = RNG.group(_attribute(known.pop("src"), required=True), RNG.zeroOrMore(ref("doc")))
            yield RNG.choice(source, any_but())
        case "union":
            yield from (RNG.zeroOrMore(ref("doc")), ref(f"module{form}"), any_but())
        case "example":
            valid, *of_valid = (known.pop(each) for each in ("valid", "contains", "answer", "expect"))
            refused = RNG.element(ref("anything"), name="prompt")
            accepted = RNG.optional(_attribute(valid, "true", required=True)), *map(_attribute, of_valid)
            yield RNG.choice(
                RNG.group(_attribute(valid, "false", required=True), refused), RNG.group(*accepted, ref("prompt"))
            )
        case _ if children:
            yield any_but()


def _prompts() -> Iterator[etree._Element]:
    naming = RNG.zeroOrMore(ref("naming"))
    answer = RNG.optional(RNG.group(ref("answer"), RNG.zeroOrMore(ref("naming"))))
    yield define("prompt", _of_prompt("prompt", naming, answer, ref("words"), RNG.zeroOrMore(ref("turn"))))
    yield define("naming", RNG.choice(ref("reference"), ref("use"), ref("arg")))
    reference = RNG.element(_any_name(*sorted(RESERVED_MODULES)), _arguments(), RNG.zeroOrMore(ref("naming")))
    yield define("reference", documented(reference, "A module of the module around it; attributes are arguments."))
    yield define("use", _of_prompt("use", RNG.zeroOrMore(ref("naming"))))
    yield define("arg", _of_prompt("arg", RNG.text(), arguments=False))
    yield define("anything", _arguments(), RNG.mixed(RNG.zeroOrMore(RNG.element(_any_name(), ref("anything")))))


def _of_prompt(name: str, *content: etree._Element, arguments: bool = True) -> etree._Element:
    """Return the pattern of an element of prompts, whose other attributes can be arguments."""
    known = attributes_of(PROMPT_ELEMENTS[name].node)
    others = [_arguments(*(each.name for each in known))] if arguments else []
    pattern = RNG.element(*map(_attribute, known), *others, *content, name=name)
    return documented(pattern, plain_text(PROMPT_ELEMENTS[name].words))


def _arguments(*others: str) -> etree._Element:
    return RNG.zeroOrMore(RNG.attribute(_any_name(*others), RNG.text()))


def _any_name(*others: str) -> etree._Element:
    """Return the class of names without a namespace, but for some."""
    names = RNG.nsName(ns="")
    if others:
        names.append(getattr(RNG, "except")(*map(RNG.name, others)))
    return names
