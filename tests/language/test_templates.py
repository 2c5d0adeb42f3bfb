"""Tests of templates: values stay data, names are strict, and resource limits hold."""

import re
import runpy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import Diagnostic, PromptError, SchemaError
from promptcache.language import Prompt, Schema, Text, check_schema, parse_schema, print_schema
from promptcache.language.syntax import sandbox
from promptcache.language.syntax.templates import render_template
from promptcache.language.syntax.xml import Element, parse_xml
from tests import strategies
from tests.conftest import law_examples
from tests.language.documents import bombed, codes, cut, faults, outline
from tests.speed import is_within

BOMBS = [
    "{{ 'a' * 10 ** 8 }}",
    "{{ 10 ** 7 * [1, 2] }}",
    "{{ many * 1000 }}",
    "{{ 10 ** (10 ** 8) }}",
    "{% set n = 2 ** 3999 %}{% set n = n * n %}{{ n }}",
    "{{ 1 << 100000000 }}",
    "{{ '%0100000000d'|format(1) }}",
    "{{ ('%' ~ '9' * 9 ~ 'd') % 1 }}",
    "{% for a in x %}{% for b in x %}{% for c in x %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in x %}{% for b in x %}{{ 'text ' * 100 }}{% endfor %}{% endfor %}",
    "{% for a in many %}{{ many|sort|first }}{% endfor %}",
    "{% for a in many %}{% if 'x' in many %}{% endif %}{% endfor %}",
    "{% for a in x recursive %}{{ loop(x) }}{% endfor %}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ " + "(" * 4_000 + "1" + ")" * 4_000 + " }}",
    "{{ a" + " + a" * 20_000 + " }}",
    "{{" * 500_000,
    "{{ 1 }}" * 5_001,
    "{{ range(10 ** 9)|list }}",
    "{{ cycler.__init__.__globals__ }}",
    *(f"{{{{ {each} }}}}" for each in (
        "huge|indent(1000000)", "x|batch(1, huge)|list", "x|slice(1000000000)|list", "huge.zfill(10 ** 9)",
        "'a'.center(10 ** 8)", "{'a': huge}|xmlattr", "huge.format()", "huge.join(x)",
    )),
]  # fmt: skip
"""Templates that take much time or memory in Jinja2's own sandbox, or would with a filter that is not available."""


def refused(template: str, context: dict[str, object] | None) -> Diagnostic:
    """Return the only fault of a template."""
    (found,) = faults(SchemaError, render_template, template, context, "t.xml.j2", SchemaError)
    return found


CDATA = (
    "<![CDATA[{{ value }}]]>",
    "<![CDATA[a{{ value }}b{{ value }}]]>c{{ value }}",
    "<!-- <![CDATA[ -->{{ value }}<![CDATA[]]{{ value }}>]]>",
    "<![CDATA[<!-- {{ value }}]]>-->",
    "{% if value %}<![CDATA[{% endif %}{{ value }}{% if value %}]]>{% endif %}",
)
VALUES = st.text(alphabet="<>&]'-!a\n", max_size=6) | st.sampled_from(("]]>", "<![CDATA[", "]]", ">", "<!--", "-->"))


@pytest.mark.parametrize("content", CDATA)
@given(value=VALUES)
def test_values_are_exact_in_cdata(content: str, value: str):
    """A value in a CDATA section is exact text."""
    template = f'<schema name="s"><text>{content}</text></schema>'
    expected = re.sub(r"<!-- <!\[CDATA\[ -->|<!\[CDATA\[|\]\]>|{%.*?%}", "", content).replace("{{ value }}", value)
    schema = parse_schema(render_template(template, {"value": value}, "t.xml.j2", SchemaError).text)
    assert [item.text for item in schema.children if isinstance(item, Text)] == [expected]


def test_faults_in_cdata_have_the_place_of_the_value(tmp_path: Path):
    """A fault from a value in a CDATA section is reported at the value's tag, and a later fault at its own place."""
    path = tmp_path / "s.xml.j2"
    path.write_text('<schema name="s"><rules><![CDATA[{{ value }} more]]></rules><x/></schema>')
    found = faults(SchemaError, Schema.from_file, path, context={"value": "<words>"})
    assert [(each.code, each.span.column) for each in found] == [("PC106", 34), ("PC101", 62)]


@given(value=st.text())
def test_values_never_become_markup(value):
    """Values never add markup: the document has exactly the elements of the template."""
    template = '<schema name="s"><module name="m">{{ value }}</module><doc>{{ value ~ "<b>" }}</doc></schema>'
    try:
        schema = parse_schema(render_template(template, {"value": value}, "t.xml.j2", SchemaError).text)
    except SchemaError as error:
        found = codes(error.diagnostics)
        if set(found) <= {"PC001", "PC006"}:  # a character that XML cannot represent
            return
        raise
    assert [type(child).__name__ for child in schema.children] == ["Module", "Doc"]


