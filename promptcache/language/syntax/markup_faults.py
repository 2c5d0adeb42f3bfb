"""Find the first fault in the markup of a document: in a tag, a comment, a CDATA section or a reference.

expat notices many faults late. For example, it notices a missing quote only at the next `<`. This module reads the
markup again from an offset before which it is correct, and reports the actual fault.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from html.entities import html5
from xml.parsers import expat

from promptcache.diagnostics import Diagnostic, Span
from promptcache.language.syntax.source import Source, diagnostic

_MARKUP = re.compile(r"[<&]|\]\]>")
_SPACE = re.compile(r"[ \t\n]*")
_WORD = re.compile(r"""[^ \t\n<>/="'&“”„‟‘’‚]+""")
_EQUALS = re.compile(r"[ \t\n]*=[ \t\n]*")
_REFERENCE = re.compile(r"&(#[0-9]+|#x[0-9a-fA-F]+|[^\s;&<>'\"=/]{1,40});")
_KNOWN = frozenset({"lt", "gt", "amp", "quot", "apos"})
_NO_SEMICOLON = re.compile(r"&(?:amp|lt|gt|quot|apos)\b")
_STRAIGHT, _CURLY = "\"'", "“”„‟‘’‚"
_CURLY_END = re.compile(rf"[{_CURLY}](?=[ \t\n]*/?>|[ \t\n]+[^\s=]+=)")
_VALUE_END = re.compile(r"""[ \t\n][^\s=<>"']+[ \t\n]*=[ \t\n]*["']|/?>|\n""")
_NEXT_ATTRIBUTE = re.compile(r"[ \t\n][^\s=]+[ \t\n]*=[ \t\n]*\Z")
_TAG_GOES_ON = re.compile(r"[ \t\n]*/?>|[ \t\n]+[^\s=<>\"']+[ \t\n]*=")
_NUMBER = re.compile(r"#(?:([0-9]+)|x([0-9a-fA-F]+))")
_HEXADECIMAL = re.compile(r"#[xX]?([0-9a-fA-F]+)")
_MAX_SHOWN = 40
_MAX_DIGITS = 9  # limit for the number in a character reference
_WRITE_LESS = "write &lt; for a literal <, or put the text into <![CDATA[…]]>"
_WRITE_AND = "write &amp; for a literal &, or put the text into <![CDATA[…]]>"
_OR_LESS = "; for a literal < write &lt;"
_NEWER = f'XML tags cannot have this letter; a prompt can write <use module="…"/> and <arg name="…">{_OR_LESS}'
_NAMES = f"names have letters, digits, '.', '-' and '_'{_OR_LESS}"


def first_fault(source: Source, start: int, last: int) -> Diagnostic | None:
    """Return a diagnostic for the first faulty piece of markup, or None if none begins in `[start, last]`."""
    text, here = source.text, start
    while (match := _MARKUP.search(text, here)) and match.start() <= last:
        found = _piece(source, match.start())
        if isinstance(found, Diagnostic):
            return found
        if text.startswith("<?", match.start()) and found > last:
            message = "the processing instruction is not well-formed"
            advice = 'remove it, or write <?xml version="1.0" encoding="UTF-8"?> at the start of the document'
            return _fault(source, match.start(), match.start() + 2, message, advice)
        here = found
    return None


def _piece(source: Source, at: int) -> Diagnostic | int:
    """Return the end of the piece of markup that begins at `at`, or a diagnostic if it is faulty."""
    text = source.text
    if text[at] == "&":
        return _reference(source, at, None)
    if text[at] == "]":
        return _fault(source, at, at + 3, "]]> is not allowed in text", "write ]]&gt;")
    if text.startswith("<!--", at):
        return _comment(source, at)
    if text.startswith("<![CDATA[", at):
        stop = text.find("]]>", at + 9)
        return stop + 3 if stop >= 0 else _fault(source, at, at + 9, "the CDATA section is never closed", "add ]]>")
    if text.startswith("<!", at):
        message = "<! begins neither a comment nor a CDATA section"
        return _fault(source, at, at + 2, message, "write <!-- … --> or <![CDATA[…]]>")
    if text.startswith("<?", at):
        stop = text.find("?>", at + 2)
        return (
            stop + 2
            if stop >= 0
            else _fault(source, at, at + 2, "the processing instruction is never closed", "add ?>")
        )
    if text.startswith("</", at):
        return _end_tag(source, at)
    return _StartTag(source, at).read()


