"""Writes docs/errors.md from the table of diagnostic codes: `python -m tools.errors_page`."""

from __future__ import annotations

from pathlib import Path

from promptcache.diagnostics.records import TABLE

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
HEAD = """# Errors

`python -m tools.errors_page` writes this page from the table in `promptcache/diagnostics/codes.md`.

Every message has a code and a place in a document. Codes are part of the interface: a code is never reused for another
error.

A document is checked in steps: XML, structure, names, rules. If one step finds errors, the next ones do not run. Errors
are sorted by place. Warnings that were found come after the errors.

Examples without `<schema>` or `<prompt>` are the content of a schema. Prompts for `travel` use the schema at the top of
[language.md](language.md). A test runs every example and expects its code.

"""


def page() -> str:
    """Return the page."""
    return HEAD + TABLE


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
