"""Tests of schema documents: their content, the paper's dialect, and the limits of `src`."""

import os

import pytest

from promptcache.diagnostics import SchemaError
from promptcache.language import (
    Module,
    Parameter,
    Schema,
    Text,
    Turn,
    Union,
    check_schema,
    parse_schema,
    print_schema,
    walk,
)
from promptcache.language.limits import MAX_BYTES
from tests.language.documents import TRAVEL, checked, codes, cut, faults, outline, spans

PAPER = """
<schema name="code-generation">
  <system>You write code.</system>
  <module name="unit.py" cache="true"><![CDATA[if a < b: pass]]></module>
  <user>
    <module name="my-module_2" cache="false">text <parameter name="len" length="5" scaffold="about" /> more</module>
    Anonymous text.
    <union scaffold="unit.test">
      <module name="unit.test">one</module>
      <module name="other.test">two</module>
    </union>
  </user>
  <assistant>Sure.</assistant>
  Loose text at the end.
</schema>
"""


def refusals(text: str | bytes, **options: object) -> list[str]:
    return codes(faults(SchemaError, checked, text, **options))


def test_the_dialect_of_the_paper_loads():
    """The reader accepts the paper's dialect: names with dots and dashes, roles at any level, and anonymous text."""
    schema = checked(PAPER)
    assert list(schema.modules) == ["unit.py", "my-module_2", "unit.test", "other.test"]
    assert schema.modules["unit.py"].children[0].text == "if a < b: pass"
    assert not schema.modules["my-module_2"].cache
    assert schema.parameters["my-module_2"]["len"].placeholder == "about"
    assert schema.scaffolds == ()
    assert schema.has_turns


def test_placeholders_keep_their_dialect_when_printed():
    """A printed schema keeps for each placeholder whether it may be cut."""
    text = '<schema name="s"><parameter name="p" length="1" {}="some words"/></schema>'
    for attribute in ("scaffold", "placeholder"):
        parameter = checked(text.format(attribute)).parameters[""]["p"]
        printed = print_schema(parse_schema(text.format(attribute)))
        assert (parameter.cut_placeholder, f'{attribute}="some words"' in printed) == (attribute == "scaffold", True)
        assert checked(printed).parameters[""]["p"].cut_placeholder == parameter.cut_placeholder


def test_every_node_knows_its_place():
    """The span of a node covers its start tag, or its text without surrounding whitespace."""
    for node, span in spans(parse_schema(TRAVEL)):
        found = cut(TRAVEL, span)
        match node:
            case Module() | Parameter():
                assert found.startswith(f'<{type(node).__name__.lower()} name="{node.name}"')
            case Turn():
                assert found == f"<{node.role}>"
            case Union():
                assert found.startswith("<union")
            case Text():
                assert found == node.text.strip()


def test_all_faults_are_reported_in_order():
    """Reading reports all faults in document order, and so does checking."""
    text = '<schema name="s" x="1">\n<modul/><module cache="no"/>\n<union>text</union><parameter name="p"/></schema>'
    assert refusals(text) == ["PC103", "PC101", "PC104", "PC105", "PC106", "PC104"]
    text = '<schema name="s"><module name="a" requires="b"/><module name="a"/><user><user/></user><union/></schema>'
    assert refusals(text) == ["PC208", "PC203", "PC110", "PC108"]


@pytest.mark.parametrize("name", ["", "1", "use", "twice"])
def test_faults_inside_a_module_without_a_place_are_reported_too(name):
    """A wrong module or parameter name does not hide faults inside the module or of the parameter's type."""
    inside = '<union/><parameter name="" length="1" type="choice"/><parameter name="p" length="1"/>'
    text = f'<schema name="s"><module name="twice"/><module name="{name}">{inside}</module></schema>'
    assert set(refusals(text)[1:]) == {"PC108", "PC104", "PC201"}


def test_src_is_exact_and_printed_as_a_name(tmp_path):
    """The text of a file is exact, without a byte order mark, and a printed schema refers to the file."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_bytes(b"\xef\xbb\xbf\n  if a < b:\r\n    pass\n\n")
    path = tmp_path / "schema.xml"
    path.write_text('<schema name="s">\n<module name="a.py" src="deep/a.py"/></schema>', encoding="utf-8")
    schema = Schema.from_file(path)
    (text,) = check_schema(schema).modules["a.py"].children
    assert text.text == "\n  if a < b:\r\n    pass\n\n"
    again = checked(print_schema(schema), folder=tmp_path)
    assert outline(again.children) == outline(check_schema(schema).children)
    assert 'src="deep/a.py"/>' in print_schema(schema)


def test_src_is_confined_to_the_folder(tmp_path):
    """Paths and links cannot leave the folder; links that stay inside are followed."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (home / "plain.txt").write_text("plain", encoding="utf-8")
    (home / "out.txt").symlink_to(tmp_path / "secret.txt")
    (home / "in.txt").symlink_to(home / "plain.txt")
    (home / "up").symlink_to(tmp_path)
    (home / "loop").symlink_to(home / "loop")
    os.mkfifo(home / "pipe")

    def outcome(src: str) -> str:
        try:
            schema = parse_schema(f'<schema name="s"><module name="m" src="{src}"/></schema>', folder=home)
        except SchemaError as error:
            return error.diagnostics[0].code
        return "".join(item.text for _, item in walk(schema.children) if isinstance(item, Text))

    secret = tmp_path / "secret.txt"
    outside = ["../secret.txt", "out.txt", "up/secret.txt", str(secret), "../home2/x", "./../secret.txt"]
    assert [outcome(src) for src in outside] == ["PC210"] * len(outside)
    assert [outcome(src) for src in ("in.txt", "./plain.txt", str(home / "plain.txt"))] == ["plain"] * 3
    assert [outcome(src) for src in ("loop", "pipe", ".", "", "missing", "plain.txt/x")] == ["PC211"] * 6


def test_src_has_a_limit_and_needs_a_folder(tmp_path):
    """A file over the limit is refused, and so is `src` in a schema without a folder."""
    (tmp_path / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    text = '<schema name="s"><module name="m" src="large"/></schema>'
    assert refusals(text, folder=tmp_path) == ["PC213"]
    assert refusals(text) == ["PC214"]
