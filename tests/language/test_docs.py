"""Tests of the XML examples in the documentation against the surrounding text."""

import re
from pathlib import Path

from promptcache.diagnostics import LanguageError
from promptcache.language import CheckedSchema, Prompt, Schema, check_schema, parse_prompt, parse_schema, resolve_prompt
from tests.language.documents import FILES, TRAVEL, codes, examples

DOCS = Path(__file__).parents[2] / "docs"
LANGUAGE = (DOCS / "language.md").read_text(encoding="utf-8")


def run(blocks: list[str], schema: CheckedSchema) -> list[str]:
    """Check schemas and resolve prompts, each against the schema before it; return all codes."""
    found = []
    for block in blocks:
        try:
            if block.startswith("<prompt"):
                resolve_prompt(parse_prompt(block), schema)
            else:
                schema = check_schema(parse_schema(block, folder=FILES))
                found += codes(schema.warnings)
        except LanguageError as error:
            found += codes(error.diagnostics)
    return found


def test_examples_of_the_language_are_right():
    """Every example of the reference is accepted without a warning."""
    travel = check_schema(parse_schema(TRAVEL))

    assert {block: found for block in examples(LANGUAGE) if (found := run([block], travel))} == {}


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    """All Python blocks run next to the documents of the page, and the built prompt equals the written one."""
    python = re.findall(r"^```python\n(.*?)^```$", LANGUAGE, re.MULTILINE | re.DOTALL)
    (template,) = re.findall(r"^```jinja\n(.*?)^```$", LANGUAGE, re.MULTILINE | re.DOTALL)
    schema, prompt = examples(LANGUAGE)[:2]
    for name, text in (("travel.xml", schema), ("prompt.xml", prompt), ("library.xml.j2", template)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    known = {"Prompt": Prompt, "Schema": Schema}
    built = eval(python[0], known)

    for block in python[1:]:
        exec(block, known)

    assert resolve_prompt(built, check_schema(parse_schema(schema))).modules == known["selection"].modules
