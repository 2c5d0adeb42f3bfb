"""Read a document into a tree of tags and runs of characters that keep their source text.

Comments, CDATA sections, references and quotes are kept. The text must be a document that `parse_xml` accepts, or a
part of one.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple, TypeAlias

_TOKEN = re.compile(
    r"""(?P<comment><!--.*?-->)
    |(?P<cdata><!\[CDATA\[.*?\]\]>)
    |(?P<declaration><\?.*?\?>)
    |</(?P<end>[^\s>]+)\s*>
    |<(?P<start>[^\s/>]+)(?P<attributes>(?:\s+[^\s=/>]+\s*=\s*(?:"[^"]*"|'[^']*'))*)\s*(?P<empty>/?)>
    |(?P<text>[^<]+)""",
    re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"""([^\s=]+)\s*=\s*("[^"]*"|'[^']*')""")
_REFERENCE = re.compile(r"&(?:#x([0-9a-fA-F]+)|#([0-9]+)|(lt|gt|amp|quot|apos));")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_SPACE = " \t\n"

CDATA_START, CDATA_END = "<![CDATA[", "]]>"


class MarkupKind(StrEnum):
    """Kind of a run of characters; the names of groups of the pattern of tokens."""

    TEXT = "text"
    CDATA = "cdata"
    COMMENT = "comment"
    DECLARATION = "declaration"


class Chars(NamedTuple):
    """Run of characters between tags, as written in the source."""

    kind: MarkupKind
    raw: str

    @property
    def value(self) -> str:
        """Return the text that this run adds to the text around it."""
        match self.kind:
            case MarkupKind.TEXT:
                return _REFERENCE.sub(_referred, self.raw)
            case MarkupKind.CDATA:
                return self.raw[len(CDATA_START) : -len(CDATA_END)]
            case _:
                return ""

    @property
    def free(self) -> bool:
        """Return whether this run is a comment, or whitespace that is written without references and CDATA sections."""
        return self.kind is MarkupKind.COMMENT or (self.kind is MarkupKind.TEXT and not self.raw.strip(_SPACE))


class Tag(NamedTuple):
    """Element as written. The values of attributes include their quotes; `inner` is the source text of the content."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[MarkupNode, ...]
    inner: str


MarkupNode: TypeAlias = Tag | Chars


def read_markup(text: str) -> tuple[MarkupNode, ...]:
    """Return the nodes of a document or of the content of an element."""
    children: list[list[MarkupNode]] = [[]]  # of the document and of each open element
    opened: list[re.Match[str]] = []
    for match in _TOKEN.finditer(text):
        if match["end"]:
            start, inside = opened.pop(), tuple(children.pop())
            inner = text[start.end() : match.start()]
            children[-1].append(Tag(start["start"], _attributes(start), inside, inner))
        elif not match["start"]:
            children[-1].append(Chars(MarkupKind(match.lastgroup or ""), match[0]))
        elif match["empty"]:
            children[-1].append(Tag(match["start"], _attributes(match), (), ""))
        else:
            opened.append(match)
            children.append([])
    return tuple(children[0])


def _attributes(start: re.Match[str]) -> tuple[tuple[str, str], ...]:
    return tuple((match[1], match[2]) for match in _ATTRIBUTE.finditer(start["attributes"]))


def _referred(match: re.Match[str]) -> str:
    if match[3]:
        return _ENTITIES[match[3]]
    return chr(int(match[1], 16) if match[1] else int(match[2]))
