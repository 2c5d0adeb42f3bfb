"""The published grammar and the checker agree on the structure of documents."""

from __future__ import annotations

import hashlib
import importlib.util
import re

import pytest
from hypothesis import given, settings
from lxml import etree

from promptcache.language.syntax.elements import ATTRIBUTES
from tests.conftest import law_examples
from tests.grammar.structure import GRAMMAR, broken_documents, structural_codes

ROOT = GRAMMAR.parent
RNG = etree.RelaxNG(etree.parse(GRAMMAR / "promptcache.rng"))
STORED = sorted(
    [*ROOT.glob("schemas/*.xml"), *ROOT.glob("examples/*/*.xml"), *ROOT.glob("tests/language/schemas/*.xml")]
)
REJECTS = sorted(ROOT.glob("tests/language/rejects/PC[1-4]*.xml"))
UNSEEN = {"PC105-choice-twice", "PC105-contains-of-invalid"}
"""The files whose faults the grammar does not see."""

NS = "{http://relaxng.org/ns/structure/1.0}"


def accepts(document: str) -> bool:
    return bool(RNG.validate(etree.fromstring(document.encode())))


@pytest.mark.law
@settings(max_examples=law_examples(2))
@given(document=broken_documents())
def test_agrees_on_changed_documents(document):
    """A document that was changed at random is accepted exactly if the checker finds its structure right."""
    assert accepts(document) == (not structural_codes(document))


def test_accepts_stored_documents():
    """The grammars accept every schema and prompt of this repository."""
    assert [path.name for path in STORED if not accepts(path.read_text(encoding="utf-8"))] == []


def test_agrees_on_rejects():
    """Of every document that is refused, the grammar refuses those that have their structure wrong."""
    for path in REJECTS:
        document = re.sub(r"^(?:<!--.*?-->|\s)+", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert accepts(document) == (not structural_codes(document) or path.stem in UNSEEN), path.name


def test_knows_every_element_and_attribute_of_schemas():
    """No element of the checker's table lacks an attribute in the grammar."""
    assert {name: set(known) - grammar_attributes(name) for name, known in ATTRIBUTES.items()} == {
        name: set() for name in ATTRIBUTES
    }


def grammar_attributes(element: str) -> set[str]:
    """Return the attributes that the grammar has for an element of a schema."""
    grammar = etree.parse(GRAMMAR / "promptcache.rng").getroot()
    defines = {define.get("name"): define for define in grammar.iter(f"{NS}define")}
    found, seen = set(), set()
    waiting = [each for each in grammar.iter(f"{NS}element") if each.findtext(f"{NS}name") == element]
    while waiting:
        for child in waiting.pop():
            if child.tag == f"{NS}attribute":
                found.add(child.findtext(f"{NS}name"))
            elif child.tag == f"{NS}ref" and child.get("name") not in seen:
                seen.add(child.get("name"))
                waiting.append(defines[child.get("name")])
            elif child.tag != f"{NS}element":
                waiting.append(child)
    return found


def test_rng_is_made_from_rnc():
    """The grammar in XML is the translation of the compact source."""
    digest = hashlib.sha256((GRAMMAR / "promptcache.rnc").read_bytes()).hexdigest()
    assert f"sha256 {digest}" in (GRAMMAR / "promptcache.rng").read_text(encoding="utf-8"), "run grammar/make_rng.py"


def test_rng_is_what_its_script_makes():
    """The converter, if it is installed, makes the committed file."""
    pytest.importorskip("rnc2rng")
    spec = importlib.util.spec_from_file_location("make_rng", GRAMMAR / "make_rng.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.make_rng() == (GRAMMAR / "promptcache.rng").read_text(encoding="utf-8")
