"""Faults that a schema can have, each as a piece of XML that has it and no other.

Comes in: nothing. Goes out: the table `SCHEMA_FAULTS`. A piece goes into any valid schema, or into a file that it
includes: the names in it occur in no schema that is drawn. `‸` stands where the diagnostic must point. This file writes
no document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

CARET = "‸"
"""Marks where a diagnostic must point; it is taken out before the piece is used."""

VALID_PROMPT = "{prompt}"
"""Stands in a piece for a prompt that the schema allows."""


class Where(StrEnum):
    """Where a piece can be put: in place of `<schema name="s"`, as the last child of the root, or of any module too."""

    HEAD = "head"
    ROOT = "root"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFault:
    """One fault by its name, the code that it gets first, and the piece of XML that has it.

    Attributes:
        end: What ends the document.
        files: Files that the piece names, beside the document. What names a file and has none is in no folder.
    """

    name: str
    code: str
    piece: str
    where: Where
    end: str = "</schema>"
    files: Mapping[str, str] = field(default_factory=dict)


def _faults(where: Where, table: str) -> tuple[SchemaFault, ...]:
    """Read lines of a name, a code and a piece."""
    rows = (line.split(maxsplit=1) for line in table.strip().splitlines())
    parts = [(code, *rest.split(" | ", 1)) for code, rest in rows]
    return tuple(SchemaFault(name=name.strip(), code=code, piece=piece, where=where) for code, name, piece in parts)


_HEAD = """
PC001 another version of XML     | ‸<?xml version="1.1"?><schema name="s"
PC002 doctype                    | ‸<!DOCTYPE schema><schema name="s"
PC006 another encoding           | ‸<?xml version="1.0" encoding="latin-1"?><schema name="s"
PC008 namespace                  | <schema name="s" ‸xmlns:stray="stray"
PC103 unknown attribute at the top | <schema name="s" ‸stray=""
PC104 no name                    | <‸schema
PC201 no name of a schema        | <schema name="‸a b"
"""

_ROOT = """
PC001 bare <                     | ‸< stray
PC001 bare &                     | ‸& stray
PC003 unknown entity             | ‸&stray;
PC007 processing instruction     | ‸<?stray ?>
PC102 rule outside rules         | <‸assert test="stray"/>
PC102 scaffold in a turn         | <user><‸scaffold modules="stray"/></user>
PC102 two prompts in an example  | <example><prompt schema="s"/><‸prompt schema="s"/></example>
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
PC302 module that nobody can use | <module name="stray"/><module name="‸stray2" requires="stray" excludes="stray"/>
PC307 condition without operator | <module name="stray"/><rules><assert test="stray ‸stray"/></rules>
PC307 condition with a symbol    | <module name="stray"/><rules><require if="stray" then="stray ‸|| stray"/></rules>
PC309 more than there are        | <module name="stray"/><rules><choose modules="stray" min="‸2"/></rules>
PC310 example is refused         | ‸<example valid="true"><prompt schema="s"><stray/></prompt></example>
PC311 example is accepted        | <example valid="‸false">{prompt}</example>
PC312 example without its text   | <example contains="‸nothing of the kind">{prompt}</example>
"""  # noqa: E501 # a table reads better unbroken

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
"""  # noqa: E501

_INCLUDE = """
PC102 include in a union         | <union><‸include href="stray.xml"/></union>
PC103 unknown attribute of an include | <include href="stray.xml" ‸stray=""/>
PC104 include without a file     | <‸include/>
PC105 nothing selected           | <include href="stray.xml" select="‸ "/>
PC106 text in an include         | <include href="stray.xml">‸stray</include>
PC109 text beside src            | <module name="stray" src="stray.xml">‸stray</module>
PC201 no prefix                  | <include href="stray.xml" prefix="‸1"/>
PC210 src outside the folder     | <module name="stray" src="‸../../../stray.xml"/>
PC210 include outside the folder | <include href="‸../../../stray.xml"/>
PC210 include from the root      | <include href="‸/stray.xml"/>
PC211 no file for src            | <module name="stray" src="‸stray2.xml"/>
PC211 no file to include         | <include href="‸stray2.xml"/>
PC211 folder to include          | <include href="‸."/>
PC218 nothing of this name       | <include href="stray.xml" select="stray ‸stray2"/>
"""

