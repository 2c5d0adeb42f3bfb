"""Random schemas with one fault each, and the diagnostic that each must get first.

A fault is a piece of XML in any place of a valid schema or of a file that it includes. The names in it occur in no drawn
schema. What is wrong with XML itself in one fixed place is in tests/language/rejects only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from posixpath import dirname, join

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from lxml import etree

from promptcache.diagnostics import Diagnostic, SchemaError
from promptcache.language import check_schema, parse_schema
from promptcache.layout import lay_out
from promptcache.testing import ByteTokenizer, Subject
from promptcache.testing.cover import plain_case
from promptcache.testing.prompt_xml import to_text
from promptcache.testing.selection import smallest_with
from tests.strategies.pieces import CARET, Piece, mark, pointed, put, read_pieces, take_point
from tests.strategies.split_files import SchemaFiles

DOCUMENT = "<schema>"
"""The name in diagnostics of a schema that is given as text."""

VALID_PROMPT = "{prompt}"
"""Stands in a piece for a prompt that the schema allows."""

_NUMBERS = st.integers(0, 2**16)

_ROOT = """
PC001 bare <                     | ‸< stray
PC001 bare &                     | ‸& stray
PC003 unknown entity             | ‸&stray;
PC007 processing instruction     | ‸<?stray ?>
PC102 rule outside rules         | <‸assert test="stray"/>
PC102 scaffold in a turn         | <user><‸scaffold modules="stray"/></user>
PC102 two prompts in an example  | <example><prompt schema="s"/><‸prompt schema="s"/></example>
PC103 attribute of a doc of rules | <rules><doc ‸name="stray"/></rules>
PC104 rule without condition     | <rules><‸assert/></rules>
PC104 choice without bounds      | <module name="stray"/><rules><‸choose modules="stray"/></rules>
PC104 example without prompt     | <‸example/>
PC105 bound that is no number    | <module name="stray"/><rules><choose modules="stray" max="‸x"/></rules>
PC106 text in rules              | <rules>‸stray</rules>
PC106 text in an example         | <example>‸stray<prompt schema="s"/></example>
PC110 turn in a turn             | <user><module name="stray">‸<system/></module></user>
PC207 no path in a rule          | <module name="stray"/><rules><exclude modules="stray ‸stray//a"/></rules>
PC208 condition leads nowhere    | <rules><assert test="not ‸stray"/></rules>
PC208 rule leads nowhere         | <module name="stray"/><rules><exclude modules="stray ‸stray2"/></rules>
PC301 no prompt is valid         | <module name="stray" required="‸true"/><module name="stray2" required="true" excludes="stray"/>
PC223 choices with commas        | <module name="stray"><parameter name="stray" length="9" type="choice" choices="‸a,b"/></module>
PC302 module that nobody can use | <module name="stray"/><module name="‸stray2" requires="stray" excludes="stray"/>
PC307 condition without operator | <module name="stray"/><rules><assert test="stray ‸stray"/></rules>
PC307 condition with a symbol    | <module name="stray"/><rules><require if="stray" then="stray ‸|| stray"/></rules>
PC308 condition nested too deeply | <module name="stray"/><rules><assert test="((((((((((((((((((((((((((((((((((((((((((((((((((‸(stray)))))))))))))))))))))))))))))))))))))))))))))))))))"/></rules>
PC309 more than there are        | <module name="stray"/><rules><choose modules="stray" min="‸2"/></rules>
PC310 example is refused         | ‸<example valid="true"><prompt schema="s"><stray/></prompt></example>
PC311 example is accepted        | <example valid="‸false">{prompt}</example>
PC312 example without its text   | <example contains="‸nothing of the kind">{prompt}</example>
"""

WARNINGS_OF_DRAWN = frozenset({"PC112", "PC222", "PC313", "PC315", "PC518", "PC902"})
"""Warnings that drawn schemas may have: drawing makes empty modules and idle rules, too."""

_ANYWHERE = """
PC001 wrong end tag              | <module name="stray">‸</stray>
PC001 attribute twice            | <doc></doc><module name="stray" ‸name="stray"/>
PC101 unknown element            | <‸stray/>
PC102 parameter in a union       | <union><‸parameter name="stray" length="1"/></union>
PC102 rules in a module          | <module name="stray"><‸rules/></module>
PC102 module in a text           | <text><‸module name="stray"/></text>
PC103 unknown attribute          | <module name="stray" ‸stray=""/>
PC104 module without name        | <‸module/>
PC104 slot without length        | <‸parameter name="stray"/>
PC104 scaffold without modules   | <‸scaffold/>
PC104 choice without choices     | <parameter name="stray" length="1" type="‸choice"/>
PC105 flag that is none          | <module name="stray" required="‸yes"/>
PC105 number that is none        | <parameter name="stray" length="‸0"/>
PC105 no such context            | <module name="stray" context="‸stray"/>
PC105 no such type               | <parameter name="stray" length="1" type="‸stray"/>
PC105 no paths                   | <module name="stray" requires="‸ "/>
PC105 separator that is none     | <module name="stray" separator="‸\\x"/>
PC105 two placeholders           | <parameter name="stray" length="1" placeholder="a" ‸scaffold="a"/>
PC106 text in a slot             | <parameter name="stray" length="1">‸stray</parameter>
PC106 text in a union            | <union>‸stray<module name="stray"/></union>
PC108 union without members      | ‸<union/>
PC201 no name of a module        | <module name="‸1 stray"/>
PC201 no name of a slot          | <parameter name="‸1" length="1"/>
PC201 no name of a scaffold      | <module name="stray"/><scaffold name="‸a b" modules="stray"/>
PC202 reserved name of a module  | <module name="‸user"/>
PC202 reserved name of a slot    | <parameter name="‸module" length="1"/>
PC203 module defined twice       | <module name="stray"/><union><module name="‸stray"/></union>
PC204 slot defined twice         | <parameter name="stray" length="1"/> and <parameter name="‸stray" length="1"/>
PC205 union defined twice        | <union name="stray"><module name="stray"/></union><union name="‸stray"><module name="stray2"/></union>
PC206 scaffold defined twice     | <module name="stray"/><scaffold name="stray" modules="stray"/><scaffold name="‸stray" modules="stray"/>
PC207 no path in requires        | <module name="stray" requires="‸a,b"/>
PC207 no path in a scaffold      | <scaffold modules="‸stray//a"/>
PC208 requires leads nowhere     | <module name="stray"/><module name="stray2" requires="stray ‸stray3"/>
PC208 excludes leads nowhere     | <module name="stray" excludes="‸stray2"/>
PC208 after leads nowhere        | <module name="stray" after="‸/stray2"/>
PC208 scaffold leads nowhere     | <scaffold modules="‸stray"/>
PC209 default of another union   | <module name="stray"/><union default="‸stray"><module name="stray2"/></union>
PC214 src without a folder       | <module name="stray" src="‸stray.txt"/>
PC214 include without a folder   | <include href="‸stray.xml"/>
PC215 pattern that is none       | <parameter name="stray" length="1" pattern="‸["/>
PC216 default of another type    | <parameter name="stray" length="1" type="int" default="‸x"/>
PC216 placeholder of another type | <parameter name="stray" length="1" type="choice" choices="a|b" placeholder="‸c"/>
PC303 default that nobody can use | <module name="stray" required="true"/><union default="‸stray2"><module name="stray2" excludes="stray"/><module name="stray3"/></union>
PC304 after what comes later     | <module name="stray" after="‸stray2"/><module name="stray2"/>
PC304 after an alternative       | <union><module name="stray"/><module name="stray2" after="‸stray"/></union>
PC305 scaffold of alternatives   | <union><module name="stray"/><module name="stray2"/></union>‸<scaffold modules="stray stray2"/>
PC306 scaffold of what is new    | <module name="stray" cache="false"/><scaffold modules="‸stray"/>
PC502 default too long           | ‸<parameter name="stray" length="1" default="ab"/>
PC502 placeholder too long       | ‸<parameter name="stray" length="1" placeholder="ab"/>
"""

_INCLUDE = """
PC102 include in a union         | <union><‸include href="stray.xml"/></union>
PC103 unknown attribute of an include | <include href="stray.xml" ‸stray=""/>
PC104 include without a file     | <‸include/>
PC106 text in an include         | <include href="stray.xml">‸stray</include>
PC109 text beside src            | <module name="stray" src="stray.xml">‸stray</module>
PC210 src outside the folder     | <module name="stray" src="‸../../../stray.xml"/>
PC210 include outside the folder | <include href="‸../../../stray.xml"/>
PC210 include from the root      | <include href="‸/stray.xml"/>
PC211 no file for src            | <module name="stray" src="‸stray2.xml"/>
PC211 no file to include         | <include href="‸stray2.xml"/>
PC211 folder to include          | <include href="‸."/>
"""

_INCLUDED = """
PC001 included file not closed   | <schema name="stray">‸<module name="stray">
PC107 includes a prompt          | <‸prompt schema="s"/>
PC203 included beside its like   | <schema name="stray"><module name="stray2"/><module name="‸stray"/></schema>
PC102 union of unions in a file  | <schema name="stray"><module name="stray2"/><union><‸union/></union></schema>
PC208 path that leads nowhere    | <schema name="stray"><module name="stray2" requires="‸stray3"/></schema>
PC217 includes itself            | <schema name="stray"><module name="stray2"/><include href="‸stray.xml"/></schema>
PC219 text outside modules       | <schema name="stray"><module name="stray2"/>‸stray</schema>
PC219 slot outside modules       | <schema name="stray"><module name="stray2"/>‸<parameter name="stray" length="1"/></schema>
PC219 turn outside modules       | <schema name="stray"><module name="stray2"/>‸<user>stray</user></schema>
"""

_FILE = "stray.xml"
_STRAY = '<schema name="stray"><module name="stray"/></schema>'
_DEEP, _ENDED = '<module name="stray">' * 60, "</module>" * 60
_INCLUDE_FILE = '<include href="stray.xml"/>'

SCHEMA_FAULTS = (
    *read_pieces("anywhere", _ANYWHERE),
    *read_pieces("root", _ROOT),
    *(replace(piece, files={_FILE: _STRAY}) for piece in read_pieces("anywhere", _INCLUDE)),
    *(
        replace(piece, xml=f'<module name="stray"/>{_INCLUDE_FILE}', files={_FILE: piece.xml})
        for piece in read_pieces("anywhere", _INCLUDED)
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
    """A schema with one fault.

    Attributes:
        xml: The document.
        files: The files that it includes, and texts that it takes, by path.
        code: Of the first diagnostic. PC5xx is found when the schema is laid out, all others before.
        mutation: The fault that was put into a valid schema, in a few words.
        file: The document that the diagnostic names; "<schema>" is the schema itself.
        line, column: The place of the diagnostic in it, both from 1.
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