def test_loops_conditions_and_filters_work():
    """A template with common constructs gives the expected document."""
    template = (
        '{% set kind = "doc" %}{% for item in items if item.text %}\n'
        "<m n='{{ loop.index }}'>{{ item.text|upper|trim }}{% if not loop.last %}, {% else %}.{% endif %}</m>{% endfor %}"
        "{{ tags|join('; ') }} {{ missing|default('none') }} {{ kind ~ 1 }} {{ data|tojson }}"
    )
    context = {"items": [{"text": " a "}, {"text": ""}, {"text": "b<"}], "tags": ["x", "&"], "data": {"k": [1]}}
    assert render_template(template, context, "t", SchemaError).text == (
        "\n<m n='1'>A, </m>\n<m n='2'>B&lt;.</m>x; &amp; none doc1 {&#34;k&#34;: [1]}"
    )


def test_lists_are_tested_for_their_type():
    """A list is no text, but a list as text is a fault."""
    rendered = render_template("{{ x is string }} {{ x is iterable }} {{ 'a' is lower }}", {"x": [1]}, "t", SchemaError)
    assert rendered.text == "False True True"
    assert {refused(each, {"x": [1]}).code for each in ("{{ x|upper }}", "{{ 'a' ~ x }}")} == {"PC602"}


FAULTS = {
    "{{ nothing }}": ("PC603", "nothing", "available: data, items, text"),
    "{{ 'a' ~ itms }}": ("PC603", "itms", "did you mean 'items'?"),
    "{% set place = 1 %}{{ palce }}": ("PC603", "palce", "did you mean 'place'?"),
    "{% for item in itms %}{% endfor %}": ("PC603", "itms", "did you mean 'items'?"),
    "{% for item in items if itme %}{% endfor %}": ("PC603", "itme", "did you mean 'item'?"),
    "{% for n in items %}{% set place = n %}{{ palce }}{% endfor %}": ("PC603", "palce", "did you mean 'place'?"),
    "{{ data.nmae }}": ("PC603", "nmae", "did you mean 'name'?"),
    "{{ data.name.nmae }}": ("PC603", "nmae", "available: endswith"),
    "{{ items[9] }}": ("PC603", "[9]", ""),
    "{{ ''.join.__globals__ }}": ("PC603", "__globals__", ""),
    "{{ data }}": ("PC602", "data", "join or tojson"),
    "{{ data.items() }}": ("PC602", "data.items()", "join or tojson"),
    "{{ text|upper ~ data }}": ("PC602", "text|upper ~ data", "join or tojson"),
    "{{ text|uper }}": ("PC601", "uper", "did you mean 'upper'?"),
    "{{ items|map('uper')|list }}": ("PC601", "items|map('uper')|list", "did you mean 'upper'?"),
    "{{ data.nmae.x|default('a') }}": ("PC603", "nmae", "did you mean 'name'?"),
    "{{ data.nmae.x is defined }}": ("PC603", "nmae", "did you mean 'name'?"),
    "{{ items|sum }}": ("PC606", "items|sum", ""),
    "{{ text is definde }}": ("PC601", "is definde", "did you mean 'defined'?"),
    "{{ text.uper() }}": ("PC602", "uper()", "did you mean 'upper'?"),
    "{{ text|safe }}": ("PC601", "safe", ""),
    "{% include 'x' %}": ("PC602", "include 'x'", ""),
    "{{ data.update({}) }}": ("PC602", "update({})", ""),
    "{{ foo() }}": ("PC602", "foo()", ""),
    "{{ text.__class__ }}": ("PC602", ".__class__", ""),
    "{% endfor %}": ("PC601", "endfor", ""),
    "{% fro a in x %}": ("PC601", "fro a in x", "did you mean 'for'?"),
    "{% for a in items %}{% if a %}{% endif %}": ("PC601", "for a in items", "add {% endfor %}"),
    "{{ a b }}": ("PC601", "b", ""),
    "{{ (1] }}": ("PC601", "]", ""),
    "{{ $ }}": ("PC601", "$", ""),
    "{{ 1 // 0 }}": ("PC606", "1 // 0", ""),
    "{% for a in items %}{% end for %}": ("PC601", "end for", "write {% endfor %}"),
    "{% macro m() %}{% endmacro %}": ("PC602", "macro m()", "statements are for, if and set"),
    '{% include "x.xml" %}': ("PC602", 'include "x.xml"', '<include href="…"/>'),
    "{{ text | truncate(3) }}": ("PC601", "truncate(3)", "lists the filters"),
    "{% for k, v in data %}{{ k }}{% endfor %}": ("PC606", "for k, v in data", "{% for key, value in it|items %}"),
    "{{ text }": ("PC601", "} {{ text", "write }}"),
    "{% for i in range(3) %}{% endfor %}": ("PC602", "range(3)", "templates have no functions"),
    "{{ 'a' * 10 ** 8 }}": ("PC604", "'a' * 10 ** 8", ""),
    "{{ 10 ** 10000 }}": ("PC604", "10 ** 10000", ""),
    "{{ '%d' % 1 }}": ("PC602", "'%d' % 1", ""),
}


