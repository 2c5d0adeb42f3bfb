"""The documents of faults.txt and of schema_faults.txt."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.strategies.pieces import CARET
from tests.strategies.schema_faults import SCHEMA_FAULTS, VALID_PROMPT

WHERE = {
    "documents": "{}",
    "schemas": """<schema name="s"><module name="a">A</module><module name="b">B</module><union name="u"><module name="d">D</module>
<module name="e">E</module></union><module name="f">F<module name="g">G</module></module><collection name="l"><module name="m">M</module>
</collection>{}</schema>""",
    "prompts": '<prompt schema="s">{}</prompt>',
    "whole prompts": "{}",
}
"""What is around the documents of each section."""


def rows(section: str) -> Iterator[list[str]]:
    """Yield the rows of a section: code, document, words of the message, words of the help."""
    table = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for line in table.partition(f"[{section}]\n")[2].partition("\n\n")[0].splitlines():
        code, content, *words = (_unescaped(cell.strip(" ")) for cell in line.split("¦"))
        yield [code, WHERE[section].replace("{}", content), *words, *[""] * (2 - len(words))]


def pieces() -> Iterator[list[str]]:
    """Yield code and document of each fault of schema_faults.txt that needs no file and no layout."""
    for fault in SCHEMA_FAULTS:
        if not fault.files and fault.code < "PC500" and fault.code != "PC214":
            piece = fault.xml.replace(VALID_PROMPT, '<prompt schema="s"/>')
            yield [fault.code, f'<schema name="s">{piece}</schema>']


def documents() -> Iterator[tuple[str, str]]:
    """Yield code and document of every row and piece, without carets."""
    for code, document, *_ in (*(row for section in WHERE for row in rows(section)), *pieces()):
        yield code, document.replace(CARET, "")


def _unescaped(cell: str) -> str:
    """Return a cell with the characters that it names."""
    return re.sub(
        r"\\(n|\\|u(....))", lambda each: chr(int(each[2], 16)) if each[2] else {"n": "\n"}.get(each[1], "\\"), cell
    )
