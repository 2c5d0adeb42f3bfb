"""`promptcache convert` keeps what the model sees."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from promptcache.cli.convert import _sections, convert_chat, convert_dialect, convert_sections
from promptcache.diagnostics import SchemaError
from promptcache.language import MAX_BYTES, Module, Role, Text, check_schema, parse_prompt, parse_schema
from promptcache.testing.laws import shape
from promptcache.testing.subject import PromptCase, Subject
from tests.cli.conftest import Command

CHAT = [
    {"role": "developer", "content": "Be brief.\n  <Always> & ever."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": [{"type": "text", "text": "  What is "}, {"type": "text", "text": "it?"}]},
    {"role": "assistant", "content": "It is"},
]

SECTIONS = """\
Always here.

## Return policy
Ten days.
  Indented.

### A heading of its own

## Text
The end.

## user
What is it?
"""

PAPER = """\
<schema name="paper">
  <!-- <union scaffold="x"> -->
  <module name="trip"><![CDATA[<parameter scaffold="no">]]> <parameter name="days" length="3"
     scaffold = 'a "few"' /> days.</module>
  <union scaffold="miami"><module name="miami">Warm.</module><module name="paris">Old.</module></union>
  <module name="last"><parameter name="x" length="9" default=" scaffold='no'"/></module>
</schema>
"""


def converted(made_schema: str, made_prompt: str | None) -> PromptCase:
    """The prompt that was made, planned against the schema that was made."""
    return Subject(made_schema).case(made_prompt or "")


def test_a_chat_stays_the_same_for_the_model() -> None:
    """Every message is there, unchanged and in its turn, and each has seen those before it."""
    made = convert_chat(json.dumps({"messages": CHAT}), "chat", "chat.json")
    case = converted(made.schema, made.prompt)

    assert case.text == (
        "<|begin|><|system|>\nBe brief.\n  <Always> & ever.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n<|end|>\n"
        "<|user|>\n  What is it?<|end|>\n<|assistant|>\nIt is"
    )
    assert case.plan.level == "exact"


def test_what_follows_the_last_question_keeps_its_roles() -> None:
    """A system message behind the last one of the user stays one of the system."""
    chat = [{"role": role, "content": role[0]} for role in ("user", "system", "assistant")]
    made = convert_chat(json.dumps(chat), "chat", "chat.json")

    assert [each.role for each in parse_prompt(made.prompt or "").messages] == [Role.USER, Role.SYSTEM, Role.ASSISTANT]


def test_sections_become_modules() -> None:
    """A section becomes a module named after its heading; `user` and text before the first heading do not."""
    made = convert_sections(SECTIONS, "desk", "desk.txt")
    case = converted(made.schema, made.prompt)

    assert case.selection.modules == ("return-policy", "section-text")
    assert case.text == (
        "<|begin|><|system|>\nAlways here.\nTen days.\n  Indented.\n\n### A heading of its own\nThe end.<|end|>\n"
        "<|user|>\nWhat is it?<|end|>\n<|assistant|>\n"
    )


def test_code_in_a_section_stays_as_it_is() -> None:
    """The first line keeps its indentation, and a fence hides what looks like a heading."""
    made = convert_sections("## Code\n\n    x = 1\n```\n## no heading\n```\n", "code", "code.txt")
    case = converted(made.schema, made.prompt)

    assert (case.selection.modules, case.text) == (("code",), "<|begin|>    x = 1\n```\n## no heading\n```")


@pytest.mark.parametrize("end", ["\u00a0", "\u2028", "\x85", "\u3000"])
def test_only_blanks_of_xml_end_a_section(end: str) -> None:
    """Spaces, tabs and line ends around a section are left out; other space characters are text."""
    made = convert_sections(f"{end}Always.{end} \t\n\n## One\nDays{end}\n", "ends", "ends.txt")

    assert converted(made.schema, made.prompt).text == f"<|begin|>{end}Always.{end}\nDays{end}"


FIELDS = """\
Dear {name}, write in {language}.

## Order {number}
Order {number} of {name}:
  {item}

```
{code}
```
{{item}} and ${item} and {"json": 1} and {a_name_that_is_much_too_long}.

