"""`promptcache grammar` writes the grammar with which an editor validates prompts."""

from __future__ import annotations

import json
from pathlib import Path

from lxml import etree

from tests.cli.conftest import Command


def test_writes_to_stdout_and_to_a_file(command: Command, folder: Path) -> None:
    """The grammar is the same on stdout, in a file and in JSON, and validates the schema's prompts."""
    printed = command("grammar", "travel.xml").stdout
    assert command("grammar", "travel.xml", "-o", "travel.rng").stdout == ""
    assert json.loads(command("grammar", "travel.xml", "--json").stdout)["grammar"] == printed
    grammar = etree.RelaxNG(etree.parse(folder / "travel.rng"))
    assert grammar.validate(etree.parse(folder / "prompts/miami.xml"))
    assert not grammar.validate(etree.parse(folder / "prompts/typo.xml"))
    assert (folder / "travel.rng").read_text(encoding="utf-8") == printed
