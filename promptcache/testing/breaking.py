"""Random schemas with one fault each, and the diagnostic that each must get first.

Comes in: the faults of `schema_faults`. Goes out: a strategy for `BrokenSchema`, and what a document gets first. Places
are counted in the finished text, never asked of the language.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from lxml import etree

from promptcache.diagnostics import Diagnostic, SchemaError
from promptcache.language import check_schema, parse_schema
from promptcache.layout import lay_out
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cover import plain_case
from promptcache.testing.faulty import line_and_column
from promptcache.testing.markup import to_text
from promptcache.testing.schema_faults import CARET, SCHEMA_FAULTS, VALID_PROMPT, SchemaFault, Where
from promptcache.testing.selecting import smallest_with
from promptcache.testing.strategies import schema_documents
from promptcache.testing.subject import Subject

_HERE = "<stray-place/>"
_HEAD = '<schema name="s"'
_NUMBERS = st.integers(0, 2**16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenSchema:
    """A schema with one fault.

    Attributes:
        xml: The document.
        code: Of the first diagnostic that it must get. PC5xx is found when the schema is laid out, all others before.
        mutation: What was put into a valid schema, in a few words.
        line, column: Where that diagnostic must point, both from 1.
    """

    xml: str
    code: str
    mutation: str
    line: int
    column: int


def broken_schemas(codes: Collection[str] | None = None) -> SearchStrategy[BrokenSchema]:
    """Draw a schema with one fault in it, and the diagnostic that it must get first.

    Args:
        codes: The faults wanted ("PC203"); None wants all.

    Raises:
        ValueError: no fault that can be made gets any of `codes`.
    """
    faults = tuple(fault for fault in SCHEMA_FAULTS if codes is None or fault.code in codes)
    if not faults:
        raise ValueError(f"no schema is drawn that gets {', '.join(sorted(codes or ()))}")
    return _broken_schemas(faults)


def first_diagnostic(xml: str) -> Diagnostic | None:
    """Return what a schema gets first on its way to a layout, warnings included, or None if nothing is wrong."""
    try:
        checked = check_schema(parse_schema(xml))
        lay_out(checked, ByteTokenizer())
    except SchemaError as error:
        return error.diagnostics[0]
    return next(iter(checked.warnings), None)


@st.composite
def _broken_schemas(draw: DrawFn, faults: tuple[SchemaFault, ...]) -> BrokenSchema:
    document = draw(schema_documents())
    fault = faults[draw(st.integers(0, len(faults) - 1))]
    xml, offset = _planted(document, fault, draw(_NUMBERS) if fault.where is Where.ANYWHERE else 0)
    line, column = line_and_column(xml, offset)
    return BrokenSchema(xml=xml, code=fault.code, mutation=fault.name, line=line, column=column)


def _planted(document: str, fault: SchemaFault, place: int) -> tuple[str, int]:
    """Return a document with a fault in it, in the root or in the module of that number, and where the fault is."""
    root = etree.fromstring(document, etree.XMLParser(strip_cdata=False))
    places = [root, *root.iter("module")]
    etree.SubElement(places[place % len(places)], _HERE[1:-2])
    with_place = to_text(root)
    piece = fault.piece
    if VALID_PROMPT in piece:
        piece = piece.replace(VALID_PROMPT, _valid_prompt(document))
    if fault.where is Where.HEAD:
        marked = with_place.replace(_HERE, "").replace(_HEAD, piece, 1)
    else:
        marked = with_place.replace(_HERE, piece)
    marked = marked.removesuffix("</schema>") + fault.end
    return marked.replace(CARET, ""), marked.index(CARET)


def _valid_prompt(document: str) -> str:
    """Return the smallest prompt that a schema allows."""
    subject = Subject(check_schema(parse_schema(document)), ByteTokenizer())
    return plain_case(subject, smallest_with(subject.schema, frozenset()) or ()).xml