def _comment(source: Source, at: int) -> Diagnostic | int:
    text = source.text
    stop = text.find("--", at + 4)
    if stop < 0 or text.startswith("<!", stop - 2):
        return _fault(source, at, at + 4, "the comment is never closed", "add -->")
    if text.startswith("-->", stop):
        return stop + 3
    if text.startswith("--->", stop):
        return _fault(source, stop, stop + 4, "a comment ends with -->, not with --->", "write -->")
    message = "a comment cannot contain --"
    return _fault(source, stop, stop + 2, message, "write one hyphen, or end the comment with -->")


def _reference(source: Source, at: int, attribute: str | None) -> Diagnostic | int:
    text = source.text
    found = _REFERENCE.match(text, at)
    name = found[1] if found else ""
    if found and name in _KNOWN:
        return found.end()
    if found and name.startswith("#"):
        shape = _NUMBER.fullmatch(name)
        if shape is None:
            meant = _HEXADECIMAL.fullmatch(name)
            advice = f"write &#x{meant[1]};" if meant else "write the number of the character, as in &#38; or &#x26;"
            return _fault(source, at, found.end(), f"{found[0]} is not a reference to a character", advice)
        digits = (shape[1] or shape[2]).lstrip("0") or "0"
        number = int(digits, 10 if shape[1] else 16) if len(digits) < _MAX_DIGITS else -1
        if (
            number in (9, 10, 13)
            or 0x20 <= number <= 0xD7FF
            or 0xE000 <= number <= 0xFFFD
            or 0x10000 <= number <= 0x10FFFF
        ):
            return found.end()
        return _fault(
            source,
            at,
            found.end(),
            f"{found[0] if len(found[0]) <= _MAX_SHOWN else '&#…;'} is not a character that XML allows",
            "remove it",
        )
    if found:
        return _unknown_entity(source, at, found.end(), name)
    if short := _NO_SEMICOLON.match(text, at):
        return _fault(source, at, short.end(), f"{short[0]} has no semicolon", f"write {short[0]};")
    stop = at + 2 if text.startswith("&&", at) else at + 1
    bare = text[at:stop]
    if attribute is None:
        return _fault(source, at, stop, f"a bare {bare} is not allowed", _WRITE_AND)
    advice = f"write {'&amp;' * len(bare)} for a literal {bare}"
    advice += "; in a condition write 'and'" if bare == "&&" else ""
    return _fault(source, at, stop, f"a bare {bare} is not allowed in the value of attribute '{attribute}'", advice)


def _unknown_entity(source: Source, start: int, stop: int, name: str) -> Diagnostic:
    meant = html5.get(f"{name};", "")
    if name.lower() in _KNOWN:
        advice = f"write &{name.lower()};"
    elif len(meant) == 1:
        advice = f"write &#{ord(meant)};" + (f", or the character {meant}" if meant.isprintable() else "")
    else:
        advice = "write the character itself, or &#…; with its number; for a literal & write &amp;"
    return _fault(source, start, stop, f"there is no entity &{name};", advice, code="PC003")


def _end_tag(source: Source, at: int) -> Diagnostic | int:
    text = source.text
    start = _after_space(text, at + 2)
    name = _WORD.match(text, start)
    if name is None:
        return _fault(source, at, at + 2, "</ is not followed by a name", _WRITE_LESS)
    if start > at + 2:
        return _fault(source, at, name.end(), "there is a space between </ and the name", f"write </{name[0]}>")
    if fault := _bad_name(source, name.start(), name[0], "an element", "write the name of the element that it closes"):
        return fault
    stop = _after_space(text, name.end())
    if text.startswith(">", stop):
        return stop + 1
    if text[stop : stop + 1] in ("", "<"):
        return _fault(source, at, name.end(), f"the end tag </{name[0]} has no closing >", f"write </{name[0]}>")
    rest = text[stop:].partition(">")[0] if stop == name.end() else ""
    end = stop + max(1, len(rest))
    return _fault(source, stop, end, "an end tag contains only a name", f"write </{name[0]}>")


