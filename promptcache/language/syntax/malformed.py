"""Explain why a document is not well-formed XML (PC001, PC003).

expat says what it noticed, and where. A few rules find the mistakes that authors make most: a bare & or <, a missing
quotation mark or end tag, and text or a second element outside the root element.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from html.entities import html5
from typing import NamedTuple, TypeAlias
from xml.parsers.expat import errors

from promptcache.diagnostics import Diagnostic, Span, diagnostic, suggest
from promptcache.language.syntax.elements import ELEMENTS, PROMPT_ELEMENTS
from promptcache.language.syntax.source import NOT_IN_XML, Source

_Rules: TypeAlias = tuple[tuple[str, str, str], ...]
"""Rules: a pattern, a message and a help. The fault is the group `at`, and the texts name other groups."""

_Related: TypeAlias = tuple[tuple[Span, str], ...]

_MAX_SHOWN = 40
_KNOWN = {**ELEMENTS, **PROMPT_ELEMENTS}
_S, _CURLY = r"[ \t\n]*+", "“”„‟‘’‚"
_NAME = rf"""[^ \t\n<>/="'&{_CURLY}]++"""
_VALUE = rf"{_S}(?P<name>{_NAME}){_S}={_S}"
_BEGIN = 'begin with <schema name="…"> or <prompt schema="…">'
_MOVE = "remove it, or put it inside the element"
_LESS = "write &lt; for a literal <, or put the text into <![CDATA[…]]>"
_AND = "write &amp; for a literal &"
_OR_LESS = "; for a literal < write &lt;"
_TYPOGRAPHIC = "{at} is a typographic quotation mark; values need straight quotation marks"
_NO_END = ("the tag {tag} has no closing >", f"add > after the last attribute{_OR_LESS}")

_BETWEEN = re.compile(r"(?:\A<\?xml.*?\?>)?(?:[ \t\n]+|<!--.*?-->|<\?(?!xml\s).*?\?>)*", re.DOTALL)
_BEFORE_ROOT: _Rules = (
    (r"(?P<at>)\A\s*\Z", "the document is empty", _BEGIN),
    (r"(?P<at>)\Z", "the document has no element", _BEGIN),
    (r"(?!\A)(?P<at><\?xml)(?=.*\?>)", "the XML declaration must be the first thing in a document", "remove it"),
    (r"(?P<at></[^\s<>]*>?)", "{at} has no start tag", _BEGIN),
    (r"(?P<at>```[^\s<>]*)", "the document begins with a Markdown code fence", "remove the lines with ```"),
    (r"(?P<at>[^\s<>]+|[^<])(?=[^<]*\Z)", "the document is plain text, not XML", _BEGIN),
    (r"(?P<at>[^\s<>]+|[^<])", "there is text before the first element", _MOVE),
)
_AFTER_ROOT: _Rules = (
    (r"(?P<at></[^\s<>]*>?)", "{at} has no start tag", "remove it"),
    (r"(?P<at><)(?![!?]|\Z)", "another element follows the end of the first", "write one root element in each file"),
    (r"(?P<at>[^\s<>]+|[^<])", "text follows the end of the first element", _MOVE),
)
_COMPLETE = re.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|&(?:#[0-9]+|#x[0-9a-fA-F]+|[^#\s;&<]+);|(?P<begun>[<&]|\]\]>)", re.DOTALL
)
_REFERENCE = re.compile(r"&(?!(?:lt|gt|amp|quot|apos);)(#[0-9]+|#x[0-9a-fA-F]+|[^#\s;&<>'\"=/]*);")
_IN_TEXT: _Rules = (
    (r"(?P<at>\]\]>)", "]]> is not allowed in text", "write ]]&gt;"),
    (r"(?P<at>&#[^\s;&<]*;)", "{at} is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    (r"(?P<at>&(?:amp|lt|gt|quot|apos)\b)", "{at} has no semicolon", "write {at};"),
    (r"(?P<at>&&)", "a bare && is not allowed", "write &amp;&amp; for a literal &&; in a condition write 'and'"),
    (r"(?P<at>&)", "a bare & is not allowed", f"{_AND}, or put the text into <![CDATA[…]]>"),
    (r"(?P<at><!--)", "the comment is never closed", "add -->"),
    (r"(?P<at><!\[CDATA\[)", "the CDATA section is never closed", "add ]]>"),
    (r"(?P<at><!)", "<! begins neither a comment nor a CDATA section", "write <!-- … --> or <![CDATA[…]]>"),
    (r"(?P<at><\?)", "the processing instruction is never closed", "add ?>"),
    (rf"(?P<at></(?P<name>{_NAME}))", "the end tag {at} is not closed by >", "write </{name}>"),
    (r"(?P<at><)(?!/?[^\W\d]|/?:)", "a bare < is not allowed", _LESS),
)
_TAG = re.compile(rf"""<(?:{_NAME})(?:[ \t\n]+{_NAME}{_S}={_S}(?:"[^"<]*"|'[^'<]*'))*+""")
_LAST = re.compile(rf"""(?P<name>{_NAME}){_S}={_S}(?P<quote>["'])(?P<value>[^"'<]*)["']\Z""")
_VALUE_END = rf"""[ \t\n][^\s=<>"']+{_S}=["']|/?>|[<\n]"""
_OPEN_VALUE: _Rules = (
    (rf"""{_VALUE}(?P<at>(?P<quote>["'])(?P<value>(?:(?!{_VALUE_END}).)*+))""",
     "the value of attribute '{name}' is not closed: the second {quote} is missing",
     "write {name}={quote}{value}{quote}"),
)  # fmt: skip
_IN_TAG: _Rules = (
    (rf"{_S}(?=<|\Z)", *_NO_END),
    (rf"{_S}{_NAME}(?!{_S}=)[^>]*(?:<|\Z)", *_NO_END),
    (rf"{_S}(?P<at>{_NAME})(?!{_S}=)", "attribute '{at}' has no value", f'write {{at}}="…"{_OR_LESS}'),
    (rf"{_VALUE}(?P<at>[{_CURLY}])(?P<value>[^<>\n{_CURLY}]*)", _TYPOGRAPHIC, 'write {name}="{value}"'),
    (rf"""{_VALUE}["'](?P<value>[^<"'{_CURLY}]*)(?P<at>[{_CURLY}])(?={_S}/?>)""", _TYPOGRAPHIC,
     'write {name}="{value}"'),
    (rf"""{_VALUE}(?P<at>(?P<value>[^ \t\n<>"'/]+))""", "the value of attribute '{name}' has no quotes",
     'write {name}="{value}"'),
    (rf"""{_VALUE}(?P<quote>["'])[^<\n"']*(?P<at><)[^\n"']*(?P=quote)(?=[ \t\n/>])""",
     "a bare < is not allowed in the value of attribute '{name}'", "write &lt; for a literal <"),
    *_OPEN_VALUE,
    (r"(?=[^<>]*\Z)", *_NO_END),
)  # fmt: skip


class Opened(NamedTuple):
    """Element without an end tag so far. Its start tag is `[start, stop)`."""

    name: str
    start: int
    stop: int


def not_well_formed(source: Source, code: int, offset: int, start: int, opened: Sequence[Opened]) -> Diagnostic:
    """Return the diagnostic for an error of expat with this number, which it noticed at `offset`, in characters.

    Args:
        start: Offset of the end of the last tag that was read; 0 before the first tag.
        opened: Elements that are open at the error, outermost first.
    """
    reason = errors.messages[code]
    text = source.text
    if reason == errors.XML_ERROR_TAG_MISMATCH:
        return _wrong_end(source, text.rindex("<", 0, offset + 1), opened)
    if reason == errors.XML_ERROR_NO_ELEMENTS and opened:
        return _never_closed(source, opened, "at the end of the document")
    if reason == errors.XML_ERROR_DUPLICATE_ATTRIBUTE:
        name = re.compile(_NAME).match(text, offset)
        stop = name.end() if name else offset
        return _fault(
            f"attribute '{text[offset:stop]}' is given twice", source.span(offset, stop), "remove one of them"
        )
    if reason in {errors.XML_ERROR_UNDEFINED_ENTITY, errors.XML_ERROR_BAD_CHAR_REF}:
        return _wrong_reference(source, next(each for each in _REFERENCE.finditer(text, offset) if _is_wrong(each[1])))
    if not opened:  # text or tags before the root element (`start` is 0) or after it, or malformed markup
        between = _BETWEEN.match(text, start)
        at = between.end() if between and text.strip() else start
        if not start and source.name.lower().endswith((".md", ".markdown")):
            fix = f'a schema can take its text: <module name="…" src="{source.name.rpartition("/")[2]}"/>'
            return _fault("the file is Markdown, not a schema or prompt", source.span(at, at + 1), fix)
        if found := _first_rule(_AFTER_ROOT if start else _BEFORE_ROOT, source, at):
            return found
    return _in_markup(source, start, offset, reason)


def _wrong_end(source: Source, at: int, opened: Sequence[Opened]) -> Diagnostic:
    """Describe an end tag at `at` that does not close the innermost open element."""
    top, stop = opened[-1], source.text.index(">", at) + 1
    name, end = source.text[at + 2 : stop - 1].strip(), source.span(at, stop)
    if name in {each.name for each in opened}:
        where = f"before line {end.line}, column {end.column}{_OR_LESS}"
        return _never_closed(source, opened, where, ((end, "the next end tag belongs to another element"),))
    begin = source.span(top.start, top.stop)
    if top.name not in _KNOWN and suggest(top.name, [name]):
        attributes = source.text[top.start + 1 + len(top.name) : top.stop - 1]
        tag = f"<{name}{attributes if len(attributes) <= _MAX_SHOWN else ' …'}>"
        fix = f"write {tag}" if name in _KNOWN else f"write {tag} here, or </{top.name}> there"
        return _fault(f"<{top.name}> is closed by </{name}>", begin, fix, ((end, "its end tag"),))
    related = ((begin, f"<{top.name}> is open here"),)
    return _fault(f"</{name}> does not close <{top.name}>", end, f"remove it, or write </{top.name}>", related)


def _never_closed(source: Source, opened: Sequence[Opened], where: str, related: _Related = ()) -> Diagnostic:
    """Describe an innermost open element; its end tag belongs `where`, if it is no empty element."""
    top, fix = opened[-1], f"add </{opened[-1].name}> {where}"
    known = PROMPT_ELEMENTS if opened[0].name == "prompt" else ELEMENTS
    if top.name in ("parameter", "include") or (known is PROMPT_ELEMENTS and top.name not in known):
        attributes = " …" if source.text[top.start : top.stop].rstrip(">").strip() != f"<{top.name}" else ""
        fix = f"write <{top.name}{attributes}/>, or {fix}"
    written = source.text[top.start : top.stop]
    shown = written if len(written) <= _MAX_SHOWN and "\n" not in written else f"<{top.name}>"
    return _fault(f"{shown} is never closed", source.span(top.start, top.stop), fix, related)


def _in_markup(source: Source, start: int, offset: int, reason: str) -> Diagnostic:
    """Describe the first piece of markup that is not complete, or what expat noticed."""
    text = source.text
    begun = next((match.start() for match in _COMPLETE.finditer(text, start) if match["begun"]), offset)
    if begun <= offset:
        if found := _first_rule(_IN_TEXT, source, begun):
            return found
        if (tag := _TAG.match(text, begun)) and (found := _in_tag(source, tag, offset)):
            return found
    if text[offset - 2 : offset] == "--":
        fix = "a comment ends with -->, and has one hyphen elsewhere"
        return _fault("a comment cannot contain --", source.span(offset - 2, offset), fix)
    sign = text[offset : offset + 1]
    fix = f"remove it{_OR_LESS}" if not sign.isspace() else "write a plain space, or remove it"
    if sign.isalpha():
        fix = f'XML tags cannot have this letter; a prompt can write <use module="…"/> and <arg name="…">{_OR_LESS}'
    shown = "the end of the document" if not sign else f"'{sign}'" if sign.isprintable() else f"U+{ord(sign):04X}"
    return _fault(f"{shown} is not allowed here: {reason}", source.span(offset, min(offset + 1, len(text))), fix)


def _in_tag(source: Source, tag: re.Match[str], offset: int) -> Diagnostic | None:
    """Describe a fault behind the correct attributes of a start tag, or in the value of one of them."""
    text, here = source.text, tag.end()
    if (sign := text.rfind("&", tag.start(), min(here, offset + 1))) >= 0 and offset < here:
        return _first_rule(_IN_TEXT, source, sign - (text[sign - 1] == "&"))
    last = _LAST.search(text, tag.start(), here)
    if last and text[here : here + 1].strip(" \t\n/>"):
        if re.search(r"\s[^\s=]+=\Z", last["value"]):
            return _first_rule(_OPEN_VALUE, source, last.start())
        message = f"a space is missing behind the value of attribute '{last['name']}'"
        return _fault(
            message, source.span(here - 1, here + 1), "add it, or write &quot; for a quotation mark in the value"
        )
    name = tag[0].split()[0]
    return _first_rule(_IN_TAG, source, here, (tag.start(), tag.start() + len(name)), tag=name)


def _wrong_reference(source: Source, found: re.Match[str]) -> Diagnostic:
    name, meant, span = found[1], html5.get(found[0][1:], ""), source.span(*found.span())
    if name.startswith("#"):
        return _fault(f"&{name}; is not a character that XML allows", span, "remove it")
    fix = (
        f"write &#{ord(meant)};" if len(meant) == 1 else f"write the character itself, or &#…; with its number; {_AND}"
    )
    fix = f"write &{name.lower()};" if name.lower() in {"lt", "gt", "amp", "quot", "apos"} else fix
    return diagnostic("PC003", f"there is no entity &{name};", span, fix)


def _is_wrong(name: str) -> bool:
    """Return whether a reference, other than to the five entities of XML, is to no character."""
    if not name.startswith("#"):
        return True
    number = int(name[1:].lstrip("x0")[:8] or "0", 16 if name[1] == "x" else 10)  # eight digits are too large a number
    return number > sys.maxunicode or NOT_IN_XML.match(chr(number)) is not None


def _first_rule(
    rules: _Rules, source: Source, here: int, other: tuple[int, int] = (0, 0), **values: str
) -> Diagnostic | None:
    """Return the diagnostic of the first rule whose pattern matches at `here`, or None.

    `other` is the range of faults without a group `at`. `values` are more texts that rules name.
    """
    for pattern, message, advice in rules:
        if match := re.compile(pattern, re.DOTALL).match(source.text, here):
            shown = match.groupdict("") | values
            shown["value"] = shown.get("value", "").rstrip()
            if len(shown["value"]) > _MAX_SHOWN:
                shown["value"] = "…"
            start, stop = match.span("at") if "at" in shown else other
            return _fault(message.format_map(shown), source.span(start, stop), advice.format_map(shown))
    return None


def _fault(message: str, span: Span, advice: str, related: _Related = ()) -> Diagnostic:
    return diagnostic("PC001", message, span, advice, related)
