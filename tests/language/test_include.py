"""Tests of includes: their content, the places of their faults, and their cost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from lxml import etree

from promptcache.diagnostics import Diagnostic, LanguageError, SchemaError
from promptcache.language import (
    CheckedSchema,
    Module,
    Prompt,
    RuleList,
    Scaffold,
    Schema,
    Union,
    check_schema,
    parse_schema,
    print_schema,
)
from promptcache.language.format.formatter import format_document
from promptcache.language.resolve import resolve_prompt
from tests import strategies
from tests.conftest import law_examples
from tests.language.documents import codes, cut, outline
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
    with pytest.raises(SchemaError) as caught:
        check_schema(load(folder, include, **files))
    return caught.value.diagnostics


def test_all_of_a_file_comes_along(tmp_path):
    """An include adds modules, unions, scaffolds and rules, but no documentation and no examples."""
    schema = load(tmp_path, '<include href="shop.xml"/>')
    kinds = [type(child) for child in schema.children]
    assert kinds == [Module, Module, Union, Module, Scaffold, RuleList]
    assert check_schema(schema).modules.keys() == check_schema(parse_schema(SHOP)).modules.keys()


def test_a_prefix_changes_names_and_all_paths_to_them(tmp_path):
    """With a prefix, every path still refers to the same module."""
    printed = print_schema(load(tmp_path, '<include href="shop.xml" prefix="eu-"/>'))
    assert [part in printed for part in (
        'excludes="eu-shipping"', 'requires="/eu-slow form"', 'requires="eu-refund/form"', 'default="eu-slow"',
        'name="eu-both" modules="eu-refund eu-slow"', 'modules="/eu-refund/late /eu-refund/form"',
        'test="/eu-refund implies /eu-slow or /eu-fast or /eu-and"', 'if="/eu-shipping" then="not /eu-fast"',
    )] == [True] * 8  # fmt: skip


def test_one_file_can_be_included_many_times(tmp_path):
    """One file can be included several times, with prefixes and inside modules."""
    include = '<include href="shop.xml" prefix="{}"/>'
    modules = '<module name="b"><include href="shop.xml"/></module><user><module name="c">{}</module></user>'
    schema = check_schema(
        load(tmp_path, include.format("eu-") + include.format("us-") + modules.format(include.format("x-")))
    )
    alone = check_schema(parse_schema(SHOP)).modules
    for prefix in ("eu-", "us-", "b/", "c/x-"):
        assert {f"{prefix}{path}" for path in alone} <= schema.modules.keys()
    assert parse_schema(print_schema(schema.source)).children[-1] is not None


def test_text_starts_from_the_options_of_its_own_file(tmp_path):
    """Options are those of the included file, but its modules are separated as in the enclosing schema."""
    other = '<schema name="o" whitespace="collapse" separator="|" context="own"><module name="a">x\n\n  y<module name="b">z</module></module></schema>'
    schema = check_schema(
        load(tmp_path, 'One.<include href="other.xml"/><include href="other.xml" prefix="p"/>', other=other)
    )
    assert outline(schema.children) == ["One.", ["a", "\nx y", ["a/b", "|z"]], ["pa", "\nx y", ["pa/b", "|z"]]]
    assert schema.modules["pa/b"].context == "own"


def test_select_takes_what_it_names(tmp_path):
    """`select` includes the selected modules and unions with the rules about them, and leaves out other text."""
    shop = SHOP.replace("<doc>", "Welcome.<doc>").replace('requires="/slow form"', "")
    schema = load(tmp_path, '<include href="shop2.xml" select="speed refund"/>', shop2=shop.replace("/and", "slow"))
    assert check_schema(schema).modules.keys() == {"refund", "refund/late", "refund/form", "slow", "fast"}
    (rules,) = (child for child in schema.children if isinstance(child, RuleList))
    assert [type(rule).__name__ for rule in rules.combinations] == ["Assert", "Exclude", "Choose"]
    assert rules.combinations[1].modules == ("refund", "fast")
    assert next(child for child in schema.children if isinstance(child, Module)).excludes == ()


@pytest.mark.parametrize(
    ("select", "place"),
    [("refund", "/slow"), ("shipping", "refund/form"), ("and", "2")],
)
def test_what_needs_a_module_that_is_left_out_is_refused(tmp_path, select, place):
    """A module that requires a missing module, and a rule that cannot hold, are reported at their places."""
    shop = SHOP.replace("<rules>", '<rules><choose modules="and fast slow" min="2"/>')
    found = faults(tmp_path, f'<include href="shop2.xml" select="{select}"/>', shop2=shop)[0]
    assert (found.code, found.span.source) == ("PC220", str(tmp_path / "shop2.xml"))
    assert cut(shop, found.span) == place


def test_a_module_that_is_left_out_counts_as_never_present(tmp_path):
    """The selected modules of a file have the same combinations as in the whole file with the other modules absent."""
    rules = (
        '<rules><assert test="(a and not x) or (b implies y)"/><require if="a or x" then="b or c or y"/>'
        '<choose modules="a b x y" min="1" max="2"/><exclude modules="b c x"/><assert test="x or y"/></rules>'
    )
    modules = "".join(f'<module name="{name}"/>' for name in "abcxy")
    include = '<include href="all.xml" select="a b c"/>'
    part = check_schema(load(tmp_path, include, all=f'<schema name="all">{modules}{rules}</schema>'))
    rules = rules.replace('<assert test="x or y"/>', "")
    whole = check_schema(parse_schema(f'<schema name="all">{modules}{rules}</schema>'))
    assert accepted(part, "abc", "") == accepted(whole, "abc", "")
    assert len(accepted(part, "abc", "")) > 1


def test_rules_hold_where_the_module_around_them_is_present(tmp_path):
    """Inside a module, the demands of an included file apply only to prompts with that module."""
    rules = (
        '<rules><choose modules="a b c" min="2" max="2"/><assert test="a or b"/><require if="not a" then="c"/></rules>'
    )
    inner = f'<schema name="i"><module name="a"/><module name="b"/><module name="c"/>{rules}</schema>'
    schema = check_schema(load(tmp_path, '<module name="m">M<include href="inner.xml"/></module>', inner=inner))
    assert accepted(schema, "abc", "m/") == accepted(check_schema(parse_schema(inner)), "abc", "") == ["ab", "ac", "bc"]
    assert resolve_prompt(Prompt("main"), schema).modules == ()
    many = inner.replace('"a b c"', f'"{" ".join(f"m{n}" for n in range(20))}"').replace('min="2" max="2"', 'min="9"')
    many = many.replace("<rules>", "".join(f'<module name="m{n}"/>' for n in range(20)) + "<rules>")
    assert codes(faults(tmp_path, '<module name="m"><include href="many.xml"/></module>', many=many)) == ["PC308"]


def accepted(schema: CheckedSchema, names: str, parent: str) -> list[str]:
    """Return the sets of these sibling modules that a schema accepts."""
    found = []
    for number in range(1 << len(names)):
        chosen = [name for bit, name in enumerate(names) if number >> bit & 1]
        prompt = Prompt(schema.name)
        for path in [parent[:-1]] * bool(parent and not chosen) + [parent + name for name in chosen]:
            prompt = prompt.use(path)
        try:
            resolve_prompt(prompt, schema)
        except LanguageError:
            continue
        found.append("".join(chosen))
    return sorted(found)


def test_included_files_include_others(tmp_path):
    """Paths of an included file, also of `src`, start at its own folder and stay in the first file's folder."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "a.xml").write_text('<schema name="a"><include href="er/b.xml" prefix="b-"/></schema>')
    (tmp_path / "deep" / "er" / "b.xml").write_text(
        '<schema name="b"><include href="../../shop.xml" select="and" prefix="c-"/><module name="t" src="../../t.txt"/></schema>'
    )
    (tmp_path / "t.txt").write_text("T")
    schema = load(tmp_path, '<include href="deep/a.xml" prefix="a-"/>')
    assert list(check_schema(schema).modules) == ["a-b-c-and", "a-b-t"]
    again = parse_schema(print_schema(schema), folder=tmp_path)
    assert outline(check_schema(again).children) == outline(check_schema(schema).children)


