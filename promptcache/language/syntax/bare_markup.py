"""Find `<`, `&` and `]]>` in the text of a schema that XML takes for markup.

The elements of a schema are known. So a `<` before another name, as in `i<n` or `List<int>`, is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple
from xml.sax.saxutils import escape

from promptcache.diagnostics import num_slips
from promptcache.language.syntax.elements import ATTRIBUTES
from promptcache.language.syntax.markup_faults import CORRECT

_BARE = r"<|&(?!(?:[^\W\d][\w.-]{0,40}|#[0-9]{1,10}|#x[0-9a-fA-F]{1,10});)"
_IN_TEXT, _IN_VALUE = re.compile(rf"{_BARE}|\]\]>"), re.compile(_BARE)
_NAME = re.compile(r"/?([^\W\d][\w.-]{0,20})(?=[\s/>])")
_TAG = re.compile(r"""</?[\w.-]+(?:\s+[\w.:-]+\s*=\s*(?:"[^"]*"|'[^']*'))*\s*/?>""")
_VALUE = re.compile(r"""=\s*("[^"]*"|'[^']*')""")


class BareMarkup(NamedTuple):
    """Text that is read as markup, at `[start, stop)`, and how it is written in XML."""

    start: int
    stop: int
    text: str
    written: str


def bare_markup(text: str) -> Iterator[BareMarkup]:
    """Yield what is text in a schema, and is not written as text, in order.

    Misspelt elements, tags that are not complete, and references to unknown entities are left to the reader.
    """
    done = 0
    while found := _IN_TEXT.search(text, done):
        start, done = found.span()
        if text.startswith(("<!--", "<![CDATA[", "<?"), start):
            if (correct := CORRECT.match(text, start)) is None:
                return
            done = correct.end()
        elif found[0] == "<" and _is_tag(text, start):
            if tag := _TAG.match(text, start):
                for value in _VALUE.finditer(text, start, tag.end()):
                    yield from map(_bare, _IN_VALUE.finditer(text, *value.span(1)))
                done = tag.end()
        elif not text.startswith("<!DOCTYPE", start):
            yield _bare(found)


def _bare(found: re.Match[str]) -> BareMarkup:
    return BareMarkup(*found.span(), found[0], escape(found[0]))


def _is_tag(text: str, start: int) -> bool:
    """Return whether a `<` begins the tag of an element of schemas, perhaps a misspelt one."""
    name = _NAME.match(text, start + 1)
    return name is not None and _is_like_element(name[1])


@lru_cache(maxsize=4096)
def _is_like_element(name: str) -> bool:
    return any(abs(len(name) - len(each)) <= 1 and num_slips(name, each) <= 1 for each in ATTRIBUTES)
