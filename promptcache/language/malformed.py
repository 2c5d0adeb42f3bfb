"""What is wrong with a document that cannot be read as XML, in words.

Comes in: what the two parsers say. Goes out: diagnostics PC001 to PC009. This file decides nothing.
"""

from __future__ import annotations

import re
import unicodedata
from xml.parsers.expat import errors

from lxml import etree

from promptcache.diagnostics import Diagnostic, Span
from promptcache.language.source import Source

_ENTITY = re.compile(r"&[^\s;&<]*;?")
_AT_MARKUP = frozenset({errors.XML_ERROR_INVALID_TOKEN, errors.XML_ERROR_UNCLOSED_TOKEN})
_STRAY = re.compile(r"&[^\s;&<>]*.?\Z|<.?\Z", re.DOTALL)
_MAX_NAME = 64
_WRITE_LESS = "write &lt; for a literal <, or put the text into <![CDATA[…]]>"
_WRITE_AND = "write &amp; for a literal &, or put the text into <![CDATA[…]]>"


def not_well_formed(source: Source, code: int, offset: int, name: str | None, opened: Span | None) -> Diagnostic:
    """Describe an error of expat at `offset`; `name` and `opened` tell the innermost element that is still open."""
    reason = errors.messages[code]
    here = source.span(offset, min(offset + 1, len(source.text)))
    related = ((opened, f"<{name}> is opened here"),) if opened else ()
    if reason == errors.XML_ERROR_TAG_MISMATCH:
        found = re.compile(r"[^\s>]*").match(source.text, offset)
        span = source.span(offset, found.end() if found else offset)
        message = f"</{found[0] if found else ''}> stands where </{name}> is expected"
        return Diagnostic(code="PC001", message=message, span=span, help=f"close <{name}> first", related=related)
    if reason == errors.XML_ERROR_NO_ELEMENTS:
        if opened is None:
            return Diagnostic(code="PC001", message="the document holds no element", span=here)
        return Diagnostic(code="PC001", message=f"<{name}> is never closed", span=opened, help=f"add </{name}>")
    if reason == errors.XML_ERROR_UNDEFINED_ENTITY:
        match = _ENTITY.match(source.text, offset)
        span = source.span(offset, match.end() if match else offset + 1)
        message = f"there is no entity {match[0] if match else '&'}"
        return Diagnostic(
            code="PC003", message=message, span=span, help="write the character itself, or &#…; with its number"
        )
    return _token(source, reason, offset, here)


def _token(source: Source, reason: str, offset: int, here: Span) -> Diagnostic:
    stray = _STRAY.search(source.text, max(offset - _MAX_NAME, 0), offset + 1) if reason in _AT_MARKUP else None
    if stray is not None:
        mend = _WRITE_LESS if stray[0][0] == "<" else _WRITE_AND
        message = f"a bare {stray[0][0]} is not well-formed"
        return Diagnostic(code="PC001", message=message, span=source.span(stray.start(), stray.start() + 1), help=mend)
    return _other(source, reason, offset, here)


def _other(source: Source, reason: str, offset: int, here: Span) -> Diagnostic:
    if unicodedata.category(source.text[offset : offset + 1] or " ") == "Cc" and not source.text[offset].isspace():
        return control(source, offset)
    if source.text.startswith("]]>", max(offset - 2, 0)):
        span = source.span(offset - 2, offset + 1)
        return Diagnostic(code="PC001", message="]]> stands in text", span=span, help="write ]]&gt;")
    if reason == errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT:
        message = "a document ends with its first element, and something follows"
        return Diagnostic(code="PC001", message=message, span=here, help="remove it, or put it inside")
    found = _ENTITY.match(source.text, offset) if reason == errors.XML_ERROR_BAD_CHAR_REF else None
    if found is not None:
        message = f"{found[0]} is no character that XML can hold"
        span = source.span(offset, found.end())
        return Diagnostic(code="PC001", message=message, span=span, help="remove it")
    return Diagnostic(code="PC001", message=f"the document is not well-formed: {reason}", span=here)


def control(source: Source, offset: int) -> Diagnostic:
    """Refuse a character that no text has."""
    message = f"the document holds a control character, U+{ord(source.text[offset]):04X}"
    return Diagnostic(code="PC001", message=message, span=source.span(offset, offset + 1), help="remove it")


def second_opinion(source: Source, fault: etree.XMLSyntaxError) -> Diagnostic:
    """Describe what lxml refuses although expat read it."""
    line, column = fault.position
    start = source.line_starts[min(max(line, 1), len(source.line_starts)) - 1] + max(column, 1) - 1
    span = source.span(start, start)
    return Diagnostic(code="PC001", message=f"not well-formed: {fault.msg}", span=span)


def doctype(source: Source, offset: int) -> Diagnostic:
    """Refuse a DOCTYPE and with it every entity of a document's own."""
    message = "a DOCTYPE is not allowed: documents define no entities and read no other file"
    return Diagnostic(code="PC002", message=message, span=source.span(offset, offset + 9), help="remove it")


def instruction(target: str, span: Span) -> Diagnostic:
    """Refuse a processing instruction."""
    return Diagnostic(
        code="PC007", message=f"a processing instruction <?{target}…?> is not allowed", span=span, help="remove it"
    )


def namespace(name: str, span: Span) -> Diagnostic:
    """Refuse a name with a prefix, and a declaration of one."""
    mend = 'use whitespace="preserve" on the module' if name == "xml:space" else "remove the prefix"
    message = f"'{name}' uses a namespace; the language has none"
    return Diagnostic(code="PC008", message=message, span=span, help="remove it" if name == "xmlns" else mend)


def beyond(code: str, message: str, span: Span) -> Diagnostic:
    """Say that a limit is passed."""
    return Diagnostic(code=code, message=message, span=span)


def declaration(source: Source, version: str, encoding: str | None) -> Diagnostic:
    """Refuse an XML declaration that names another version or encoding."""
    span = source.span(0, max(source.text.find("?>") + 2, 0))
    if version != "1.0":
        return Diagnostic(code="PC001", message=f"XML {version} is not read, only 1.0", span=span)
    message = f"the document declares the encoding {encoding}; only UTF-8 is read"
    return Diagnostic(code="PC006", message=message, span=span, help="save it as UTF-8 and declare that, or nothing")
