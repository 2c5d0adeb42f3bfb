"""The elements of a schema that hold no items of it: parameters and examples.

Comes in: one such element. Goes out: its node, and a diagnostic for everything about it that cannot stand. This file
does not read the prompt of an example.
"""

from __future__ import annotations

from promptcache.diagnostics import Diagnostic
from promptcache.language.syntax.attributes import AttributeReader
from promptcache.language.syntax.elements import ATTRIBUTES
from promptcache.language.syntax.nodes import Doc, Example, Parameter, ParameterType
from promptcache.language.syntax.xml import Characters, Element


def read_parameter(element: Element, faults: list[Diagnostic]) -> Parameter:
    """Read a parameter."""
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
    """Read an example; one without a prompt counts as documentation."""
    attributes = AttributeReader(element, ATTRIBUTES["example"], faults)
    prompts = [node for node in element.children if isinstance(node, Element) and node.name == "prompt"]
    faults += _misplaced(element, prompts[:1])
    if not prompts:
        message, mend = "<example> needs a prompt", 'write <prompt schema="…"> into it'
        faults.append(Diagnostic(code="PC104", message=message, span=element.name_span, help=mend))
        return Doc(text="", span=element.span)
    prompt = prompts[0]
    return Example(
        prompt=prompt.source.text[prompt.start : prompt.end],
        prompt_span=prompt.span,
        span=element.span,
        name=attributes.text("name"),
        valid=attributes.flag("valid"),
        contains=attributes.text("contains"),
        places=attributes.places,
    )


def _misplaced(example: Element, prompts: list[Element]) -> list[Diagnostic]:
    found = []
    for node in example.children:
        if isinstance(node, Element) and node not in prompts:
            message, mend = f"<{node.name}> cannot stand inside <example>", "write one <prompt> in each example"
            found.append(Diagnostic(code="PC102", message=message, span=node.name_span, help=mend))
        elif isinstance(node, Characters) and not node.blank:
            message, mend = "<example> holds no text of its own", "write it into the <prompt>"
            found.append(Diagnostic(code="PC106", message=message, span=node.span, help=mend))
    return found