def test_faults_are_reported_in_the_file_that_has_them(tmp_path):
    """A fault of an included file has its name, line and column, and the place of the include."""
    faulty = '<schema name="f">\n <module name="a" requires="c"/><modul/></schema>'
    mid = '<schema name="m">\n\n  <include href="faulty.xml"/></schema>'
    (found,) = faults(tmp_path, '\n<include href="mid.xml"/>', faulty=faulty, mid=mid)
    assert str(found.span) == f"{tmp_path / 'faulty.xml'}:2:34"
    assert [str(span) for span, _ in found.related] == [f"{tmp_path / 'mid.xml'}:3:3", f"{tmp_path / 'main.xml'}:2:1"]
    (found,) = faults(tmp_path, '<include href="faulty.xml" prefix="x-"/>' * 2, faulty=faulty.replace("<modul/>", ""))
    assert (found.code, found.span.line, found.span.column) == ("PC208", 2, 29)
    assert "'c'" in found.message


def test_names_that_meet_are_refused(tmp_path):
    """A module from two includes, or from the same include twice, is reported as defined twice."""
    mine = '<module name="refund"/>'
    first = faults(tmp_path, '<include href="shop.xml"/>' + mine)[0]
    assert (first.code, first.span.source) == ("PC203", str(tmp_path / "main.xml"))
    twice = faults(tmp_path, '<include href="shop.xml"/><include href="shop.xml"/>')
    assert set(codes(twice)) == {"PC203", "PC205", "PC206"}
    assert "prefix=" in (twice[0].help or "")


