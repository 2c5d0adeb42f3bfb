"""The published grammar and the checker agree on the structure of documents, and the files for editors name grammars."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from lxml import etree

from promptcache.language import document_grammar
from tests.conftest import law_examples
from tests.grammar.structure import GRAMMAR, broken_documents, structural_codes
from tests.language.faults import documents
from tools import language_files

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
