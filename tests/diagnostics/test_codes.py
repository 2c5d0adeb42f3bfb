"""The table of codes: every code is raised, and its examples get it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import promptcache
from promptcache.diagnostics import CODES, Code, Diagnostic, LanguageError
from promptcache.language import Schema, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import check_length, lay_out, make_plan, run_variants
from tests.fakes import ByteTokenizer
from tests.language.documents import FILES, TRAVEL, examples
from tools import errors_page

BYTES = ByteTokenizer()
WITHOUT_EXAMPLE = {
    *("PC004", "PC006", "PC009", "PC012", "PC213", "PC314", "PC318", "PC504"),  # too large, or not to be printed
    *("PC010", "PC011", "PC214", "PC422", "PC605"),  # of files and of Python
    *("PC512", "PC513", "PC514", "PC519"),  # of one chat template
}


def findings(code: Code, folder: Path) -> Iterator[Diagnostic]:
    """Yield what is found in the examples of a code, each prompt with the schema before it."""
    schema = check_schema(parse_schema(TRAVEL))
    for block in examples(code.text):
        try:
            if block.startswith("<prompt"):
                selection = resolve_prompt(parse_prompt(block), schema)
                layout = lay_out(schema, BYTES)
                yield from make_plan(selection, layout, run_variants(layout), BYTES).warnings
            else:
                schema = check_schema(parse_schema(block, folder=FILES))
                yield from schema.warnings
                layout = lay_out(schema, BYTES)
                check_length(layout, run_variants(layout), 10**6)
                yield from layout.warnings
        except LanguageError as error:
            yield from error.diagnostics
    for number, template in enumerate(re.findall(r"^```jinja\n(.*?)^```$", code.text, re.MULTILINE | re.DOTALL)):
        file = folder / f"{number}.xml.j2"
        file.write_text(template, encoding="utf-8")
        with pytest.raises(LanguageError) as caught:
            Schema.from_file(file)
        yield from caught.value.diagnostics


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_examples_get_their_code(code: Code, tmp_path: Path) -> None:
    """The examples of a code get exactly this code, as severe as the table says, and a fix in plain text."""
    diagnostics = [*findings(code, tmp_path)]
    found = {(each.code, each.severity) for each in diagnostics}

    for fix in (code.fix, *(each.help for each in diagnostics)):
        assert fix
        assert not fix.endswith(".")
        assert "](" not in fix
    assert found == (set() if code.code in WITHOUT_EXAMPLE else {(code.code, code.severity)})


def test_codes_are_raised() -> None:
    """The library names every code of the table, and no other."""
    files = Path(promptcache.__file__).parent.rglob("*.py")
    named = {code for file in files for code in re.findall(r'"(PC\d{3})"', file.read_text(encoding="utf-8"))}

    assert named == CODES.keys()


def test_the_page_is_the_table() -> None:
    """`python -m tools.errors_page` writes the page as it is."""
    assert errors_page.PAGE.read_text(encoding="utf-8") == errors_page.page()
