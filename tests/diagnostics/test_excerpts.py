"""Excerpts: diagnostics as text."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from promptcache.cli.console import diagnostic_text
from promptcache.diagnostics import (
    Diagnostic,
    LanguageError,
    PromptError,
    QueueFull,
    SchemaError,
    ServiceClosed,
    Span,
    diagnostic,
    excerpt,
)
from promptcache.language import Prompt, Schema, check_schema, module, parse_prompt, parse_schema, resolve_prompt, slot

LAW = """<schema name="law">
  <module name="matter"><parameter name="pages" length="2" type="int"/></module>
  <union><module name="brief">B</module><module name="long">L</module></union>
</schema>
"""


class Lines(list[str]):
    """A document made of lines."""

    def line(self, number: int) -> str | None:
        """Return a line."""
        return self[number - 1] if number <= len(self) else None


def shown(found: Diagnostic, **documents: str) -> list[str]:
    """Return the excerpt of a diagnostic over the given documents."""

    def known(span: Span) -> Span:
        text = documents.get(span.source)
        return span if text is None else replace(span, document=Lines(text.split("\n")))

    related = tuple((known(span), words) for span, words in found.related)
    found = replace(found, span=known(found.span), related=related)
    assert diagnostic_text(found).plain == excerpt(found)
    *lines, advice = excerpt(found).splitlines()
    assert advice == f"  = help: {found.help}"
    return lines


def fault(span: Span) -> Diagnostic:
    """A diagnostic at a span."""
    return diagnostic("PC203", "module 'a' is defined twice", span)


def test_diagnostic_is_written_with_places_lines_carets_and_help() -> None:
    """A diagnostic shows code, message, place, the marked line, related places in the same way, and its help."""
    first = Span("s", 9, 15, 9, 16)
    found = replace(fault(Span("s", 10, 15, 10, 18)), related=((first, "first defined here"),))
    text = "\n" * 8 + '<module name="a">\n<module name="abc">\n'

    assert shown(found, s=text) == [
        "error[PC203]: module 'a' is defined twice",
        "  --> s:10:15",
        '  10 | <module name="abc">',
        "     |               ^^^",
        "  ::: s:9:15 first defined here",
        '   9 | <module name="a">',
        "     |               -",
    ]


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("日本都市x", (1, 3, 1, 5), ["  1 | 日本都市x", "    |     ^^^^"]),  # wide characters
        ("\tx", (1, 2, 1, 3), ["  1 |     x", "    |     ^"]),  # a tab is widened in both lines
        ("ab<m\n>xyz", (1, 3, 2, 4), ["  1 | ab<m", "    |   ^^"]),  # to the end of its first line
        ("ab", (1, 3, 1, 3), ["  1 | ab", "    |   ^"]),  # an empty span
    ],
)
def test_place_is_marked(text: str, span: tuple[int, int, int, int], expected: list[str]) -> None:
    """The underline starts below the marked text and has its width."""
    assert shown(fault(Span("s", *span)), s=text)[2:] == expected


def test_warning_calls_itself_one_and_unknown_sources_have_no_line() -> None:
    """A warning begins with its severity; a source without text is shown by name and place only."""
    warning = diagnostic("PC112", "module 'a' is empty", Span("gone.xml", 7, 1, 7, 2))

    assert shown(warning) == ["warning[PC112]: module 'a' is empty", "  --> gone.xml:7:1"]


def test_long_line_is_cut_around_the_place() -> None:
    """A very long line is cut to the surroundings of the place."""
    line = "x" * 5000 + "HERE" + "y" * 5000

    _, _, excerpt, underline = shown(fault(Span("s", 1, 5001, 1, 5005)), s=line)

    assert len(excerpt) < 200
    assert excerpt[underline.index("^") : underline.rindex("^") + 1] == "HERE"


def test_words_that_the_message_says_are_not_repeated() -> None:
    """Related places do not repeat the text of the message or the diagnostic's own place."""
    here, other = Span("s", 1, 1, 1, 2), Span("s", 2, 1, 2, 2)
    related = ((here, "'a' is required"), (other, "'b' excludes 'a'"))
    found = diagnostic("PC301", "no prompt is valid: 'a' is required; 'b' excludes 'a'", here, related=related)

    assert shown(found, s="x\ny")[1:] == ["  --> s:1:1", "  1 | x", "    | ^", "  ::: s:2:1", "  2 | y", "    | -"]


