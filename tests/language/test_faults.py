"""Documents with one fault: the code, the place that a caret marks, and words of the message and of the help."""

from __future__ import annotations

import pytest

from promptcache.diagnostics import Diagnostic, LanguageError
from promptcache.language import Prompt, check_schema, parse_prompt, parse_schema, resolve_prompt
from tests.strategies.pieces import CARET, line_and_column

DOCUMENTS = {
    "smart quotes": ('<schema name=‸“s”>\n  <module name="a"/>\n</schema>', "PC001", "“", 'write name="s"'),
    "smart quote closes": ('<schema name="s‸”><module name="a"/></schema>', "PC001", "”", 'name="s"'),
    "german quotes": ('<schema name="s"><module name=‸„a“/></schema>', "PC001", "„", 'write name="a"'),
    "quote missing at the end of a tag": ('<schema name="s">\n  <module name=‸"a>\n    Text\n  </module>\n</schema>', "PC001", "attribute 'name' is not closed", 'write name="a"'),
    "quote missing before an attribute": ('<schema name="s">\n  <parameter name=‸"days length="5"/>\n</schema>', "PC001", "attribute 'name' is not closed", 'write name="days"'),
    "quote missing in one line": ('<schema name="s"><module name=‸"a>x</module><module name="b">y</module></schema>', "PC001", "attribute 'name' is not closed", 'write name="a"'),
    "opening quote missing": ('<schema name=‸s">x</schema>', "PC001", "no quotes", 'write name="s"'),
    "a letter that XML tags lack": ('<schema name="s"><‸මල/></schema>', "PC001", "'ම' is not allowed", "<use module="),
    "a letter that XML attributes lack": ('<schema name="s" a‸ම="x"/>', "PC001", "'ම' is not allowed", "<arg name="),
    "no quotes": ('<schema name="s">\n  <module name=‸a required="true"/>\n</schema>', "PC001", "no quotes", 'write name="a"'),
    "no quotes before a less than": ("<schema name=‸s<1>x</schema>", "PC001", "no quotes", 'write name="s"'),
    "space before a missing quote": ('<schema name=‸"s  version="1"/>', "PC001", "attribute 'name' is not closed", 'write name="s"'),
    "quote inside": ('<schema name="say ‸"hi" now"/>', "PC001", "space is missing", "&quot;"),
    "no value": ('<schema name="s"><module name="a" ‸required>x</module></schema>', "PC001", "attribute 'required' has no value", 'required="…"'),
    "no space": ('<schema name="s"><module name="a‸"required="true">x</module></schema>', "PC001", "a space is missing behind the value of attribute 'name'", "add it"),
    "attribute twice": ('<schema name="s"><module name="a" ‸name="b"/></schema>', "PC001", "'name' is given twice", "remove one"),
    "no-break space in a tag": ('<schema name="s"><module‸\xa0name="a"/></schema>', "PC001", "U+00A0", "plain space"),
    "bracket missing": ('<schema name="s">\n  ‸<module name="a"\n  <module name="b"/>\n</schema>', "PC001", "<module has no closing >", "add >"),
    "bracket missing before text": ('<schema name="s">\n  ‸<module name="a"\n    Be brief.\n  </module>\n</schema>', "PC001", "<module has no closing >", "add >"),
    "cut off behind a sign": ('<schema name="s">‸<module name=', "PC001", "<module has no closing >", "add >"),
    "cut off": ('<schema name="s">\n  ‸<module name="a"', "PC001", "<module has no closing >", "add >"),
    "end tag cut off": ('<schema name="s">\n  text\n‸</schema', "PC001", "</schema is not closed by >", "</schema>"),
    "end tag with an attribute": ('<schema name="s"><module name="a">x‸</module name="a"></schema>', "PC001", "end tag", "write </module>"),
    "element before its sibling": ('<schema name="s">\n  ‸<module name="a">\n    Text\n  <module name="b">\n    Text\n  </module>\n</schema>', "PC001", '<module name="a"> is never closed', "add </module> before line 7"),
    "turn in a module": ('<schema name="s">\n  <module name="a">\n    ‸<user>Hello\n  </module>\n</schema>', "PC001", "<user> is never closed", "add </user> before line 4"),
    "document without its end": ('‸<schema name="s">\n  <module name="a">x</module>\n', "PC001", '<schema name="s"> is never closed', "end"),
    "slash forgotten": ('<schema name="s">\n  <doc>Text‸<doc>\n</schema>', "PC001", "<doc> is never closed", "add </doc>"),
    "misspelt end tag": ('<schema name="s"><module name="a">x‸</modul></schema>', "PC001", "</modul>", "write </module>"),
    "end tag in capitals": ('<schema name="s">x‸</Schema>', "PC001", "</Schema>", "write </schema>"),
    "end tag too many": ('<schema name="s">\n  <module name="a">x</module>\n  ‸</module>\n</schema>', "PC001", "</module> does not close <schema>", "remove it"),
    "closed twice": ('<schema name="s"><parameter name="p" length="3"/>‸</parameter></schema>', "PC001", "</parameter> does not close <schema>", "remove"),
    "end of the document twice": ('<schema name="s">\n</schema>‸</schema>', "PC001", "no start tag", "rem"),
    "end tag first": ("‸</schema>", "PC001", "no start tag", "<schema"),
    "hyphens in a comment": ('<schema name="s"><!-- a ‸-- b --></schema>', "PC001", "--", "hyphen"),
    "three hyphens": ('<schema name="s"><!-- a ‸--->x</schema>', "PC001", "--", "ends with -->"),
    "comment that does not end": ('<schema name="s">\n‸<!-- a\n</schema>', "PC001", "never closed", "-->"),
    "comment with a space": ('<schema name="s">\n‸<! -- a -->\n</schema>', "PC001", "<!", "<!--"),
    "section that does not end": ('<schema name="s">‸<![CDATA[ x </schema>', "PC001", "CDATA", "add ]]>"),
    "section in small letters": ('<schema name="s">‸<![cdata[x]]></schema>', "PC001", "<!", "<![CDATA["),
    "less than": ('<schema name="s">if a ‸< b:</schema>', "PC001", "bare <", "&lt;"),
    "less or equal": ('<schema name="s">\n  x ‸<= 5\n</schema>', "PC001", "bare <", "&lt;"),
    "less than in an attribute": ('<schema name="s"><module name="a ‸< b"/></schema>', "PC001", "bare < is not allowed in the value of attribute", "&lt;"),
    "comparisons in an attribute": ('<schema name="s"><module name="a > 1, a ‸< b" src="c"/></schema>', "PC001", "bare <", "&lt;"),
    "words in brackets": ('<schema name="s">Dear <first ‸name>,</schema>', "PC001", "attribute 'name' has no value", "&lt;"),
    "address in brackets": ('<schema name="s"><a‸@b.org></schema>', "PC001", "'@'", "&lt;"),
    "and": ('<schema name="s">R‸&D</schema>', "PC001", "bare &", "&amp;"),
    "and in an address": ('<schema name="s"><doc>http://x.org?a=1‸&b=2</doc></schema>', "PC001", "bare &", "&amp;"),
    "and in a condition": ('<schema name="s"><rules>\n<assert test="a ‸&& b"/></rules></schema>', "PC001", "&&", "'and'"),
    "semicolon missing": ('<schema name="s">x ‸&amp y</schema>', "PC001", "&amp", "write &amp;"),
    "entity of HTML": ('<schema name="s">x‸&nbsp;y</schema>', "PC003", "&nbsp;", "write &#160;"),
    "entity in an attribute": ('<schema name="s"><module name="&amp;‸&nbsp;"/></schema>', "PC003", "&nbsp;", "write &#160;"),
    "no character in an attribute": ('<schema name="&#65;‸&#xFFFF;"/>', "PC001", "&#xFFFF; is not a character", "remove it"),
    "no character": ('<schema name="s">‸&#0;</schema>', "PC001", "&#0; is not a character", "remove it"),
    "entity in capitals": ('<schema name="s">R‸&AMP;D</schema>', "PC003", "&AMP;", "write &amp;"),
    "plain text": ('‸You are a helpful assistant.\nBe brief.\n', "PC001", "plain text", "<schema name="),
    "plain text behind a comment": ('<!-- <a> -->\n‸Be brief.', "PC001", "plain text", "<schema name="),
    "text first": ('‸Here it is:\n<schema name="s"/>', "PC001", "before the first element", "remove"),
    "code fence": ('‸```xml\n<schema name="s"/>\n```\n', "PC001", "Markdown", "```"),
    "code fence behind": ('<schema name="s"/>\n‸```\n', "PC001", "text follows the end", "remove"),
    "empty": ("‸", "PC001", "empty", "<schema name="),
    "blank": ('‸ \n\n', "PC001", "empty", "<schema name="),
    "comment only": ('<!-- todo -->\n‸', "PC001", "no element", "<schema name="),
    "declaration behind a blank line": ('\n‸<?xml version="1.0"?>\n<schema name="s"/>', "PC001", "XML declaration", "remove"),
    "declaration that does not end": ('‸<?xml version="1.0"\n<schema name="s"/>', "PC001", "never", "?>"),
    "two roots": ('<schema name="s"/>\n‸<schema name="t"/>', "PC001", "another element follows the end", "file"),
    "a document of comments": ("<!-- nothing -->", "PC001", "has no element", ""),
    "an end tag without a name": ('<schema name="s"></>', "PC001", "", ""),
    "a schema in a schema": ('<schema name="s"><schema name="t"/></schema>', "PC102", "has only one <schema>", ""),
    "fewer modules than max": ('<schema name="s"><module name="a"/><rules><choose modules="a" min="2" max="3"/></rules></schema>', "PC309", "there are 1 modules", ""),
}  # fmt: skip

