"""Random schemas with one fault each, and the diagnostic that each must get first.

A fault is a piece of XML in any place of a valid schema or of a file that it includes. The names in it occur in no drawn
schema. What is wrong with XML itself in one fixed place is in tests/language/faults.txt only.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import dirname, join

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from lxml import etree

from promptcache.diagnostics import Diagnostic, SchemaError
from promptcache.language import check_schema, parse_schema
from promptcache.language.limits import MAX_DEPTH
from promptcache.layout import lay_out
from promptcache.testing import ByteTokenizer, Subject
from promptcache.testing.cover import plain_case
from promptcache.testing.prompt_xml import to_text
from tests.strategies.pieces import CARET, Piece, mark, pointed, put, read_pieces, take_point
from tests.strategies.selected import smallest_with
from tests.strategies.split_files import SchemaFiles

DOCUMENT = "<schema>"
"""The name in diagnostics of a schema that is given as text."""

VALID_PROMPT = "{prompt}"
"""Stands in a piece for a prompt that the schema allows."""

_NUMBERS = st.integers(0, 2**16)

WARNINGS_OF_DRAWN = frozenset({"PC112", "PC222", "PC313", "PC315", "PC518", "PC901", "PC902"})
"""Warnings that drawn schemas may have: drawing makes empty modules, idle rules and awkward whitespace, too."""

_FILE = "stray.xml"
_STRAY = '<schema name="stray"><module name="stray"/></schema>'
_LEVELS = MAX_DEPTH // 2 + 1
_DEEP, _ENDED = '<module name="stray">' * _LEVELS, "</module>" * _LEVELS
_INCLUDE_FILE = '<include href="stray.xml"/>'


def _pieces(where: str) -> tuple[Piece, ...]:
    """Read a section of schema_faults.txt."""
    table = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    return read_pieces(where, table.partition(f"[{where}]\n")[2].partition("\n\n")[0])


SCHEMA_FAULTS = (
    *_pieces("anywhere"),
    *_pieces("root"),
    *(replace(piece, where="anywhere", files={_FILE: _STRAY}) for piece in _pieces("with a file")),
    *(
        replace(piece, where="anywhere", xml=f'<module name="stray"/>{_INCLUDE_FILE}', files={_FILE: piece.xml})
        for piece in _pieces("in a file")
    ),
    *(
        Piece(code=code, name=name, xml=xml, where="anywhere", files=files)
        for code, name, xml, files in (
            (
                "PC217",
                "files that include each other",
                _INCLUDE_FILE,
                {
                    _FILE: '<schema name="stray"><include href="stray2.xml"/></schema>',
                    "stray2.xml": f'<schema name="stray"><include href="{CARET}stray.xml"/></schema>',
                },
            ),
            ("PC203", "included twice", f"{_INCLUDE_FILE}{CARET}{_INCLUDE_FILE}", {_FILE: _STRAY}),
            (
                "PC221",
                "included too deeply",
                f"{_DEEP}{CARET}{_INCLUDE_FILE}{_ENDED}",
                {_FILE: f'<schema name="stray">{_DEEP}{_ENDED}</schema>'},
            ),
        )
    ),
)
"""Every fault that a drawn schema can get. Faults that need megabytes or a certain model are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenSchema:
    """A schema with one fault, and the code and place of the diagnostic that it must get first."""

    xml: str
    files: Mapping[str, str]  # that it includes or takes texts from, by path
    code: str  # PC5xx is found when the schema is laid out, all others before
    mutation: str  # the fault that was put into a valid schema, in a few words
    file: str  # DOCUMENT is the schema itself
    line: int  # from 1
    column: int


def broken_schemas(
    written: SearchStrategy[SchemaFiles], codes: Collection[str] | None = None
) -> SearchStrategy[BrokenSchema]:
    """Draw a schema with one fault, of one of `codes`; None wants all."""
    return _broken_schemas(written, tuple(fault for fault in SCHEMA_FAULTS if codes is None or fault.code in codes))


def first_diagnostic(xml: str, folder: Mapping[str, str] | None = None) -> Diagnostic | None:
    """Return the first diagnostic of a schema up to its layout, or None; warnings of drawn schemas come last."""
    try:
        checked = check_schema(parse_schema(xml, folder=folder))
        lay_out(checked, ByteTokenizer())
    except SchemaError as error:
        return error.diagnostics[0]
    return min(checked.warnings, key=lambda warning: warning.code in WARNINGS_OF_DRAWN, default=None)


@st.composite
def _broken_schemas(draw: DrawFn, drawn: SearchStrategy[SchemaFiles], faults: tuple[Piece, ...]) -> BrokenSchema:
    written = draw(drawn)
    fault = faults[draw(st.integers(0, len(faults) - 1))]
    if fault.code == "PC214":  # there is no folder
        written = SchemaFiles(xml=written.whole, files={}, whole=written.whole)
    texts, file, line, column = take_point(_planted(written, fault, draw(_NUMBERS)))
    return BrokenSchema(
        xml=texts.pop(DOCUMENT), files=texts, code=fault.code, mutation=fault.name, file=file, line=line, column=column
    )


def _planted(written: SchemaFiles, fault: Piece, number: int) -> dict[str, str]:
    """Return all documents by name, with a fault in the place of this number, counted round."""
    texts = {DOCUMENT: written.xml, **written.files}
    roots = {
        name: etree.fromstring(text, etree.XMLParser(strip_cdata=False))
        for name, text in texts.items()
        if not name.endswith(".txt")
    }
    places = [(name, place) for name, root in roots.items() for place in _places(name, root, fault)]
    name, place = places[number % len(places)]
    mark(place, len(place))
    piece = fault.xml
    if VALID_PROMPT in piece:
        subject = Subject(written.checked(), ByteTokenizer())
        smallest = plain_case(subject, smallest_with(subject.schema, frozenset()) or ())
        piece = piece.replace(VALID_PROMPT, smallest.xml)
    texts[name] = put(to_text(roots[name]), piece)
    folder = "" if name == DOCUMENT else dirname(name)
    return texts | {join(folder, file): pointed(text) for file, text in fault.files.items()}


def _places(name: str, root: etree._Element, fault: Piece) -> Iterator[etree._Element]:
    """Yield the elements of a document that can get a fault; in files, those of whole schemas, turns and rules cannot."""
    is_content = not any(tag in fault.xml for tag in ("<user", "<system", "<assistant", "<rules"))
    if name == DOCUMENT or (fault.where == "root" and fault.code < "PC300" and is_content):
        yield root
    if fault.where == "anywhere":
        yield from (each for each in root.iter("module") if each.get("src") is None)
