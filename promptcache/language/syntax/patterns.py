r"""Compile and match the regular expressions of arguments with RE2, in time linear in the text.

RE2 has no look-around and no back-references. Its `\d`, `\w` and `\s` match ASCII only. A pattern must match the whole
text.
"""

from __future__ import annotations

import re
import string
from functools import cache, lru_cache
from itertools import islice
from typing import Any

from promptcache.language.limits import MAX_PATTERN

_MAX_MEMORY = 2 * 1024 * 1024  # bytes of a compiled pattern; this also bounds the time of a match
_MAX_PLACES = 20  # positions that are tried to locate a fault in a pattern
_TOKEN = re.compile(r"\\(?:[pPx]\{[^}]*\}|[pP].|.)|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|[(){]", re.DOTALL)
"""A token of a pattern: an escape, a whole class of characters, or another bracket."""

_ONLY_RE2 = re.compile(r"\\[pP]|\\x\{|\[:")
_OPERATION = re.compile(r"(\\.|\[:\^?\w+:\])|\[|&&|--|~~", re.DOTALL)
_NUM_SHOWN = 64  # characters of a class that is written for Python
_WITHOUT_LOOK_AROUND = "write the texts that are allowed, as in 'a|b', or exclude characters by a class, as in [^,]+"
_BOUNDS = re.compile(r"\{[0-9]+(,[0-9]*)?\}")


class PatternError(Exception):
    """Error for a pattern that cannot be compiled, with a message, the position of the fault, and a fix."""

    def __init__(self, message: str, position: int, advice: str | None = None) -> None:
        super().__init__(message)
        self.message, self.position, self.help = message, position, advice


@lru_cache(maxsize=64)
def read_pattern(text: str) -> Any:
    """Return the compiled pattern of RE2.

    Raises:
        PatternError: RE2 cannot compile the pattern, or the pattern is too large.
    """
    if len(text) > MAX_PATTERN:
        message = f"the pattern has {len(text)} characters, and at most {MAX_PATTERN} are allowed"
        raise PatternError(message, MAX_PATTERN)
    compiled = _compile(text)
    if isinstance(compiled, str):
        raise _explained(text, compiled)
    for token in _TOKEN.finditer(text):
        if token[0] == "{" and not _BOUNDS.match(text, token.start()):
            # RE2 reads such a brace as a character
            message = "'{' does not begin a number of repetitions, such as {2,5} or {0,5}"
            raise PatternError(message, token.start(), "write \\{ for the character")
    return compiled


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a whole text."""
    return read_pattern(pattern).fullmatch(text) is not None


def portable_pattern(text: str) -> str:
    """Return a correct pattern without what engines with operations on classes read otherwise, such as `[a&&b]`.

    Brackets and doubled operators in classes are escaped.
    """

    def escaped(token: re.Match[str]) -> str:
        if not token[0].startswith("["):
            return token[0]
        return "[" + _OPERATION.sub(lambda found: found[1] or rf"{found[0][:-1]}\{found[0][-1]}", token[0][1:])

    return _TOKEN.sub(escaped, text)


def python_pattern(text: str) -> str:
    r"""Return a correct pattern with Python's syntax for classes that only RE2 has, such as `\p{Greek}`.

    Such a class becomes a class of its first characters, so the result may match fewer texts.
    """

    def in_python(token: re.Match[str]) -> str:
        if token[0] == r"\z":
            return r"\Z"
        if not _ONLY_RE2.search(token[0]):
            return token[0]
        found = [each[0] for each in islice(_compile(token[0]).finditer(_every_character()), _NUM_SHOWN)]
        return f"[{''.join(map(re.escape, found))}]" if found else r"[^\s\S]"

    return _TOKEN.sub(in_python, text)


@cache
def _every_character() -> str:
    """Return the characters of Unicode's first two planes but control characters, beginning with digits and letters."""
    return f"{string.printable[:95]}\n" + "".join(map(chr, (*range(0xA0, 0xD800), *range(0xE000, 0x20000))))


def _compile(text: str) -> Any:
    """Return the pattern that RE2 compiled, or the error message of RE2."""
    import re2  # imported late, because most schemas have no pattern

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        return re2.compile(text, options)
    except re2.error as fault:
        return fault.args[0].decode(errors="replace")


def _explained(text: str, fault: str) -> PatternError:
    reason, _, fragment = fault.partition(": ")
    end = max(len(text) - 1, 0)
    match reason:
        case "missing )" | "missing ]":
            message, bracket = f"the pattern ends where '{reason[-1]}' is expected", "(" if ")" in reason else "["
            return PatternError(message, end, f"add it, or write \\{bracket} for the character")
        case "trailing \\":
            message = "the pattern ends where a character after the backslash is expected"
            return PatternError(message, end, r"write \\ for a backslash")
        case "unexpected )":
            depth = 0
            for token in _TOKEN.finditer(text):
                depth += (token[0] == "(") - (token[0] == ")")
                if depth < 0:
                    return PatternError("')' closes no group", token.start(), "write \\) for the character")
        case "pattern too large - compile failed":
            return PatternError("the pattern is too large, because of its repetitions", 0, "use fewer repetitions")
    message, advice = _in_words(reason, fragment)
    return PatternError(message, _position(text, fragment, fault), advice)


def _in_words(reason: str, fragment: str) -> tuple[str, str | None]:
    match reason:
        case "invalid escape sequence" if fragment[1:].isdigit():
            message = f"{fragment} refers to a group, and back-references are not supported"
            return message, "write the content of the group again"
        case "invalid escape sequence" if fragment in {"\\d", "\\w", "\\s", "\\D", "\\W", "\\S"}:
            return f"{fragment} cannot be the end of a range", "write \\- for a hyphen"
        case "invalid escape sequence":
            return f"there is no {fragment}", "write the character without the backslash"
        case "invalid character class range" if fragment.startswith(("\\p", "\\P", "[:")):
            return f"there is no class {fragment}", None
        case "invalid character class range":
            return f"the range {fragment} runs backwards", r"write its ends the other way round, or \- for a hyphen"
        case "no argument for repetition operator":
            return f"'{fragment}' repeats nothing", f"write \\{fragment} for the character"
        case "bad repetition operator":
            return f"'{fragment}': a repetition follows another repetition", "put the first one into a group, (?:…)"
        case "invalid repetition size":
            least, _, most = fragment.strip("{}").partition(",")
            if most and int(most) < int(least):
                return f"{fragment}: the second number is smaller than the first", f"write {{{most},{least}}}"
            message = f"{fragment} repeats more than 1,000 times, counted with the repetitions around it"
            return message, "use fewer repetitions"
        case "invalid perl operator" if fragment.startswith(("(?=", "(?!", "(?<")):
            return "look-ahead and look-behind are not supported", _WITHOUT_LOOK_AROUND
        case "invalid perl operator":
            return f"groups with {fragment} are not supported", "write (?:…) for a group"
    return f"the pattern cannot be read: {reason}", None


def _position(text: str, fragment: str, fault: str) -> int:
    """Return the position of a fault in a pattern.

    RE2 reads from the left, so the part of the pattern up to the fault gives the same error as the whole pattern.
    """
    positions = [match.start() for match in re.finditer(re.escape(fragment), text)] or [0]
    same = (each for each in positions[:_MAX_PLACES] if _compile(text[: each + len(fragment)]) == fault)
    return next(same, positions[0])
