"""Tests of the strict XML reader: exact places, and safety against hostile documents."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import SchemaError
from promptcache.language import parse_schema, root_tag
from promptcache.language.limits import MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS
from promptcache.language.syntax.xml import Characters, Element, parse_xml
from tests.conftest import law_examples
from tests.language.documents import cut
from tests.speed import is_within

Draw = Callable[[st.SearchStrategy[Any]], Any]
_TEXT = st.text(alphabet="ab é😀\t\n<&>\"'", max_size=5)


@st.composite
def elements(draw: Draw, depth: int = 0) -> tuple[Any, str]:
    """Draw an element as (name, attributes, children), and one of its written forms."""
    name = draw(st.sampled_from(["a", "b.c", "é", "_x-1"]))
    space = st.sampled_from([" ", "\n", "  \t", "\n\n "])
    written, attributes = f"<{name}", []
    for key in draw(st.lists(st.sampled_from(["p", "q", "ü"]), unique=True)):
        value = draw(_TEXT)
        value = "".join(" " if character in "\t\n" else character for character in value)
        attributes.append((key, value))
        written += f'{draw(space)}{key}{draw(st.sampled_from(["=", " =", "= "]))}"{escape(value, {chr(34): "&quot;"})}"'
    written += draw(st.sampled_from(["", " ", "\n"]))
    if draw(st.booleans()):
        return (name, attributes, []), f"{written}/>"
    written += ">"
    children: list[Any] = []
    for _ in range(draw(st.integers(0, 3)) if depth < 3 else 0):
        if draw(st.booleans()) and not (children and isinstance(children[-1], str)):
            if text := draw(_TEXT):
                children.append(text)
                written += draw(st.sampled_from([escape(text), f"<![CDATA[{text}]]>", f"<!-- < -->{escape(text)}"]))
        else:
            child, inner = draw(elements(depth=depth + 1))
            children.append(child)
            written += inner
    return (name, attributes, children), f"{written}</{name}{draw(st.sampled_from(['', ' ']))}>"


def _plain(element: Element) -> Any:
    children = [node.text if isinstance(node, Characters) else _plain(node) for node in element.children]
    return element.name, [(attribute.name, attribute.value) for attribute in element.attributes], children


def _plain_lxml(element: etree._Element) -> Any:
    """Return what `_plain` returns, for the tree of a second parser."""
    texts = [element.text, *(child.tail for child in element)]
    nodes = [node for pair in zip(texts, [*map(_plain_lxml, element), None], strict=True) for node in pair if node]
    return element.tag, [*element.attrib.items()], nodes


def _check_places(element: Element, text: str) -> None:
    assert _plain(parse_xml(text[element.start : element.end], "part", SchemaError)) == _plain(element)
    assert cut(text, element.name_span) == element.name
    assert cut(text, element.span).startswith(f"<{element.name}")
    assert cut(text, element.span).endswith(">")
    for attribute in element.attributes:
        assert cut(text, attribute.span).startswith(attribute.name)
        assert cut(text, attribute.value_span) == escape(attribute.value, {'"': "&quot;"})
    for node in element.children:
        if isinstance(node, Element):
            _check_places(node, text)
        elif not node.blank and (found := cut(text, node.span)) and "CDATA" not in found:
            assert found.removesuffix("]]>").strip(" \t\n") in {
                escape(node.text).strip(" \t\n"),
                node.text.strip(" \t\n"),
            }


@settings(max_examples=law_examples())
@given(
    drawn=elements(), prolog=st.sampled_from(["", '<?xml version="1.0" encoding="UTF-8"?>\n', "\ufeff", "<!-- é -->\n"])
)
def test_content_and_places_are_exact(drawn, prolog):
    """Every element, attribute and text is read as written, and its span covers exactly its characters."""
    expected, written = drawn
    root = parse_xml(prolog + written, "doc", SchemaError)
    assert _plain(root) == expected
    _check_places(root, prolog.removeprefix("\ufeff") + written)


@settings(max_examples=law_examples())
@given(drawn=elements(), start=st.integers(0, 400), junk=st.text(alphabet='<>&"/=a ]![\x00', max_size=3))
def test_damaged_documents_are_read_or_refused(drawn, start, junk):
    """A damaged document is refused with a code and a place in the document, or it is the tree that lxml reads."""
    written = drawn[1][:start] + junk + drawn[1][start:]
    try:
        root = parse_xml(written, "doc", SchemaError)
    except SchemaError as error:
        span = error.diagnostics[0].span
        assert 1 <= span.line <= written.count("\n") + 1
        assert 1 <= span.column <= max(map(len, written.split("\n"))) + 1
    else:
        assert _plain(root) == _plain_lxml(etree.fromstring(written.encode(), etree.XMLParser(remove_comments=True)))


LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
HOSTILE = [
    ("PC002", f'<!DOCTYPE s [<!ENTITY l0 "ha">{LAUGHS}]><schema name="s">&l11;</schema>'),
    ("PC002", '<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><schema name="s">&x;</schema>'),
    ("PC002", '<?xml version="1.0"?> <!-- c --> <!DOCTYPE s SYSTEM "http://127.0.0.1:9/x.dtd"><schema name="s"/>'),
    ("PC002", '<!DOCTYPE s [<!ENTITY % p SYSTEM "file:///dev/zero"> %p;]><schema name="s"/>'),
    *(("PC004", each) for each in ("x" * (MAX_BYTES + 1), b"x" * (MAX_BYTES + 1), "é" * (MAX_BYTES // 2 + 1))),
    *(("PC005", each) for each in ("<schema>" * (MAX_DEPTH + 1), "<doc>" * (MAX_BYTES // 5))),
    ("PC009", '<schema name="s">' + "<doc/>" * MAX_ELEMENTS + "</schema>"),
    ("PC009", f"<schema {'a' * (MAX_BYTES - 20)}='1'/>"),
]


@pytest.mark.parametrize(("code", "document"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_documents_cost_little(code: str, document: str | bytes) -> None:
    """Entities are refused at the DOCTYPE, and documents over the limits of size, depth and number soon."""
    start = time.process_time()
    with pytest.raises(SchemaError) as caught:
        parse_schema(document)
    assert is_within(time.process_time() - start, 0.1 if code == "PC002" else 8)
    assert caught.value.diagnostics[0].code == code


def test_line_ends_are_alike():
    """CR LF and CR are line ends like LF, in text and in places."""
    trees = [parse_xml(f"<a>x{end}<b/>{end}é</a>", "doc", SchemaError) for end in ("\n", "\r\n", "\r")]
    assert len({str(_plain(tree)) for tree in trees}) == 1
    assert {(node.name_span.line, node.name_span.column) for tree in trees for node in tree.children[1:2]} == {(2, 2)}


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ("<a>" * MAX_DEPTH + "</a>" * MAX_DEPTH, None),
        ("<a>" * (MAX_DEPTH + 1) + "</a>" * (MAX_DEPTH + 1), "PC005"),
        ("<x:a/>", "PC008"),
        ("<a:b:c/>", "PC008"),
        ("<:/>", "PC008"),
        ("<xmlns/>", None),
        ('<a x:b="1"/>', "PC008"),
        ('<a :="1"/>', "PC008"),
        ('<a xmlns="b"/>', "PC008"),
        ('<a xmlns:x=""/>', "PC008"),
        ('<a xmlns:xml="b"/>', "PC008"),
        ('<a><b xml:id="i"/><b xml:id="i"/></a>', "PC008"),
        ('<a b="1" b="2"/>', "PC001"),
        ('<a b="&#1;"/>', "PC001"),
        ("<a>&#xFFFE;</a>", "PC001"),
        ("<a>&#x110000;</a>", "PC001"),
        ("<a>\U0001fffe\x7f\x85</a>", None),
        ("<\U00010000/>", "PC001"),
        ('<?xml version="1.1"?><a/>', "PC001"),
        ('<?xml encoding="UTF-8"?><a/>', "PC001"),
        ('<?xml version="1.0" standalone="maybe"?><a/>', "PC001"),
        ('<?xml version="1.0" encoding="&"?><a/>', "PC001"),
        ('<?xml version="1.0" encoding="utf8"?><a/>', "PC006"),
        ("<a>\ud800</a>", "PC006"),
        (b"<a>\xff</a>", "PC006"),
        (b"<a>\xed\xa0\x80</a>", "PC006"),
        ("<a/>".encode("utf-16"), "PC006"),
        ('<?xml version="1.0" encoding="latin-1"?><a/>', "PC006"),
        *(
            (each, "PC001") for each in ("<a><b/></", "<a><b c=''/></a", "<a><b/></a", "<a><b/></\n")
        ),  # found by fuzzing
        *((each, "PC001") for each in ("<\0M]>\0", "<\0a\0/\0>\0", "\0<\0a\0/\0>", "<a>\0</a>", "<a b='\0'/>")),
        (b"<a>\xc0\xaf</a>", "PC006"),
        (b"<a>\xf4\x90\x80\x80</a>", "PC006"),
        ("<a/><!DOCTYPE a>", "PC001"),
        ("<a><?XML ?></a>", "PC001"),
        ("<a><?x?></a>", "PC007"),
    ],
)
def test_one_parser_is_as_strict_as_two(document: str | bytes, code: str | None) -> None:
    """What a strict parser with namespaces refuses is refused, too. An element may have a name that begins with "xml"."""
    refused = nullcontext() if code is None else pytest.raises(SchemaError, match=code)
    with refused:
        parse_xml(document, "doc", SchemaError)


@pytest.mark.parametrize("length", [1, MAX_BYTES - 100])
def test_long_texts_and_values_are_read(length: int) -> None:
    """Only the size of the document limits a text, a value, a comment or a CDATA section."""
    for written in ('<a b="{}"/>', "<a>{}</a>", "<a><!--{}--></a>", "<a><![CDATA[{}]]></a>"):
        assert parse_xml(written.format("x" * length), "doc", SchemaError).name == "a"


def test_empty_element_is_its_start_tag() -> None:
    """The span of an empty element ends with its start tag (found by fuzzing: it reached to the next end tag)."""
    (inner,) = parse_xml("<a><b c='1'/></a>", "doc", SchemaError).children

    assert isinstance(inner, Element)
    assert inner.source.text[inner.start : inner.end] == "<b c='1'/>"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("""<schema separator="name='x'" name="a &amp; b"/>""", ("schema", {"separator": "name='x'", "name": "a & b"})),
        ("<!-- <prompt/> --><?xml-stylesheet?>\n<schema name = 's'>", ("schema", {"name": "s"})),
        ("<prompt schema='>'>", ("prompt", {"schema": ">"})),
        ("no tag", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_root_tags_are_read_without_checking_the_document(document: str, expected: object, encoding: str) -> None:
    """Name and attributes are those of the root element, in any encoding."""
    assert root_tag(document.encode(encoding)) == expected
