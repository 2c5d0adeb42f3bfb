"""The pytest plugin, run by pytest itself in folders of their own."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from promptcache.language import Prompt
from promptcache.testing import check, plugin

pytest_plugins = ["pytester"]

OPTIONS = ("-p", "no:cacheprovider")

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
    """Run pytest in this process, where libraries are loaded already."""
    return pytester.runpytest_inprocess(*OPTIONS, *arguments)


def test_schemas_are_collected_when_asked_for(pytester: pytest.Pytester, folder: Path) -> None:
    """With the option there are an item for every example and one for the pairs of choices; without, none."""
    asked = run(pytester, "--promptcache=schemas")

    asked.assert_outcomes(passed=2)
    assert run(pytester).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_root_element_decides_what_is_collected(pytester: pytest.Pytester, folder: Path) -> None:
    """A broken schema is an item that fails, in any encoding; prompts and other documents are not collected."""
    (folder / "wide.xml").write_bytes('<schema name="wide"/>'.encode("utf-16"))
    (folder / "misspelt.xml").write_text('<shcema name="misspelt"/>')
    (folder / "prompt.xml").write_text('<prompt schema="x"><![CDATA[What is <schema name="x">?]]></prompt>')
    (folder / "other.xml").write_text('<project><schema name="x"/></project>')

    run(pytester, "--promptcache=schemas").assert_outcomes(passed=2, failed=2)


@pytest.mark.parametrize(
    ("named", "passed"),
    [
        ("schemas/shop.xml::every pair of choices", 1),
        ("schemas/shop.xml", 2),
        ("schemas", 3),
        ("test_own.py", 4),
        ("test_own.py::test_own", 4),
    ],
)
def test_items_can_be_run_by_their_names(pytester: pytest.Pytester, folder: Path, named: str, passed: int) -> None:
    """A file or an item in the folder is run alone; the folder is added to tests that are elsewhere."""
    (folder / "other.xml").write_text('<schema name="other"/>')
    pytester.makepyfile(test_own="def test_own(): pass")

    run(pytester, "--promptcache=schemas", named).assert_outcomes(passed=passed)


TEMPLATE = """<schema name="plans">
  <example valid="true"><prompt schema="plans"><{{ plans[0] }}/></prompt></example>
  {% for plan in plans %}<module name="{{ plan }}">Plan {{ loop.index }}.</module>{% endfor %}
</schema>
"""


def test_templates_get_their_values(pytester: pytest.Pytester, folder: Path) -> None:
    """Templates, and schemas that include one, are tested with the values of a file; other schemas do without."""
    (folder / "plans.xml.j2").write_text(TEMPLATE)
    (folder / "all.xml").write_text('<schema name="all"><include href="plans.xml.j2"/></schema>')
    pytester.path.joinpath("values.json").write_text('{"plans": ["basic", "full"]}')

    result = run(pytester, "--promptcache=schemas", "--promptcache-context=values.json")

    result.assert_outcomes(passed=5)


def test_a_template_without_its_values_fails(pytester: pytest.Pytester, folder: Path) -> None:
    """A template that needs values is not left out: it fails where it needs them, and says how they are given."""
    (folder / "plans.xml.j2").write_text(TEMPLATE)
    (folder / "plain.xml.j2").write_text('<schema name="plain"><module name="a">{{ 1 + 1 }}</module></schema>')

    result = run(pytester, "--promptcache=schemas", "-k", "check or pair")

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*plans.xml.j2:2:*PC603*", "--promptcache-context=FILE gives templates their values"])


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        (None, ["--promptcache=schemas"], "*values.json: *No such file*"),
        ("{", ["--promptcache=schemas"], "*values.json: *line 1*"),
        ("[]", ["--promptcache=schemas"], "*values.json: an object*"),
        ("{}", [], "is for templates*--promptcache=FOLDER*"),
    ],
)
def test_values_that_are_none_are_refused(
    pytester: pytest.Pytester, folder: Path, text: str | None, options: list[str], told: str
) -> None:
    """A file of values that is missing, holds none or is for no folder is a mistake in the command; no test runs."""
    if text is not None:
        pytester.path.joinpath("values.json").write_text(text)

    result = run(pytester, *options, "--promptcache-context=values.json")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--promptcache-context {told}"])


def test_schemas_without_hypothesis_are_refused(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Hypothesis, one line names the package instead of a traceback for each schema."""
    config = pytester.parseconfig("--promptcache=schemas")
    monkeypatch.setitem(sys.modules, "hypothesis", None)

    with pytest.raises(pytest.UsageError, match=r"promptcache\[testing\]"):
        plugin.pytest_configure(config)


