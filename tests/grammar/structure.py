"""The checker's findings about the structure of a document, and documents with faults of structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import LanguageError, Severity
from promptcache.language import check_schema, parse_prompt, parse_schema
from promptcache.language.prompt import example_prompt
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.elements import ELEMENTS, PROMPT_ELEMENTS
from tests import strategies

GRAMMAR = Path(__file__).parents[2] / "grammar"

_ELEMENTS = (*ELEMENTS, *PROMPT_ELEMENTS, "include", "tool", "other")
_ATTRIBUTES = sorted(
    {
        each.name
        for kind in (ELEMENTS, PROMPT_ELEMENTS)
        for element in kind.values()
        for each in attributes_of(element.node)
    }
)
_VALUES = (
    "", " ", "a", "true", " true", "True", "0", "007", "12", "-1", "1234567890", "own", "collapse", "\\n", "\\x", "a b"
)  # fmt: skip


def structural_codes(document: str) -> set[str]:
    """Return the codes of a document's structure, without PC403: a grammar of structure has no parameters."""
    try:
        if document.lstrip().startswith("<prompt"):
            parse_prompt(document)
        else:
            schema = parse_schema(document)
            for example in schema.examples:
                if example.valid is not False:
                    example_prompt(example)
            check_schema(schema)
    except LanguageError as error:
        found = {each.code for each in error.diagnostics if each.severity is Severity.ERROR}
        if found == {"PC214"} and "<include" in document:
            # there is no folder: what would be found with the files is found without the includes
            root = etree.fromstring(document)
            etree.strip_elements(root, "include", with_tail=False)
            return structural_codes(etree.tostring(root, encoding="unicode"))
        return {code for code in found if code < "PC200" or code in {"PC412", "PC415", "PC416"}}
    return set()


@st.composite
def broken_documents(draw: Any) -> str:
    """Draw a schema or a prompt, changed in one or two places in a way that may break its structure."""
    document = draw(strategies.schema_documents())
    if draw(st.booleans()):
        document = draw(strategies.prompt_documents(check_schema(parse_schema(document))))
    root = etree.fromstring(document)
    for _ in range(draw(st.integers(1, 2))):
        element = draw(st.sampled_from([each for each in root.iter() if isinstance(each.tag, str)]))
        _change(draw, element)
    return etree.tostring(root, encoding="unicode")


def _change(draw: Any, element: etree._Element) -> None:
    match draw(st.sampled_from(("set", "set", "drop", "insert", "insert", "text", "rename"))):
        case "set":
            element.set(draw(st.sampled_from([*_ATTRIBUTES, *element.attrib])), draw(st.sampled_from(_VALUES)))
        case "drop" if element.attrib:
            del element.attrib[draw(st.sampled_from(sorted(element.attrib)))]
        case "insert":
            child = etree.Element(draw(st.sampled_from(_ELEMENTS)))
            if draw(st.booleans()):
                child.set("href" if child.tag == "include" else "name", "fresh")
            element.insert(draw(st.integers(0, len(element))), child)
        case "text":
            element.text = f"words{element.text or ''}"
        case "rename" if element.getparent() is not None:
            element.tag = draw(st.sampled_from(_ELEMENTS))