def test_error_shows_its_documents() -> None:
    """An error shows lines of the prompt and of the schema, without a reference to them elsewhere."""
    schema = check_schema(parse_schema(LAW, source="law.xml"))

    with pytest.raises(PromptError) as caught:
        resolve_prompt(
            parse_prompt('<prompt schema="law">\n  <matter pages="ten"/>\n</prompt>', source="p.xml"), schema
        )

    assert caught.value.excerpt().splitlines() == [
        "error[PC420]: 'ten' is not a valid value of parameter 'pages': it takes a whole number, such as 12 or -3",
        "  --> p.xml:2:11",
        '  2 |   <matter pages="ten"/>',
        "    |           ^^^^^^^^^^^",
        "  ::: law.xml:2:25 the parameter",
        '  2 |   <module name="matter"><parameter name="pages" length="2" type="int"/></module>',
        f"    |                         {'-' * 47}",
        "  = help: write digits only",
    ]


def test_joiners_stay_in_excerpts() -> None:
    """Words and emoji that need a joiner are shown as they are written; a joiner takes no cell of the terminal."""
    text = "می\u200cروم 👩\u200d👧"

    with pytest.raises(PromptError) as caught:
        parse_prompt(f'<prompt schema="law">{text}<a></prompt>')

    _, _, line, marks = caught.value.excerpt().splitlines()[:4]
    assert text in line
    assert len(marks[: marks.index("^")]) == line.index("<a>") - 2 + 2  # two of no cells, two of two


def test_error_shows_files_and_survives_a_process(tmp_path: Path) -> None:
    """An error over a file shows its line, also after pickling, and also if bytes are not UTF-8."""
    (tmp_path / "p.xml").write_bytes(b'<prompt schema="law">\n caf\xe9</prompt>')

    with pytest.raises(PromptError) as caught:
        Prompt.from_file(tmp_path / "p.xml")

    copy: LanguageError = pickle.loads(pickle.dumps(caught.value))
    assert copy.excerpt() == caught.value.excerpt()
    assert copy.excerpt().splitlines()[2:4] == ["  2 |  caf\ufffd</prompt>", "    |     ^"]


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        (Prompt("law").use("matter", pages="ten"), "use('matter').pages"),
        (Prompt("law").use("matter", **{"top-k": "1"}), "use('matter')['top-k']"),
        (Prompt("law").use("/matters"), "use('/matters')"),
        (Prompt("law").use("brief").use("long"), "use('long')"),
        (Prompt("law").fill(pages="10"), "fill().pages"),
        (Prompt("laws"), "Prompt('laws')"),
        (Prompt("law", version=">=2"), "Prompt('law')"),
    ],
)
def test_prompt_built_in_python_has_a_path(prompt: Prompt, place: str) -> None:
    """The place of a fault is the call that made it, without a line."""
    schema = check_schema(parse_schema(LAW))

    with pytest.raises(PromptError) as caught:
        resolve_prompt(prompt, schema)

    assert str(caught.value).startswith(f"{place}: PC")
    assert caught.value.excerpt().splitlines()[1] == f"  --> {place}"


def test_other_places_of_python() -> None:
    """Text beside turns is named by its first words, and a schema built in Python is shown without lines."""
    with pytest.raises(PromptError) as of_prompt:
        Prompt("law").user("What is a contract?").text("Say it in one sentence, please.")
    with pytest.raises(SchemaError) as of_schema:
        check_schema(Schema("s").with_module(module("a", slot("n", 0))))

    assert str(of_prompt.value).startswith("text('Say it in one sentence, please…'): PC416")
    assert of_schema.value.excerpt().splitlines()[1] == "  --> <python>"


@pytest.mark.parametrize("kind", [QueueFull, ServiceClosed])
def test_refusals_of_a_service_survive_pickling(kind: type[QueueFull] | type[ServiceClosed]) -> None:
    """A replica sends them to its front."""
    copy = pickle.loads(pickle.dumps(kind("try later", "queue_full")))

    assert (type(copy), str(copy), copy.reason) == (kind, "try later", "queue_full")
