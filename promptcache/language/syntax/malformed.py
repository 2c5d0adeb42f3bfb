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
from promptcache.language.syntax.markup_faults import FaultTable, first_fault, match_rule
from promptcache.language.syntax.source import Source, diagnostic

_BETWEEN = re.compile(r"(?:\A<\?xml.*?\?>)?(?:[ \t\n]+|<!--.*?-->|<\?(?!xml\s).*?\?>)*", re.DOTALL)
_END_NAME = re.compile(r"</([^\s<>]*)")
_ROOT_NAME = re.compile(r"<([^\s<>]*?)(?=/?[\s<>]|/?\Z)")
_ELEMENT = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|</(?P<end>[^\s>]+)\s*>|<(?P<start>[^\s/>!?]+)(?:"[^"]*"|'[^']*'|[^"'>])*?(?P<empty>/?)>""",
    re.DOTALL,
)
_MAX_SHOWN = 60
_MAX_INDENT = 200
_BEGIN = 'begin with <schema name="…"> or <prompt schema="…">'
_MOVE = "remove it, or put it inside the element"
_BEFORE_ROOT: FaultTable = (
    (r"(?P<at>)\A\s*\Z", "the document is empty", _BEGIN),
    (r"(?P<at>)\Z", "the document has no element", _BEGIN),
    (r"(?!\A)(?P<at><\?xml)(?=.*\?>)", "the XML declaration must be the first thing in a document",
     "remove the text before the declaration, or the declaration"),
    (r"(?P<at>```[^\s<>]*)", "the document begins with a Markdown code fence", "remove the lines with ```"),
    (r"(?P<at>[{\[])", "the document looks like JSON, not like XML", _BEGIN),
    (r"(?P<at>[^\s<>]+|[^<])(?=[^<]*\Z)", "the document is plain text, not XML", _BEGIN),
    (r"(?P<at>[^\s<>]+|[^<])", "there is text before the first element", _MOVE),
)  # fmt: skip
_AFTER_ROOT: FaultTable = (
    (r"(?P<at><)(?![!?/]|\Z)", "another element follows the end of <{root}>",
     "write one root element in each file, or move this element inside"),
    (r"(?P<at>[^\s<>]+|[^<])", "text follows the end of <{root}>", _MOVE),
)  # fmt: skip


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
    between = _BETWEEN.match(source.text, start)
    at = between.end() if between else start
    if source.text.startswith("</", at):
        return _end_of_nothing(source, at, None)
    if not start:
        return match_rule(_BEFORE_ROOT, source, at if source.text.strip() else 0)
    before = _BETWEEN.match(source.text)
    root = _ROOT_NAME.match(source.text, before.end() if before else 0)
    return match_rule(_AFTER_ROOT, source, at, root=root[1] if root else "")


def _wrong_end(source: Source, offset: int, opened: Sequence[Opened]) -> Diagnostic:
    """Describe an end tag, with its name at `offset`, that does not close the innermost open element."""
    at, top = source.text.rindex("<", 0, offset + 1), opened[-1]
    name = _end_name(source, at)
    if name in {each.name for each in opened}:
        return _never_closed(source, top, at, opened)
    span = source.span(at, at + 3 + len(name))
    if num_slips(name.casefold(), top.name.casefold()) <= max(1, len(top.name) // 3):
        related = ((source.span(top.start, top.stop), f"<{top.name}> is opened here"),)
        return _fault(f"</{name}> does not close <{top.name}>", span, f"write </{top.name}>", related)
    return _end_of_nothing(source, at, top)


def _end_of_nothing(source: Source, at: int, top: Opened | None) -> Diagnostic:
    name = _end_name(source, at)
    span = source.span(at, at + 3 + len(name))
    before = source.text.rfind("<", 0, at)
    if before >= 0 and re.compile(rf"<{re.escape(name)}\b[^<]*/>\s*\Z").match(source.text, before, at):
        message = f"</{name}> closes nothing: the element before it is already closed by its />"
        return _fault(message, span, "remove it")
    related = ((source.span(top.start, top.stop), f"<{top.name}> is open here"),) if top else ()
    advice = "remove it" if before >= 0 else f"begin with <{name} …>"
    return _fault(f"</{name}> closes nothing: no <{name}> is open here", span, advice, related)


def _end_name(source: Source, at: int) -> str:
    match = _END_NAME.match(source.text, at)
    return match[1] if match else ""


def _never_closed(source: Source, top: Opened, stop: int, opened: Sequence[Opened]) -> Diagnostic:
    """Describe an element that is still open at `stop`, the end of another element or of the document."""
    text = source.text
    if len(opened) > 1 and opened[-2].name == top.name and text[top.start : top.stop] == f"<{top.name}>":
        related = ((source.span(opened[-2].start, opened[-2].stop), f"<{top.name}> is open here"),)
        message = f"<{top.name}> is opened again where its end tag is expected"
        return _fault(message, source.span(top.start, top.stop), f"write </{top.name}>", related)
    culprit, end = _by_indentation(source, top, stop) or (top, stop)
    written, span = text[culprit.start : culprit.stop], source.span(culprit.start, culprit.stop)
    shown = written if len(written) <= _MAX_SHOWN and "\n" not in written else f"<{culprit.name}>"
    message = f"{shown} is never closed"
    if end == len(text):
        return _fault(message, span, f"add </{culprit.name}> at the end of the document")
    other = source.span(end, min(len(text), text.find(">", end) + 1))
    where = f"column {other.column}" if other.line == span.line else f"line {other.line}"
    related = ((other, "the next end tag belongs to another element"),)
    advice = f"add </{culprit.name}> before {where}"
    is_text = written == f"<{culprit.name}>" and text[culprit.start - 1] not in ">\n\t"
    return _fault(message, span, f"{advice}; for a literal < write &lt;" if is_text else advice, related)


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
