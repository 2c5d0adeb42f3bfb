"""Documents with one fault: the code, the place that a caret marks, and words of the message and of the help."""

from collections.abc import Iterable

import pytest

from promptcache.diagnostics import Diagnostic, PromptError, SchemaError
from promptcache.language import Prompt, parse_prompt, parse_schema, resolve_prompt
from tests.language.documents import FILES, SCHEMAS, checked, faults
from tests.language.faults import pieces, rows
from tests.strategies.pieces import CARET, line_and_column

PATIENT = """<schema name="s">
  <module name="patient">Ada <parameter name="name" length="4"/>.</module>
  <union name="reader"><module name="lay">Plain.</module><module name="doctor">Codes.</module></union>
  <module name="drugs"><module name="apixaban">5 mg.</module></module>
  <module name="lab">INR <parameter name="inr" length="4"/>.</module>
  <module name="day"><parameter name="n" length="4" type="int"/></module>
</schema>"""


OTHERS = {name: (SCHEMAS / f"{name}.xml").read_text(encoding="utf-8") for name in ("rules", "travel")}


def cases(found: Iterable[list[str]]) -> list[object]:
    """Return rows as parameters."""
    return [pytest.param(*row, id=f"{row[0]}-{number}") for number, row in enumerate(found)]


def first_of_schema(document: str | bytes) -> Diagnostic:
    """Return the first finding in a schema, warnings included."""
    try:
        return checked(document, folder=FILES).warnings[0]
    except SchemaError as error:
        return error.diagnostics[0]


def first_of_prompt(prompt: str | Prompt, schema: str = PATIENT) -> Diagnostic:
    """Return the first finding in a prompt."""

    def resolve() -> object:
        read = parse_prompt(prompt, folder=FILES) if isinstance(prompt, str) else prompt
        return resolve_prompt(read, checked(schema))

    return faults(PromptError, resolve)[0]


def check(found: Diagnostic, code: str, place: tuple[int, int] | None, message: str, advice: str) -> None:
    """Compare a finding with a row of a table; an empty text is in every text."""
    assert found.code == code
    assert place in (None, (found.span.line, found.span.column))
    assert message in f"{found.message} {found.help}"
    assert str(FILES) not in found.message
    assert found.help
    assert advice in found.help


def without_caret(document: str) -> tuple[str, tuple[int, int] | None]:
    """Return a document without its caret, and the line and column of the caret."""
    if CARET not in document:
        return document, None
    offset, text = document.index(CARET), document.replace(CARET, "")
    return text, line_and_column(text, offset)


@pytest.mark.parametrize(
    ("document", "place", "message", "advice"),
    [
        ('<schema name="s"/>'.encode("utf-16"), (1, 1), "UTF-16", "UTF-8"),
        (b"\x89PNG\r\n", (1, 1), "the file is a picture (PNG)", "name a schema or a prompt"),
        ('<schema name="s"/>'.encode("utf-16-be"), (1, 1), "UTF-16", "UTF-8"),
        ('<schema name="s">\ncafé</schema>'.encode("cp1252"), (2, 4), "0xe9", "Windows-1252"),
    ],
)
def test_documents_in_another_encoding(document: bytes, place: tuple[int, int], message: str, advice: str) -> None:
    """The message names the encoding that the document probably has."""
    check(first_of_schema(document), "PC006", place, message, advice)


OF_SCHEMAS = (*rows("documents"), *rows("schemas"), *([*each, "", ""] for each in pieces()))


@pytest.mark.parametrize(("code", "document", "message", "advice"), cases(OF_SCHEMAS))
def test_faults_of_schemas(document: str, code: str, message: str, advice: str) -> None:
    """A malformed document, and what the language lacks, is explained where it is, with what to write as help."""
    text, place = without_caret(document)
    check(first_of_schema(text), code, place, message, advice)


@pytest.mark.parametrize(("code", "prompt", "message", "advice"), cases((*rows("prompts"), *rows("whole prompts"))))
def test_faults_of_prompts(prompt: str, code: str, message: str, advice: str) -> None:
    """A prompt that breaks a rule of the language or of its schema is refused where it does, with a fix."""
    text, place = without_caret(prompt)
    check(
        first_of_prompt(text, next((each for name, each in OTHERS.items() if f'schema="{name}"' in text), PATIENT)),
        code,
        place,
        message,
        advice,
    )


def test_a_document_of_the_other_kind_names_what_to_give() -> None:
    """A schema in place of a prompt gets the prompt to write, and a prompt in place of a schema the schema to name."""
    check(
        first_of_schema('<prompt schema="s"/>'), "PC107", (1, 2), "", 'name the file of its schema, <schema name="s">'
    )
    check(first_of_prompt('<schema name="s"/>'), "PC107", (1, 2), "", 'a prompt for it, <prompt schema="s">…</prompt>')


def test_an_attribute_with_a_typo_is_one_fault() -> None:
    """A required attribute under a name that means it is not reported as missing, too."""
    document = '<schema name="s"><module id="a">A</module><parameter nmae="b"/></schema>'
    found = [(each.code, each.help) for each in faults(SchemaError, parse_schema, document)]
    meant = ("PC103", "did you mean 'name'?")
    assert sorted(found) == [meant, meant, ("PC104", 'add length="…"')]


def test_paths_with_dots_in_python_get_the_path() -> None:
    """`use("a.b")` gets the path with slashes as help."""
    check(first_of_prompt(Prompt("s").use("drugs.apixaban")), "PC401", None, "", "/drugs/apixaban")
