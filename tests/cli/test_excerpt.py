"""Diagnostics as people read them."""

from __future__ import annotations

from promptcache.cli.excerpt import diagnostic_text
from promptcache.cli.sources import Sources
from promptcache.diagnostics import Diagnostic, Severity, Span


def shown(diagnostic: Diagnostic, **documents: str) -> list[str]:
    """The lines of a diagnostic over the given documents."""
    sources = Sources()
    for name, text in documents.items():
        sources.add(name, text)
    return diagnostic_text(diagnostic, sources).plain.splitlines()


def fault(span: Span, **more: object) -> Diagnostic:
    """A diagnostic at a span."""
    return Diagnostic(code="PC203", message="module 'a' is defined twice", span=span, **more)  # type: ignore[arg-type]


def test_diagnostic_is_written_with_places_lines_carets_and_help() -> None:
    """A diagnostic shows code, message, place, the marked line, related places in the same way, and its help."""
    first = Span("s", 9, 15, 9, 16)
    diagnostic = fault(Span("s", 10, 15, 10, 18), help="rename one", related=((first, "first defined here"),))
    text = "\n" * 8 + '<module name="a">\n<module name="abc">\n'

    assert shown(diagnostic, s=text) == [
        "error[PC203]: module 'a' is defined twice",
        "  --> s:10:15",
        '  10 | <module name="abc">',
        "     |               ^^^",
        "  ::: s:9:15 first defined here",
        '   9 | <module name="a">',
        "     |               -",
        "  = help: rename one",
    ]


def test_warning_calls_itself_one() -> None:
    """A warning begins with its severity."""
    warning = fault(Span("s", 1, 1, 1, 2), severity=Severity.WARNING)

    assert shown(warning, s="x")[0].startswith("warning[PC203]: ")


def test_caret_stands_under_wide_characters() -> None:
    """The underline is as wide on the screen as what it marks, and begins below it."""
    assert shown(fault(Span("s", 1, 3, 1, 5)), s="日本都市x")[2:] == ["  1 | 日本都市x", "    |     ^^^^"]


def test_tabs_are_widened_in_line_and_underline_alike() -> None:
    """A tab before the place moves the underline as far as the text."""
    assert shown(fault(Span("s", 1, 2, 1, 3)), s="\tx")[2:] == ["  1 |     x", "    |     ^"]


def test_span_over_lines_is_marked_to_the_end_of_its_first() -> None:
    """Of a span over several lines the first one is shown, marked to its end."""
    assert shown(fault(Span("s", 1, 3, 2, 4)), s="ab<m\n>xyz")[2:] == ["  1 | ab<m", "    |   ^^"]


def test_empty_span_gets_one_caret() -> None:
    """A place without width is marked all the same."""
    assert shown(fault(Span("s", 1, 3, 1, 3)), s="ab")[2:] == ["  1 | ab", "    |   ^"]


def test_long_line_is_cut_around_the_place() -> None:
    """Of a very long line only the surroundings of the place are shown."""
    line = "x" * 5000 + "HERE" + "y" * 5000

    _, _, excerpt, underline = shown(fault(Span("s", 1, 5001, 1, 5005)), s=line)

    assert len(excerpt) < 200
    assert excerpt[underline.index("^") : underline.rindex("^") + 1] == "HERE"


def test_control_characters_do_not_reach_the_terminal() -> None:
    """A document cannot steer the terminal of whoever checks it."""
    assert "\x1b" not in "".join(shown(fault(Span("s", 1, 1, 1, 2)), s="\x1b[31mred"))


def test_unknown_source_is_named_without_a_line() -> None:
    """Where a source cannot be shown, its name and place still stand there."""
    assert shown(fault(Span("gone.xml", 7, 1, 7, 2)))[1:] == ["  --> gone.xml:7:1"]
