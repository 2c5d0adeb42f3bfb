"""Explain why a document is not well-formed XML (PC001, PC003).

`markup_faults` explains a fault in one piece of markup. This module explains the other faults: elements without an end
tag, text outside the root element, and documents that are not XML at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from xml.parsers.expat import errors

from promptcache.diagnostics import Diagnostic, Span, num_slips
from promptcache.language.syntax.markup_faults import first_fault
from promptcache.language.syntax.source import Source, diagnostic

_BETWEEN = re.compile(r"(?:\A<\?xml.*?\?>)?(?:[ \t\n]+|<!--.*?-->|<\?(?!xml\s).*?\?>)*", re.DOTALL)
_WORD = re.compile(r"[^\s<>]*")
_ELEMENT = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|</(?P<end>[^\s>]+)\s*>|<(?P<start>[^\s/>!?]+)(?:"[^"]*"|'[^']*'|[^"'>])*?(?P<empty>/?)>""",
    re.DOTALL,
)
_MAX_SHOWN = 60
_MAX_INDENT = 200
_BEGIN = 'begin with <schema name="…"> or <prompt schema="…">'


class Opened(NamedTuple):
    """Element without an end tag so far. Its start tag is `[start, stop)`."""

    name: str
    start: int
    stop: int


def not_well_formed(source: Source, code: int, offset: int, start: int, opened: Sequence[Opened]) -> Diagnostic:
    """Return the diagnostic for a parse error of expat.

    Args:
        source: The document.
        code: Error number of expat.
        offset: Offset at which expat noticed the error, in characters.
        start: Offset of the end of the last tag that was read; 0 before the first tag.
        opened: Elements that are open at the error, outermost first.
    """
    reason = errors.messages[code]
    if not opened and (found := _outside(source, start)):
        return found
    if opened and reason == errors.XML_ERROR_TAG_MISMATCH:
        return _wrong_end(source, offset, opened)
    if opened and reason == errors.XML_ERROR_NO_ELEMENTS:
        return _never_closed(source, opened[-1], len(source.text), opened)
    if found := first_fault(source, start, offset):
        return found
    span = source.span(offset, min(offset + 1, len(source.text)))
    return _fault("this is not well-formed XML", span, "look for a missing or extra quote, < or &")


def _outside(source: Source, start: int) -> Diagnostic | None:
    """Describe text or tags before the root element (`start` is 0) or after it. Return None for malformed markup."""
    text = source.text
    match = _BETWEEN.match(text, start)
    at = match.end() if match else start
    word = _WORD.match(text, at)
    span = source.span(at, word.end() if word and word[0] else min(at + 1, len(text)))
    if start:
        return _behind(source, at, span)
    if at == len(text):
        message = "the document has no element" if text.strip() else "the document is empty"
        return _fault(message, span if text.strip() else source.span(0, 0), _BEGIN)
    if text.startswith("</", at):
        return _end_of_nothing(source, at, None)
    if text.startswith("<?xml", at):
        if at == 0 or "?>" not in text[at:]:
            return None
        advice = "remove the text before the declaration, or the declaration"
        return _fault("the XML declaration must be the first thing in a document", source.span(at, at + 5), advice)
    if text[at] == "<":
        return None
    if text.startswith("```", at):
        return _fault("the document begins with a Markdown code fence", span, "remove the lines with ```")
    if text[at] in "{[":
        return _fault("the document looks like JSON, not like XML", source.span(at, at + 1), _BEGIN)
    if "<" not in text:
        return _fault("the document is plain text, not XML", span, _BEGIN)
    return _fault("there is text before the first element", span, "remove it, or put it inside the element")


def _behind(source: Source, at: int, span: Span) -> Diagnostic | None:
    """Describe text or tags after the root element. Return None for malformed markup."""
    if source.text.startswith("</", at):
        return _end_of_nothing(source, at, None)
    root = _BETWEEN.match(source.text)
    first = _WORD.match(source.text, root.end() + 1) if root else None
    name = first[0].rstrip("/") if first else ""
    if source.text.startswith("<", at) and source.text[at + 1 : at + 2] not in "!?":
        advice = "write one root element in each file, or move this element inside"
        return _fault(f"another element follows the end of <{name}>", source.span(at, at + 1), advice)
    if source.text.startswith("<", at):
        return None
    return _fault(f"text follows the end of <{name}>", span, "remove it, or put it inside the element")