## user
Where is {item}?
"""


def test_a_name_in_braces_becomes_a_parameter() -> None:
    """Outside code, `{name}` becomes a slot that the prompt fills with the same text; other names are reported."""
    made = convert_sections(FIELDS, "desk", "desk.txt")
    case = converted(made.schema, made.prompt)
    plain = FIELDS.replace("\n## Order {number}\n", "").replace("\n## user\n", "<|end|>\n<|user|>\n").rstrip("\n")

    assert case.text == f"<|begin|><|system|>\n{plain}<|end|>\n<|assistant|>\n".replace(".\n<|end|>", ".<|end|>")
    assert {module: [*slots] for module, slots in check_schema(parse_schema(made.schema)).parameters.items()} == {
        "": ["name", "language"],
        "order-number": ["number", "name", "item"],
    }
    assert made.changes == (
        "desk.txt: {name} in the text before the first heading became the parameter 'name', which holds 32 tokens",
        "desk.txt: {language} in the text before the first heading became the parameter 'language', which holds 32 tokens",
        "desk.txt: {number} in section 'order-number' became the parameter 'number', which holds 32 tokens",
        "desk.txt: {name} in section 'order-number' became the parameter 'name', which holds 32 tokens",
        "desk.txt: {item} in section 'order-number' became the parameter 'item', which holds 32 tokens",
        "desk.txt: {code} in section 'order-number' stayed text",
        "desk.txt: {{item}} in section 'order-number' stayed text",
        "desk.txt: ${item} in section 'order-number' stayed text",
        "desk.txt: {a_name_that_is_much_too_long} in section 'order-number' stayed text",
        "desk.txt: {item} in section 'user' stayed text",
    )


def test_names_that_stand_twice_or_are_reserved_get_others(command: Command, folder: Path) -> None:
    """Each occurrence is a slot of its own, and the written files pass check with a model."""
    (folder / "mail.txt").write_text(
        "## Mail\n{name} and {name}, {version}, {schema}, {xml_data}, {XML}", encoding="utf-8"
    )

    assert command("convert", "mail.txt").exit_code == 0
    assert command("check", "mail.xml", "mail-prompt.xml", "--model", "demo").exit_code == 0
    slots = check_schema(parse_schema((folder / "mail.xml").read_text())).parameters["mail"]
    assert [*slots] == ["name", "name-2", "version-text", "schema-text", "field-xml_data", "field-XML"]


def test_names_in_braces_of_a_chat_stay_text() -> None:
    """A chat keeps its text, so that its answer is `exact`, and each name in braces is reported."""
    made = convert_chat('[{"role": "user", "content": "I am {name}, {name}."}]', "chat", "chat.json")

    assert made.changes == ("chat.json: {name} in message 1 stayed text",)
    assert "{name}, {name}" in (made.prompt or "")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("```\n## a\n", {"a"}),
        ("```py\n## a\n```\n## b\n```\n## c\n", {"b", "c"}),
        ("~~~\n```\n## a\n~~~\n## b\n", {"b"}),
        ("```\n## a\n~~~\n## b\n``` \n", set()),
    ],
)
def test_a_fence_ends_where_one_of_its_kind_closes_it(text: str, names: set[str]) -> None:
    """Headings within closed fences are code; a fence that nothing closes hides nothing."""
    made = convert_sections(text, "code", "code.txt")

    assert set(check_schema(parse_schema(made.schema)).modules) == names


@pytest.mark.parametrize("line", ["```x\n", "~~~\n", "## {}\n", "## {}\n```\n"])
def test_long_documents_are_read_once(line: str) -> None:
    """Fences and headings by the ten thousands take time that grows with their number, not with its square."""
    text = "".join(line.format(number) for number in range(100_000))

    started = time.process_time()
    assert len(list(_sections(text))) in {1, 50_001, 100_001}

    assert time.process_time() - started < 5


def test_the_papers_dialect_keeps_its_meaning() -> None:
    """Attributes of the paper's dialect are renamed or left out, nothing else changes, and each change has its place."""
    made = convert_dialect(PAPER, "paper.xml")

    ours = PAPER.replace("scaffold = 'a", "placeholder='a").replace('<union scaffold="miami">', "<union>")
    assert shape(check_schema(parse_schema(made.schema))) == shape(check_schema(parse_schema(ours)))
    assert made.changes == (
        "paper.xml:4:6: scaffold of a parameter is called placeholder, and must fit into its slot",
        "paper.xml:5:10: scaffold of a union has no effect; it was left out",
    )
    assert convert_dialect(made.schema, "again").changes == ()


