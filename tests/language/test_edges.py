"""Tests of rare faults and limits: each has a clear message and costs little time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from promptcache.diagnostics import MAX_FAULTS, LanguageError
from promptcache.language import Prompt, Schema
from promptcache.language.syntax.names import MAX_SUGGESTIONS
from promptcache.language.syntax.patterns import matches
from tests.language.documents import checked, codes, selected

MODULE = '<module name="a"/>'


def test_patterns_know_sets_and_escapes():
    """Sets, complements and escaped characters match correctly inside and outside of a class."""
    assert matches("\\D+", "ab")
    assert not matches("\\D+", "a1")
    assert matches("[\\d\\]x-z]+", "7]y")
    assert not matches("[^\\d]", "7")
    assert matches("a\\tb", "a\tb")


def test_no_document_has_more_faults_than_anyone_reads():
    """With a thousand faults, the error has the first hundred and says that there are more."""
    schema = f'<schema name="s">{MODULE}<module name="b"><parameter name="p" length="1"/></module></schema>'
    unknown = "".join(f"<a{number}/>" for number in range(1_000))
    arguments = " ".join(f'a{number}=""' for number in range(1_000))
    for prompt in (unknown, f"<b {arguments}/>"):
        with pytest.raises(LanguageError) as caught:
            selected(f'<prompt schema="s">{prompt}</prompt>', schema)
        assert codes(caught.value.diagnostics).count("PC012") == 1
        assert len(caught.value.diagnostics) == MAX_FAULTS + 1


def test_suggestions_end_where_nobody_reads_them():
    """With fifty unknown paths, all are reported, and the first ones have a suggestion."""
    rules = "".join(f'<exclude modules="alpha alpah{number}"/>' for number in range(50))
    with pytest.raises(LanguageError) as caught:
        checked(f'<schema name="s"><module name="alpha"/><rules>{rules}</rules></schema>')
    found = caught.value.diagnostics
    assert set(codes(found)) == {"PC208"}
    assert sum("did you mean" in each.help for each in found) == MAX_SUGGESTIONS


def test_files_that_cannot_be_read_are_reported(tmp_path: Path):
    """A pipe, an impossible file name, and a context without a template are faults with a place."""
    os.mkfifo(tmp_path / "pipe.xml")
    (tmp_path / "p.xml").write_text('<prompt schema="s"/>')
    name = "n" * 300
    (tmp_path / "s.xml").write_text(f'<schema name="s"><module name="a" src="{name}"/></schema>')
    with pytest.raises(LanguageError, match="PC010 this is a pipe or a device"):
        Schema.from_file(tmp_path / "pipe.xml")
    with pytest.raises(LanguageError, match="PC605"):
        Prompt.from_file(tmp_path / "p.xml", context={})
    with pytest.raises(LanguageError, match="PC211"):
        Schema.from_file(tmp_path / "s.xml")
    with pytest.raises(LanguageError, match="PC010 the file cannot be read"):
        Prompt.from_file(tmp_path / f"{name}.xml")