def broken_schemas(
    written: SearchStrategy[SchemaFiles], codes: Collection[str] | None = None
) -> SearchStrategy[BrokenSchema]:
    """Draw a schema with one fault, of one of `codes`; None wants all.

    Raises:
        ValueError: no fault gets any of `codes`.
    """
    faults = tuple(fault for fault in SCHEMA_FAULTS if codes is None or fault.code in codes)
    if not faults:
        raise ValueError(f"no schema is drawn that gets {', '.join(sorted(codes or ()))}")
    return _broken_schemas(written, faults)


def first_diagnostic(xml: str, folder: Mapping[str, str] | None = None) -> Diagnostic | None:
    """Return the first diagnostic of a schema up to its layout, warnings included, or None.

    Warnings that drawn schemas may have come last.
    """
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
    piece = fault.xml.replace(VALID_PROMPT, _valid_prompt(written)) if VALID_PROMPT in fault.xml else fault.xml
    texts[name] = put(to_text(roots[name]), piece)
    folder = "" if name == DOCUMENT else dirname(name)
    return texts | {join(folder, file): pointed(text) for file, text in fault.files.items()}


def _places(name: str, root: etree._Element, fault: Piece) -> Iterator[etree._Element]:
    """Yield the elements of a document that can get a fault.

    Faults of a whole schema are not put into files, and neither are turns and rules, which may be a fault there
    themselves.
    """
    is_content = not fault.xml.startswith(("<user", "<system", "<assistant", "<rules"))
    if name == DOCUMENT or (fault.where == "root" and fault.code < "PC300" and is_content):
        yield root
    if fault.where == "anywhere":
        yield from (each for each in root.iter("module") if each.get("src") is None)


def _valid_prompt(written: SchemaFiles) -> str:
    """Return the smallest prompt that a schema allows."""
    subject = Subject(written.checked(), ByteTokenizer())
    return plain_case(subject, smallest_with(subject.schema, frozenset()) or ()).xml
