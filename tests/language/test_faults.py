"""Documents with one fault: the code, the place that a caret marks, and words of the message and of the help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from promptcache.diagnostics import Diagnostic, LanguageError
from promptcache.language import Prompt, check_schema, parse_prompt, parse_schema, resolve_prompt
from tests.strategies.pieces import CARET, line_and_column

AROUND = """<schema name="s"><module name="a">A</module><module name="b">B</module><union name="u"><module name="d">D</module>
<module name="e">E</module></union><module name="f">F<module name="g">G</module></module><collection name="l"><module name="m">M</module>
</collection>{}</schema>"""
PATIENT = """<schema name="s">
  <module name="patient">Ada <parameter name="name" length="4"/>.</module>
  <union name="reader"><module name="lay">Plain.</module><module name="doctor">Codes.</module></union>
  <module name="drugs"><module name="apixaban">5 mg.</module></module>
  <module name="lab">INR <parameter name="inr" length="4"/>.</module>
  <module name="day"><parameter name="n" length="4" type="int"/></module>
</schema>"""


def rows(section: str) -> list[object]:
    """Return the rows of a section of faults.txt as parameters."""
    text = (
        (Path(__file__).parent / "faults.txt")
        .read_text(encoding="utf-8")
        .partition(f"[{section}]\n")[2]
        .partition("\n\n")[0]
    )
    found = [[cell.strip(" ") for cell in line.split("¦")] for line in text.splitlines()]
    return [pytest.param(*map(unescaped, row), id=f"{row[0]}-{number}") for number, row in enumerate(found)]


def unescaped(cell: str) -> str:
    """Return a cell with the characters that it names."""
    return re.sub(
        r"\\(n|\\|u(....))", lambda each: chr(int(each[2], 16)) if each[2] else {"n": "\n"}.get(each[1], "\\"), cell
    )


def first_of_schema(document: str | bytes) -> Diagnostic:
    """Return the first finding in a schema, warnings included."""
    try:
        return check_schema(parse_schema(document)).warnings[0]
    except LanguageError as error:
        return error.diagnostics[0]


def first_of_prompt(prompt: str | Prompt) -> Diagnostic:
    """Return the first finding in a prompt for the schema PATIENT."""
    with pytest.raises(LanguageError) as caught:
        resolve_prompt(parse_prompt(prompt) if isinstance(prompt, str) else prompt, check_schema(parse_schema(PATIENT)))
    return caught.value.diagnostics[0]


def check(found: Diagnostic, code: str, place: tuple[int, int] | None, message: str, advice: str) -> None:
    """Compare a finding with a row of a table; a help of - is none, and an empty text is in every text."""
    assert found.code == code
    assert place in (None, (found.span.line, found.span.column))
    assert message in f"{found.message} {found.help}"
    assert found.help is None if advice == "-" else advice in (found.help or "")


def without_caret(document: str) -> tuple[str, tuple[int, int] | None]:
    """Return a document without its caret, and the line and column of the caret."""
    if CARET not in document:
        return document, None
    offset, text = document.index(CARET), document.replace(CARET, "")
    return text, line_and_column(text, offset)


@pytest.mark.parametrize(("code", "document", "message", "advice"), rows("documents"))
def test_documents_that_are_no_schema(document: str, code: str, message: str, advice: str) -> None:
    """A malformed document is explained where it is broken."""
    text, place = without_caret(document)
    check(first_of_schema(text), code, place, message, advice)


@pytest.mark.parametrize(
    ("document", "place", "message", "advice"),
    [
        ('<schema name="s"/>'.encode("utf-16"), (1, 1), "UTF-16", "UTF-8"),
        ('<schema name="s"/>'.encode("utf-16-be"), (1, 1), "UTF-16", "UTF-8"),
        ('<schema name="s">\ncafé</schema>'.encode("cp1252"), (2, 4), "0xe9", "Windows-1252"),
    ],
)
def test_documents_in_another_encoding(document: bytes, place: tuple[int, int], message: str, advice: str) -> None:
    """The message names the encoding that the document probably has."""
    check(first_of_schema(document), "PC006", place, message, advice)


@pytest.mark.parametrize(("code", "content", "message", "advice"), rows("schemas"))
def test_faults_of_schemas(content: str, code: str, message: str, advice: str) -> None:
    """Elements, attributes, values, paths and rules that the language lacks get those of the language as help."""
    text, place = without_caret(AROUND.replace("{}", content))
    check(first_of_schema(text), code, place, message, advice)


@pytest.mark.parametrize(("code", "prompt", "message", "advice"), rows("prompts"))
def test_faults_of_prompts(prompt: str, code: str, message: str, advice: str) -> None:
    """Arguments, turns, paths and text in forms of other formats get the form of this language as help."""
    check(first_of_prompt(f'<prompt schema="s">{prompt}</prompt>'), code, None, message, advice)


def test_paths_with_dots_in_python_get_the_path() -> None:
    """`use("a.b")` gets the path with slashes as help."""
    check(first_of_prompt(Prompt("s").use("drugs.apixaban")), "PC401", None, "", "/drugs/apixaban")
