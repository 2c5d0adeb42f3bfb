"""Tests of includes: their content, the places of their faults, and their cost."""

from pathlib import Path

from promptcache.diagnostics import Diagnostic, SchemaError
from promptcache.language import Module, Prompt, RuleList, Scaffold, Schema, Union, check_schema, parse_schema
from promptcache.language.resolve import resolve_prompt
from tests.language import documents
from tests.language.documents import bombed, codes
from tests.speed import is_within

SHOP = """<schema name="shop" separator=" ">
  <doc>What a shop promises.</doc>
  <module name="refund" excludes="shipping">Refund. <module name="late" requires="/slow form">Late.</module>
    <module name="form">Form.</module><scaffold modules="late form"/></module>
  <module name="shipping" requires="refund/form">Shipping.</module>
  <union name="speed" default="slow"><module name="slow">Slow.</module><module name="fast">Fast.</module></union>
  <module name="and" cache="false">And.</module>
  <scaffold name="both" modules="refund slow"/>
  <rules>
    <assert test="refund implies (slow or fast or /and)" message="How fast?"/>
    <exclude modules="refund fast shipping"/>
    <choose modules="slow fast" max="1"/>
    <require if="shipping" then="not fast"/>
  </rules>
  <example name="one"><prompt schema="shop"><refund/></prompt></example>
</schema>"""


def written(folder: Path, **files: str) -> Path:
    """Write files into a folder; return the path of the first one."""
    for name, text in files.items():
        (folder / f"{name}.xml").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(files))}.xml"


def load(folder: Path, include: str, **files: str) -> Schema:
    """Return a schema with this content, next to the shop and other files."""
    main = f'<schema name="main">{include}</schema>'
    return Schema.from_file(written(folder, main=main, shop=SHOP, **files))


def faults(folder: Path, include: str, **files: str) -> tuple[Diagnostic, ...]:
    return documents.faults(SchemaError, lambda: check_schema(load(folder, include, **files)))


def test_all_of_a_file_comes_along(tmp_path):
    """An include adds modules, unions, scaffolds and rules, but no documentation and no examples."""
    schema = load(tmp_path, '<include href="shop.xml"/>')
    kinds = [type(child) for child in schema.children]
    assert kinds == [Module, Module, Union, Module, Scaffold, RuleList]
    assert check_schema(schema).modules.keys() == check_schema(parse_schema(SHOP)).modules.keys()


def test_paths_from_the_root_count_in_the_whole_schema(tmp_path):
    """A path with a slash and the paths of rules start at the root of the schema that has the include."""
    part = '<schema name="p"><module name="x" requires="/y">X</module></schema>'
    ruled = '<schema name="r"><rules><assert test="m/x implies y"/></rules></schema>'
    around = '<module name="y">Y</module><user><module name="m"><include href="part.xml"/></module><include href="ruled.xml"/></user>'
    schema = check_schema(load(tmp_path, around, part=part, ruled=ruled))
    assert resolve_prompt(Prompt("main").use("m/x").use("y"), schema).modules == ("y", "m", "m/x")
    assert {"requires", "assert"} <= {rule.kind for rule in schema.rules.rules}
    inside = faults(tmp_path, '<module name="y"><include href="ruled.xml"/></module>', ruled=ruled)
    assert [(each.code, each.span.line, each.span.column) for each in inside] == [("PC102", 1, 19)]
    assert [str(span) for span, _ in inside[0].related] == [f"{tmp_path / 'main.xml'}:1:38"]


def test_faults_are_reported_in_the_file_that_has_them(tmp_path):
    """A fault of an included file has its name, line and column, and the place of the include."""
    faulty = '<schema name="f">\n <module name="a" requires="c"/><modul/></schema>'
    mid = '<schema name="m">\n\n  <include href="faulty.xml"/></schema>'
    (found,) = faults(tmp_path, '\n<include href="mid.xml"/>', faulty=faulty, mid=mid)
    assert str(found.span) == f"{tmp_path / 'faulty.xml'}:2:34"
    assert [str(span) for span, _ in found.related] == [f"{tmp_path / 'mid.xml'}:3:3", f"{tmp_path / 'main.xml'}:2:1"]
    inside = '<module name="{}"><include href="faulty.xml"/></module>'
    (found,) = faults(tmp_path, inside.format("x") + inside.format("y"), faulty=faulty)
    assert (found.code, found.span.line) == ("PC101", 2)
    (found,) = faults(tmp_path, '<include href="faulty.xml"/>', faulty=faulty.replace("<modul/>", ""))
    assert (found.code, found.span.line, found.span.column) == ("PC208", 2, 29)
    assert "'c'" in found.message
    (tmp_path / "latin.xml").write_bytes(b'<schema name="l">\ncaf\xe9</schema>')
    (found,) = faults(tmp_path, '<include href="latin.xml"/>')
    assert (found.code, str(found.span)) == ("PC006", f"{tmp_path / 'latin.xml'}:2:4")


