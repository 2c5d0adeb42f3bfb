"""Elements of a schema document: their attributes, their allowed children, and readers for the smaller elements.

The tables `ATTRIBUTES` and `CHILDREN` define the vocabulary of schemas. Tests compare them with the grammar.
`read_items` reads the elements that contain items.
"""

from __future__ import annotations

from promptcache.diagnostics import Diagnostic
from promptcache.language.syntax.attributes import AttributeReader
from promptcache.language.syntax.nodes import (
    Assert,
    Choose,
    Combination,
    Doc,
    Example,
    Exclude,
    Parameter,
    ParameterType,
    Require,
    Role,
)
from promptcache.language.syntax.source import diagnostic
from promptcache.language.syntax.xml import Characters, Element

RULE_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "require": ("if", "then", "message"),
    "exclude": ("modules", "message"),
    "choose": ("modules", "min", "max", "message"),
    "assert": ("test", "message"),
}
"""Attributes of the elements that are allowed in `rules`, by element."""

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "schema": ("name", "version", "whitespace", "separator", "context", "repair", "positions"),
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
    "collection": ("name", "min", "max", "src", "context", "whitespace", "separator"),
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
    "include": ("href",),
    "example": ("name", "valid", "contains", "answer"),
    "answer": ("type", "choices", "pattern", "src"),
    "rules": (),
    **RULE_ATTRIBUTES,
    "system": (),
    "user": (),
    "assistant": (),
    "text": (),
    "doc": (),
}
"""Attributes of the elements of a schema document, by element."""

_ANYTHING = frozenset(ATTRIBUTES) - {"schema", "rules", "example", "answer"} - RULE_ATTRIBUTES.keys()
CHILDREN = {
    "schema": _ANYTHING | {"rules", "example", "answer"},
    "rules": frozenset({*RULE_ATTRIBUTES, "doc"}),
    "module": _ANYTHING,
    "union": frozenset({"module", "doc"}),
    "collection": frozenset({"module", "include", "doc"}),
    **{role.value: _ANYTHING - {"scaffold"} for role in Role},
}
"""Child elements that are allowed, by parent element. Elements without an entry contain only text, or nothing."""


def instead(element: str, parent: str) -> str | None:
    """Return a fix for an element that is not allowed inside its parent, or None if there is no specific fix."""
    match parent, element:
        case "union", "include":
            return "write the whole union in the file that is included"
        case "union" | "collection", _:
            return f"a {parent} contains only modules: move the element into one of them"
        case "text" | "doc", _:
            return "write &lt; for a literal <, or use <![CDATA[…]]>"
        case _, "scaffold":
            return "write the scaffold outside of the turn; its paths can name modules inside the turn"
        case _, "answer":
            return "write <answer> at the top level of the schema"
        case _, "rules" | "example":
            return f"write <{element}> at the top level of the schema; its paths can name any module"
        case _, "require" | "exclude" | "choose" | "assert":
            return "move the rule into <rules> at the top level of the schema"
        case _, "schema":
            return "a document has only one <schema>, its root element"
        case _, "prompt":
            return "a prompt is a document of its own, or inside of <example>"
    if parent not in CHILDREN:
        return f"<{parent}> is an empty element: write <{parent} …/>"
    return None


def read_parameter(element: Element, faults: list[Diagnostic]) -> Parameter:
    """Read a `parameter` element."""
    attributes = AttributeReader(element, ATTRIBUTES["parameter"], faults)
    return Parameter(
        name=attributes.needed("name"),
        length=attributes.needed_number("length"),
        span=element.span,
        default=attributes.text("default"),
        placeholder=attributes.either("placeholder", "scaffold"),
        cut_placeholder=attributes.text("placeholder") is None and attributes.text("scaffold") is not None,
        required=attributes.flag("required") or False,
        type=attributes.choice("type", ParameterType) or ParameterType.TEXT,
        choices=attributes.alternatives("choices"),
        pattern=attributes.text("pattern"),
        message=attributes.text("message"),
        places=attributes.places,
    )


def read_example(element: Element, faults: list[Diagnostic]) -> Example | Doc:
    """Read an `example` element. An example without a prompt is a fault and becomes a `Doc`."""
    attributes = AttributeReader(element, ATTRIBUTES["example"], faults)
    prompts = [node for node in element.children if isinstance(node, Element) and node.name == "prompt"]
    faults += _misplaced(element, prompts[:1])
    if not prompts:
        message, advice = "<example> needs a prompt", 'add <prompt schema="…">'
        faults.append(diagnostic("PC104", message, element.name_span, advice))
        return Doc(text="", span=element.span)
    prompt = prompts[0]
    return Example(
        prompt=prompt.source.text[prompt.start : prompt.end],
        prompt_span=prompt.span,
        span=element.span,
        name=attributes.text("name"),
        valid=attributes.flag("valid"),
        contains=attributes.text("contains"),
        answer=attributes.text("answer"),
        places=attributes.places,
    )


def _misplaced(example: Element, prompts: list[Element]) -> list[Diagnostic]:
    found = []
    for node in example.children:
        if isinstance(node, Element) and node not in prompts:
            message, advice = f"<{node.name}> is not allowed inside <example>", "write one <prompt> in each example"
            found.append(diagnostic("PC102", message, node.name_span, advice))
        elif isinstance(node, Characters) and not node.blank:
            message, advice = "<example> cannot contain text", "move the text into the <prompt>"
            found.append(diagnostic("PC106", message, node.span, advice))
    return found


def read_rule(element: Element, faults: list[Diagnostic]) -> Combination:
    """Read a rule. Diagnostics for its attributes are added to `faults`."""
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
