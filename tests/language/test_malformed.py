"""Tests of malformed documents: the message, the help and the place of the mistake."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

from promptcache.diagnostics import SchemaError
from promptcache.language import parse_schema
from tests.speed import is_within


class Broken(NamedTuple):
    """Malformed document, the code and place of its diagnostic, and the expected message and help."""

    document: str | bytes
    code: str
    place: str
    message: str
    help: str


BROKEN = {
    # attributes and their quotes
    "smart quotes": Broken('<schema name=“s”>\n  <module name="a"/>\n</schema>', "PC001", "1:14", "“", 'write name="s"'),
    "smart quote closes": Broken('<schema name="s”><module name="a"/></schema>', "PC001", "1:16", "”", 'name="s"'),
    "german quotes": Broken('<schema name="s"><module name=„a“/></schema>', "PC001", "1:31", "„", 'write name="a"'),
    "quote missing at the end of a tag": Broken(
        '<schema name="s">\n  <module name="a>\n    Text\n  </module>\n</schema>',
        "PC001",
        "2:16",
        "attribute 'name' is not closed",
        'write name="a"',
    ),
    "quote missing before an attribute": Broken(
        '<schema name="s">\n  <parameter name="days length="5"/>\n</schema>',
        "PC001",
        "2:19",
        "attribute 'name' is not closed",
        'write name="days"',
    ),
    "quote missing in one line": Broken(
        '<schema name="s"><module name="a>x</module><module name="b">y</module></schema>',
        "PC001",
        "1:31",
        "attribute 'name' is not closed",
        'write name="a"',
    ),
    "opening quote missing": Broken('<schema name=s">x</schema>', "PC001", "1:14", "no quotes", 'write name="s"'),
    "a letter that XML tags lack": Broken(
        '<schema name="s"><මල/></schema>', "PC001", "1:19", "'ම' is not allowed", "<use module="
    ),
    "a letter that XML attributes lack": Broken(
        '<schema name="s" aම="x"/>', "PC001", "1:19", "'ම' is not allowed", "<arg name="
    ),
    "no quotes": Broken(
        '<schema name="s">\n  <module name=a required="true"/>\n</schema>',
        "PC001",
        "2:16",
        "no quotes",
        'write name="a"',
    ),
    "no quotes before a less than": Broken('<schema name=s<1>x</schema>', "PC001", "1:14", "no quotes", 'write name="s"'),
    "space before a missing quote": Broken(
        '<schema name="s  version="1"/>', "PC001", "1:14", "attribute 'name' is not closed", 'write name="s"'
    ),
    "quote inside": Broken('<schema name="say "hi" now"/>', "PC001", "1:19", "space is missing", "&quot;"),
    "no value": Broken(
        '<schema name="s"><module name="a" required>x</module></schema>',
        "PC001",
        "1:35",
        "attribute 'required' has no value",
        'required="…"',
    ),
    "no space": Broken(
        '<schema name="s"><module name="a"required="true">x</module></schema>',
        "PC001",
        "1:33",
        "a space is missing behind the value of attribute 'name'",
        "add it",
    ),
    "attribute twice": Broken(
        '<schema name="s"><module name="a" name="b"/></schema>', "PC001", "1:35", "'name' is given twice", "remove one"
    ),
    "no-break space in a tag": Broken(
        '<schema name="s"><module\xa0name="a"/></schema>', "PC001", "1:25", "U+00A0", "plain space"
    ),
    # tags that are not closed
    "bracket missing": Broken(
        '<schema name="s">\n  <module name="a"\n  <module name="b"/>\n</schema>',
        "PC001",
        "2:3",
        "<module has no closing >",
        "add >",
    ),
    "bracket missing before text": Broken(
        '<schema name="s">\n  <module name="a"\n    Be brief.\n  </module>\n</schema>',
        "PC001",
        "2:3",
        "<module has no closing >",
        "add >",
    ),
    "cut off behind a sign": Broken('<schema name="s"><module name=', "PC001", "1:18", "<module has no closing >", "add >"),
    "cut off": Broken('<schema name="s">\n  <module name="a"', "PC001", "2:3", "<module has no closing >", "add >"),
    "end tag cut off": Broken(
        '<schema name="s">\n  text\n</schema', "PC001", "3:1", "</schema is not closed by >", "</schema>"
    ),
    "end tag with an attribute": Broken(
        '<schema name="s"><module name="a">x</module name="a"></schema>', "PC001", "1:36", "end tag", "write </module>"
    ),
    # elements that are not closed
    "element before its sibling": Broken(
        '<schema name="s">\n  <module name="a">\n    Text\n  <module name="b">\n    Text\n  </module>\n</schema>',
        "PC001",
        "2:3",
        '<module name="a"> is never closed',
        "add </module> before line 7",
    ),
    "turn in a module": Broken(
        '<schema name="s">\n  <module name="a">\n    <user>Hello\n  </module>\n</schema>',
        "PC001",
        "3:5",
        "<user> is never closed",
        "add </user> before line 4",
    ),
    "document without its end": Broken(
        '<schema name="s">\n  <module name="a">x</module>\n', "PC001", "1:1", '<schema name="s"> is never closed', "end"
    ),
    "slash forgotten": Broken(
        '<schema name="s">\n  <doc>Text<doc>\n</schema>', "PC001", "2:12", "<doc> is never closed", "add </doc>"
    ),
    "misspelt end tag": Broken(
        '<schema name="s"><module name="a">x</modul></schema>', "PC001", "1:36", "</modul>", "write </module>"
    ),
    "end tag in capitals": Broken('<schema name="s">x</Schema>', "PC001", "1:19", "</Schema>", "write </schema>"),
    "end tag too many": Broken(
        '<schema name="s">\n  <module name="a">x</module>\n  </module>\n</schema>',
        "PC001",
        "3:3",
        "</module> does not close <schema>",
        "remove it",
    ),
    "closed twice": Broken(
        '<schema name="s"><parameter name="p" length="3"/></parameter></schema>',
        "PC001",
        "1:50",
        "</parameter> does not close <schema>",
        "remove",
    ),
    "end of the document twice": Broken('<schema name="s">\n</schema></schema>', "PC001", "2:10", "no start tag", "rem"),
    "end tag first": Broken("</schema>", "PC001", "1:1", "no start tag", "<schema"),
    # comments and sections
    "hyphens in a comment": Broken('<schema name="s"><!-- a -- b --></schema>', "PC001", "1:25", "--", "hyphen"),
    "three hyphens": Broken('<schema name="s"><!-- a --->x</schema>', "PC001", "1:25", "--", "ends with -->"),
    "comment that does not end": Broken('<schema name="s">\n<!-- a\n</schema>', "PC001", "2:1", "never closed", "-->"),
    "comment with a space": Broken('<schema name="s">\n<! -- a -->\n</schema>', "PC001", "2:1", "<!", "<!--"),
    "section that does not end": Broken(
        '<schema name="s"><![CDATA[ x </schema>', "PC001", "1:18", "CDATA", "add ]]>"
    ),
    "section in small letters": Broken('<schema name="s"><![cdata[x]]></schema>', "PC001", "1:18", "<!", "<![CDATA["),
    # characters
    "less than": Broken('<schema name="s">if a < b:</schema>', "PC001", "1:23", "bare <", "&lt;"),
    "less or equal": Broken('<schema name="s">\n  x <= 5\n</schema>', "PC001", "2:5", "bare <", "&lt;"),
    "less than in an attribute": Broken(
        '<schema name="s"><module name="a < b"/></schema>', "PC001", "1:34", "bare < is not allowed in the value of attribute", "&lt;"
    ),
    "comparisons in an attribute": Broken(
        '<schema name="s"><module name="a > 1, a < b" src="c"/></schema>', "PC001", "1:41", "bare <", "&lt;"
    ),
    "words in brackets": Broken(
        '<schema name="s">Dear <first name>,</schema>', "PC001", "1:30", "attribute 'name' has no value", "&lt;"
    ),
    "address in brackets": Broken('<schema name="s"><a@b.org></schema>', "PC001", "1:20", "'@'", "&lt;"),
    "and": Broken('<schema name="s">R&D</schema>', "PC001", "1:19", "bare &", "&amp;"),
    "and in an address": Broken(
        '<schema name="s"><doc>http://x.org?a=1&b=2</doc></schema>', "PC001", "1:39", "bare &", "&amp;"
    ),
    "and in a condition": Broken(
        '<schema name="s"><rules>\n<assert test="a && b"/></rules></schema>', "PC001", "2:17", "&&", "'and'"
    ),
    "semicolon missing": Broken('<schema name="s">x &amp y</schema>', "PC001", "1:20", "&amp", "write &amp;"),
    "entity of HTML": Broken('<schema name="s">x&nbsp;y</schema>', "PC003", "1:19", "&nbsp;", "write &#160;"),
    "entity in an attribute": Broken(
        '<schema name="s"><module name="&amp;&nbsp;"/></schema>', "PC003", "1:37", "&nbsp;", "write &#160;"
    ),
    "no character in an attribute": Broken(
        '<schema name="&#65;&#xFFFF;"/>', "PC001", "1:20", "&#xFFFF; is not a character", "remove it"
    ),
    "no character": Broken('<schema name="s">&#0;</schema>', "PC001", "1:18", "&#0; is not a character", "remove it"),
    "entity in capitals": Broken('<schema name="s">R&AMP;D</schema>', "PC003", "1:19", "&AMP;", "write &amp;"),
    # not XML at all
    "plain text": Broken("You are a helpful assistant.\nBe brief.\n", "PC001", "1:1", "plain text", "<schema name="),
    "plain text behind a comment": Broken("<!-- <a> -->\nBe brief.", "PC001", "2:1", "plain text", "<schema name="),
    "text first": Broken('Here it is:\n<schema name="s"/>', "PC001", "1:1", "before the first element", "remove"),
    "code fence": Broken('```xml\n<schema name="s"/>\n```\n', "PC001", "1:1", "Markdown", "```"),
    "code fence behind": Broken('<schema name="s"/>\n```\n', "PC001", "2:1", "text follows the end", "remove"),
    "empty": Broken("", "PC001", "1:1", "empty", "<schema name="),
    "blank": Broken(" \n\n", "PC001", "1:1", "empty", "<schema name="),
    "comment only": Broken("<!-- todo -->\n", "PC001", "2:1", "no element", "<schema name="),
    "declaration behind a blank line": Broken(
        '\n<?xml version="1.0"?>\n<schema name="s"/>', "PC001", "2:1", "XML declaration", "remove"
    ),
    "declaration that does not end": Broken('<?xml version="1.0"\n<schema name="s"/>', "PC001", "1:1", "never", "?>"),
    "two roots": Broken('<schema name="s"/>\n<schema name="t"/>', "PC001", "2:1", "another element follows the end", "file"),
    "utf-16": Broken('<schema name="s"/>'.encode("utf-16"), "PC006", "1:1", "UTF-16", "UTF-8"),
    "utf-16 without a mark": Broken('<schema name="s"/>'.encode("utf-16-be"), "PC006", "1:1", "UTF-16", "UTF-8"),
    "windows": Broken('<schema name="s">\ncafé</schema>'.encode("cp1252"), "PC006", "2:4", "0xe9", "Windows-1252"),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_broken_document_is_explained_where_it_is_broken(broken: Broken) -> None:
    """The code, line, column, message and help match the author's mistake."""
    with pytest.raises(SchemaError) as caught:
        parse_schema(broken.document)

    (found,) = caught.value.diagnostics
    assert (found.code, f"{found.span.line}:{found.span.column}") == (broken.code, broken.place)
    assert broken.message in found.message
    assert found.help is not None
    assert broken.help in found.help