@pytest.mark.parametrize(("template", "expected"), FAULTS.items())
def test_faults_are_reported_at_their_place_in_the_template(template: str, expected: tuple[str, str, str]):
    """Faults have a PC6xx code, the faulty words and a help, also for misspelled names."""
    code, words, advice = expected
    text = f"é\n\n  {template} {{{{ text }}}}"
    context = {"data": {"name": "x"}, "items": ["a"], "text": "t"}
    found = refused(text, context)
    assert (found.code, found.span.line, cut(text, found.span)) == (code, 3, words)
    assert advice in (found.help or "")


FAULTY_VALUES = {
    "empty": ('<schema name="s">\n <module name="{{ v }}">x</module></schema>', "", "PC201", "{{ v }}"),
    "two empty ones": ('<schema name="s">\n <module name="{{ v }}{{ v }}">x</module></schema>', "", "PC201", "{{ v }}"),
    "an element": ('<schema name="s">\n <{{ v }}/></schema>', "modul", "PC101", "{{ v }}"),
    "text before <": ('<schema name="s">{{ v }} < {{ v }}</schema>', "1", "PC001", "<"),
    "nothing at all": ("{{ v }}", "", "PC001", "{{ v }}"),
    "no text": ("{% if v %}<schema/>{% endif %}", "", "PC001", ""),
    "lone surrogate": ('<schema name="s">\n a{{ v }}b</schema>', "a\ud800", "PC006", "{{ v }}"),
    "no character of XML": ('<schema name="s">\n a{{ v }}b</schema>', "a\0", "PC001", "{{ v }}"),
    "byte order mark": ('{{ v }}<schema name="s"><modul/></schema>', "\ufeff", "PC101", "modul"),
    "many characters": ("<s>\n{% for _ in v %}{{ v }}{% endfor %}</s>", "a" * 4000, "PC604", "{{ v }}"),
    "many bytes": ("<s>\n{% for _ in v %}{{ v }}{% endfor %}</s>", "是" * 2000, "PC604", "{{ v }}"),
    "many texts": (f"<s>{{% for _ in v %}}{'text ' * 900}{{% endfor %}}</s>", "a" * 2000, "PC604", "text " * 900),
}


@pytest.mark.parametrize(("template", "value", "code", "words"), FAULTY_VALUES.values(), ids=FAULTY_VALUES)
def test_faulty_values_have_the_place_of_their_tag(template: str, value: str, code: str, words: str, tmp_path: Path):
    """A value that a document cannot have, or that is empty or too large, is reported where the template writes it."""
    path = tmp_path / "s.xml.j2"
    path.write_text(template)
    (found,) = faults(SchemaError, lambda: check_schema(Schema.from_file(path, context={"v": value})))
    assert (found.code, cut(template, found.span)) == (code, words)
    assert found.span.line == template[: template.index(words)].count("\n") + 1


@pytest.mark.parametrize(
    "template",
    [
        "{% for note in notes %}{{ note }}{% endfor %}",
        "{% for a in records %}{% for note in notes %}{{ note }}{% endfor %}{% endfor %}",
        "{% for note in [] %}{% else %}{{ notes }}{% endfor %}",
        "{% for note in records %}{{ note }}{% endfor %}{{ notes }}",
        "{% for a in records %}{% set note = a %}{% endfor %}{{ notes }}",
        "{% set note = notes ~ 1 %}",
        "{{ notes }}{% set note = 1 %}",
        "{% if notes %}{% for note in records %}{% endfor %}{% endif %}",
    ],
)
def test_names_are_suggested_where_they_are_defined(template: str):
    """No help names a variable of a loop outside its body, or one that is set later."""
    found = refused(template, {"records": ["a"]})
    assert (found.code, found.message) == ("PC603", "'notes' has no value")
    assert re.fullmatch("available: (a, )?records", found.help or "")


@pytest.mark.parametrize("template", ["{{ name }}", "{% for note in notes %}{% endfor %}"])
def test_a_template_without_a_context_says_how_to_give_one(template: str):
    """For an undefined name without a context, the help names the option and the argument."""
    assert refused(template, None).help == "give --context FILE, or context={…} in Python"


