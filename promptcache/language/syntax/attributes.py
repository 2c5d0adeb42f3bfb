"""Read the attributes of an element into typed values, with a diagnostic for each value that is not allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import TypeVar

from promptcache.diagnostics import Diagnostic, Span, did_you_mean
from promptcache.language.syntax.conditions import TOKEN
from promptcache.language.syntax.names import quoted
from promptcache.language.syntax.nodes import Places
from promptcache.language.syntax.patterns import MAX_PATTERN
from promptcache.language.syntax.repair import REPAIRS, is_repair
from promptcache.language.syntax.source import diagnostic
from promptcache.language.syntax.synonyms import CONTENT, meant
from promptcache.language.syntax.xml import Attribute, Element

_Choice = TypeVar("_Choice", bound=StrEnum)
_NUMBER = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"\S+")
_CHARACTER = re.compile(r".", re.DOTALL)
_WRITTEN = re.compile(r"&[^;]*;|.", re.DOTALL)
_WORDS = {
    **dict.fromkeys(("requires", "excludes", "after", "modules"), _WORD),
    **dict.fromkeys(("if", "then", "test"), TOKEN),
    "pattern": _CHARACTER,
}
"""Attributes that store a span for every word, with the pattern of a word."""

_WITH_TEXT = frozenset({"module", "system", "user", "assistant", "text", "doc"})

MAX_SEPARATOR = 100
"""Maximum length of a separator, in characters. The separator is repeated between all blocks."""

_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_YES, _NO = frozenset({"yes", "on", "1", "always"}), frozenset({"no", "off", "0", "never", "none"})
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


class AttributeReader:
    """Typed access to the attributes of `element`. Diagnostics are added to `faults`."""

    def __init__(self, element: Element, known: Sequence[str], faults: list[Diagnostic]) -> None:
        self._element = element
        self._found = {attribute.name: attribute for attribute in element.attributes}
        self._faults = faults
        for attribute in element.attributes:
            if attribute.name not in known:
                self._fault("PC103", f"<{element.name}> has no attribute '{attribute.name}'", attribute.span,
                            self._instead(attribute, known))  # fmt: skip

    def _instead(self, attribute: Attribute, known: Sequence[str]) -> str:
        """Return help for an attribute that the element does not have."""
        if attribute.name in CONTENT and self._element.name in _WITH_TEXT:
            return f"write the text inside, <{self._element.name} …>{attribute.value}</{self._element.name}>"
        return meant(attribute.name, known) or _listed(known)

    @property
    def places(self) -> Places:
        """Return the spans of the words of every value."""
        return tuple((attribute.name, tuple(_words(attribute))) for attribute in self._element.attributes)

    def text(self, name: str) -> str | None:
        """Return the value, or None if the attribute is absent."""
        attribute = self._found.get(name)
        return attribute.value if attribute else None

    def needed(self, name: str) -> str:
        """Return the value of a required attribute. A missing attribute is a fault."""
        if name in self._found:
            return self._found[name].value
        message = f"<{self._element.name}> needs the attribute '{name}'"
        self._fault("PC104", message, self._element.name_span, f'add {name}="…"')
        return ""

    def flag(self, name: str) -> bool | None:
        """Return the value as a boolean, or None if the attribute is absent."""
        value = self.text(name)
        if value not in {None, "true", "false"}:
            meant = "true" if value in _YES else "false" if value in _NO else None
            advice = f'write {name}="{meant}"' if meant else did_you_mean(value or "", ("true", "false"))
            self._not_allowed(name, "true or false", advice)
        return None if value is None else value == "true"

    def needed_one_of(self, *names: str) -> None:
        """Add a fault if all of these attributes are absent."""
        if self._found.keys().isdisjoint(names):
            message = f"<{self._element.name}> needs one of the attributes {', '.join(names)}"
            self._fault("PC104", message, self._element.name_span, f'add {names[0]}="…"')

    def number(self, name: str, least: int = 1) -> int | None:
        """Return a whole number from `least` to 999,999,999, or None if the attribute is absent or not allowed."""
        value = self.text(name)
        if value is None:
            return None
        if _NUMBER.fullmatch(value) and int(value) >= least:
            return int(value)
        self._not_allowed(name, f"a whole number from {least} to 999999999")
        return None

    def needed_number(self, name: str) -> int:
        """Return the number in a required attribute. A missing attribute is a fault."""
        self.needed(name)
        return self.number(name) or 1

    def choice(self, name: str, choices: type[_Choice]) -> _Choice | None:
        """Return a value of an enumeration, or None if the attribute is absent or not allowed."""
        value = self.text(name)
        known = [choice.value for choice in choices]
        if value is None or value in known:
            return None if value is None else choices(value)
        self._not_allowed(name, f"one of {', '.join(known)}", meant(value, known))
        return None

    def repair(self, name: str) -> str | None:
        """Return a value of `repair`, or None if the attribute is absent or not allowed."""
        value = self.text(name)
        if value is None or is_repair(value):
            return value
        self._not_allowed(name, REPAIRS)
        return None

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words of a value, separated by whitespace. A value without words is a fault."""
        value = self.text(name)
        if value is not None and not value.split():
            self._not_allowed(name, "at least one name or path")
        return tuple(value.split()) if value else ()

    def alternatives(self, name: str) -> tuple[str, ...]:
        """Return the alternatives in a value, separated by `|`. An empty or repeated alternative is a fault."""
        value = self.text(name)
        if value is None:
            return ()
        found = tuple(value.split("|"))
        if "" in found or len(set(found)) < len(found):
            self._not_allowed(name, "different values separated by |")
        return found

    def escaped(self, name: str) -> str | None:
        r"""Return a value with the escapes \n, \t and \\ replaced by a newline, a tab and a backslash."""
        value = self.text(name)
        if value is None:
            return None
        if any(match[1] not in _ESCAPES for match in _ESCAPE.finditer(value)):
            self._not_allowed(name, r"text with no escapes but \n, \t and \\")
        text = _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], ""), value)
        if len(text) > MAX_SEPARATOR:
            self._not_allowed(name, f"text of at most {MAX_SEPARATOR} characters")
            return ""
        return text

    def either(self, name: str, other: str) -> str | None:
        """Return the value of `name`, or of `other`, its name in the paper's dialect. Using both is a fault."""
        if name in self._found and other in self._found:
            message = f"'{other}' is another name for '{name}': use only one of them"
            self._fault("PC105", message, self._found[other].span, f"remove '{other}'")
        return self.text(name) if name in self._found else self.text(other)

    def _not_allowed(self, name: str, expected: str, advice: str | None = None) -> None:
        attribute = self._found[name]
        message = f"{name}={quoted(attribute.value)} is not allowed: {expected} is expected"
        self._fault("PC105", message, attribute.value_span, advice)

    def _fault(self, code: str, message: str, span: Span, advice: str | None) -> None:
        self._faults.append(diagnostic(code, message, span, advice))


