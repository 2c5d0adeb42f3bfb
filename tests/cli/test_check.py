"""`promptcache check`."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

import promptcache.cli.check
from promptcache import Engine
from promptcache.diagnostics import PromptCacheError
from tests.cli.conftest import DOCUMENTS, Command

pytestmark = pytest.mark.usefixtures("folder")


def test_folder_is_all_its_documents(command: Command, folder: Path) -> None:
    """A folder stands for the schemas and prompts in it and below; other XML files are left out."""
    (folder / "a" / "prompts").mkdir(parents=True)
    (folder / "a" / "s.xml").write_text('<schema name="s"><module name="m">M</module></schema>')
    (folder / "a" / "broken.xml").write_text("no markup")
    (folder / "a" / "pom.xml").write_text("<project/>")
    (folder / "a" / "prompts" / "p.xml").write_text('<prompt schema="s"><n/></prompt>')

    result = command("check", "a")

    assert [line for line in result.stdout.splitlines() if "-->" in line] == [
        "  --> a/broken.xml:1:1",
        "  --> a/prompts/p.xml:1:21",
    ]
    assert "2 schemas and 1 prompt checked: 2 errors" in result.stdout
    (folder / "empty").mkdir()
    assert "no schema and no prompt" in command("check", "empty").stderr


def test_findings_are_printed_whole(command: Command) -> None:
    """A finding is printed with its line and help, and summed up; the exit code is 1."""
    result = command("check", "prompts/typo.xml", "travel.xml")

    assert result.exit_code == 1
    assert result.stdout == (
        "error[PC401]: there is no module 'plam' at the top level\n"
        "  --> prompts/typo.xml:2:4\n"
        '  2 |   <plam days="3"/>\n'
        "    |    ^^^^\n"
        "  = help: did you mean <plan>?\n"
        "\n"
        "1 prompt and 1 schema checked: 1 error\n"
    )


def test_formats_of_answers_are_read_beside_their_document(command: Command, folder: Path) -> None:
    """`check` and `fmt` read the file of a schema and of a prompt; a prompt from standard input has none."""
    prompt = '<prompt schema="s"><answer src="vote.json"/><a/>Well?</prompt>'
    (folder / "vote" / "prompts").mkdir(parents=True)
    (folder / "vote" / "s.xml").write_text(
        '<schema name="s"><module name="a">A</module><answer src="prompts/vote.json"/>'
        "<example answer='\"no\"'><prompt schema='s'><a/></prompt></example></schema>"
    )
    (folder / "vote" / "prompts" / "p.xml").write_text(prompt)
    (folder / "vote" / "prompts" / "vote.json").write_text('{"enum": ["yes", "no"]}')
    piped = command("check", "-", "vote/s.xml", stdin=prompt)

    assert command("check", "vote").stdout == "1 prompt and 1 schema checked: no findings\n"
    assert command("fmt", "vote/prompts/p.xml", "vote/s.xml").exit_code == 0
    assert '<answer src="vote.json"/>\n' in (folder / "vote" / "prompts" / "p.xml").read_text()
    assert piped.exit_code == 1
    assert "PC214" in piped.stdout
    assert "a prompt that is given as text has none" in piped.stdout
    (folder / "vote" / "prompts" / "vote.json").write_text('{"not": {}}')
    found = command("check", "vote").stdout
    assert [line for line in found.splitlines() if "-->" in line or "Unimplemented" in line] == [
        'error[PC227]: the format of the answer cannot be used: Unimplemented keys: ["not"]',
        "  --> vote/prompts/p.xml:2:16",
        'error[PC227]: the format of the answer cannot be used: Unimplemented keys: ["not"]',
        "  --> vote/s.xml:3:16",
    ]


def test_json_has_every_finding_with_its_place(command: Command) -> None:
    """With --json the same findings come as data."""
    result = command("check", "prompts/typo.xml", "--json")

    prompt, schema = json.loads(result.stdout)["documents"]
    (finding,) = prompt["diagnostics"]
    assert (prompt["file"], prompt["kind"], prompt["schema"]) == ("prompts/typo.xml", "prompt", schema["file"])
    place = [finding[key] for key in ("line", "column", "stop_line", "stop_column")]
    assert place == [2, 4, 2, 8]
    assert (finding["code"], finding["severity"], finding["file"]) == ("PC401", "error", "prompts/typo.xml")


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(
    ("files", "code", "strict", "found"),
    [
        ("travel.xml", 0, 0, ""),
        ("dead.xml", 0, 1, "PC302"),
        ("prompts/typo.xml", 1, 1, "PC401"),
        ("prompts/lost.xml", 1, 1, "PC422"),
        ("gone.xml prompts/typo.xml", 3, 3, "PC401"),
    ],
)
def test_the_exit_code_is_that_of_the_findings(
    command: Command, form: tuple[str, ...], files: str, code: int, strict: int, found: str
) -> None:
    """Warnings count with --strict only, and a file that cannot be read outweighs the findings of the others."""
    result = command("check", *files.split(), *form)

    assert (result.exit_code, found in result.stdout) == (code, True)
    assert command("check", *files.split(), *form, "--strict").exit_code == strict


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 3, "error: not enough memory\n"),
        (
            ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"),
            3,
            "error: this needs 'torch', which is not installed: pip install promptcache brings it\n",
        ),
    ],
)
def test_what_stops_a_command_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, told: str
) -> None:
    """Ctrl-C ends a command without a word; lack of memory or of a package is an error of the environment."""

    def stopped(*_: object) -> None:
        raise error

    monkeypatch.setattr(promptcache.cli.check, "check_files", stopped)

    result = command("check", "travel.xml")

    assert (result.exit_code, result.stdout, result.stderr) == (code, "", told)


LONG = "as long as the weather stays as fine as it is"
LARGE = '<schema name="large" positions="fixed"><module name="a">One. {}</module></schema>'
RESERVED = '<schema name="s"><module name="a" reserve="1">Longer than its reserve.</module></schema>'
COUNTED = {
    "argument": ("travel.xml", f'<prompt schema="travel"><plan days="{LONG}"/></prompt>', "PC501"),
    "default": (f'<schema name="d"><parameter name="p" length="2" default="{LONG}"/></schema>', None, "PC502"),
    "schema": (LARGE.format('<parameter name="p" length="5000"/>'), None, "PC503"),
    "member": (
        f'<schema name="m"><collection name="c"><module name="n">{"word " * 5000}</module></collection></schema>',
        '<prompt schema="m"><c><n/></c></prompt>',
        "PC504",
    ),
    "prompt": ("travel.xml", f'<prompt schema="travel"><miami/>{"word " * 5000}</prompt>', "PC504"),
    "empty": ('<schema name="e"><module name="a">A</module></schema>', '<prompt schema="e"/>', "PC506"),
    "warning": (RESERVED, None, "PC505"),
    "sound": ("travel.xml", DOCUMENTS["prompts/miami.xml"], None),
}


def test_with_a_model_a_finding_is_told_once(command: Command, folder: Path) -> None:
    """A warning that the schema has is not one of its prompt as well."""
    text = '<schema name="s"><system>One.</system><module name="a">Two.</module></schema>'
    (folder / "s.xml").write_text(text, encoding="utf-8")
    (folder / "p.xml").write_text('<prompt schema="s"><a/><user>Why?</user></prompt>', encoding="utf-8")

    assert command("check", "p.xml", "--model", "demo").stdout.count("PC518") == 1


@pytest.mark.parametrize("case", COUNTED)
def test_with_a_model_check_finds_what_an_engine_would_refuse(command: Command, folder: Path, case: str) -> None:
    """With --model the limits in tokens are checked: arguments, defaults, positions and reserves."""
    schema, prompt, code = COUNTED[case]
    files = {"s.xml": DOCUMENTS.get(schema, schema), "p.xml": prompt}
    given = [name for name, text in files.items() if text is not None]
    for name in given:
        (folder / name).write_text(files[name] or "")

    counted, plain = command("check", *given, "--strict", "--model", "demo"), command("check", *given, "--strict")

    assert plain.exit_code == 0, plain.output
    assert code != "PC503" or "model 'demo' has 4096: module 'a' has 5003\n" in counted.stdout
    assert (counted.exit_code, f"[{code}]" in counted.stdout) == ((1, True) if code else (0, False)), counted.output
    engine = Engine.from_pretrained("demo", device="cpu")
    refusals = [] if code in (None, "PC505") else [pytest.raises(PromptCacheError)]
    with ExitStack() as stack:
        for each in refusals:
            stack.enter_context(each)
        engine.add_schema(folder / "s.xml")
        if prompt:
            engine.generate(folder / "p.xml", max_new_tokens=1)


def test_prompts_of_a_broken_schema_have_a_note(command: Command) -> None:
    """Of a schema with errors a note says that its prompts were not checked."""
    text = command("check", "prompts/broken.xml").stdout

    assert "note: prompts/broken.xml: schema broken.xml has errors" in text
    assert "  --> broken.xml:1:" in text


def test_schemas_that_are_given_come_first(command: Command, folder: Path) -> None:
    """A prompt is checked against the given schema of its name, or that of --schema, not against one nearby."""
    (folder / "other.xml").write_text(
        '<schema name="travel"><module name="plam">x<parameter name="days" length="2"/></module></schema>'
    )
    (folder / "elsewhere").mkdir()

    assert command("check", "prompts/typo.xml", "other.xml").exit_code == 0
    (folder / "travel.xml").rename(folder / "elsewhere" / "travel.xml")
    (folder / "other.xml").unlink()
    result = command("check", "prompts/miami.xml", "--schema", "elsewhere/travel.xml")
    assert (result.exit_code, result.stdout) == (0, "1 prompt and 1 schema checked: no findings\n")
    assert "PC413" in command("check", "prompts/miami.xml", "--schema", "support.xml").stdout