AROUND = """<schema name="s"><module name="a">A</module><module name="b">B</module><union name="u"><module name="d">D</module>
<module name="e">E</module></union><module name="f">F<module name="g">G</module></module><collection name="l"><module name="m">M</module>
</collection>{}</schema>"""
SCHEMAS = [
    ('<prompt schema="s"/>', "PC101", "", "inside of <example>"),
    ('<param name="p" length="3"/>', "PC101", "", "did you mean <parameter>?"),
    ("<human>Hi</human>", "PC101", "", "did you mean <user>?"),
    ("Text with <b>bold</b>.", "PC101", "", "use &lt; for <"),
    ("<unheard/>", "PC101", "", "<schema> can contain: "),
    ('<rules><forbid modules="a b"/></rules>', "PC101", "", "did you mean <exclude>?"),
    ('<include src="x.xml"/>', "PC104", "", 'add href="…"'),
    ('<parameter name="p" size="3" length="3"/>', "PC103", "", "did you mean 'length'?"),
    ('<parameter name="p" length="3" type="string"/>', "PC105", "", "did you mean 'text'?"),
    ('<parameter name="p" length="3">Ada</parameter>', "PC106", "", 'default="Ada"'),
    ('<scaffold modules="a b"><module name="m">M</module></scaffold>', "PC102", "", "write <scaffold …/>"),
    ('<module name="my module">M</module>', "PC201", "", "write 'my-module'"),
    ('<module name="{{ name }}">M</module>', "PC201", "", "rename the file to *.xml.j2"),
    ('<module name="c" requires="u">C</module>', "PC208", "", "such as 'd'; a <require> can name any of them, d or e"),
    ('<module name="c" requires="f.g">C</module>', "PC208", "", "join names by slashes, /f/g"),
    ('<module name="c" requires="a;b">C</module>', "PC207", "", "separate paths by spaces"),
    ('<module name="c" requires="l/m">C</module>', "PC208", "", "write the rule into <rules>"),
    ('<rules><require when="a" then="b"/></rules>', "PC104", "", 'add if="…"'),
    ('<parameter name="p" length="3" type="bool"/>', "PC105", "", "did you mean 'choice'?"),
    ('<module name="c" cache="never">C</module>', "PC105", "", 'write cache="false"'),
    ('<module name="2024-report">C</module>', "PC201", "", "write '_2024-report'"),
    ('<module name="c" after="c">C</module>', "PC304", "", "change the order"),
    ('<module name="c"><requires>b</requires></module>', "PC101", "", 'requires="…"'),
    ('<module name="c" text="Hello"/>', "PC103", "", "<module …>Hello</module>"),
    ('<message role="user">Hi</message>', "PC101", "", "a turn is written as <user>"),
    ('<collection name="k" required="true"/>', "PC103", "", "did you mean 'min'?"),
    ('<rules><assert test="a xor b"/></rules>', "PC307", "", "(a or b) and not (a and b)"),
    ('<rules><assert test="a.n"/></rules>', "PC208", "", "not to a parameter of it"),
    ("Use List<String> here.", "PC001", "", "for a literal < write &lt;"),
    ('<example contains="B"><prompt schema="s"><a/></prompt></example>', "PC312", "", "its text is 'A'"),
    ('<parameter name="ward" length="3" type="choice" choices="A1, B2"/>', "PC223", "", 'separate choices by |, as in choices="A1|B2"'),
    ('<parameter name="ward" length="3" type="choice" choices="red; green; blue"/>', "PC223", "", 'choices="red|green|blue"'),
    ('<parameter name="ward" length="3" type="choice" choices="A1 B2"/>', "PC223", "", 'choices="A1|B2"'),
    ('<parameter name="ward" length="3" type="choice" choices="A1"/>', "PC223", "", "add choices"),
    ('<parameter name="ward" length="3" type="choice" choices="A1 | B2"/>', "PC223", "", 'write choices="A1|B2"'),
    ('<parameter name="p" length="3" required="true" default="x"/>', "PC222", "", "write it as placeholder"),
    ('<union required="true" default="x"><module name="x">A</module></union>', "PC222", "", "remove the default"),
    ('<module name="x" requires="x">A</module>', "PC315", "", "name another module"),
    ('<module name="x">A<module name="y" requires="/x">B</module></module>', "PC315", "", "name another module"),
    ('<rules><exclude modules="a"/></rules>', "PC315", "", "at most one"),
    ('<rules><choose modules="a" min="0"/></rules>', "PC315", "", "raise min"),
    ('<module name="x"> </module>', "PC112", "", "write its text"),
    ("Hello {{ name }}.", "PC902", "", "rename a template to *.xml.j2"),
    ("{% for each in all %}Hello{% endfor %}", "PC902", "", "rename a template"),
    ("The ward is {ward}.", "PC902", "", "a schema can declare a slot"),
    ('<parameter name="p" length="9" default="{{ name }}"/>', "PC902", "", "a schema can declare a slot"),
    ('<rules><assert test="a and ‸or b"/></rules>', "PC307", "", ""),
    ('<rules><assert test="a  ‸b"/></rules>', "PC307", "", ""),
    ('<rules><assert test="(a or ‸b"/></rules>', "PC307", "", ""),
    ('<rules><assert test="a ‸or"/></rules>', "PC307", "", ""),
    ('<rules><assert test="‸"/></rules>', "PC307", "", ""),
    ('<rules><assert test="a ‸AND b"/></rules>', "PC307", "", ""),
    ('<rules><assert test="a ‸|| b"/></rules>', "PC307", "", ""),
    ('<rules><assert test="a or ‸b/e"/></rules>', "PC208", "", ""),
    ('<rules><assert test="a or ‸b//d"/></rules>', "PC207", "", ""),
    ('<rules><require if="a" then="‸cc"/></rules>', "PC208", "", ""),
    ('<rules><exclude modules="a ‸x"/></rules>', "PC208", "", ""),
    ('<rules><choose modules="a b" min="‸3"/></rules>', "PC309", "", ""),
    ('<rules><choose modules="a b d" min="‸2" max="1"/></rules>', "PC309", "", ""),
    ('<rules><‸choose modules="a b"/></rules>', "PC104", "", ""),
    ('<rules><‸require if="a"/></rules>', "PC104", "", ""),
    ('<rules><assert test="a ‸&& b"/></rules>', "PC001", "&&", "'and'"),
    ('<rules><assert test="a‸&&b"/></rules>', "PC001", "&&", "'and'"),
    ('<rules><assert test="a ‸&amp;&amp; b"/></rules>', "PC307", "&&", "'and'"),
    ('<rules><assert test="a‸||b"/></rules>', "PC307", "||", "'or'"),
    ('<rules><assert test="a‸->b"/></rules>', "PC307", "->", "'implies'"),
    ('<rules><assert test="a ‸=&gt; b"/></rules>', "PC307", "=>", "'implies'"),
    ('<rules><assert test="‸!a"/></rules>', "PC307", "!", "'not'"),
    ('<rules><assert test="b‸, a"/></rules>', "PC307", ",", "'and'"),
    ('<rules><assert test="a and (b ‸&amp; a)"/></rules>', "PC307", "&", "'and'"),
    ('<collection name="k"><module name="a"><module name="b">B</module></module></collection>', "PC111", "", ""),
    ('<collection name="k"><module name="a"><user>B</user></module></collection>', "PC111", "", ""),
    ('<collection name="k"><module name="a" separator="">A</module></collection>', "PC111", "", ""),
    ('<collection name="k"><module name="a" cache="false">A</module></collection>', "PC111", "", ""),
    ('<collection name="k"><module name="a">A</module><module name="a">B</module></collection>', "PC203", "", ""),
    ('<collection name="k"><module name="1">A</module></collection>', "PC201", "", ""),
    ('<collection name="k">text</collection>', "PC106", "", ""),
    ('<collection name="k"><union/></collection>', "PC102", "", ""),
    ('<collection name="k"><parameter name="p" length="1"/></collection>', "PC102", "", ""),
    ('<collection name="c" min="3" max="2"/>', "PC309", "", ""),
    ('<collection name="c" min="x"/>', "PC105", "", ""),
    ('<collection name="c" max="0"/>', "PC105", "", ""),
    ('<collection name="c" cache="false"/>', "PC103", "", ""),
    ('<collection min="1"/>', "PC104", "", ""),
    ('<collection name="use"/>', "PC202", "", ""),
    ('<collection name="a"/>', "PC203", "", ""),
    ('a‸\x01b', "PC001", "the document contains a control character, U+0001", "remove it"),
    ('a‸\uffff', "PC001", "the document contains a character that XML does not allow, U+FFFF", "remove it"),
    ('<a b="‸\ufffe"/>', "PC001", "the document contains a character that XML does not allow, U+FFFE", "remove it"),
    ('<a b="‸\x1f"/>', "PC001", "the document contains a control character, U+001F", "remove it"),
    ('<!--‸\x02-->', "PC001", "the document contains a control character, U+0002", "remove it"),
    ('<![CDATA[‸\x03]]>', "PC001", "the document contains a control character, U+0003", "remove it"),
    ("a‸]]>b", "PC001", "]]> is not allowed in text", "write ]]&gt;"),
    ("a‸&#0;b", "PC001", "&#0; is not a character that XML allows", "remove it"),
    ("a‸&#xD800;", "PC001", "&#xD800; is not a character that XML allows", "remove it"),
    ("a‸&#;", "PC001", "&#; is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    ("a‸&#x;", "PC001", "&#x; is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    ("a‸&#xZZ;", "PC001", "&#xZZ; is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    ("a‸&#X41;", "PC001", "&#X41; is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    ("a‸&#A0;", "PC001", "&#A0; is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    ("a‸&##13;", "PC001", "&##13; is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    ("a‸&#²;", "PC001", "&#²; is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    ("a‸&#１;", "PC001", "&#１; is not a reference to a character", "write its number, as in &#38; or &#x26;"),
    ('<x:module name="a"/>', "PC008", "", "remove the prefix"),
    ('<module xmlns:xsi="http://example.com" name="a"/>', "PC008", "", "remove the attribute"),
    ('<module xml:lang="en" name="a"/>', "PC008", "", "remove the attribute"),
    ('<module xmlns="http://example.com" name="a"/>', "PC008", "", "remove it"),
    ('<module name="c" required="yes"/>', "PC105", "", 'write required="true"'),
    ('<module name="c" required="0"/>', "PC105", "", 'write required="false"'),
    ('<module name="c" required="ture"/>', "PC105", "", "did you mean 'true'?"),
    ('<module name="c" required="maybe"/>', "PC105", "", None),
]  # fmt: skip

PATIENT = """<schema name="s">
  <module name="patient">Ada <parameter name="name" length="4"/>.</module>
  <union name="reader"><module name="lay">Plain.</module><module name="doctor">Codes.</module></union>
  <module name="drugs"><module name="apixaban">5 mg.</module></module>
  <module name="lab">INR <parameter name="inr" length="4"/>.</module>
  <module name="day"><parameter name="n" length="4" type="int"/></module>
</schema>"""
PROMPTS = [
    ("<patient>Ada</patient>", "PC412", "", 'write <arg name="…">…</arg> with the name of the slot'),
    ("<patient><name>Ada</name></patient>", "PC412", "", '<arg name="name">…</arg>, or name="…"'),
    ('<patient><parameter name="who">Ada</parameter></patient>', "PC412", "", '<arg name="who">…</arg>'),
    ("<patient/> and <lay/>", "PC412", "", "move the text after the last reference, <lay>"),
    ("<patient/><human>Why?</human>", "PC412", "", "write <user>"),
    ("<patient/>What is <p>?</p>", "PC412", "", "use &lt; for <"),
    ("<patient/><user>What is <b>bold</b>?</user>", "PC102", "", "use &lt; for <"),
    ("<tool>x</tool><patient/>", "PC102", "", "a turn is <system>, <user> or <assistant>"),
    ("<use name='lay'/>", "PC104", "", 'write <use module="lay"/>'),
    ('<patient><arg name="name" value="Ada"/></patient>', "PC103", "", '<arg name="…">Ada</arg>'),
    ("<reader><lay/></reader>", "PC401", "", "name one of its members, such as <lay>"),
    ("<drugs.apixaban/>", "PC401", "", "/drugs/apixaban: write <drugs><apixaban/></drugs>"),
    ('<use module="drugs.apixaban"/>', "PC401", "", "/drugs/apixaban: write <drugs><apixaban/></drugs>"),
    ('<use module="drugs\\apixaban"/>', "PC207", "", "names joined by slashes"),
    ("<strong/>", "PC401", "", "use &lt; for <"),
    ('<module name="lay"/>', "PC401", "", "write <lay/>"),
    ('<use module="lay lab"/>', "PC207", "", "name one module here"),
    ('<message role="user">Why?</message>', "PC412", "", "a turn is written as <user>"),
    ('<patient inr="2"/>', "PC402", "", "'lab' has this parameter"),
    ('<day n="{{ n }}"/>', "PC420", "", "rename the file to *.xml.j2"),
    ("<patient><arg>x</arg></patient>", "PC104", "", ""),
    ('<patient><arg name="name">x<b/></arg></patient>', "PC102", "only text", ""),
]  # fmt: skip


def first_of_schema(document: str | bytes) -> Diagnostic:
    """Return the first finding in a schema, warnings included."""
    try:
        return check_schema(parse_schema(document)).warnings[0]
    except LanguageError as error:
        return error.diagnostics[0]


def first_of_prompt(prompt: str | Prompt) -> Diagnostic:
    """Return the first finding in a prompt for the schema PATIENT."""
    with pytest.raises(LanguageError) as caught:
        resolve_prompt(parse_prompt(prompt) if isinstance(prompt, str) else prompt, check_schema(parse_schema(PATIENT)))
    return caught.value.diagnostics[0]


def check(found: Diagnostic, code: str, place: tuple[int, int] | None, message: str, advice: str | None) -> None:
    """Compare a finding with a row of a table; a help of None is none, and an empty text is in every text."""
    assert found.code == code
    assert place in (None, (found.span.line, found.span.column))
    assert message in f"{found.message} {found.help}"
    assert found.help is None if advice is None else advice in (found.help or "")


def without_caret(document: str) -> tuple[str, tuple[int, int] | None]:
    """Return a document without its caret, and the line and column of the caret."""
    if CARET not in document:
        return document, None
    offset, text = document.index(CARET), document.replace(CARET, "")
    return text, line_and_column(text, offset)


@pytest.mark.parametrize(("document", "code", "message", "advice"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents_that_are_no_schema(document: str, code: str, message: str, advice: str) -> None:
    """A malformed document is explained where it is broken."""
    text, place = without_caret(document)
    check(first_of_schema(text), code, place, message, advice)


@pytest.mark.parametrize(
    ("document", "place", "message", "advice"),
    [
        ('<schema name="s"/>'.encode("utf-16"), (1, 1), "UTF-16", "UTF-8"),
        ('<schema name="s"/>'.encode("utf-16-be"), (1, 1), "UTF-16", "UTF-8"),
        ('<schema name="s">\ncafé</schema>'.encode("cp1252"), (2, 4), "0xe9", "Windows-1252"),
    ],
)
def test_documents_in_another_encoding(document: bytes, place: tuple[int, int], message: str, advice: str) -> None:
    """The message names the encoding that the document probably has."""
    check(first_of_schema(document), "PC006", place, message, advice)


@pytest.mark.parametrize(("content", "code", "message", "advice"), SCHEMAS, ids=range(len(SCHEMAS)))
def test_faults_of_schemas(content: str, code: str, message: str, advice: str | None) -> None:
    """Elements, attributes, values, paths and rules that the language lacks get those of the language as help."""
    text, place = without_caret(AROUND.replace("{}", content))
    check(first_of_schema(text), code, place, message, advice)


@pytest.mark.parametrize(("prompt", "code", "message", "advice"), PROMPTS, ids=range(len(PROMPTS)))
def test_faults_of_prompts(prompt: str, code: str, message: str, advice: str) -> None:
    """Arguments, turns, paths and text in forms of other formats get the form of this language as help."""
    check(first_of_prompt(f'<prompt schema="s">{prompt}</prompt>'), code, None, message, advice)


def test_paths_with_dots_in_python_get_the_path() -> None:
    """`use("a.b")` gets the path with slashes as help."""
    check(first_of_prompt(Prompt("s").use("drugs.apixaban")), "PC401", None, "", "/drugs/apixaban")