def test_circles_are_refused_with_their_chain(tmp_path):
    """A cycle of includes is refused, and the message lists its files."""
    files = {
        "a": '<schema name="a"><include href="b.xml"/></schema>',
        "b": '<schema name="b"><include href="a.xml"/></schema>',
    }
    (found,) = faults(tmp_path, '<include href="a.xml"/>', **files)
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
    assert [codes(faults(home, f'<include href="{href}"/>')) for href in ("../out.xml", "link.xml", "nothing.xml")] == [
        ["PC210"], ["PC210"], ["PC211"],
    ]  # fmt: skip
    (found,) = faults(home, '<include href="shop.xlm"/>')
    assert found.help == "did you mean 'shop.xml'?"
    with pytest.raises(SchemaError) as caught:
        parse_schema('<schema name="s"><include href="shop.xml"/></schema>')
    assert codes(caught.value.diagnostics) == ["PC214"]


def test_templates_are_included_with_the_same_context(tmp_path):
    """A context applies to included templates; without a template it is refused."""
    (tmp_path / "t.xml.j2").write_text(
        '<schema name="t">{% for n in names %}<module name="{{ n }}"/>{% endfor %}</schema>'
    )
    main = written(tmp_path, main='<schema name="main"><include href="t.xml.j2"/></schema>', shop=SHOP)
    assert list(check_schema(Schema.from_file(main, context={"names": ["a", "b"]})).modules) == ["a", "b"]
    with pytest.raises(SchemaError) as caught:
        Schema.from_file(main)
    (found,) = caught.value.diagnostics
    assert (found.code, found.span.source) == ("PC603", str(tmp_path / "t.xml.j2"))
    with pytest.raises(SchemaError) as caught:
        Schema.from_file(tmp_path / "shop.xml", context={})
    assert codes(caught.value.diagnostics) == ["PC605"]


def test_formatting_keeps_includes(tmp_path):
    """Formatting keeps an include, on a line of its own, with its attributes in order."""
    written(tmp_path, shop=SHOP)
    text = '<schema name="s"><include  prefix="p-" select="and" href="shop.xml"></include>Text.</schema>'
    formatted = format_document(text, folder=tmp_path)
    assert formatted == '<schema name="s">\n  <include href="shop.xml" select="and" prefix="p-"/>\n  Text.\n</schema>\n'


OPTIONS = {"whitespace": "dedent", "separator": "\\n", "context": "guaranteed"}


def inherited(element: etree._Element) -> dict[str, str]:
    """Return the options that apply inside an element."""
    around = [element, *element.iterancestors("module", "schema")]
    return {
        name: next((each.get(name) for each in around if each.get(name) is not None), default)
        for name, default in OPTIONS.items()
    }


def content(schema: CheckedSchema) -> list[object]:
    """Return the checked content of a schema."""
    modules = [(each.path, each.cache, each.context, each.required, each.reserve) for each in schema.modules.values()]
    scaffolds = [(each.members, each.guaranteed) for each in schema.scaffolds]
    return [outline(schema.children), dict(schema.guaranteed), scaffolds, modules, schema.open_separator]