def test_names_that_meet_are_refused(tmp_path):
    """A module from two includes, or from the same include twice, is reported as defined twice."""
    mine = '<module name="refund"/>'
    first = faults(tmp_path, '<include href="shop.xml"/>' + mine)[0]
    assert (first.code, first.span.source) == ("PC203", str(tmp_path / "main.xml"))
    (twice,) = faults(tmp_path, '<include href="shop.xml"/>\n<include href="shop.xml"/>')
    assert (twice.code, twice.span.line) == ("PC203", 2)
    assert [(span.line, words) for span, words in twice.related] == [(1, "first included here")]
    other = SHOP.replace('"shipping" requires', '"refund" requires')
    clash = faults(tmp_path, '<include href="shop.xml"/><include href="other.xml"/>', other=other)[0]
    assert (clash.code, clash.span.source) == ("PC203", str(tmp_path / "other.xml"))
    assert [span.source for span, _ in clash.related] == [str(tmp_path / "shop.xml")]
    assert "put the include into a module" in (clash.help or "")


def test_circles_are_refused_with_their_chain(tmp_path):
    """A cycle of includes is refused, and the message lists its files."""
    one, other = (f'<schema name="x"><include href="{name}.xml"/></schema>' for name in "ba")
    (found,) = faults(tmp_path, '<include href="a.xml"/>', a=one, b=other)
    assert found.code == "PC217"
    assert "a.xml includes b.xml includes a.xml" in found.message
    assert found.span.source == str(tmp_path / "b.xml")
    (found,) = faults(tmp_path, '<include href="main.xml"/>')
    assert "main.xml includes main.xml" in found.message


def test_href_is_confined(tmp_path):
    """An include cannot leave the folder, also not through a link, and needs a folder."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "out.xml").write_text(SHOP)
    (home / "link.xml").symlink_to(tmp_path / "out.xml")
    for href, code in {"../out.xml": "PC210", "link.xml": "PC210", "nothing.xml": "PC211"}.items():
        assert codes(faults(home, f'<include href="{href}"/>')) == [code]
    (found,) = faults(home, '<include href="shop.xlm"/>')
    assert found.help == "did you mean 'shop.xml'?"
    (home / "deep").mkdir()
    written(home / "deep", inner='<schema name="i"><include href="../shop.xml"/></schema>')
    assert "refund/late" in check_schema(load(home, '<include href="deep/inner.xml"/>')).modules


def test_templates_are_included_with_the_same_context(tmp_path):
    """A context applies to included templates."""
    (tmp_path / "t.xml.j2").write_text(
        '<schema name="t">{% for n in names %}<module name="{{ n }}"/>{% endfor %}</schema>'
    )
    main = written(tmp_path, main='<schema name="main"><include href="t.xml.j2"/></schema>', shop=SHOP)
    assert list(check_schema(Schema.from_file(main, context={"names": ["a", "b"]})).modules) == ["a", "b"]
    (found,) = documents.faults(SchemaError, Schema.from_file, main)
    assert (found.code, found.span.source) == ("PC603", str(tmp_path / "t.xml.j2"))


SETUP = """
from pathlib import Path
from promptcache.language import Schema, check_schema
check_schema(Schema("s").module("a"))
"""


def bombs(folder: Path) -> list[Path]:
    """Write schemas that are too large: wide, deep, long, and repeated many times."""
    within = '<module name="p{}"><include href="{}.xml"/></module>'
    files = {"tens0": "".join(f'<module name="m{number}">m</module>' for number in range(10))}
    for level in range(1, 12):
        files[f"tens{level}"] = "".join(within.format(number, f"tens{level - 1}") for number in range(10))
    files["wide"] = "".join(within.format(number, "tens0") for number in range(9_000))
    files["picky"] = "".join(within.format(number, "many") for number in range(3_000))
    files["many"] = "".join(f'<module name="m{number}"/>' for number in range(5_000))
    files["long"] = "".join(within.format(number, "megabyte") for number in range(1_000))
    files["megabyte"] = f'<module name="m">{"x" * 1024 * 1024}</module>'
    files |= {f"chain{level}": f'<include href="chain{level + 1}.xml"/>' for level in range(60)}
    nest, nested = '<module name="m">' * 45, "</module>" * 45
    files |= {f"deep{level}": f'{nest}<include href="deep{level + 1}.xml"/>{nested}' for level in range(19)}
    files |= {"deep19": '<module name="m"/>'}
    written(folder, **{name: f'<schema name="s">{text}</schema>' for name, text in files.items()})
    return [folder / f"{name}.xml" for name in ("tens11", "wide", "picky", "long", "chain0", "deep0")]


def test_bombs_of_includes_are_refused_in_time_and_memory(tmp_path):
    """Each bomb is refused with one code within a second, and all of them in one process within 200 MB."""
    found = bombed([str(path) for path in bombs(tmp_path)], SETUP, "Schema.from_file(Path(bomb))")
    assert all(codes == ["PC221"] and is_within(seconds, 1) for codes, seconds in found), found
