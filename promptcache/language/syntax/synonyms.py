"""Words that authors know from other formats, with the words of this language that they mean."""

from __future__ import annotations

from collections.abc import Iterable

from promptcache.diagnostics import did_you_mean

_GROUPS = {
    "parameter": "param arg argument slot variable var input field placeholder",
    "module": "section block part fragment component",
    "union": "choice oneof one-of alternatives switch select either",
    "include": "import use",
    "user": "human question query",
    "assistant": "ai bot model response",
    "system": "developer instruction instructions",
    "answer": "output result reply response-format response_format",
    "doc": "description comment note documentation",
    "text": "string str raw pre verbatim cdata",
    "rules": "rule constraint constraints",
    "exclude": "forbid conflict conflicts mutex",
    "excludes": "forbids conflicts",
    "require": "implies depends",
    "requires": "depends needs dependencies depends-on require",
    "name": "id key title label",
    "href": "src file path source uri url",
    "src": "href file path source uri url",
    "length": "size tokens max_length maxlength max-length max_tokens maxlen len width",
    "choices": "values options enum items",
    "pattern": "regex regexp format match",
    "default": "value",
    "required": "mandatory optional",
    "message": "error hint",
    "if": "when condition cond",
    "then": "implies must",
    "choice": "bool boolean flag enum",
    "int": "integer whole long",
    "number": "float double decimal numeric",
    "min": "minimum least required",
    "max": "maximum most",
}
_MEANT: dict[str, list[str]] = {}
for _word, _others in _GROUPS.items():
    for _other in _others.split():
        _MEANT.setdefault(_other, []).append(_word)

_TAGS = (
    "a b br code div em h1 h2 h3 h4 head html i img li ol p pre script span strong style sub sup table td th tr u ul"
)
HTML = frozenset(_TAGS.split())
"""Tags of HTML that authors most likely mean as text."""

CONTENT = frozenset({"text", "content", "body", "value"})
"""Attributes that authors write for the content of an element."""

AS_TEXT = "to write a tag as text, use &lt; for <, or <![CDATA[…]]>"


ROLES = {
    **dict.fromkeys(_GROUPS["user"].split(), "user"),
    **dict.fromkeys(_GROUPS["assistant"].split(), "assistant"),
    **dict.fromkeys(_GROUPS["system"].split(), "system"),
}
"""Names of turns in other formats."""


def meant(word: str, known: Iterable[str], form: str = "'{}'") -> str | None:
    """Return "did you mean 'x'?" for a known word with the meaning or nearly the letters of `word`, or None."""
    known = [*known]
    same = next((each for each in _MEANT.get(word.lower(), ()) if each in known), None)
    return did_you_mean(word, known, form) if same is None else f"did you mean {form.format(same)}?"
