r"""Apply the whitespace rules to text blocks.

A block is a sequence of texts and `None`. Each `None` is an item that keeps its text: a parameter, or exact text.

Formatting a document must never change its tokens. Formatting may move a block to separate lines, indent it, and add
blank lines around it. So `dedent` removes this whitespace:

- At the start of a block that begins on a new line: the blank lines and the indentation of the first line.
- At the end of a block: the last newline, the blank lines after it, and the indentation of the closing tag.
- The indentation that all lines share. The first line counts only if it follows a newline, because text directly after
  a tag has no indentation. Lines with only whitespace do not count and become empty.

All other whitespace is part of the text: newlines and spaces inside the block, and spaces next to a tag on the same
line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from os.path import commonprefix

from promptcache.language.syntax.nodes import Whitespace

_SPACE = " \t\n"
_INDENT = re.compile(r"\n([ \t]*)(?=[^\n \t]|\Z)")
_BLANK_LINE = re.compile(r"\n[ \t]+(?=\n)")
_STRAY = re.compile(r"\n[ \t]*([^\S \t\n\r\v\f]|[\u200b\u2060\ufeff])")
_RUN = re.compile(r"[ \t\n]+")


def is_blank(text: str) -> bool:
    """Return whether a text is empty or only XML whitespace. A no-break space is content."""
    return not text.strip(_SPACE)


def finish(pieces: Sequence[str | None], mode: Whitespace) -> list[str | None]:
    """Return the pieces of one block after the rules of `mode`. A block of only whitespace becomes empty."""
    if all(piece is not None and is_blank(piece) for piece in pieces):
        return []
    match mode:
        case Whitespace.DEDENT:
            return _dedent(pieces)
        case Whitespace.COLLAPSE:
            result = [piece if piece is None else _RUN.sub(" ", piece) for piece in pieces]
            result[0] = result[0] and result[0].lstrip(" ")
            result[-1] = result[-1] and result[-1].rstrip(" ")
            return result
        case Whitespace.COMPACT:
            return [piece if piece is None else _compact(piece) for piece in pieces]
        case Whitespace.PRESERVE:
            return list(pieces)


def _dedent(pieces: Sequence[str | None]) -> list[str | None]:
    result = list(pieces)
    if (last := result[-1]) is not None:
        result[-1] = _without_end(last)
    first = result[0] or ""
    leading = first[: len(first) - len(first.lstrip(_SPACE))]
    own_line = "\n" in leading
    if own_line:
        result[0] = first[leading.rindex("\n") :]
    result = [piece if piece is None else _BLANK_LINE.sub("\n", piece) for piece in result]
    # the indentation that all lines share; a line that begins at the end of a piece continues in the next one
    margin = commonprefix([indent for piece in result if piece is not None for indent in _INDENT.findall(piece)])
    result = [piece if piece is None else piece.replace("\n" + margin, "\n") for piece in result]
    if own_line and result[0]:
        result[0] = result[0][1:]
    return result


def stray_indentation(pieces: Sequence[str | None]) -> tuple[int, int, int, str] | None:
    """Find the first line with indentation that `dedent` keeps although the indentation must be a mistake.

    Returns:
        The index of the piece, the start and stop of the stray indentation in the piece, and a message; None if there
        is no such line.
    """
    texts = [piece or "" for piece in pieces]
    if all(map(is_blank, texts)):
        return None
    for number, text in enumerate(texts):
        if match := _STRAY.search(text):
            name = unicodedata.name(match[1], "special space").lower()
            return number, match.start(1), match.end(1), f"a line begins with a {name}, U+{ord(match[1]):04X}"
    texts[-1] = _without_end(texts[-1])
    indents = {indent for text in texts for indent in _INDENT.findall(text)}
    shortest = min(indents, key=len, default="")
    if all(indent.startswith(shortest) for indent in indents):
        return None
    lines = ((number, match) for number, text in enumerate(texts) for match in _INDENT.finditer(text))
    _, found = next(lines)
    first: str = found[1]
    number, match = next(line for line in lines if not (line[1][1].startswith(first) or first.startswith(line[1][1])))
    return number, match.start(1), match.end(1), "tabs and spaces are mixed in the indentation of these lines"


def _without_end(text: str) -> str:
    kept = text.rstrip(_SPACE)
    end = text[len(kept) :]
    return kept + end.partition("\n")[0]


def _compact(text: str) -> str:
    kept = text.strip(_SPACE)
    if not kept:
        return " " if text else ""
    before = " " if text[0] in _SPACE else ""
    after = " " if text[-1] in _SPACE else ""
    return before + kept + after