def elements(root: Element) -> Iterator[Element]:
    yield root
    for child in root.children:
        if isinstance(child, Element):
            yield from elements(child)


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(document=strategies.schema_documents(), number=st.integers(0, 3))
def test_places_are_those_of_the_template(document, number):
    """Every node of a rendered document has the place of its text in the template."""
    document = document.replace("{", "(").replace("}", ")")
    start = "".join("{% set x = 1 %}\n{{ 'more' if x > 1 }}" for _ in range(number))
    template = f"{{% if true -%}}  \n {document}{{% endif %}}"
    rendered = render_template(start + template, None, "t.xml.j2", SchemaError)
    for element in elements(parse_xml(rendered, "t.xml.j2", SchemaError)):
        assert cut(start + template, element.span) == rendered.text[element.start : element.stop]


def test_a_value_has_the_place_of_its_tag():
    """A fault from a value is reported at the tag of the value, in every iteration of a loop."""
    template = "<s>{% for n in names %}\n  <a n='{{ n }}'>{{ n }}<b/></a>{% endfor %}</s>"
    root = parse_xml(render_template(template, {"names": ["x\r\ny", "long" * 9]}, "t", SchemaError), "t", SchemaError)
    for a in (child for child in root.children if isinstance(child, Element)):
        text, b = a.children
        assert cut(template, a.attributes[0].value_span) == "{{ n }}"
        assert cut(template, text.span) == "{{ n }}"
        assert cut(template, b.span) == "<b/>"
        assert cut(template, a.span) == "<a n='{{ n }}'>"


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("value", [print, object(), {1: "a"}, {"a": {"b": open}}, b"bytes", {"a"}, Path(), ENDLESS])
def test_only_plain_data_is_given(value):
    """Callables, other objects, and a list that contains itself are refused before the template runs."""
    assert refused("{{ value }}", {"value": value}).code == "PC605"


SETUP = """
from promptcache.language.syntax import sandbox
from promptcache.language.syntax.templates import render_template
sandbox.MAX_RENDER_S = 0.25
render_template("{{ a }}", {"a": 1}, "t", SchemaError)
VALUES = {"x": list(range(1000)), "many": [str(n) for n in range(100_000)], "huge": "a" * 1_000_000, "a": "a"}
"""
CALL = 'render_template(bomb, {name: each for name, each in VALUES.items() if name in bomb}, "t", SchemaError)'


def test_endless_loops_end_in_any_thread(monkeypatch):
    """A loop that writes nothing ends at the limit of its own thread, with the place of the loop."""
    monkeypatch.setattr(sandbox, "MAX_RENDER_S", 0.1)
    template = "{% for a in x %}\n{% for b in x %}{% for c in x %}{% endfor %}{% endfor %}{% endfor %}"

    def render() -> tuple[str, int]:
        found = refused(template, {"x": ["a"] * 5_000})
        assert "takes more than" in found.message
        return found.code, found.span.line

    with ThreadPoolExecutor() as pool:
        assert [each.result() for each in [pool.submit(render), pool.submit(render)]] == [("PC604", 2)] * 2


def test_bombs_are_refused_in_time_and_memory():
    """Each bomb is refused within the time limit, here a quarter of a second, and all of them in one process within 200 MB."""
    found = bombed(BOMBS, SETUP, CALL)
    assert all(code is not None and is_within(seconds, 2) for code, seconds in found), found


def test_files_are_templates_by_their_name(tmp_path):
    """Schema.from_file and Prompt.from_file render *.xml.j2, and refuse a context for other files."""
    (tmp_path / "s.xml.j2").write_text(
        '<schema name="{{ name }}">{% for n in names %}<module name="{{ n }}">{{ n }}</module>{% endfor %}</schema>'
    )
    (tmp_path / "p.xml.j2").write_text('<prompt schema="{{ name }}"><a/>{{ text }}</prompt>')
    (tmp_path / "s.xml").write_text('<schema name="s"/>')
    schema = check_schema(Schema.from_file(tmp_path / "s.xml.j2", context={"name": "s", "names": ["a", "b"]}))
    assert outline(schema.children) == [["a", "a"], ["b", "\nb"]]
    prompt = Prompt.from_file(tmp_path / "p.xml.j2", context={"name": "s", "text": "<b/>"})
    assert prompt.messages[0].text == "<b/>"
    for kind, error in ((Schema, SchemaError), (Prompt, PromptError)):
        assert codes(faults(error, kind.from_file, tmp_path / "s.xml", context={})) == ["PC605"]


def test_the_worked_example_gives_what_it_says():
    """The example builds a schema from a folder of documents, and the schema equals the stored one."""
    examples = Path(__file__).parents[2] / "examples"
    build = runpy.run_path(str(examples / "build_library.py"))["build"]
    expected = (examples / "library" / "expected" / "library.xml").read_text(encoding="utf-8")
    assert print_schema(build().source) == expected
