"""Faults of a prompt document that can be seen without its schema, but for the schema's name.

Comes in: a valid prompt tree. Goes out: ways to break it, done when they are called. Knows no modules and no rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from lxml import etree

from promptcache.testing.choices import Said
from promptcache.testing.faulty import (
    MARK,
    Fault,
    Way,
    at_attribute,
    at_content,
    at_last_text,
    at_name,
    at_tag,
    at_text,
    at_value,
)
from promptcache.testing.prompt_xml import PromptTree

_DEEP = f"<{MARK}>" * 100


def structure_faults(tree: PromptTree) -> Iterator[tuple[str, Way]]:
    """Yield the ways to break the structure of a prompt."""
    yield from _misnamed(tree)
    yield from _misplaced(tree)


def reading_faults() -> Iterator[tuple[str, Way]]:
    """Yield what no XML parser, or none of ours, reads."""
    first = at_text("<prompt")
    yield "not closed", lambda: Fault(code="PC001", spot=first, edit=_without_end)
    yield "bare <", lambda: Fault(code="PC001", spot=at_text(f"< {MARK}"), edit=_ending_in(f"< {MARK}"))
    yield "bare &", lambda: Fault(code="PC001", spot=at_text(f"& {MARK}"), edit=_ending_in(f"& {MARK}"))
    yield "unknown entity", lambda: Fault(code="PC003", spot=at_text(f"&{MARK};"), edit=_ending_in(f"&{MARK};"))
    yield "nested too deeply", lambda: Fault(code="PC005", spot=_deepest, edit=_ending_in(_DEEP))
    encoding = '<?xml version="1.0" encoding="latin-1"?>'
    yield "another encoding", lambda: Fault(code="PC006", spot=at_text(encoding), edit=lambda xml: f"{encoding}{xml}")
    doctype = "<!DOCTYPE prompt>"
    yield "doctype", lambda: Fault(code="PC002", spot=at_text(doctype), edit=lambda xml: f"{doctype}\n{xml}")
    instruction = f"<?{MARK} ?>"
    yield (
        "processing instruction",
        lambda: Fault(code="PC007", spot=at_text(instruction), edit=_ending_in(instruction)),
    )
    namespace = f'xmlns:{MARK}="{MARK}"'
    yield (
        "namespace",
        lambda: Fault(code="PC008", spot=at_text(namespace), edit=lambda xml: f"<prompt {namespace}{xml[7:]}"),
    )


def _deepest(document: str) -> int:
    """Return where the hundredth element inside the prompt has its name."""
    return document.index(_DEEP) + _DEEP.rindex(MARK)


def _without_end(document: str) -> str:
    return document[:-2] + ">" if document.endswith("/>") else document.removesuffix("</prompt>")


def _ending_in(raw: str) -> Callable[[str], str]:
    return lambda document: f"{_without_end(document)}{raw}</prompt>"


def _misnamed(tree: PromptTree) -> Iterator[tuple[str, Way]]:
    """Yield wrong names of the document and of its schema."""
    root = tree.root

    def another_document() -> Fault:
        root.tag = "schema"
        return Fault(code="PC107", spot=at_name(root))

    def no_schema() -> Fault:
        del root.attrib["schema"]
        return Fault(code="PC104", spot=at_name(root))

    def another_schema() -> Fault:
        root.set("schema", f"{root.get('schema')}x")
        return Fault(code="PC413", spot=at_tag(root))

    def no_range() -> Fault:
        root.set("version", MARK)
        return Fault(code="PC105", spot=at_value(root, "version"))

    yield "another document", another_document
    yield "no range of versions", no_range
    yield "no schema", no_schema
    yield "another schema", another_schema


def _misplaced(tree: PromptTree) -> Iterator[tuple[str, Way]]:
    """Yield texts, turns and elements where they cannot stand."""
    root = tree.root

    def text_beside_turn() -> Fault:
        return Fault(code="PC416", spot=at_last_text(MARK), messages=(Said(text=MARK), Said(role="user", text="a")))

    yield "bare text beside a turn", text_beside_turn
    if len(root):
        yield "reference behind a turn", lambda: _reference_behind_turn(root)
    for path, element in tree.references.items():
        if path or len(root):
            yield "text between references", partial(_text_between, element)
        yield "element of a schema", partial(_inserted, element, etree.Element("doc"), "PC102")
        yield "use without module", partial(_inserted, element, etree.Element("use"), "PC104")
        yield "argument without name", partial(_inserted, element, etree.Element("arg"), "PC104")
        yield "malformed path", partial(_malformed_path, element)
        yield "unknown attribute", partial(_unknown_attribute, element)


def _reference_behind_turn(root: etree._Element) -> Fault:
    root.insert(0, etree.Element("user"))
    return Fault(code="PC415", spot=at_name(root[1]))


def _text_between(element: etree._Element) -> Fault:
    element.text = f"{MARK}{element.text or ''}"
    return Fault(code="PC412", spot=at_content(element))


def _inserted(parent: etree._Element, element: etree._Element, code: str) -> Fault:
    parent.insert(0, element)
    return Fault(code=code, spot=at_name(element))


def _malformed_path(parent: etree._Element) -> Fault:
    parent.insert(0, etree.Element("use", module=f"{MARK}//{MARK}"))
    return Fault(code="PC207", spot=at_value(parent[0], "module"))


def _unknown_attribute(parent: etree._Element) -> Fault:
    parent.insert(0, etree.Element("arg", {"name": MARK, MARK: ""}))
    return Fault(code="PC103", spot=at_attribute(parent[0], MARK))