BARE = """\
<schema name="game">
  <!-- a < b & c -->
  <module name="map.py">
    if 0 <= x[0] < size and y<size && List<int>: # R&B, R&amp;B, &#38; and <b>bold</b>
      return a[b[0]]>0</module>
  <union scaffold="a&b"><module name="one"><![CDATA[i < n & m]]></module></union>
  <module name="two"><parameter name="x" length="9" scaffold="a<b & c"/>.</module>
</schema>
"""


def test_markup_characters_that_are_text_are_repaired() -> None:
    """What XML takes for markup becomes text, with its place; what is written correctly does not change."""
    with pytest.raises(SchemaError):
        convert_dialect(BARE, "game.xml")

    made = convert_dialect(BARE, "game.xml", repair=True)

    less, ampersand = (
        "game.xml:{}: " + f"{each} is text, and became {each2}" for each, each2 in (("<", "&lt;"), ("&", "&amp;"))
    )
    assert made.changes == (
        *(less.format(f"4:{column}") for column in (10, 18, 30)),
        *(ampersand.format(f"4:{column}") for column in (36, 37)),
        less.format("4:43"),
        ampersand.format("4:53"),
        *(less.format(f"4:{column}") for column in (76, 83)),
        "game.xml:5:19: ]]> is text, and became ]]&gt;",
        "game.xml:6:10: scaffold of a union has no effect; it was left out",
        "game.xml:7:53: scaffold of a parameter is called placeholder, and must fit into its slot",
        less.format("7:64"),
        ampersand.format("7:67"),
    )
    case = Subject(made.schema).case('<prompt schema="game"><map.py/><one/><two x="y"/></prompt>')
    assert case.text == (
        "<|begin|>if 0 <= x[0] < size and y<size && List<int>: # R&B, R&B, & and <b>bold</b>\n"
        "  return a[b[0]]>0\ni < n & m\ny."
    )
    assert "<!-- a < b & c -->" in made.schema
    assert convert_dialect(made.schema, "again", repair=True).changes == ()


PIECES = st.sampled_from(["<", "&", "]]>", "<x>", "</x>", "a<b", "<=", "&&", "&amp", "<!", "< ", '"', "'", "é", "="])


@given(
    pieces=st.lists(st.one_of(PIECES, st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=3)), max_size=8)
)
def test_any_text_can_be_repaired(pieces: list[str]) -> None:
    """Text that names no element of schemas, and no entity, is the text of its module after the repair."""
    text = f"({''.join(pieces)})"
    assume(not re.search(r"&[^&;]*;|<!--|<!\[CDATA|<!DOCTYPE|<\?", text))
    made = convert_dialect(f'<schema name="s"><module name="a">{text}</module></schema>', "s.xml", repair=True)

    (module,) = (each for each in parse_schema(made.schema).children if isinstance(each, Module))
    assert "".join(each.text for each in module.children if isinstance(each, Text)) == text


@pytest.mark.parametrize(
    "content",
    [
        '<modul name="a">x</modul>',
        "<module name=a>x</module>",
        '<module name="a">x</mdule>',
        '<module name="a">x &nbsp; y</module>',
        '<module name="a"><!-- x</module>',
    ],
)
def test_other_mistakes_are_not_repaired(content: str) -> None:
    """Misspelt elements, incomplete tags and unknown entities stay errors: they are not text."""
    with pytest.raises(SchemaError):
        convert_dialect(f'<schema name="s">a < b {content}</schema>', "s.xml", repair=True)


def test_a_repaired_schema_is_written_and_told(command: Command, folder: Path) -> None:
    """--repair writes the document and says what it changed; it is for schemas, and only if asked for."""
    (folder / "qanda.xml").write_text('<schema name="qanda"><module name="a">R&B</module></schema>', encoding="utf-8")
    refused = command("convert", "qanda.xml", "-o", "made.xml")
    assert (refused.exit_code, (folder / "made.xml").exists()) == (1, False)

    result = command("convert", "qanda.xml", "-o", "made.xml", "--repair")

    assert result.stderr == "qanda.xml:1:40: & is text, and became &amp;\nwrote made.xml\n"
    assert command("check", "made.xml").exit_code == 0
    (folder / "chat.json").write_text(json.dumps(CHAT), encoding="utf-8")
    result = command("convert", "chat.json", "--repair")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: --repair is for schemas, and chat.json is none: text needs no repair\n",
    )


