"""Find `<`, `&` and `]]>` in the text of a schema that XML takes for markup.

The elements of a schema are known. So a `<` before another name, as in `i<n` or `List<int>`, is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from promptcache.diagnostics import num_slips
from promptcache.language.syntax.elements import ATTRIBUTES

_PIECE = re.compile(r"<!--|<!\[CDATA\[|<\?|[<&]|\]\]>")
_ENDS = {"<!--": "-->", "<![CDATA[": "]]>", "<?": "?>"}
_NAME = re.compile(r"/?([^\W\d][\w.-]{0,20})(?=[\s/>])")
_TAG = re.compile(r"""</?[\w.-]+(?:\s+[\w.:-]+\s*=\s*(?:"[^"]*"|'[^']*'))*\s*/?>""")
_VALUE = re.compile(r"""=\s*("[^"]*"|'[^']*')""")
_REFERENCE = re.compile(r"&(?:[^\W\d][\w.-]{0,40}|#[0-9]{1,10}|#x[0-9a-fA-F]{1,10});")
_WRITTEN = {"<": "&lt;", "&": "&amp;", "]]>": "]]&gt;"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BareMarkup:
    """Text at `start` that is read as markup, and how it is written in XML."""

    start: int
    text: str

    @property
    def stop(self) -> int:
        """The end of the text."""
        return self.start + len(self.text)

    @property
    def written(self) -> str:
        """The text in XML."""
        return _WRITTEN[self.text]


def bare_markup(text: str) -> Iterator[BareMarkup]:
    """Yield what is text in a schema, and is not written as text, in order.

    Misspelt elements, tags that are not complete, and references to unknown entities are left to the reader.
    """
    done = 0
    while piece := _PIECE.search(text, done):
        start, done = piece.span()
        if end := _ENDS.get(piece[0]):
            done = text.find(end, done)
            if done < 0:
                return
            done += len(end)
        elif piece[0] == "<" and _is_tag(text, start):
            if tag := _TAG.match(text, start):
                yield from _in_values(text, start, tag.end())
                done = tag.end()
        elif not (text.startswith("<!DOCTYPE", start) or _REFERENCE.match(text, start)):
            yield BareMarkup(start=start, text=piece[0])


def _is_tag(text: str, start: int) -> bool:
    """Return whether a `<` begins the tag of an element of schemas, perhaps a misspelt one."""
    name = _NAME.match(text, start + 1)
    return name is not None and _is_like_element(name[1])


@lru_cache(maxsize=4096)
def _is_like_element(name: str) -> bool:
    return any(abs(len(name) - len(each)) <= 1 and num_slips(name, each) <= 1 for each in ATTRIBUTES)


def _in_values(text: str, start: int, stop: int) -> Iterator[BareMarkup]:
    """Yield what is text in the values of a tag."""
    for value in _VALUE.finditer(text, start, stop):
        for at in range(*value.span(1)):
            if text[at] == "<" or (text[at] == "&" and not _REFERENCE.match(text, at)):
                yield BareMarkup(start=at, text=text[at])
