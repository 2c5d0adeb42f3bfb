"""Find the first fault in the markup of a document: in a tag, a comment, a CDATA section or a reference.

expat notices many faults late. For example, it notices a missing quote only at the next `<`. This module reads the
markup again from an offset before which it is correct, and reports the actual fault. Most faults are rows of a table.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache
from html.entities import html5
from typing import TypeAlias
from xml.parsers import expat

from promptcache.diagnostics import Diagnostic, Span
from promptcache.language.syntax.source import NOT_IN_XML, Source, diagnostic

FaultTable: TypeAlias = tuple[tuple[str, str, str], ...]
"""Table of faults: a pattern, a message and a help. The fault is the group `at`, and the texts name other groups."""

_MAX_SHOWN = 40
_S, _CURLY = r"[ \t\n]*+", "“”„‟‘’‚"
_NAME = rf"""[^ \t\n<>/="'&{_CURLY}]++"""
_VALUE = rf"{_S}(?P<name>{_NAME}){_S}={_S}"
_NO_VALUE = rf"(?:(?!{_S}=)|{_S}={_S}(?=[/><]|\Z))"
_AFTER_VALUE = rf"""(?={_S}/?>|[ \t\n]+[^\s=<>"']+{_S}=)"""
_VALUE_END = rf"""[ \t\n][^\s=<>"']+{_S}={_S}["']|/?>|\n|<|\Z"""

_LESS = "write &lt; for a literal <, or put the text into <![CDATA[…]]>"
_AND = "write &amp; for a literal &, or put the text into <![CDATA[…]]>"
_OR_LESS = "; for a literal < write &lt;"
_NEWER = f'XML tags cannot have this letter; a prompt can write <use module="…"/> and <arg name="…">{_OR_LESS}'
_NAME_HELP = f"names have letters, digits, '.', '-' and '_'{_OR_LESS}"
_NO_END = ("the tag {tag} has no closing >", f"add > after the last attribute, or /> if the element is empty{_OR_LESS}")
_NO_NUMBER = "{at} is not a reference to a character"
_TYPOGRAPHIC = "{at} is a typographic quotation mark; values need straight quotation marks"
_BARE_IN_VALUE = ("a bare < is not allowed in the value of attribute '{name}'", "write &lt; for a literal <")

_MARKUP = re.compile(r"[<&]|\]\]>")
CORRECT = re.compile(r"<!--(?:(?!--).)*+-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>", re.DOTALL)
"""Comments, CDATA sections and processing instructions."""

_TEXT_FAULTS: FaultTable = (
    (r"(?P<at>\]\]>)", "]]> is not allowed in text", "write ]]&gt;"),
    (r"(?P<at><!--)(?:(?!--).)*+(?:\Z|(?<=<!)--)", "the comment is never closed", "add -->"),
    (r"<!--(?:(?!--).)*+(?P<at>--->)", "a comment ends with -->, not with --->", "write -->"),
    (r"<!--(?:(?!--).)*+(?P<at>--)", "a comment cannot contain --", "write one hyphen, or end the comment with -->"),
    (r"(?P<at><!\[CDATA\[)", "the CDATA section is never closed", "add ]]>"),
    (r"(?P<at><!)", "<! begins neither a comment nor a CDATA section", "write <!-- … --> or <![CDATA[…]]>"),
    (r"(?P<at><\?)", "the processing instruction is never closed", "add ?>"),
    (rf"(?P<at></)(?!{_S}{_NAME})", "</ is not followed by a name", _LESS),
    (rf"(?P<at></[ \t\n]+(?P<name>{_NAME}))", "there is a space between </ and the name", "write </{name}>"),
    (r"(?P<at><\\)(?P<name>[^ \t\n<>/]++)>", "an end tag begins with </, not with <\\", "write </{name}>"),
    (r"(?P<at><)(?!/|[^\W\d]|:)", "a bare < is not allowed", _LESS),
)
_END_TAG = re.compile(rf"</(?P<name>{_NAME})(?P<end>{_S}>)?")
_END_TAG_FAULTS: FaultTable = (
    (rf"(?P<at></(?P<name>{_NAME})){_S}(?=<|\Z)", "the end tag {at} has no closing >", "write {at}>"),
    (rf"</(?P<name>{_NAME}){_S}(?P<at>[^ \t\n<>]+)", "an end tag contains only a name", "write </{name}>"),
)
_START_TAG = re.compile(rf"""<(?P<name>{_NAME})(?:[ \t\n]+{_NAME}{_S}={_S}(?:"[^"<]*"|'[^'<]*'))*+""")
_ATTRIBUTE = re.compile(rf"""[ \t\n]+(?P<name>{_NAME}){_S}={_S}(?P<value>"[^"<]*"|'[^'<]*')""")
_TAG_END = re.compile(rf"{_S}/?>")
_TAG_FAULTS: FaultTable = (
    (rf"{_S}(?=<|\Z)", *_NO_END),
    (rf"{_S}(?P<at>/{_S}>)", "/ > is not the end of a tag", "write />"),
    (rf"{_S}(?P<at>&)", "a bare & is not allowed in a tag", _LESS),
    (rf"{_S}(?P<at>[/=\"'{_CURLY}])", "'{at}' is not allowed in the tag {tag}", f"remove it{_OR_LESS}"),
    (rf"[ \t]*(?P<at>{_NAME}){_NO_VALUE}[^<>]*>", "attribute '{at}' has no value", f'write {{at}}="…"{_OR_LESS}'),
    (rf"{_S}{_NAME}{_NO_VALUE}", *_NO_END),
    (rf"""{_VALUE}(?P<at>[{_CURLY}])(?:(?P<value>[^<>\n"'{_CURLY}]*)[>\n"'{_CURLY}])?""", _TYPOGRAPHIC,
     'write {name}="{value}"'),
    (rf"""{_VALUE}(?P<at>(?P<value>[^ \t\n<>"']+?))(?=/?(?:[ \t\n<>"']|\Z))""",
     "the value of attribute '{name}' has no quotes", 'write {name}="{value}"'),
    (rf"""{_VALUE}["'](?P<value>[^<]*?)(?P<at>[{_CURLY}])(?={_S}/?>|[ \t\n]+[^\s=]+=)""", _TYPOGRAPHIC,
     'write {name}="{value}"'),
    (rf"""{_VALUE}(?P<quote>["'])(?:(?!(?P=quote))[^<\n])*+(?P<at><)(?:(?!(?P=quote))[^\n])*+(?<!=)(?P=quote)"""
     rf"{_AFTER_VALUE}", *_BARE_IN_VALUE),
    (rf"""{_VALUE}["'](?:(?!{_VALUE_END}).)*+(?P<at><)""", *_BARE_IN_VALUE),
)  # fmt: skip
_OPEN_VALUE = re.compile(rf"""{_VALUE}(?P<open>["'])(?P<value>(?:(?!{_VALUE_END}).)*+)""", re.DOTALL)
_NEXT_ATTRIBUTE = re.compile(rf"[ \t\n][^\s=]+{_S}={_S}\Z")
_TOUCHING_FAULTS: FaultTable = (
    (rf"(?P<at>{_NAME}){_S}=", "a space is missing before attribute '{at}'", "add a space"),
    ("", "the value of attribute '{last}' contains a {quote}", "write {written} for a quotation mark in a value"),
)
_TOUCHING = re.compile(rf"[\"']|{_NAME}")
_BEGUN = re.compile(rf"""{_S}(?P<name>{_NAME})(?:{_S}={_S}(?P<value>(?=["'])))?""")
_KNOWN = frozenset({"lt", "gt", "amp", "quot", "apos"})
_REFERENCE = re.compile(
    r"&(?:#(?P<decimal>[0-9]+)|#x(?P<hexadecimal>[0-9a-fA-F]+)|(?!#)(?P<name>[^\s;&<>'\"=/]{1,40}));"
)
_REFERENCE_FAULTS: FaultTable = (
    (r"(?P<at>&#[xX]?(?P<digits>[0-9a-fA-F]+);)", _NO_NUMBER, "write &#x{digits};"),
    (r"(?P<at>&#[^\s;&<>'\"=/]{0,39};)", _NO_NUMBER, "write the number of the character, as in &#38; or &#x26;"),
    (r"(?P<at>&(?:amp|lt|gt|quot|apos)\b)", "{at} has no semicolon", "write {at};"),
)
_BARE_AND: FaultTable = ((r"(?P<at>&&?)", "a bare {at} is not allowed", _AND),)
_BARE_AND_IN_VALUE: FaultTable = (
    (r"(?P<at>&&)", "a bare && is not allowed in the value of attribute '{name}'",
     "write &amp;&amp; for a literal &&; in a condition write 'and'"),
    (r"(?P<at>&)", "a bare & is not allowed in the value of attribute '{name}'", "write &amp; for a literal &"),
)  # fmt: skip


def first_fault(source: Source, start: int, last: int) -> Diagnostic | None:
    """Return a diagnostic for the first faulty piece of markup, or None if none begins in `[start, last]`."""
    text, here = source.text, start
    while (match := _MARKUP.search(text, here)) and (here := match.start()) <= last:
        if correct := CORRECT.match(text, here):
            if text.startswith("<?", here) and correct.end() > last:
                message = "the processing instruction is not well-formed"
                advice = 'remove it, or write <?xml version="1.0" encoding="UTF-8"?> at the start of the document'
                return _fault(source, here, here + 2, message, advice)
            here = correct.end()
            continue
        found = _reference(source, here, None) if text[here] == "&" else _tag(source, here)
        if isinstance(found, Diagnostic):
            return found
        here = found
    return None


def match_rule(
    table: FaultTable, source: Source, here: int, other: tuple[int, int] = (0, 0), **values: str
) -> Diagnostic | None:
    """Return the diagnostic of the first rule whose pattern matches at `here`, or None.

    `other` is the range of faults without a group `at`. `values` are more texts that rules name.
    """
    for pattern, message, advice in table:
        if match := re.compile(pattern, re.DOTALL).match(source.text, here):
            shown = match.groupdict("") | values
            if len(shown.get("value", "")) > _MAX_SHOWN:
                shown["value"] = "…"
            start, stop = match.span("at") if "at" in shown else other
            return _fault(source, start, stop, message.format_map(shown), advice.format_map(shown))
    return None


def _tag(source: Source, at: int) -> Diagnostic | int:
    """Return the end of the tag that begins at `at`, or a diagnostic if it is faulty."""
    text = source.text
    if found := match_rule(_TEXT_FAULTS, source, at):
        return found
    if tag := _END_TAG.match(text, at):
        advice = "write the name of the element that it closes"
        found = _bad_name(source, tag.start("name"), tag["name"], "an element", advice)
        found = found or (None if tag["end"] else match_rule(_END_TAG_FAULTS, source, at))
        return found or tag.end()
    tag = _START_TAG.match(text, at)
    assert tag is not None, "a `<` without a name is a fault of the text"
    here, name_stop = tag.end(), tag.end("name")
    if found := _bad_name(source, at + 1, tag["name"], "an element", _NAME_HELP):
        return found
    attributes = [*_ATTRIBUTE.finditer(text, name_stop, here)]
    touches = bool(attributes) and _TOUCHING.match(text, here)
    begun = None if touches else _BEGUN.match(text, here)
    first: dict[str, Span] = {}
    for each in (*attributes, *([begun] if begun else ())):
        if found := _bad_name(source, each.start("name"), each["name"], "an attribute", _NAME_HELP):
            return found
        span = source.span(*each.span("name"))
        if each["value"] is not None and first.setdefault(each["name"], span) is not span:
            related = ((first[each["name"]], "first given here"),)
            message = f"attribute '{each['name']}' is given twice"
            return diagnostic("PC001", message, span, "remove one of them", related)
        for sign in re.finditer("&", each["value"] or ""):
            read = _reference(source, each.start("value") + sign.start(), each["name"])
            if isinstance(read, Diagnostic):
                return read
    if end := _TAG_END.match(text, here):
        return end.end()
    if touches:
        return _touching(source, here, attributes[-1])
    if found := match_rule(_TAG_FAULTS, source, here, (at, name_stop), tag=tag[0][: name_stop - at]):
        return found
    value = _OPEN_VALUE.match(text, here)
    assert value is not None, "every other fault has a rule"
    return _open_value(source, value["name"], value.start("open"), value["value"])


def _touching(source: Source, here: int, last: re.Match[str]) -> Diagnostic:
    """Describe a word or a quotation mark that touches the closing quote of the attribute before it."""
    opening, quote, value = last.start("value"), last["value"][0], last["value"][1:-1]
    if opened := _NEXT_ATTRIBUTE.search(value):
        return _open_value(source, last["name"], opening, value[: opened.start()])
    written = "&quot;" if quote == '"' else "&apos;"
    fault = match_rule(
        _TOUCHING_FAULTS, source, here, (here - 1, here), last=last["name"], quote=quote, written=written
    )
    assert fault is not None, "the last rule always matches"
    return fault


def _open_value(source: Source, name: str, opening: int, value: str) -> Diagnostic:
    quote, value = source.text[opening], value.rstrip(" \t\n")
    message = f"the value of attribute '{name}' is not closed: the second {quote} is missing"
    advice = f"write {name}={quote}{value}{quote}" if len(value) <= _MAX_SHOWN else f"add {quote} after the value"
    return _fault(source, opening, opening + 1 + len(value), message, advice)


def _reference(source: Source, at: int, attribute: str | None) -> Diagnostic | int:
    """Return the end of the reference that begins at `at`, or a diagnostic if it is faulty."""
    found = _REFERENCE.match(source.text, at)
    if found is None:
        bare = _BARE_AND if attribute is None else _BARE_AND_IN_VALUE
        fault = match_rule((*_REFERENCE_FAULTS, *bare), source, at, name=attribute or "")
        assert fault is not None, "the last rule matches every &"
        return fault
    if name := found["name"]:
        return found.end() if name in _KNOWN else _unknown_entity(source, at, found.end(), name)
    digits = (found["decimal"] or found["hexadecimal"]).lstrip("0")[:8] or "0"  # eight are too large a number
    number = int(digits, 10 if found["decimal"] else 16)
    if number <= sys.maxunicode and not NOT_IN_XML.match(chr(number)):
        return found.end()
    written = found[0] if len(found[0]) <= _MAX_SHOWN else "&#…;"
    return _fault(source, at, found.end(), f"{written} is not a character that XML allows", "remove it")


def _unknown_entity(source: Source, start: int, stop: int, name: str) -> Diagnostic:
    meant = html5.get(f"{name};", "")
    if name.lower() in _KNOWN:
        advice = f"write &{name.lower()};"
    elif len(meant) == 1:
        advice = f"write &#{ord(meant)};" + (f", or the character {meant}" if meant.isprintable() else "")
    else:
        advice = "write the character itself, or &#…; with its number; for a literal & write &amp;"
    return _fault(source, start, stop, f"there is no entity &{name};", advice, code="PC003")


def _bad_name(source: Source, start: int, name: str, kind: str, advice: str) -> Diagnostic | None:
    """Describe a character that is not allowed in a name. Return None if the name is correct."""
    wrong = next((at for at, each in enumerate(name) if not is_tag(each if at == 0 else f"_{each}")), None)
    if wrong is None:
        return None
    character, at = name[wrong], start + wrong
    shown, where, advice = f"'{character}'", f"in the name of {kind}", _NEWER if character.isalpha() else advice
    if character.isspace() or not character.isprintable():
        shown = f"U+{ord(character):04X} ({unicodedata.name(character, 'a character without a name').lower()})"
    if character.isspace() or unicodedata.category(character) == "Cf":
        where, advice = "in a tag", "write a plain space, or remove it"
    return _fault(source, at, at + 1, f"{shown} is not allowed {where}", advice)


@lru_cache(maxsize=4096)
def is_tag(text: str) -> bool:
    """Return whether expat accepts `text` as the name of a tag or attribute. It accepts colons, too.

    It accepts the names of XML 1.0 before its fifth edition, which lack the letters of some scripts, such as Sinhala.
    """
    try:
        expat.ParserCreate("utf-8").Parse(f"<{text}/>", True)
    except expat.ExpatError:
        return False
    return True


def _fault(source: Source, start: int, stop: int, message: str, advice: str, code: str = "PC001") -> Diagnostic:
    return diagnostic(code, message, source.span(start, stop), advice)
