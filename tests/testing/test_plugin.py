"""The pytest plugin, run by pytest itself in folders of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from promptcache.language import Schema
from promptcache.testing.running import check_laws

pytest_plugins = ["pytester"]

SCHEMA = """<?xml version="1.0"?>
<schema name="shop">
  <module name="terms">Ten days.</module>
  <example name="Ann" valid="true"><prompt schema="shop"><name who="Ann"/></prompt></example>
  <module name="name">For <parameter name="who" length="4" required="true"/>.</module>
</schema>
"""
BROKEN = '<schema name="b"><module name="a" requires="nowhere"/></schema>'


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """A folder with one schema in it."""
    made = pytester.mkdir("schemas")
    (made / "shop.xml").write_text(SCHEMA)
    (made / "prompt.xml").write_text('<prompt schema="shop"/>')
    return made


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest in a process of its own."""
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--promptcache-examples=10", *arguments)


def test_schemas_are_collected_when_asked_for(pytester: pytest.Pytester, folder: Path) -> None:
    """With the option there is an item for every example and every law; without, none."""
    from promptcache.testing.laws import LAWS

    asked = run(pytester, "--promptcache=schemas")

    asked.assert_outcomes(passed=1 + len(LAWS))
    assert run(pytester).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_templates_are_not_collected(pytester: pytest.Pytester, folder: Path) -> None:
    """A template has no values here; what it makes is tested as docs/testing.md says, also where a schema includes it."""
    (folder / "shop.xml").rename(folder / "shop.xml.j2")
    all_of_it = folder / "all.xml"
    all_of_it.write_text('<schema name="all"><include href="one.xml.j2"/></schema>')
    one = folder / "one.xml.j2"
    one.write_text('<schema name="one"><module name="a">{{ text }}</module></schema>')

    for path in (one, all_of_it):
        check_laws(Schema.from_file(path, context={"text": "Low < high."}), max_examples=5)
    all_of_it.unlink()
    assert run(pytester, "--promptcache=schemas").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_laws_are_spread_over_processes(pytester: pytest.Pytester, folder: Path) -> None:
    """The same items run under xdist."""
    from promptcache.testing.laws import LAWS

    run(pytester, "--promptcache=schemas", "-n", "2", "-p", "xdist").assert_outcomes(passed=1 + len(LAWS))


def test_a_broken_schema_fails_at_its_place(pytester: pytest.Pytester, folder: Path) -> None:
    """A schema that does not check is one failing item with its diagnostics."""
    (folder / "broken.xml").write_text(BROKEN)

    result = run(pytester, "--promptcache=schemas")

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*broken.xml:1:*PC208*"])


def test_an_example_fails_at_its_line(pytester: pytest.Pytester, folder: Path) -> None:
    """An example that cannot be planned fails alone, with its code, at its own line of the schema."""
    (folder / "shop.xml").write_text(SCHEMA.replace('who="Ann"', 'who="whoever opens the door"'))

    result = run(pytester, "--promptcache=schemas", "-v", "-k", "example or selected")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*shop: example Ann*", "*shop.xml:4:*PC501*"])


def test_a_broken_law_shows_the_prompt(pytester: pytest.Pytester, folder: Path) -> None:
    """A failure names the schema's file and line, the law, the smallest prompt, its slots and a command."""
    pytester.makeconftest(
        """
        from dataclasses import replace
        from promptcache.layout import Level
        import sys
        import promptcache.layout
        sys.modules["promptcache.layout.plan"].level_of = lambda *_: Level.MODULAR
        """
    )

    result = run(pytester, "--promptcache=schemas")

    result.stdout.fnmatch_lines(
        ["*schemas/shop.xml:2: The level is*", "prompt: <prompt*", "positions: *", "to see it: *"]
    )


def test_the_engine_fixture_answers(pytester: pytest.Pytester) -> None:
    """A test that asks for `promptcache_engine` gets a tiny model over bytes that answers."""
    pytester.makepyfile(
        """
        def test_it(promptcache_engine):
            promptcache_engine.add_schema('<schema name="s"><module name="a">x</module></schema>')
            answer = promptcache_engine.generate('<prompt schema="s"><a/>Go</prompt>', max_new_tokens=2)
            assert len(answer.token_ids) == 2
        """
    )

    run(pytester).assert_outcomes(passed=1)


def test_schemas_are_tested_without_torch(folder: Path) -> None:
    """Laws over schemas run where torch and transformers cannot be imported."""
    code = (
        "import sys, pytest\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'transformers'}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--promptcache=schemas', '--promptcache-examples=5']))\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder.parent, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr


def test_pytest_starts_without_torch() -> None:
    """The plugin imports neither torch nor transformers when pytest starts."""
    code = "import sys, promptcache.testing.plugin; print([n for n in ('torch', 'transformers') if n in sys.modules])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
