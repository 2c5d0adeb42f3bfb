"""The published grammar and the checker agree on the structure of documents, and the files for editors name grammars."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import LanguageError, Severity
from promptcache.language import check_schema, document_grammar, parse_prompt, parse_schema
from promptcache.language.prompt import example_prompt
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.elements import ELEMENTS, PROMPT_ELEMENTS
from tests import strategies
from tests.conftest import law_examples
from tests.language.faults import documents
from tools import language_files

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


ROOT = GRAMMAR.parent
RNG = etree.RelaxNG(etree.parse(GRAMMAR / "promptcache.rng"))
STORED = sorted(
    [*ROOT.glob("schemas/*.xml"), *ROOT.glob("examples/*/*.xml"), *ROOT.glob("tests/language/schemas/*.xml")]
)
FAULTY = [text for code, text in documents() if "PC100" < code < "PC500"]
UNSEEN = 'choices="x|x"'
"""What the grammar does not see: a choice that is given twice."""


def accepts(document: str) -> bool:
    return bool(RNG.validate(etree.fromstring(document.encode())))


@pytest.mark.law
@settings(max_examples=law_examples(2))
@given(document=broken_documents())
def test_agrees_on_changed_documents(document):
    """A document that was changed at random is accepted exactly if the checker finds its structure right."""
    assert accepts(document) == (not structural_codes(document))


def test_accepts_stored_documents():
    """The grammar accepts every schema and prompt of this repository."""
    assert [path.name for path in STORED if not accepts(path.read_text(encoding="utf-8"))] == []


def test_agrees_on_faulty_documents():
    """Of every document that is refused, the grammar refuses those that have their structure wrong."""
    for document in FAULTY:
        assert accepts(document) == (not structural_codes(document) or UNSEEN in document), document


def test_files_are_made_from_the_declarations() -> None:
    """The grammar and the tables of docs/language.md are what `python -m tools.language_files` writes."""
    page = language_files.PAGE.read_text(encoding="utf-8")

    assert language_files.GRAMMAR.read_text(encoding="utf-8") == document_grammar()
    assert page == language_files.with_tables(page)
    assert page.count("| attribute | |") == 8


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("1", True),
        ("007", True),
        ("", False),
        ("0", False),
        ("-1", False),
        ("1234567890", False),
        ("1.0", False),
        (" 1", False),
    ],
)
def test_numbers_are_those_of_the_checker(value: str, allowed: bool) -> None:
    """The least number of positions of a module is, in the grammar, what the checker takes for one."""
    document = f'<schema name="s"><module name="a" reserve="{value}"/></schema>'
    assert (not structural_codes(document)) == allowed == accepts(document)


def test_the_catalog_names_grammars_that_exist():
    """Every grammar that the catalog names is in its folder."""
    named = etree.parse(GRAMMAR / "catalog.xml").xpath("//@uri")
    assert named
    assert all((GRAMMAR / uri).is_file() for uri in named)


def test_settings_can_be_read():
    """The settings for Visual Studio Code are JSON, name our grammar, and keep other formatters away."""
    settings = json.loads((GRAMMAR / "vscode-settings.json").read_text(encoding="utf-8"))
    assert settings["xml.fileAssociations"][0]["systemId"].endswith("/grammar/promptcache.rng")
    assert settings["xml.format.enabled"] is False


def test_page_names_every_file():
    """docs/grammar.md lists each file."""
    page = (GRAMMAR.parent / "docs" / "grammar.md").read_text(encoding="utf-8")
    files = {path.name for path in GRAMMAR.iterdir() if path.is_file()}
    assert files <= set(re.findall(r"`([\w.-]+)`", page))