_INCLUDED = """
PC001 included file not closed   | <schema name="stray">‸<module name="stray">
PC107 includes a prompt          | <‸prompt schema="s"/>
PC203 included beside its like   | <schema name="stray"><module name="stray2"/><module name="‸stray"/></schema>
PC208 path out of its file       | <schema name="stray"><module name="stray2" requires="‸stray"/></schema>
PC217 includes itself            | <schema name="stray"><module name="stray2"/><include href="‸stray.xml"/></schema>
PC219 text outside modules       | <schema name="stray"><module name="stray2"/>‸stray</schema>
PC219 slot outside modules       | <schema name="stray"><module name="stray2"/>‸<parameter name="stray" length="1"/></schema>
PC219 turn outside modules       | <schema name="stray"><module name="stray2"/>‸<user>stray</user></schema>
"""  # noqa: E501

_SELECTED = """
PC220 needs what stays behind    | <schema name="stray"><module name="stray"/><module name="stray2" requires="‸stray"/></schema>
PC220 after what stays behind    | <schema name="stray"><module name="stray"/><module name="stray2" after="‸stray"/></schema>
PC220 rule that cannot be kept   | <schema name="stray"><module name="stray"/><module name="stray2"/><rules>‸<assert test="stray and stray2"/></rules></schema>
PC220 too few are left           | <schema name="stray"><module name="stray"/><module name="stray2"/><rules><choose modules="stray stray2" min="‸2"/></rules></schema>
"""  # noqa: E501

_FILE = "stray.xml"
_STRAY = '<schema name="stray"><module name="stray"/></schema>'
_DEEP, _ENDED = '<module name="stray">' * 60, "</module>" * 60


def _naming(table: str) -> tuple[SchemaFault, ...]:
    """Read faults of pieces that name a file in which nothing is wrong."""
    return tuple(replace(fault, files={_FILE: _STRAY}) for fault in _faults(Where.ANYWHERE, table))


def _named(table: str, piece: str) -> tuple[SchemaFault, ...]:
    """Read faults of files that a piece names."""
    return tuple(replace(fault, piece=piece, files={_FILE: fault.piece}) for fault in _faults(Where.ANYWHERE, table))


_SEVERAL = (
    SchemaFault(
        name="files that include each other",
        code="PC217",
        piece='<include href="stray.xml"/>',
        where=Where.ANYWHERE,
        files={
            _FILE: '<schema name="stray"><include href="stray2.xml"/></schema>',
            "stray2.xml": f'<schema name="stray"><include href="{CARET}stray.xml"/></schema>',
        },
    ),
    SchemaFault(
        name="nothing to include",
        code="PC218",
        piece=f'{CARET}<include href="stray.xml"/>',
        where=Where.ANYWHERE,
        files={_FILE: '<schema name="stray"/>'},
    ),
    SchemaFault(
        name="member of a union selected",
        code="PC218",
        piece=f'<include href="stray.xml" select="{CARET}stray"/>',
        where=Where.ANYWHERE,
        files={_FILE: '<schema name="stray"><union><module name="stray"/></union></schema>'},
    ),
    SchemaFault(
        name="included too deeply",
        code="PC221",
        piece=f'{_DEEP}{CARET}<include href="stray.xml"/>{_ENDED}',
        where=Where.ANYWHERE,
        files={_FILE: f'<schema name="stray">{_DEEP}{_ENDED}</schema>'},
    ),
)

_LARGE = (
    SchemaFault(name="nested too deeply", code="PC005", piece="<doc>" * 99 + f"<{CARET}doc>", where=Where.ROOT),
    SchemaFault(
        name="condition nested too deeply",
        code="PC308",
        piece=f'<module name="stray"/><rules><assert test="{"(" * 50}{CARET}(stray{")" * 51}"/></rules>',
        where=Where.ROOT,
    ),
)

_ENDS = (
    SchemaFault(name="not closed", code="PC001", piece=f'{CARET}<schema name="s"', where=Where.HEAD, end=""),
    SchemaFault(
        name="another document", code="PC107", piece=f'<{CARET}stray name="s"', where=Where.HEAD, end="</stray>"
    ),
)

SCHEMA_FAULTS = (
    *_faults(Where.ANYWHERE, _ANYWHERE),
    *_faults(Where.ROOT, _ROOT),
    *_LARGE,
    *_faults(Where.HEAD, _HEAD),
    *_ENDS,
    *_naming(_INCLUDE),
    *_named(_INCLUDED, '<module name="stray"/><include href="stray.xml"/>'),
    *_named(_SELECTED, '<include href="stray.xml" select="stray2"/>'),
    *_SEVERAL,
)
"""Every fault that a drawn schema can get. What needs megabytes or a certain model is not among them."""
