"""Elements of schema documents: their nodes, which declare their attributes, and the elements that they can contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from promptcache.diagnostics import plain_text
from promptcache.language.syntax import nodes
from promptcache.language.syntax.attributes import AttributeType, attributes_of


class ElementType(NamedTuple):
    """Element of a document.

    Attributes:
        node: The node that it becomes; it declares the attributes.
        words: Its meaning, in Markdown.
        children: The elements that it can contain.
        is_inline: Whether it is part of the text around it.
        is_exact: Whether its content is exact text.
    """

    node: type[Any]
    words: str
    children: tuple[str, ...] = ()
    is_inline: bool = False
    is_exact: bool = False


RULES: Mapping[str, ElementType] = {
    "require": ElementType(nodes.Require, "if the first condition holds, the second holds too"),
    "exclude": ElementType(nodes.Exclude, "at most one of the modules is present"),
    "choose": ElementType(nodes.Choose, "in every prompt, this number of the modules is present"),
    "assert": ElementType(nodes.Assert, "in every prompt, the condition holds"),
}
"""Elements that are allowed in `rules` only."""

_IN_TURNS = ("text", "doc", "parameter", "module", "union", "collection", "include")
_ANYWHERE = (*_IN_TURNS, *nodes.Role, "scaffold")
ELEMENTS: Mapping[str, ElementType] = {
    "schema": ElementType(
        nodes.SchemaDocument, "Reusable text, declared once.", (*_ANYWHERE, "answer", "rules", "example")
    ),
    "module": ElementType(nodes.Module, "A named text that a prompt can select.", _ANYWHERE),
    "union": ElementType(nodes.Union, "Alternatives that share one start position.", ("module", "doc")),
    "collection": ElementType(
        nodes.Collection, "Modules that a prompt uses in any order.", ("module", "include", "doc")
    ),
    "parameter": ElementType(nodes.Parameter, "A slot that a prompt can fill.", is_inline=True),
    "scaffold": ElementType(
        nodes.Scaffold, "Modules that are also encoded together, so that they attend to each other."
    ),
    "include": ElementType(nodes.Include, "The modules of another file."),
    **{role.value: ElementType(nodes.Turn, "A chat turn.", (*_IN_TURNS, *nodes.Role)) for role in nodes.Role},
    "text": ElementType(nodes.Text, "Text that is used exactly as it is.", is_inline=True, is_exact=True),
    "doc": ElementType(nodes.Doc, "Documentation, which is never part of a prompt."),
    "answer": ElementType(nodes.AnswerFormat, "The format of answers."),
    "rules": ElementType(nodes.RuleList, "Rules about modules anywhere in the schema.", (*RULES, "doc")),
    **RULES,
    "example": ElementType(nodes.Example, "A prompt for the schema, checked with it.", ("prompt",)),
}
"""Elements of a schema document, by name. A turn in a turn gets a diagnostic of its own, and so does what is in an
example."""


PROMPT_ELEMENTS: Mapping[str, ElementType] = {
    "prompt": ElementType(
        nodes.PromptDocument, "One request against a schema.", ("use", "arg", "answer", "text", *nodes.Role)
    ),
    "use": ElementType(nodes.Reference, "A module by its path.", ("use", "arg")),
    "arg": ElementType(nodes.Argument, "An argument whose text is exact.", is_exact=True),
    "answer": ELEMENTS["answer"],
    **{role.value: ElementType(nodes.Turn, "A chat turn.", ("text",)) for role in nodes.Role},
    "text": ELEMENTS["text"],
}
"""Elements of a prompt document, by name, beside those that name modules."""


def vocabulary() -> dict[str, Any]:
    """Return the elements of schemas as data: what each can contain, and its attributes with values and words."""

    def default(attribute: AttributeType) -> str | None:
        has_none = attribute.required or attribute.default is None or attribute.alias_of
        return None if has_none else attribute.kind.write(attribute.default)

    return {
        name: {
            "children": [
                child for child in element.children if name not in [*nodes.Role] or child not in [*nodes.Role]
            ],
            "attributes": [
                {
                    "name": each.name,
                    "required": each.required,
                    "inherited": each.inherited and each.optional,
                    "default": default(each),
                    "values": each.kind.values,
                    "words": each.words,
                    "detail": plain_text(each.words),
                }
                for each in attributes_of(element.node)
            ],
        }
        for name, element in {**ELEMENTS, "prompt": PROMPT_ELEMENTS["prompt"]}.items()
    }


def instead(element: str, parent: str) -> str | None:
    """Return a fix for an element that is not allowed inside its parent, or None if there is no specific fix."""
    match parent, element:
        case "union", "include":
            return "write the whole union in the file that is included"
        case "union" | "collection", _:
            return f"a {parent} contains only modules: move the element into one of them"
        case "text", "parameter":
            return "write it before or after <text>: text in <text> has no slots"
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
    if not ELEMENTS[parent].children:
        return f"<{parent}> is an empty element: write <{parent} …/>"
    return None