def test_files_are_written_beside_each_other(command: Command, folder: Path) -> None:
    """The written files pass check, and are not overwritten."""
    (folder / "chat.json").write_text(json.dumps(CHAT), encoding="utf-8")

    assert json.loads(command("convert", "chat.json", "--json").stdout) == {
        "files": ["chat.xml", "chat-prompt.xml"],
        "changes": [],
    }
    assert command("check", "chat.xml", "chat-prompt.xml").exit_code == 0
    assert command("convert", "chat.json").exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n", "<stdin> is empty"),
        ("[{", "<stdin> is not JSON: "),
        ('{"chat": []}', "<stdin> is no chat: a list of messages, or an object with 'messages'"),
        ("[" * 100_000, "<stdin> is no chat: its values are nested too deeply"),
        ("[1]", "<stdin>: messages[0]=1 is not a message: "),
        ('[{"content": "x"}]', "<stdin>: messages[0] has no 'role'"),
        (
            '[{"role": "users", "content": "x"}]',
            "<stdin>: messages[0].role='users' is not allowed: did you mean 'user'?",
        ),
        ('[{"role": "user"}]', "<stdin>: messages[0].content is missing: "),
        (
            '[{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]',
            "<stdin>: messages[1].role='tool' is not supported: a schema has no messages of tools",
        ),
        (
            '[{"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "1"}]}]',
            "<stdin>: messages[0].tool_calls is not supported: a turn has only text",
        ),
        ('{"messages": [], "tools": [{"type": "function"}]}', "<stdin> declares tools, which the model sees and a "),
        (
            '[{"role": "user", "content": [{"type": "image_url"}]}]',
            "<stdin>: messages[0].content[0].type='image_url' is not supported: only parts of type 'text' are",
        ),
        ('[{"role": "user", "content": ["x"]}]', "<stdin>: messages[0].content[0]='x' is not a part: "),
        ("[]", "<stdin>: messages is empty: a chat has at least one message"),
        ('[{"role": "user", "content": "a\\u0000"}]', "<stdin>: messages[0].content holds the character U+0000, "),
        ('[{"role": "user", "content": "a\\ud800"}]', "<stdin>: messages[0].content="),
        ("## a\nx\n## b\n y\f", "<stdin>:4:3 holds the character U+000C, which no XML document can: remove it"),
        ("## a\nx\n## A\ny", "<stdin> has two sections called 'a'"),
    ],
)
def test_what_cannot_be_converted_is_told(command: Command, folder: Path, text: str, message: str) -> None:
    """A document that has no form we know is refused, and no file is written."""
    result = command("convert", "-", "--name", "mine", stdin=text)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert not (folder / "mine.xml").exists()


@pytest.mark.parametrize(
    "text",
    [
        "{name}, welcome to our shop.",
        "{{name}}, welcome to our shop.",
        "[Context]\nYou are kind.",
        "[1] is the first source.",
        "<instructions>\nYou are kind.\n</instructions>\n## Policy\nNo refunds.",
        "<s>[INST] hi [/INST]",
        "<!-- a note -->\nYou are kind.",
    ],
)
def test_a_plain_prompt_may_begin_like_another_document(command: Command, folder: Path, text: str) -> None:
    """A name in braces, a bracket or a tag at the start of a plain prompt is text."""
    (folder / "plain.txt").write_text(text, encoding="utf-8")

    assert command("convert", "plain.txt").exit_code == 0
    case = converted((folder / "plain.xml").read_text(), (folder / "plain-prompt.xml").read_text())
    assert case.text == "<|begin|>" + text.replace("## Policy\n", "")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ('{"role": "user", }', 2, "error: text is not JSON"),
        ("[ {role: 'user'}]", 2, "error: text is not JSON"),
        ("{}", 2, "error: text is no chat"),
        ('<?xml version="1.0"?>\n<shcema name="x"/>', 1, "error[PC107]"),
        ('<prompt schema="x"/>', 1, "error[PC107]"),
        ('<schema name="x"', 1, "error[PC001]"),
    ],
)
def test_other_documents_with_mistakes_keep_their_errors(
    command: Command, folder: Path, text: str, code: int, message: str
) -> None:
    """JSON and schemas that are not complete are no plain prompts."""
    (folder / "text").write_text(text, encoding="utf-8")

    result = command("convert", "text", "-o", "made.xml")

    assert (result.exit_code, result.stderr[: len(message)]) == (code, message)


