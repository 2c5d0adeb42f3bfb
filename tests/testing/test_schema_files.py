"""Schemas in several files: the same meaning as one document, valid files, and simple files after shrinking."""

from collections.abc import Iterator
from posixpath import dirname

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import Diagnostic, LanguageError
from promptcache.language import CheckedSchema, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.load import format_document
from promptcache.layout import lay_out, run_variants
from promptcache.testing import ByteTokenizer
from tests.conftest import law_examples
from tests.laws.checker_laws import content, files_are_one_schema
from tests.laws.laws import without_places
from tests.strategies import SchemaFiles, invalid_prompts, schema_files
from tests.testing.samples import occurring

_PATHS = (
    *("/schema/include", "//module/include", "//user/include", "//module/@src", "//include", "/schema/union", "/schema/scaffold"),
    *("/schema/rules", "/schema[@context or @whitespace or @separator]", "/schema[starts-with(text(), '\n  ')]"),
)  # fmt: skip
FEATURES = (
    *(f"schema: {path}" for path in _PATHS),
    *(f"file: {path}" for path in _PATHS if "user" not in path),
    *("two files", "file in a folder below", "empty text", "awkward text"),
)


@pytest.mark.law
@settings(max_examples=law_examples())
@given(written=schema_files())
def test_files_are_as_if_they_were_written_in_place(written: SchemaFiles) -> None:
    """A schema with includes and `src` has the text, slots, rules, guarantees, tokens and positions of one document."""
    files_are_one_schema(written)
    divided, whole = (
        lay_out(schema, ByteTokenizer()) for schema in (written.checked(), check_schema(parse_schema(written.whole)))
    )

    assert without_places(divided.runs) == without_places(whole.runs)
    assert run_variants(divided) == run_variants(whole)


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), written=schema_files())
def test_prompts_are_refused_as_for_one_document(data: st.DataObject, written: SchemaFiles) -> None:
    """A faulty prompt gets the same codes at the same places for a schema in one file and in several."""
    divided, whole = written.checked(), check_schema(parse_schema(written.whole))
    invalid = data.draw(invalid_prompts(whole))

    assert [(each.code, each.span) for each in refusals(invalid.xml, divided)] == [
        (each.code, each.span) for each in refusals(invalid.xml, whole)
    ]


def refusals(xml: str, schema: CheckedSchema) -> tuple[Diagnostic, ...]:
    """Return the selection of a prompt, or its findings."""
    try:
        resolve_prompt(parse_prompt(xml), schema)
    except LanguageError as error:
        return error.diagnostics
    return ()


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(written=schema_files())
def test_formatting_every_file_keeps_the_schema(written: SchemaFiles) -> None:
    """Each file can be formatted alone, and the schema of the formatted files is the same."""
    files = {
        name: format_document(text, folder=beside(name, written)) if name.endswith(".xml") else text
        for name, text in written.files.items()
    }
    formatted = parse_schema(format_document(written.xml, folder=written.folder), folder=files or None)

    assert content(check_schema(formatted)) == content(written.checked())


def beside(name: str, written: SchemaFiles) -> dict[str, str]:
    """Return the files in the folder of one of them, by their paths from there."""
    above = f"{dirname(name)}/" if dirname(name) else ""
    return {path.removeprefix(above): text for path, text in written.files.items() if path.startswith(above)}


@pytest.mark.slow
def test_every_way_to_divide_occurs() -> None:
    """Files are included everywhere and from everywhere, in every way."""
    assert occurring(schema_files(), features, {*FEATURES}) >= {*FEATURES}


def features(written: SchemaFiles) -> Iterator[str]:
    """Yield what occurs in a schema's files."""
    texts = {"": written.xml, **written.files}
    yield from ("two files" for _ in range(len(written.files) > 1))
    for name, text in texts.items():
        yield from ("file in a folder below" for _ in range("/" in name))
        if name.endswith(".txt"):
            yield from ("empty text" if not text else "awkward text" for _ in range(not text or any(each in text for each in ("\r\n", "]]>", "<", "\ufeff"))))  # fmt: skip
            continue
        where = "file" if name else "schema"
        root = etree.fromstring(text)
        yield from (f"{where}: {path}" for path in _PATHS if root.xpath(path))