def _wrong_end(source: Source, offset: int, opened: Sequence[Opened]) -> Diagnostic:
    """Describe an end tag, with its name at `offset`, that does not close the innermost open element."""
    at = source.text.rindex("<", 0, offset + 1)
    match = _WORD.match(source.text, at + 2)
    name, top = match[0] if match else "", opened[-1]
    if name in {each.name for each in opened}:
        return _never_closed(source, top, at, opened)
    span = source.span(at, at + 3 + len(name))
    if num_slips(name.casefold(), top.name.casefold()) <= max(1, len(top.name) // 3):
        related = ((source.span(top.start, top.stop), f"<{top.name}> is opened here"),)
        return _fault(f"</{name}> does not close <{top.name}>", span, f"write </{top.name}>", related)
    return _end_of_nothing(source, at, top)


def _end_of_nothing(source: Source, at: int, top: Opened | None) -> Diagnostic:
    match = _WORD.match(source.text, at + 2)
    name = match[0] if match else ""
    span = source.span(at, at + 3 + len(name))
    before = source.text.rfind("<", 0, at)
    if before >= 0 and re.compile(rf"<{re.escape(name)}\b[^<]*/>\s*\Z").match(source.text, before, at):
        message = f"</{name}> closes nothing: the element before it is already closed by its />"
        return _fault(message, span, "remove it")
    related = ((source.span(top.start, top.stop), f"<{top.name}> is open here"),) if top else ()
    advice = "remove it" if before >= 0 else f"begin with <{name} …>"
    return _fault(f"</{name}> closes nothing: no <{name}> is open here", span, advice, related)


def _never_closed(source: Source, top: Opened, stop: int, opened: Sequence[Opened]) -> Diagnostic:
    """Describe an element that is still open at `stop`, the end of another element or of the document."""
    text = source.text
    related: tuple[tuple[Span, str], ...] = ()
    if len(opened) > 1 and opened[-2].name == top.name and text[top.start : top.stop] == f"<{top.name}>":
        outer = opened[-2]
        related = ((source.span(outer.start, outer.stop), f"<{top.name}> is open here"),)
        message = f"<{top.name}> is opened again where its end tag is expected"
        return _fault(message, source.span(top.start, top.stop), f"write </{top.name}>", related)
    found = _by_indentation(source, top, stop)
    culprit, end = found or (top, stop)
    written = text[culprit.start : culprit.stop]
    shown = written if len(written) <= _MAX_SHOWN and "\n" not in written else f"<{culprit.name}>"
    if end == len(text):
        where = "at the end of the document"
    else:
        span = source.span(end, min(len(text), text.find(">", end) + 1))
        where, related = f"before line {span.line}", ((span, "the next end tag belongs to another element"),)
        if span.line == source.span(culprit.start, culprit.stop).line:
            where = f"before column {span.column}"
    span = source.span(culprit.start, culprit.stop)
    return _fault(f"{shown} is never closed", span, f"add </{culprit.name}> {where}", related)


def _by_indentation(source: Source, top: Opened, stop: int) -> tuple[Opened, int] | None:
    """Return an element inside `top` whose end tag is indented less than its start tag, and the offset of that end tag.

    The end tag belongs to an element around the returned element, so the returned element is not closed. If there are
    several such elements, the first one to end is the innermost.
    """
    stack: list[Opened] = []
    for match in _ELEMENT.finditer(source.text, top.stop, stop):
        if match["start"] and not match["empty"]:
            stack.append(Opened(match["start"], match.start(), match.end()))
        elif match["end"] and stack:
            inner = stack.pop()
            if _indent(source, inner.start) > _indent(source, match.start()) >= 0:
                return inner, match.start()
    return None


def _indent(source: Source, at: int) -> int:
    """Return the indentation of a tag that is the first text in its line, else -1."""
    start = source.text.rfind("\n", max(0, at - _MAX_INDENT), at) + 1
    is_first = (start or at < _MAX_INDENT) and not source.text[start:at].strip(" \t")
    return at - start if is_first else -1


def _fault(message: str, span: Span, advice: str, related: tuple[tuple[Span, str], ...] = ()) -> Diagnostic:
    return diagnostic("PC001", message, span, advice, related)