@pytest.mark.parametrize(
    "repeated",
    [
        lambda n: '<schema name="s">' + "<!-- é -->" * n + "a < b</schema>",
        lambda n: '<schema name="s">' + "a &amp; " * n + "R&D</schema>",
        lambda n: '<schema name="s">' + "<a" + ' b="é"' * n + "</schema>",
        lambda n: '<schema name="s">' + "<a " + 'b="' * n + "</schema>",
        lambda n: '<schema name="s">' + "<module><doc>é</doc></module>" * (n // 2) + "<doc></schema>",
        lambda n: '<schema name="s">' + "\n <module>\n  <doc>é\n</doc></module>" * (n // 2) + "<doc></schema>",
        lambda n: '<schema name="' + " " * 20 * n,
        lambda n: '<schema name="s' + " a" * 10 * n + '"b>',
        lambda n: '<schema name="s">&#' + "1" * n + ";</schema>",
        lambda n: "x " * n,
        lambda n: '<schema name="s"/>' + "\n" * n + "x",
    ],
)
@pytest.mark.long
def test_explaining_takes_linear_time(repeated: Callable[[int], str]) -> None:
    """Explaining a long malformed document takes linear time."""

    def seconds(size: int) -> float:
        start = time.process_time()
        with pytest.raises(SchemaError):
            parse_schema(repeated(size))
        return time.process_time() - start

    small, large = min(seconds(1_500) for _ in range(3)), seconds(30_000)
    assert is_within(large - 60 * small, 0.1)
