"""Schemas in several files: the same meaning as one document, valid files, and simple files after shrinking."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import dirname

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import Diagnostic, LanguageError
from promptcache.language import CheckedSchema, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.format.formatter import format_document
from promptcache.layout import lay_out, run_variants
from promptcache.testing import ByteTokenizer
from tests.conftest import law_examples
from tests.laws.checker_laws import content, files_are_one_schema
from tests.laws.laws import BrokenLaw, without_places
from tests.laws.subject import Subject
from tests.strategies import SchemaFiles, invalid_prompts, schema_files
from tests.strategies.split_files import FileWish, divide
from tests.testing.occurring import occurring

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


def test_a_module_that_moves_twice_has_the_options_of_its_last_file() -> None:
    """The piece says of a module what the innermost file says, not what one on the way to it said."""
    root = etree.fromstring('<schema name="s"><module name="a">a<parameter name="p" length="1"/></module></schema>')
    wishes = [wish(options={"separator": separator}) for separator in ("", " ")]

    written = divide(root, wishes, indented=False)

    assert 'separator=" "' in written.whole
    files_are_one_schema(written)


def wish(options: dict[str, str]) -> FileWish:
    """Return the wish for a file of the first module, with these options and nothing else."""
    return FileWish(of_text=False, number=0, deep=False, options=options, rules=False)


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


def test_a_schema_that_means_something_else_breaks_the_law() -> None:
    """Files that say another thing than the document are reported with all of their text."""
    part = '<schema name="s"><module name="a">x</module></schema>'
    written = SchemaFiles(
        xml='<schema name="s"><include href="part.xml"/></schema>',
        files={"part.xml": part},
        whole=part.replace("x", "y"),
    )

    with pytest.raises(BrokenLaw, match=r"(?s)other than .*y.*schema: .*file part\.xml: "):
        files_are_one_schema(written)


def test_a_drawn_schema_has_the_texts_of_its_files() -> None:
    """A subject of a schema that was read with its files still has their texts, byte by byte."""
    written = SchemaFiles(
        xml='<schema name="s"><include href="more/part.xml"/></schema>',
        files={
            "more/part.xml": '<schema name="s"><module name="a" src="text.txt"/></schema>',
            "more/text.txt": "\ufeff\ufeffLow < high.\r\n",
        },
        whole='<schema name="s"><module name="a"><text>\ufeffLow &lt; high.&#13;\n</text></module></schema>',
    )

    files_are_one_schema(written)
    assert Subject(written.checked()).folder == {"more/text.txt": "\ufeff\ufeffLow < high.\r\n"}


def test_scaffolds_of_a_file_stay_where_it_is_included() -> None:
    """In a module, a file's scaffold comes before those declared later, also if that module is in a turn."""
    modules = '<module name="a">a</module><module name="b">b</module><scaffold modules="a b"/>'
    around = '<schema name="s"><user><module name="m">{}</module></user><scaffold modules="m/b m/a"/></schema>'

    files_are_one_schema(
        SchemaFiles(
            xml=around.format('<include href="part.xml"/>'),
            files={"part.xml": f'<schema name="s">{modules}</schema>'},
            whole=around.format(modules),
        )
    )
