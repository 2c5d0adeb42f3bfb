"""Tests of whitespace: formatting a document never changes its tokens."""

from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language import Whitespace
from promptcache.language.syntax.whitespace import finish
from tests.conftest import law_examples
from tests.language.documents import checked, outline, selected

Draw = Callable[[st.SearchStrategy[Any]], Any]

_WORD = st.text(alphabet="ab<&é\u00a0", min_size=1, max_size=3)
_LINE = st.lists(_WORD | st.just(None), min_size=1, max_size=3)


class _Writer:
    """Writer of one content in many formats; `draw` chooses the format."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._slots = 0

    def blocks(self, blocks: list[Any], depth: int) -> str:
        return "".join(self._gap(depth) + self._block(block, depth) for block in blocks) + self._gap(depth - 1)

    def _gap(self, depth: int) -> str:
        """Return whitespace for a place between blocks; text blocks have their own whitespace."""
        comment = self._draw(st.sampled_from(["", "", "<!-- a <b> -->"]))
        return "\n" * self._draw(st.integers(0, 3)) + " " * self._draw(st.integers(0, depth + 1)) + comment

    def _block(self, block: Any, depth: int) -> str:
        kind, content = block
        if kind == "text":
            return self._text(content)
        quote = self._draw(st.sampled_from("\"'"))
        space = self._draw(st.sampled_from([" ", "\n   "]))
        if kind == "doc":
            return f"<doc>{content}</doc>"
        if kind == "user":
            return f"<user{space}>{self.blocks(content, depth + 1)}</user>"
        name, inner = content
        return f"<module{space}name={quote}{name}{quote}>{self.blocks(inner, depth + 1)}</module>"

    def _text(self, lines: list[tuple[int, list[str | None]]]) -> str:
        margin = self._draw(st.sampled_from(["", "  ", "\t", "      "]))
        blank = st.sampled_from(["", " ", "\t "])
        written = []
        for indent, line in lines:
            words = " ".join('<parameter name="%s" length="3"/>' if word is None else escape(word) for word in line)
            written.append(margin + " " * indent + words)
        before = (
            self._draw(blank) + "\n" + "".join(self._draw(blank) + "\n" for _ in range(self._draw(st.integers(0, 2))))
        )
        text = before + "\n".join(written) + "\n" + self._draw(blank) + self._draw(st.sampled_from(["", "\n"]))
        while "%s" in text:
            self._slots += 1
            text = text.replace("%s", f"p{self._slots}", 1)
        return text


@st.composite
def contents(draw: Draw, depth: int = 0) -> list[Any]:
    """Draw blocks without adjacent texts; each text has a line without indentation."""
    blocks: list[Any] = []
    for _ in range(draw(st.integers(1, 4))):
        kinds = ["doc", "module"] if depth < 2 else ["doc"]
        if not blocks or blocks[-1][0] != "text":
            kinds.append("text")
        kind = draw(st.sampled_from(kinds + (["user"] if depth == 0 else [])))
        if kind == "text":
            rest = draw(st.lists(st.tuples(st.integers(0, 3), _LINE), max_size=2))
            blocks.append(("text", [(0, draw(_LINE)), *rest]))
        elif kind == "doc":
            blocks.append(("doc", "documentation"))
        elif kind == "user":
            blocks.append(("user", draw(contents(depth=2))))
        else:
            number = draw(st.uuids(version=4)).hex
            blocks.append(("module", (f"m{number}", draw(contents(depth=depth + 1)))))
    return blocks


@settings(max_examples=law_examples())
@given(blocks=contents(), data=st.data())
def test_formatting_never_changes_text(blocks, data):
    """Indentation, blank lines, comments between blocks and the form of tags do not change the text."""
    first, second = (checked(f'<schema name="s">{_Writer(data.draw).blocks(blocks, 1)}</schema>') for _ in range(2))
    assert outline(first.children) == outline(second.children)
    assert first.open_separator == second.open_separator


@settings(max_examples=law_examples())
@given(pieces=st.lists(st.none() | st.text(alphabet="ab \n\t", max_size=8), min_size=1, max_size=4))
def test_dedent_changes_whitespace_only(pieces):
    """Dedenting removes only whitespace, and keeps the rest in place."""
    result = finish(pieces, Whitespace.DEDENT)
    if result:
        assert [piece is None for piece in result] == [piece is None for piece in pieces]
        for before, after in zip(pieces, result, strict=True):
            assert (before or "").split() == (after or "").split()
    else:
        assert not any(piece is None or piece.strip() for piece in pieces)


@settings(max_examples=law_examples())
@given(text=st.text(alphabet="ab \n\t", max_size=12))
def test_dedent_is_idempotent_on_text_that_begins_a_line(text):
    """Dedenting is idempotent for text on lines of its own."""
    (once,) = finish([text], Whitespace.DEDENT) or [""]
    assert once is not None
    if once and not once[0].isspace():
        indented = "\n" + "\n".join(f"  {line}" if line.strip(" \t") else line for line in once.split("\n")) + "\n"
        assert finish([indented], Whitespace.DEDENT) == [once]


@pytest.mark.parametrize(
    ("pieces", "mode", "expected"),
    [
        (["\n\n    Hello\n      x\n   \n    y\n\n  "], "dedent", ["Hello\n  x\n\ny"]),
        ([" Hello "], "dedent", [" Hello "]),
        (["Hello\n    you"], "dedent", ["Hello\nyou"]),
        (["\n  ", None, "\n  ", None, "\n"], "dedent", ["", None, "\n", None, ""]),
        (["\n\tone\n  two\n"], "dedent", ["\tone\n  two"]),
        (["\u00a0"], "dedent", ["\u00a0"]),
        ([" \n\t"], "preserve", []),
        ([" a\n b "], "preserve", [" a\n b "]),
        ([" a \n b ", None, " c "], "collapse", ["a b ", None, " c"]),
        (["\n  a\n b \n"], "compact", [" a\n b "]),
        (["a", None, "\n"], "compact", ["a", None, " "]),
    ],
)
def test_each_mode_has_its_rule(pieces, mode, expected):
    """Each whitespace mode gives the result of the documentation."""
    assert finish(pieces, Whitespace(mode)) == expected


def test_text_element_is_exact():
    """The content of <text> is exact, in schemas and in prompts."""
    schema = checked('<schema name="s"><text> </text><module name="m">\n <text>\n  x\n</text>\n</module></schema>')
    assert outline(schema.children) == [" ", ["m", "\n\n  x\n"]]
    prompt = '<prompt schema="s"><user>\n <text> a </text>\n</user></prompt>'
    assert selected(prompt, '<schema name="s"/>').messages[0].text == " a "


def test_prompt_text_is_dedented_and_arguments_are_exact():
    """A prompt's own text is dedented like that of schemas; the content of <arg> is exact."""
    schema = '<schema name="s"><module name="m"><parameter name="p" length="9"/></module></schema>'
    prompt = '<prompt schema="s">\n <m><arg name="p">\n x\n</arg></m>\n\n  one\n    two\n</prompt>'
    selection = selected(prompt, schema)
    assert selection.arguments[0].text == "\n x\n"
    assert selection.messages[0].text == "one\n  two"
