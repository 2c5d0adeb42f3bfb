"""The XSD accepts everything that the grammar accepts, and more only where its comments say so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from promptcache.language import check_schema, parse_schema
from tests import strategies
from tests.conftest import law_examples
from tests.grammar.structure import GRAMMAR, broken_documents, structural_codes
from tests.grammar.test_published import RNG, STORED

XSD = etree.XMLSchema(etree.parse(GRAMMAR / "promptcache.xsd"))
UNSEEN = etree.XPath(
    "//module[@src][*[not(self::doc)] or text()[normalize-space()]] | //parameter[@placeholder and @scaffold]"
    " | //*[self::parameter or self::answer][boolean(@choices) != (@type = 'choice')]"
    " | //answer[@src and (@type or @choices or @pattern)] | /schema[answer[2]] | //choose[not(@min or @max)] | //example//*"
)
"""What the head of the file says that it does not see in schemas."""


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), document=strategies.schema_documents())
def test_accepts_valid_documents(data, document):
    """Every valid schema, and every valid prompt against it, is accepted."""
    assert XSD.validate(etree.fromstring(document))
    prompt = data.draw(strategies.prompt_documents(check_schema(parse_schema(document))))
    assert XSD.validate(etree.fromstring(prompt))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_accepts_stored_documents(path):
    """The XSD accepts every schema and prompt of this repository."""
    assert XSD.validate(etree.parse(path))


@pytest.mark.law
@settings(max_examples=law_examples())
@given(document=broken_documents())
def test_agrees_but_for_what_it_does_not_see(document):
    """A changed schema is accepted exactly if its structure is right or its fault is of those that the file names."""
    root = etree.fromstring(document)
    codes, accepted = structural_codes(document), XSD.validate(root)
    if not codes:
        assert accepted
    elif root.tag == "schema" and not UNSEEN(root):
        assert not accepted


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
def test_numbers_are_those_of_the_checker(value, allowed):
    """The least number of positions of a module is, in both grammars, what the checker takes for one."""
    document = f'<schema name="s"><module name="a" reserve="{value}"/></schema>'
    root = etree.fromstring(document)
    assert (not structural_codes(document)) == allowed == XSD.validate(root) == RNG.validate(root)
