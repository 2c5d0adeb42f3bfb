"""Read a document into a tree of tags and runs of characters that keep their source text.

Comments, CDATA sections, references and quotes are kept. The text must be a document that `parse_xml` accepts, or a
part of one.
"""

from __future__ import annotations

import re
from enum import Enum, auto
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


class MarkupKind(Enum):
    """Kind of a run of characters."""

    TEXT = auto()
    CDATA = auto()
    COMMENT = auto()
    DECLARATION = auto()


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


class _OpenTag(NamedTuple):
    name: str
    attributes: tuple[tuple[str, str], ...]
    children: list[MarkupNode]
    start: int


def read_markup(text: str) -> tuple[MarkupNode, ...]:
    """Return the nodes of a document or of the content of an element."""
    top: list[MarkupNode] = []
    stack: list[_OpenTag] = []
    for match in _TOKEN.finditer(text):
        here = stack[-1].children if stack else top
        if match["end"]:
            done = stack.pop()
            inner = text[done.start : match.start()]
            (stack[-1].children if stack else top).append(Tag(done.name, done.attributes, tuple(done.children), inner))
        elif not match["start"]:
            here.append(_characters(match))
        elif match["empty"]:
            here.append(Tag(match["start"], _attributes(match["attributes"]), (), ""))
        else:
            stack.append(_OpenTag(match["start"], _attributes(match["attributes"]), [], match.end()))
    return tuple(top)


def _characters(match: re.Match[str]) -> Chars:
    kinds = {"comment": MarkupKind.COMMENT, "cdata": MarkupKind.CDATA, "declaration": MarkupKind.DECLARATION}
    return Chars(kinds.get(match.lastgroup or "", MarkupKind.TEXT), match[0])


def _attributes(written: str) -> tuple[tuple[str, str], ...]:
    return tuple((match[1], match[2]) for match in _ATTRIBUTE.finditer(written))


def _referred(match: re.Match[str]) -> str:
    if match[3]:
        return _ENTITIES[match[3]]
    return chr(int(match[1], 16) if match[1] else int(match[2]))
