"""A report in the form that was asked for.

Comes in: a report and a format. Goes out: text on stdout. This file chooses; each form is written by its own file.
"""

from __future__ import annotations

from enum import StrEnum

from promptcache.cli.exits import UsageMistake
from promptcache.cli.output import print_report, report_data, write_json, write_text
from promptcache.cli.report import Report


class Format(StrEnum):
    """How `check` writes what it found."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def chosen_format(form: Format | None, *, as_json: bool) -> Format:
    """Return the format that two options ask for.

    Raises:
        UsageMistake: they ask for different ones.
    """
    if as_json and form not in {None, Format.JSON}:
        raise UsageMistake(f"--json and --format {form} ask for different forms")
    return Format.JSON if as_json else form or Format.TEXT


def write_report(report: Report, form: Format) -> None:
    """Write a report to stdout."""
    match form:
        case Format.TEXT:
            print_report(report)
        case Format.JSON:
            write_json(report_data(report))
        case Format.GITHUB:
            from promptcache.cli.github import github_lines

            write_text("".join(f"{line}\n" for line in github_lines(report)))
        case Format.SARIF:
            from promptcache.cli.sarif import sarif_log  # reads docs/errors.md, which the other forms do not need

            write_json(sarif_log(report))
