"""A report as SARIF 2.1.0, which code scanning services and editors read.

Comes in: a report. Goes out: a log as plain data, as https://docs.oasis-open.org/sarif/sarif/v2.1.0/ has it.
Its columns count code points from 1 and its regions end behind their last character, as our spans do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from promptcache.cli.exits import UNREADABLE
from promptcache.cli.explanations import Explanation, explanations
from promptcache.cli.report import Report
from promptcache.cli.why import plain
from promptcache.diagnostics import Diagnostic, Severity, Span

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def sarif_log(report: Report) -> dict[str, Any]:
    """Return a report as a log of one run, with the rules that it has results of."""
    codes = {code: index for index, code in enumerate(sorted({each.code for each in report.diagnostics}))}
    known = explanations()
    notes = [
        {"level": "note", "message": {"text": document.note}, "locations": [{"physicalLocation": _file(document.name)}]}
        for document in report.documents
        if document.note
    ]
    run = {
        "tool": {
            "driver": {
                "name": "promptcache",
                "version": version("promptcache"),
                "rules": [_rule(known[code]) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": UNREADABLE not in codes,
                "toolExecutionNotifications": notes,
            }
        ],
        "results": [_result(diagnostic, codes) for diagnostic in report.diagnostics],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(explanation: Explanation) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": explanation.code,
        "shortDescription": {"text": explanation.title},
        "defaultConfiguration": {"level": _LEVELS[explanation.severity]},
    }
    if explanation.markdown:
        rule["help"] = {"text": plain(explanation.markdown), "markdown": explanation.markdown}
    return rule


def _result(diagnostic: Diagnostic, codes: Mapping[str, int]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": codes[diagnostic.code],
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": "\n".join(filter(None, (diagnostic.message, diagnostic.help)))},
        "locations": [{"physicalLocation": _place(diagnostic.span)}],
    }
    if diagnostic.related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": words}, "physicalLocation": _place(span)}
            for number, (span, words) in enumerate(diagnostic.related, 1)
        ]
    return result


def _place(span: Span) -> dict[str, Any]:
    region = {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.stop_line,
        "endColumn": span.stop_column,
    }
    return {**_file(span.source), "region": region}


def _file(name: str) -> dict[str, Any]:
    """Return a file's place: relative to where the command ran, if it was named so."""
    path = Path(name)
    return {"artifactLocation": {"uri": path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))}}
