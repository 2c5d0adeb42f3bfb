"""Tests of the formatter: it keeps tokens and comments, and is idempotent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import CODES, LanguageError, Severity
from promptcache.language import Whitespace, check_schema, parse_prompt, parse_schema
from promptcache.language.format.formatter import format_document
from promptcache.language.format.markup import Chars, MarkupKind, MarkupNode, Tag, read_markup
from tests import strategies
from tests.conftest import law_examples
from tests.language.documents import without_spans

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(
    [*ROOT.glob("schemas/**/*.xml"), *ROOT.glob("examples/**/*.xml"), *ROOT.glob("tests/language/schemas/*")]
)
REJECTS = sorted(
    path
    for path in (Path(__file__).parent / "rejects").glob("PC[01]*.xml")
    if CODES[path.name[:5]].severity is Severity.ERROR
)
SPACES = st.sampled_from(["", "", "", " ", "\n", "\n    ", "\n\n  ", "\t", "  \n", "\n  <!-- note -->\n", "<!--n-->"])
MODES = st.sampled_from(["", "dedent", "preserve", "collapse", "compact"])


def tokens(text: str, folder: Path | None = None):
    """Return the checked content of a document without places."""
    if is_prompt(text.encode()):
        return without_spans(parse_prompt(text))
    checked = check_schema(parse_schema(text, folder=folder))
    return without_spans((checked.children, checked.scaffolds, checked.open_separator, checked.name, checked.version))


def is_prompt(data: bytes) -> bool:
    """Return whether the first element is that of a prompt, or similar."""
    first = re.search(rb"<([a-z]+)", data)
    return first is not None and first[1].startswith(b"prom")


def spaced(draw, document: str) -> str:
    """Return a document with random whitespace and comments in place of its whitespace or between elements."""
    parts = re.split(r"(<text>.*?</text>|<arg [^>]*>.*?</arg>|<[^>]*>)", document, flags=re.DOTALL)
    found = []
    for part in parts[:-1]:
        if part.startswith("<"):
            found.append(re.sub(r'" (?=[^" ]+=")', lambda _: '"' + (draw(SPACES.filter(str.isspace)) or " "), part))
        else:
            found.append(
                draw(SPACES) + part.replace("\n", "\n" + draw(st.sampled_from(["", "  ", "\t"]))) + draw(SPACES)
            )
    return "".join(found)


def still_valid(document: str) -> bool:
    """Return whether a document is still valid after its whitespace changed; new text may be in a wrong place."""
    try:
        tokens(document)
    except LanguageError:
        return False
    return True


@st.composite
def respaced_schemas(draw):
    """Draw a schema in any layout, with one of the four whitespace modes."""
    document = draw(strategies.schema_documents())
    mode = draw(MODES)
    if mode and "whitespace=" not in document[: document.index(">")]:
        document = document.replace("<schema ", f'<schema whitespace="{mode}" ', 1)
    return spaced(draw, document)


@st.composite
def respaced_prompts(draw):
    """Draw a prompt in any layout."""
    return spaced(draw, draw(strategies.prompt_documents(draw(strategies.schemas()))))


DOCUMENTS = st.one_of(respaced_schemas(), respaced_prompts(), strategies.schema_documents())


@pytest.mark.law
@settings(max_examples=law_examples())
@given(DOCUMENTS.filter(still_valid))
def test_tokens_never_change(document):
    """The formatted document has the same checked content."""
    assert tokens(format_document(document)) == tokens(document)


@pytest.mark.parametrize("text", ["\xa0\n", "\xa0a\nb", "\u3000a" + 120 * "b"])
def test_no_line_begins_with_a_space_that_was_none_of_its_indentation(text):
    """An unusual space behind a tag stays behind the tag: at the start of a line it would get a warning."""
    document = f'<prompt schema="s">\n  <user>{text}</user>\n</prompt>\n'
    assert format_document(document) == document
    assert tokens(document)[-1] == ()


@pytest.mark.law
@settings(max_examples=law_examples())
@given(DOCUMENTS.filter(still_valid))
def test_twice_is_once(document):
    """Formatting a formatted document does not change it."""
    once = format_document(document)
    assert format_document(once) == once


@pytest.mark.law
@settings(max_examples=law_examples())
@given(
    text=st.lists(st.sampled_from(["x", " ", "\t", "\n", "\n  ", "&#10;", "&#32;", "<!--n-->", "<text> </text>"])).map(
        "".join
    ),
    mode=st.sampled_from(Whitespace),
)
@example(text="\t&#10;x \n", mode=Whitespace.DEDENT)
def test_blocks_with_references_keep_their_tokens_and_are_formatted_once(text: str, mode: Whitespace) -> None:
    """A block of blanks, line breaks, references and comments keeps its tokens, and formatting again changes nothing."""
    document = f'<schema name="s" whitespace="{mode}"><module name="m">{text}</module></schema>'
    once = format_document(document)
    assert tokens(once) == tokens(document)
    assert format_document(once) == once


def comments(nodes: tuple[MarkupNode, ...]) -> Iterator[str]:
    """Yield every comment inside some nodes, in document order."""
    for node in nodes:
        if isinstance(node, Tag):
            yield from comments(node.children)
        elif node.kind is MarkupKind.COMMENT:
            yield node.raw


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(DOCUMENTS.filter(still_valid))
def test_comments_are_kept(document):
    """Formatting keeps every comment unchanged and in the same order."""
    assert list(comments(read_markup(format_document(document)))) == list(comments(read_markup(document)))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_documents_keep_their_tokens(path):
    """The laws hold for every shipped document."""
    text = path.read_text(encoding="utf-8")
    once = format_document(text, folder=path.parent)
    assert tokens(once, path.parent) == tokens(text, path.parent)
    assert format_document(once, folder=path.parent) == once


@pytest.mark.parametrize("path", REJECTS, ids=lambda path: path.stem)
def test_refuses_what_is_wrong(path):
    """A document with faults is refused with the diagnostics of its checker."""
    data = path.read_bytes()
    reader = parse_prompt if is_prompt(data) else lambda data: check_schema(parse_schema(data))
    with pytest.raises(LanguageError) as expected:
        reader(data)
    with pytest.raises(LanguageError) as refused:
        format_document(data)
    assert [(d.code, d.message, d.span.line, d.span.column) for d in refused.value.diagnostics] == [
        (d.code, d.message, d.span.line, d.span.column) for d in expected.value.diagnostics
    ]


LAYOUTS = {
    "blocks get lines": (
        '<schema name="s"><module name="a">Two.</module><doc>x</doc></schema>',
        '<schema name="s">\n  <module name="a">Two.</module>\n  <doc>x</doc>\n</schema>\n',
    ),
    "a block on its own lines is indented": (
        '<schema name="s">\n      if a:\n        b\n</schema>',
        '<schema name="s">\n  if a:\n    b\n</schema>\n',
    ),
    "the first line counts only behind a newline": (
        '<schema name="s"><module name="a"/>x\n y</schema>',
        '<schema name="s">\n  <module name="a"/>\n  x\n  y\n</schema>\n',
    ),
    "a line that begins with a space stays behind its tag": (
        '<schema name="s"><module name="a"/>  x</schema>',
        '<schema name="s">\n  <module name="a"/>  x</schema>\n',
    ),
    "a space before a tag is not left at the end of a line": (
        '<schema name="s">One. <module name="a"/></schema>',
        '<schema name="s">One. <module name="a"/>\n</schema>\n',
    ),
    "a parameter stays in its line": (
        '<schema name="s">\n<parameter length="2"\n name="p"/> days and <text> </text>\n</schema>',
        '<schema name="s">\n  <parameter name="p" length="2"/> days and <text> </text>\n</schema>\n',
    ),
    "preserved text is not touched": (
        '<schema whitespace="preserve" name="s">\n <doc> x </doc>\n\n a\n   b <module name="a">\n\n</module></schema>',
        '<schema name="s" whitespace="preserve">\n  <doc> x </doc>\n\n a\n   b <module name="a"/>\n</schema>\n',
    ),
    "preserved text that is indented as it would be stays before its end tag": (
        '<schema whitespace="preserve" name="s"><system>\n    a\n</system></schema>',
        '<schema name="s" whitespace="preserve">\n  <system>\n    a\n</system>\n</schema>\n',
    ),
    "lines of collapsed text are indented alike": (
        '<schema name="s" whitespace="collapse">\na\n  b\n</schema>',
        '<schema name="s" whitespace="collapse">\n  a\n    b\n</schema>\n',
    ),
    "CDATA stays CDATA and is indented with its block": (
        '<schema name="s"><module name="m"><![CDATA[\nif a < b:\n  c\n]]></module></schema>',
        '<schema name="s">\n  <module name="m">\n    <![CDATA[\n    if a < b:\n      c\n    ]]>\n  </module>\n</schema>\n',
    ),
    "one blank line is kept, and comments stay where they stand": (
        '<!-- top -->\n\n\n<schema name="s"><!-- in -->\n\n\n\n<module name="a"/> <!-- beside -->\n<!-- below --></schema>\n<!-- end -->',
        '<!-- top -->\n\n<schema name="s">\n  <!-- in -->\n\n  <module name="a"/> <!-- beside -->\n  <!-- below -->\n</schema>\n<!-- end -->\n',
    ),
    "quotes and lists of paths are written one way": (
        "<schema name='s'><module excludes=' b  c ' name='a'/><module name='b'/><module name='c'/></schema>",
        '<schema name="s">\n  <module name="a" excludes="b c"/>\n  <module name="b"/>\n  <module name="c"/>\n</schema>\n',
    ),
    "an argument is exact": (
        '<prompt schema="s"><a><arg name="x">\n two\n</arg></a> go </prompt>',
        '<prompt schema="s">\n  <a>\n    <arg name="x">\n two\n</arg>\n  </a> go </prompt>\n',
    ),
    "an example is laid out as a prompt, whatever the schema does with whitespace": (
        '<schema name="s" whitespace="preserve"><example valid="true" name="e"><prompt schema="s"><use module="a"/>\n Go</prompt></example><module name="a"/></schema>',
        '<schema name="s" whitespace="preserve">\n  <example name="e" valid="true">\n    <prompt schema="s">\n      <use module="a"/>\n      Go\n    </prompt>\n  </example>\n  <module name="a"/>\n</schema>\n',
    ),
    "rules get lines": (
        '<schema name="s"><rules><exclude message="no" modules="a  b"/></rules><module name="a"/><module name="b"/></schema>',
        '<schema name="s">\n  <rules>\n    <exclude modules="a b" message="no"/>\n  </rules>\n  <module name="a"/>\n  <module name="b"/>\n</schema>\n',
    ),
    "references on one line stay there": (
        '<prompt schema="s"><a q="1" p="2"><b/></a><user>\n     Go\n      on\n</user></prompt>',
        '<prompt schema="s">\n  <a q="1" p="2"><b/></a>\n  <user>\n    Go\n     on\n  </user>\n</prompt>\n',
    ),
}


@pytest.mark.parametrize(("document", "expected"), LAYOUTS.values(), ids=LAYOUTS)
def test_layout(document, expected):
    """Each document is formatted as expected, and formatting is stable."""
    assert format_document(document) == expected
    assert format_document(expected) == expected


def test_long_start_tags_are_wrapped():
    """A start tag that is too long for a line is split into one line for each attribute."""
    paths = " ".join(f"module-{number}" for number in range(9))
    modules = "".join(f'<module name="module-{number}"/>' for number in range(9))
    formatted = format_document(
        f'<schema name="s"><module name="m" required="true" requires="{paths}"/>{modules}</schema>'
    )
    assert f'  <module name="m"\n          required="true"\n          requires="{paths}"/>\n' in formatted


def test_deep_documents_cost_no_more_than_they_are_long():
    """The work for a nested document is proportional to its length."""
    document = '<schema name="s">' + '<module name="m">' * 97 + "x" + "</module>" * 97 + "</schema>"
    assert format_document(document).count("\n") == 2 * 98 + 1


@given(st.text(alphabet="a&lt;#x10 \n", max_size=12))
def test_markup_reads_what_was_written(text):
    """Parsing the markup of a document keeps every character."""
    nodes = read_markup(text)
    assert "".join(node.raw for node in nodes if isinstance(node, Chars)) == text
    assert Chars(MarkupKind.TEXT, "&#10;&#x41;&amp;lt;").value == "\nA&lt;"