@pytest.mark.law
@settings(max_examples=law_examples())
@given(document=strategies.schema_documents(turns=False))
def test_a_prefix_changes_nothing_but_names(document):
    """A file included with a prefix has the same content as alone, except for names."""
    root = etree.fromstring(document)
    root.text = None
    for child in list(root):
        child.tail = None
        if child.tag not in {"module", "union", "scaffold", "rules"}:
            root.remove(child)
    if root.find("module") is None and root.find("union") is None:
        return
    whole = etree.tostring(root, encoding="unicode")
    options = inherited(root)
    with TemporaryDirectory() as folder:
        include = etree.tostring(etree.Element("include", href="whole.xml", prefix="p-"), encoding="unicode")
        main = etree.tostring(etree.Element("schema", name="s", **options), encoding="unicode")
        path = written(Path(folder), main=main.replace("/>", f">{include}</schema>"), whole=whole)
        there = content(check_schema(Schema.from_file(path)))
    assert shortened(there) == shortened(content(check_schema(parse_schema(whole))))


def shortened(value: Any) -> Any:
    """Return content without the prefix in its names."""
    if isinstance(value, str):
        return value.replace("p-", "")
    if isinstance(value, dict):
        return {shortened(key): shortened(each) for key, each in value.items()}
    return type(value)(map(shortened, value)) if isinstance(value, list | tuple | frozenset) else value


PROBE = """
import json, re, sys, time
from pathlib import Path
from promptcache.diagnostics import SchemaError
from promptcache.language import Schema, check_schema
check_schema(Schema("s").module("a"))
found = []
for name in sys.argv[1:]:
    start = time.process_time()
    try:
        Schema.from_file(Path(name))
        codes = None
    except SchemaError as error:
        codes = sorted({each.code for each in error.diagnostics})
    found.append((name, codes, time.process_time() - start))
peak = re.search(r"VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())
print(json.dumps([found, int(peak[1])]))
"""


def schema_of(content: str) -> str:
    return f'<schema name="s">{content}</schema>'


def bombs(folder: Path) -> list[Path]:
    """Write schemas that are too large: wide, deep, long, and repeated many times."""
    ten = "".join(f'<include href="{{}}.xml" prefix="p{number}"/>' for number in range(10))
    files = {"tens0": "".join(f'<module name="m{number}">m</module>' for number in range(10))}
    files |= {f"tens{level}": ten.format(*[f"tens{level - 1}"] * 10) for level in range(1, 12)}
    files["wide"] = "".join(f'<include href="tens0.xml" prefix="p{number}"/>' for number in range(10_000))
    files["picky"] = "".join(f'<include href="many.xml" select="m1" prefix="p{n}"/>' for n in range(3_000))
    files["many"] = "".join(f'<module name="m{number}"/>' for number in range(5_000))
    files["long"] = "".join(f'<include href="megabyte.xml" prefix="p{number}"/>' for number in range(1_000))
    files["megabyte"] = f'<module name="m">{"x" * 1024 * 1024}</module>'
    files |= {f"chain{level}": f'<include href="chain{level + 1}.xml"/>' for level in range(50)}
    nest, nested = '<module name="m">' * 90, "</module>" * 90
    files |= {f"deep{level}": f'{nest}<include href="deep{level + 1}.xml"/>{nested}' for level in range(19)}
    files |= {"deep19": '<module name="m"/>'}
    written(folder, **{name: schema_of(text) for name, text in files.items()})
    return [folder / f"{name}.xml" for name in ("tens11", "wide", "picky", "long", "chain0", "deep0")]


@pytest.mark.long
def test_bombs_of_includes_are_refused_in_time_and_memory(tmp_path):
    """Each bomb is refused with one code within a second, and all of them in one process within 200 MB."""
    paths = [str(path) for path in bombs(tmp_path)]
    result = subprocess.run([sys.executable, "-c", PROBE, *paths], capture_output=True, text=True, check=True)
    found, peak_kib = json.loads(result.stdout)
    assert all(codes == ["PC221"] and is_within(seconds, 1) for _, codes, seconds in found), found
    assert peak_kib < 200 * 1024