class _StartTag:
    """Reader for the start tag at `at`. `read` returns the end of the tag, or a diagnostic if it is faulty."""

    def __init__(self, source: Source, at: int) -> None:
        self._source = source
        self._text = source.text
        self._at = at
        less = source.text.find("<", at + 1)
        self._limit = less if less >= 0 else len(source.text)
        self._name = ""
        self._first: dict[str, Span] = {}
        self._last = ""  # the previous value; `_last_open` is the offset of its quote
        self._last_open = 0

    def read(self) -> Diagnostic | int:
        text, at = self._text, self._at
        if backslash := re.compile(r"\\([^ \t\n<>/]+)>").match(text, at + 1):
            return self._fault(at, at + 2, "an end tag begins with </, not with <\\", f"write </{backslash[1]}>")
        name = _WORD.match(text, at + 1)
        if name is None or not (name[0][0].isalpha() or name[0][0] in "_:"):
            return self._fault(at, at + 1, "a bare < is not allowed", _WRITE_LESS)
        self._name = name[0]
        if fault := _bad_name(self._source, name.start(), name[0], "an element", _NAMES):
            return fault
        here = name.end()
        while True:
            found = self._attribute(here)
            if isinstance(found, Diagnostic):
                return found
            if text[found - 1] == ">" and found != here:
                return found
            here = found

    def _attribute(self, here: int) -> Diagnostic | int:
        """Return the end of the next attribute or of the tag, or a diagnostic."""
        text = self._text
        start = _after_space(text, here)
        if start >= self._limit:
            return self._unclosed()
        if text[start] == ">" or text.startswith("/>", start):
            return start + (1 if text[start] == ">" else 2)
        if text[start] == "/" and text.startswith(">", _after_space(text, start + 1)):
            return self._fault(start, _after_space(text, start + 1) + 1, "/ > is not the end of a tag", "write />")
        word = _WORD.match(text, start)
        if word is None:
            return self._stray(start, touches=start == here)
        equals = _EQUALS.match(text, word.end())
        if start == here and self._first:
            return self._touching(start, word[0], is_attribute=equals is not None)
        if fault := _bad_name(self._source, start, word[0], "an attribute", _NAMES):
            return fault
        value = equals.end() if equals else word.end()
        if equals is None or value >= self._limit or text[value] in "/>":
            return self._no_value(here, word)
        if text[value] not in _STRAIGHT:
            return self._unquoted(start, word[0], value)
        span = self._source.span(start, word.end())
        if (first := self._first.setdefault(word[0], span)) is not span:
            related = ((first, "first given here"),)
            message = f"attribute '{word[0]}' is given twice"
            return diagnostic("PC001", message, span, "remove one of them", related)
        return self._value(word[0], value)

    def _value(self, name: str, opening: int) -> Diagnostic | int:
        """Return the end of the value whose opening quote is at `opening`, or a diagnostic."""
        text, quote = self._text, self._text[opening]
        stop = text.find(quote, opening + 1)
        if 0 <= stop < self._limit:
            self._last, self._last_open = text[opening + 1 : stop], opening
            here = opening
            while (here := text.find("&", here + 1, stop)) >= 0:
                if isinstance(found := _reference(self._source, here, name), Diagnostic):
                    return found
            return stop + 1
        rest = text[opening + 1 : self._limit]
        if curly := _CURLY_END.search(rest):
            return self._curly(opening + 1 + curly.start(), name, rest[: curly.start()])
        whole = text[opening + 1 : stop] if stop >= 0 else ""
        is_value = stop >= 0 and "\n" not in whole and not whole.endswith("=") and _TAG_GOES_ON.match(text, stop + 1)
        end = _VALUE_END.search(rest)
        if is_value or (end is None and self._limit < len(text)):
            at, message = self._limit, f"a bare < is not allowed in the value of attribute '{name}'"
            return self._fault(at, at + 1, message, "write &lt; for a literal <")
        return self._open_value(name, opening, (rest[: end.start()] if end else rest).rstrip(" \t\n"))

    def _open_value(self, name: str, opening: int, value: str) -> Diagnostic:
        quote = self._text[opening]
        message = f"the value of attribute '{name}' is not closed: the second {quote} is missing"
        advice = f"write {name}={quote}{value}{quote}" if len(value) <= _MAX_SHOWN else f"add {quote} after the value"
        return self._fault(opening, opening + 1 + len(value), message, advice)

    def _unclosed(self) -> Diagnostic:
        stop = self._at + 1 + len(self._name)
        advice = f"add > after the last attribute, or /> if the element is empty{_OR_LESS}"
        return self._fault(self._at, stop, f"the tag <{self._name} has no closing >", advice)

    def _no_value(self, here: int, word: re.Match[str]) -> Diagnostic:
        ends = self._text.find(">", word.end(), self._limit) >= 0
        if not ends or "\n" in self._text[here : word.start()]:
            return self._unclosed()
        advice = f'write {word[0]}="…"{_OR_LESS}'
        return self._fault(word.start(), word.end(), f"attribute '{word[0]}' has no value", advice)

    def _unquoted(self, start: int, name: str, value: int) -> Diagnostic:
        text = self._text
        if text[value] in _CURLY:
            stop = next((at for at in range(value + 1, self._limit) if text[at] in _CURLY + _STRAIGHT + ">\n"), value)
            return self._curly(value, name, text[value + 1 : stop])
        found = re.compile(r"""[^ \t\n>"']*""").match(text, value)
        bare = (found[0] if found else "").removesuffix("/")
        message = f"the value of attribute '{name}' has no quotes"
        return self._fault(value, value + max(1, len(bare)), message, f'write {name}="{bare[:_MAX_SHOWN]}"')

    def _curly(self, at: int, name: str, value: str) -> Diagnostic:
        message = f"{self._text[at]} is a typographic quotation mark; values need straight quotation marks"
        value = value if len(value) <= _MAX_SHOWN else "…"
        return self._fault(at, at + 1, message, f'write {name}="{value}"')

    def _touching(self, start: int, word: str, *, is_attribute: bool) -> Diagnostic:
        """Describe a word that touches the closing quote of the previous value."""
        name = next(reversed(self._first))
        if opened := _NEXT_ATTRIBUTE.search(self._last):
            return self._open_value(name, self._last_open, self._last[: opened.start()])
        if is_attribute:
            message = f"a space is missing before attribute '{word}'"
            return self._fault(start, start + len(word), message, "add a space")
        quote = self._text[self._last_open]
        message = f"the value of attribute '{name}' contains a {quote}"
        advice = f"write {'&quot;' if quote == chr(34) else '&apos;'} for a quotation mark in a value"
        return self._fault(start - 1, start, message, advice)

    def _stray(self, at: int, *, touches: bool) -> Diagnostic:
        character = self._text[at]
        if touches and self._first and character in _STRAIGHT:
            return self._touching(at, "", is_attribute=False)
        if character == "&":
            return self._fault(at, at + 1, "a bare & is not allowed in a tag", _WRITE_LESS)
        message = f"{_named(character)} is not allowed in the tag <{self._name}"
        return self._fault(at, at + 1, message, f"remove it{_OR_LESS}")

    def _fault(self, start: int, stop: int, message: str, advice: str) -> Diagnostic:
        return _fault(self._source, start, stop, message, advice)


