"""Random schemas with one fault each, and the diagnostic that each must get first.

Comes in: the faults of `schema_faults`. Goes out: a strategy for `BrokenSchema`, and what a document gets first. Places
are counted in the finished text, never asked of the language.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from posixpath import dirname, join

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from lxml import etree

from promptcache.diagnostics import Diagnostic, SchemaError
from promptcache.language import check_schema, parse_schema
from promptcache.layout import lay_out
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cover import plain_case
from promptcache.testing.dividing import LEFT
from promptcache.testing.faulty import line_and_column
from promptcache.testing.markup import to_text
from promptcache.testing.schema_faults import CARET, SCHEMA_FAULTS, VALID_PROMPT, SchemaFault, Where
from promptcache.testing.selecting import smallest_with
from promptcache.testing.strategies import schema_files
from promptcache.testing.subject import Subject
from promptcache.testing.written import SchemaFiles

DOCUMENT = "<schema>"
"""What a schema that is given as text is called in diagnostics."""

_HERE = "<stray-place/>"
_POINT = "\ufffe"  # no XML document can hold it; a caret stands in drawn texts now and then
_HEAD = '<schema name="s"'
_NUMBERS = st.integers(0, 2**16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenSchema:
    """A schema with one fault.

    Attributes:
        xml: The document.
        files: What it includes, and texts that it takes, by their paths.
        code: Of the first diagnostic that it must get. PC5xx is found when the schema is laid out, all others before.
        mutation: What was put into a valid schema, in a few words.
        file: Which of the files that diagnostic must name; "<schema>" is the document.
        line, column: Where it must point in there, both from 1.
    """

    xml: str
    files: Mapping[str, str]
    code: str
    mutation: str
    file: str
    line: int
    column: int

    @property
    def folder(self) -> Mapping[str, str] | None:
        """The files, as `parse_schema` takes them; None if the schema has none."""
        return self.files or None


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


def first_diagnostic(xml: str, folder: Mapping[str, str] | None = None) -> Diagnostic | None:
    """Return what a schema gets first on its way to a layout, warnings included, or None if nothing is wrong.

    Scaffolds of drawn schemas may add nothing: that warning comes last.
    """
    try:
        checked = check_schema(parse_schema(xml, folder=folder))
        lay_out(checked, ByteTokenizer())
    except SchemaError as error:
        return error.diagnostics[0]
    return min(checked.warnings, key=lambda warning: warning.code == "PC313", default=None)


@st.composite
def _broken_schemas(draw: DrawFn, faults: tuple[SchemaFault, ...]) -> BrokenSchema:
    written = draw(schema_files())
    fault = faults[draw(st.integers(0, len(faults) - 1))]
    if fault.code == "PC214":  # that there is no folder
        written = SchemaFiles(xml=written.whole, files={}, whole=written.whole)
    texts = _planted(written, fault, draw(_NUMBERS))
    (file,) = (name for name, text in texts.items() if _POINT in text)
    line, column = line_and_column(texts[file], texts[file].index(_POINT))
    clean = {name: text.replace(_POINT, "") for name, text in texts.items()}
    return BrokenSchema(
        xml=clean.pop(DOCUMENT),
        files=clean,
        code=fault.code,
        mutation=fault.name,
        file=file,
        line=line,
        column=column,
    )


def _planted(written: SchemaFiles, fault: SchemaFault, number: int) -> dict[str, str]:
    """Return all documents by their names, with a fault in the place of this number, counted round."""
    texts = {DOCUMENT: written.xml, **written.files}
    roots = {
        name: etree.fromstring(text, etree.XMLParser(strip_cdata=False))
        for name, text in texts.items()
        if not name.endswith(".txt")
    }
    places = [(name, place) for name, root in roots.items() for place in _places(name, root, fault)]
    name, place = places[number % len(places)]
    etree.SubElement(place, _HERE[1:-2])
    texts[name] = _with_piece(to_text(roots[name]), fault, written)
    folder = "" if name == DOCUMENT else dirname(name)
    return texts | {join(folder, file): _pointed(text) for file, text in fault.files.items()}


def _places(name: str, root: etree._Element, fault: SchemaFault) -> Iterator[etree._Element]:
    """Yield the elements of a document that can get a fault; what only a whole schema gets, no included file does."""
    if name == DOCUMENT or fault.where is Where.HEAD or (fault.where is Where.ROOT and fault.code < "PC300"):
        yield root
    if fault.where is Where.ANYWHERE:
        yield from (each for each in root.iter("module") if each.get("src") is None and each.get("name") != LEFT)


def _with_piece(document: str, fault: SchemaFault, written: SchemaFiles) -> str:
    """Return a document with a fault in the place that was marked for it, or at its head or end."""
    piece = _pointed(fault.piece)
    if VALID_PROMPT in piece:
        piece = piece.replace(VALID_PROMPT, _valid_prompt(written))
    if fault.where is Where.HEAD:
        marked = document.replace(_HERE, "").replace(_HEAD, piece, 1)
    else:
        marked = document.replace(_HERE, piece)
    return marked.removesuffix("</schema>") + fault.end


def _pointed(text: str) -> str:
    """Return a text of the table with its caret as a character that nothing else contains."""
    return text.replace(CARET, _POINT)


def _valid_prompt(written: SchemaFiles) -> str:
    """Return the smallest prompt that a schema allows."""
    subject = Subject(written, ByteTokenizer())
    return plain_case(subject, smallest_with(subject.schema, frozenset()) or ()).xml