def test_a_template_is_not_converted(command: Command, folder: Path) -> None:
    """A template is refused: its expressions would be read as text."""
    (folder / "t.xml.j2").write_text('<schema name="t">{{ text }}</schema>', encoding="utf-8")

    result = command("convert", "t.xml.j2", "-o", "made.xml")

    assert (result.exit_code, "t.xml.j2 is a template" in result.stderr) == (2, True)
    assert not (folder / "made.xml").exists()


def test_a_schema_with_errors_is_told_with_its_line(command: Command, folder: Path) -> None:
    """A schema that does not parse is no input."""
    (folder / "bad.xml").write_text('<schema name="bad"><modul name="a"/></schema>', encoding="utf-8")
    result = command("convert", "bad.xml", "-o", "good.xml")
    assert (result.exit_code, "bad.xml:1:" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'<schema name="caf\xe9"/>', "error[PC006]: byte 0xe9 is not UTF-8\n  --> latin.xml:1:18\n"),
        (b"Hello.\n\n## caf\xe9\n", "error[PC006]: byte 0xe9 is not UTF-8\n  --> latin.xml:3:7\n"),
        ("Hello.".encode("utf-16"), "error[PC006]: the document is UTF-16; only UTF-8 is supported"),
        (b" " * (MAX_BYTES + 1), f"error[PC004]: the document has more than {MAX_BYTES} bytes"),
    ],
    ids=["schema", "sections", "utf-16", "too large"],
)
def test_what_is_no_text_has_the_code_of_other_commands(
    command: Command, folder: Path, data: bytes, message: str
) -> None:
    """A file that is not UTF-8, or too large, has the diagnostic that `check` has, with its place and fix."""
    (folder / "latin.xml").write_bytes(data)

    result = command("convert", "latin.xml", "-o", "made.xml")

    assert (result.exit_code, (folder / "made.xml").exists()) == (1, False)
    assert result.stderr.startswith(message)
    assert result.stderr.splitlines()[:2] == command("check", "latin.xml").stdout.splitlines()[:2]


def test_line_ends_of_a_schema_stay(command: Command, folder: Path) -> None:
    """A schema of the paper keeps the line ends of Windows."""
    (folder / "old.xml").write_bytes(PAPER.replace("\n", "\r\n").encode("utf-8-sig"))

    assert command("convert", "old.xml", "-o", "ours.xml").exit_code == 0
    assert (folder / "ours.xml").read_bytes().count(b"\r\n") == PAPER.count("\n")


@pytest.mark.parametrize("item", ['<include href="sub/m.xml"/>', '<module name="a" src="sub/f.txt"/>'])
def test_a_schema_that_names_files_stays_in_their_folder(command: Command, folder: Path, item: str) -> None:
    """In another folder its relative paths would not resolve, so it is not written there; the error names a place."""
    (folder / "in" / "sub").mkdir(parents=True)
    (folder / "in" / "old.xml").write_text(f'<schema name="old">\n{item}</schema>', encoding="utf-8")
    (folder / "in" / "sub" / "m.xml").write_text('<schema name="m"><module name="m">x</module></schema>')
    (folder / "in" / "sub" / "f.txt").write_text("x")

    for words in ((), ("-o", "out/new.xml")):
        result = command("convert", "in/old.xml", *words)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: in/old.xml:2:")
        assert result.stderr.endswith(f"-o in/{'new.xml' if words else 'old.xml'}\n")
    assert not (folder / "out").exists()
    assert command("convert", "in/old.xml", "-o", "in/new.xml").exit_code == 0
    assert command("check", "in/new.xml").exit_code == 0


def test_a_schema_keeps_its_name(command: Command, folder: Path) -> None:
    """--name is not for schemas; one on standard input is written to a file of its name."""
    refused = command("convert", "-", "--name", "new", stdin=PAPER)

    assert (refused.exit_code, refused.stderr[:18]) == (2, "error: --name is f")
    assert command("convert", "-", stdin=PAPER).stderr.endswith("wrote paper.xml\n")
    assert check_schema(parse_schema((folder / "paper.xml").read_text())).name == "paper"
