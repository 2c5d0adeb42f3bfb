"""Tests of the formatter: it keeps tokens and comments, and is idempotent."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import CODES, LanguageError, Severity
from promptcache.language import Whitespace, parse_prompt
from promptcache.language.format.markup import Chars, MarkupKind, MarkupNode, Tag, read_markup
from promptcache.language.load import format_document
from tests import strategies
from tests.conftest import law_examples
from tests.language.documents import checked, faults, without_spans
from tests.language.faults import documents

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHIPPED = sorted(
    [*ROOT.glob("schemas/**/*.xml"), *ROOT.glob("examples/**/*.xml"), *ROOT.glob("tests/language/schemas/*")]
)
OF_OTHER_KIND = {'<prompt schema="s"/>', '<schema name="s"/>'}  # documents that are wrong only in their place
FAULTY = [
    text
    for code, text in documents()
    if code < "PC200" and CODES[code].severity is Severity.ERROR and text not in OF_OTHER_KIND
]
SPACES = st.sampled_from(["", "", "", " ", "\n", "\n    ", "\n\n  ", "\t", "  \n", "\n  <!-- note -->\n", "<!--n-->"])
MODES = st.sampled_from(["", "dedent", "preserve", "collapse", "compact"])


def tokens(text: str, folder: Path | None = None):
    """Return the checked content of a document without places."""
    if is_prompt(text.encode()):
        return without_spans(parse_prompt(text))
    schema = checked(text, folder=folder)
    return without_spans((schema.children, schema.scaffolds, schema.open_separator, schema.name, schema.version))


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
    with suppress(LanguageError):
        return bool(tokens(document))
    return False


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
def test_formatting_keeps_tokens_and_comments_and_is_done_once(document):
    """The formatted document has the same checked content and comments, and formatting it again changes nothing."""
    once = format_document(document)
    assert tokens(once) == tokens(document)
    assert list(comments(read_markup(once))) == list(comments(read_markup(document)))
    assert format_document(once) == once


@pytest.mark.parametrize("text", ["\xa0\n", "\xa0a\nb", "\u3000a" + 120 * "b"])
def test_no_line_begins_with_a_space_that_was_none_of_its_indentation(text):
    """An unusual space behind a tag stays behind the tag: at the start of a line it would get a warning."""
    document = f'<prompt schema="s">\n  <user>{text}</user>\n</prompt>\n'
    assert format_document(document) == document
    assert tokens(document)[-1] == ()


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


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_documents_keep_their_tokens(path):
    """The laws hold for every shipped document."""
    text = path.read_text(encoding="utf-8")
    once = format_document(text, folder=path.parent)
    assert tokens(once, path.parent) == tokens(text, path.parent)
    assert format_document(once, folder=path.parent) == once


@pytest.mark.parametrize("document", FAULTY)
def test_refuses_what_is_wrong(document):
    """A document with faults is refused with the diagnostics of its checker."""
    expected, refused = (
        [(each.code, each.message, each.span.line, each.span.column) for each in faults(LanguageError, read, document)]
        for read in (parse_prompt if is_prompt(document.encode()) else checked, format_document)
    )
    assert refused == expected


LAYOUTS = [each.split("\n", 1) for each in re.split("^## ", (HERE / "layouts.txt").read_text("utf-8"), flags=re.M)[1:]]


@pytest.mark.parametrize(("document", "expected"), [each[1].split("\n--------\n") for each in LAYOUTS], ids=[each[0] for each in LAYOUTS])  # fmt: skip
def test_layout(document, expected):
    """Each document is formatted as expected, and formatting is stable."""
    expected = expected.removesuffix("\n") if expected.endswith("\n\n") else expected
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
    document = '<schema name="s">' + '<module name="m">' * 47 + "x" + "</module>" * 47 + "</schema>"
    assert format_document(document).count("\n") == 2 * 48 + 1


@given(st.text(alphabet="a&lt;#x10 \n", max_size=12))
def test_markup_reads_what_was_written(text):
    """Parsing the markup of a document keeps every character."""
    nodes = read_markup(text)
    assert "".join(node.raw for node in nodes if isinstance(node, Chars)) == text
    assert Chars(MarkupKind.TEXT, "&#10;&#x41;&amp;lt;").value == "\nA&lt;"
