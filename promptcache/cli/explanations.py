"""What docs/errors.md says about each diagnostic code.

Comes in: a code, as someone typed it. Goes out: its explanation. This file prints nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import promptcache
from promptcache.cli.exits import UsageMistake
from promptcache.diagnostics import CODES, Severity, num_slips, suggest

_PACKAGE = Path(promptcache.__file__).parent
PAGES = (_PACKAGE / "errors.md", _PACKAGE.parent / "docs" / "errors.md")
"""Where the page lies when installed (pyproject.toml puts it there), and in a checkout."""

_PRINTED = re.compile(r"(?:error|warning)?\[(\w+)\]:?")
_HEADING = re.compile(r"^(##|###) (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An entry of the page.

    Attributes:
        group: The heading under which it stands.
        markdown: What stands below its own heading; "" where the page is missing.
    """

    code: str
    title: str
    severity: Severity
    group: str
    markdown: str


def explanations() -> Mapping[str, Explanation]:
    """Return the explanation of every code, in the order of the page."""
    sections = _sections()
    return {
        entry.code: Explanation(
            code=entry.code,
            title=entry.title,
            severity=entry.severity,
            group=sections.get(entry.code, ("", ""))[0],
            markdown=sections.get(entry.code, ("", ""))[1],
        )
        for entry in CODES.values()
    }


def explanation(code: str) -> Explanation:
    """Return the explanation of a code; its letters may be small, or missing, and it may stand in `error[…]`.

    Raises:
        UsageMistake: there is no such code.
    """
    printed = _PRINTED.fullmatch(code.strip())
    wanted = (printed[1] if printed else code.strip()).upper()
    wanted = f"PC{wanted}" if wanted.isdigit() else wanted
    if wanted not in CODES:
        raise UsageMistake(f"there is no code '{code}'; {_mend(wanted)}")
    return explanations()[wanted]


def _mend(wanted: str) -> str:
    """Say what may have been meant by a code that there is not."""
    begun = [code for code in CODES if len(wanted) > len("PC") and code.startswith(wanted)]
    if begun:
        return f"codes from {begun[0]} to {begun[-1]} begin so"
    near = suggest(wanted.replace("O", "0"), CODES)
    if near is None or num_slips(wanted.replace("O", "0"), near) > 1:
        return "`promptcache why` lists all codes"
    return f"did you mean {near}, {CODES[near].title}?"


def _sections() -> dict[str, tuple[str, str]]:
    """Return, for each code of the page, its group and its text."""
    page = next((path.read_text(encoding="utf-8") for path in PAGES if path.is_file()), "")
    found: dict[str, tuple[str, str]] = {}
    group = ""
    _, *pieces = _HEADING.split(page)
    for level, heading, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if level == "##":
            group = heading
        else:
            found[heading.partition(" ")[0]] = group, text.strip()
    return found