def _bad_name(source: Source, start: int, name: str, kind: str, advice: str) -> Diagnostic | None:
    """Describe a character that is not allowed in a name. Return None if the name is correct."""
    wrong = next((at for at, each in enumerate(name) if not is_tag(each if at == 0 else f"_{each}")), None)
    if wrong is None:
        return None
    character, at = name[wrong], start + wrong
    if character.isspace() or unicodedata.category(character) == "Cf":
        return _fault(
            source, at, at + 1, f"{_named(character)} is not allowed in a tag", "write a plain space, or remove it"
        )
    if character.isalpha():
        advice = _NEWER
    return _fault(source, at, at + 1, f"{_named(character)} is not allowed in the name of {kind}", advice)


@functools.lru_cache(maxsize=4096)
def is_tag(text: str) -> bool:
    """Return whether expat and libxml2 accept `text` as the name of a tag or attribute.

    They accept the names of XML 1.0 before its fifth edition, which lack the letters of some scripts, such as Sinhala.
    A colon is accepted; `malformed.namespace` has its diagnostic.
    """
    try:
        expat.ParserCreate("utf-8").Parse(f"<{text}/>", True)
    except expat.ExpatError:
        return False
    return True


def _named(character: str) -> str:
    if character.isprintable() and not character.isspace():
        return f"'{character}'"
    return f"U+{ord(character):04X} ({unicodedata.name(character, 'a character without a name').lower()})"


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _fault(source: Source, start: int, stop: int, message: str, advice: str, code: str = "PC001") -> Diagnostic:
    return diagnostic(code, message, source.span(start, stop), advice)