def escape(text: str) -> str:
    """Escape `text` so that `AttributeReader.escaped` returns it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def num_words(element: Element, limit: int) -> int:
    """Count the paths and the words of conditions in the attributes of an element, up to `limit + 1`."""
    listed = (attribute for attribute in element.attributes if _WORDS.get(attribute.name) in (_WORD, TOKEN))
    words = (match for attribute in listed for match in _WORDS[attribute.name].finditer(attribute.value))
    return sum(1 for _ in islice(words, limit + 1))


def _words(attribute: Attribute) -> Iterator[Span]:
    word = _WORDS.get(attribute.name)
    matches = word.finditer(attribute.value) if word is not None and not attribute.value.isspace() else ()
    if word is _CHARACTER and len(attribute.value) > MAX_PATTERN:
        matches = ()
    places = _places(attribute)
    found = [attribute.source.span(places[match.start()], places[match.end()]) for match in matches]
    yield from found or [attribute.value_span]


def _places(attribute: Attribute) -> Sequence[int]:
    """Return the document offset of each character of the value, and of its end. A reference is one character."""
    start, stop = attribute.value_start, attribute.value_stop
    if len(attribute.value) == stop - start:
        return range(start, stop + 1)
    return [*(match.start() for match in _WRITTEN.finditer(attribute.source.text, start, stop)), stop]


def _listed(known: Sequence[str]) -> str:
    return f"allowed attributes: {', '.join(known)}" if known else "it has no attributes"