def test_strategies_without_hypothesis_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a name without Hypothesis names the package to install, not only the missing module."""
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "promptcache.testing.cases", raising=False)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'promptcache\[testing\]'"):
        import_module("promptcache.testing").prompts  # noqa: B018 - it is loaded when it is asked for


@pytest.mark.slow
def test_items_are_spread_over_processes(pytester: pytest.Pytester, folder: Path) -> None:
    """The same items run under xdist."""
    words = (*OPTIONS, "--promptcache=schemas", "-n", "2", "-p", "xdist")
    pytester.runpytest_subprocess(*words).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("schema", "passed", "lines"),
    [
        (BROKEN, 0, ["*shop.xml:1:*PC208*"]),
        (
            SCHEMA.replace('who="Ann"', 'who="whoever opens the door"'),
            1,
            ["*shop: example Ann*", "*shop.xml:4:*PC501*"],
        ),
        (
            SCHEMA.replace("Ten days.", '<parameter name="what" length="1" required="true" pattern="a{9}"/>'),
            1,
            ["*no text was found for the slot 'what' of length 1*", "modules: *terms*"],
        ),
        (SCHEMA.replace('length="4" required="true"', 'length="1" default="a b c d"'), 0, ["*shop.xml:5:*PC5*"]),
    ],
    ids=["schema", "example", "combination", "layout"],
)
def test_failures_have_their_place(
    pytester: pytest.Pytester, folder: Path, schema: str, passed: int, lines: list[str]
) -> None:
    """A schema, an example, and a combination or slot that takes no text fail with code and place, without a traceback."""
    (folder / "shop.xml").write_text(schema)

    result = run(pytester, "--promptcache=schemas", "-v")

    assert result.parseoutcomes().get("passed", 0) == passed
    assert result.parseoutcomes()["failed"] >= 1
    result.stdout.fnmatch_lines(lines)
    assert "def runtest" not in result.stdout.str()


@pytest.mark.parametrize("name", ["every pair of choices", "example Ann"])
def test_other_errors_have_a_type_and_a_traceback(
    pytester: pytest.Pytester, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is no fault of the schema is shown as pytest shows errors."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(check, "check_combination", fail)
    monkeypatch.setattr(check, "check_example", fail)

    result = run(pytester, "--promptcache=schemas", f"schemas/shop.xml::{name}")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*def runtest*", "*KeyError: 'lost'"])


def test_a_failing_prompt_is_a_file(pytester: pytest.Pytester, folder: Path) -> None:
    """The smallest prompt of a property test is kept, and the report has the statistics of its examples."""
    (folder / "test_shop.py").write_text(
        "from hypothesis import given\nfrom promptcache.testing import prompts\n\n"
        "@given(prompts('schemas/shop.xml'))\ndef test_short(case):\n    assert 'terms' not in case.selection.modules\n"
    )

    result = run(pytester, "schemas/test_shop.py")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*failing prompt*", "kept in .promptcache/schemas-test_shop.py-test_short.xml", "*fail*"]
    )
    kept = pytester.path / ".promptcache" / "schemas-test_shop.py-test_short.xml"
    assert Prompt.from_file(kept) == Prompt("shop").use("terms")


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
    """Schemas are tested where torch and transformers cannot be imported."""
    code = (
        "import sys, pytest\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'transformers'}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--promptcache=schemas']))\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder.parent, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
