"""The files for editors name existing grammars."""

from __future__ import annotations

import json
import re

from lxml import etree

from tests.grammar.structure import GRAMMAR


def test_the_catalog_names_grammars_that_exist():
    """Every grammar that the catalog names is in its folder."""
    named = etree.parse(GRAMMAR / "catalog.xml").xpath("//@uri")
    assert named
    assert all((GRAMMAR / uri).is_file() for uri in named)


def test_settings_can_be_read():
    """The settings for Visual Studio Code are JSON, name our grammar, and keep other formatters away."""
    settings = json.loads((GRAMMAR / "vscode-settings.json").read_text(encoding="utf-8"))
    assert settings["xml.fileAssociations"][0]["systemId"].endswith("/grammar/promptcache.rng")
    assert settings["xml.format.enabled"] is False


def test_page_names_every_file():
    """docs/grammar.md lists each file."""
    page = (GRAMMAR.parent / "docs" / "grammar.md").read_text(encoding="utf-8")
    files = {path.name for path in GRAMMAR.iterdir() if path.is_file()}
    assert files <= set(re.findall(r"`([\w.-]+)`", page))
