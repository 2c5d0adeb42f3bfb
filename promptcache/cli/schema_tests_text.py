"""What a test of schemas found, and how it is told: text, data, an exit code.

Comes in: results. Goes out: lines, or plain data. This file does not know how schemas are tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from promptcache.cli.exits import UNREADABLE, ExitCode
from promptcache.cli.output import as_data, counted, print_diagnostics, write_text
from promptcache.diagnostics import Diagnostic


class ResultKind(StrEnum):
    """What was tested: an example of the author's, a law over drawn prompts, a law of cached answers."""

    EXAMPLE = "example"
    LAW = "law"
    MODEL_LAW = "model law"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One test; `failure` says what is wrong, or is None."""

    kind: ResultKind
    name: str
    line: int
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A schema and the results of its tests; one that has errors has only `diagnostics`."""

    file: str
    schema: str | None = None
    results: tuple[Result, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def failures(self) -> tuple[Result, ...]:
        """The tests that failed."""
        return tuple(result for result in self.results if result.failure is not None)

    @property
    def passed(self) -> bool:
        """Whether the schema was tested and nothing failed."""
        return not self.failures and not self.diagnostics


def tested_code(found: Sequence[Tested]) -> ExitCode:
    """Return how the command ends."""
    if any(diagnostic.code == UNREADABLE for each in found for diagnostic in each.diagnostics):
        return ExitCode.ENVIRONMENT
    return ExitCode.OK if all(each.passed for each in found) else ExitCode.FINDINGS


def tested_data(found: Sequence[Tested]) -> dict[str, Any]:
    """Return what was found as data."""
    documents = [
        {
            "file": each.file,
            "schema": each.schema,
            "passed": each.passed,
            "tests": [
                {"kind": result.kind, "name": result.name, "line": result.line, "failure": result.failure}
                for result in each.results
            ],
            "diagnostics": [as_data(diagnostic) for diagnostic in each.diagnostics],
        }
        for each in found
    ]
    return {"schemas": documents, "passed": all(each.passed for each in found)}


def print_tested(found: Sequence[Tested]) -> None:
    """Print what failed, then one line for each schema."""
    for each in found:
        print_diagnostics(each.diagnostics)
        for result in each.failures:
            told = "".join(f"    {line}\n" for line in (result.failure or "").splitlines())
            write_text(f"{each.file}:{result.line}: {result.kind} '{result.name}' failed\n{told}\n")
    write_text("".join(f"{each.file}: {_summary(each)}\n" for each in found))


def _summary(each: Tested) -> str:
    if each.diagnostics:
        return f"{counted(len(each.diagnostics), 'error')}, laws not checked"
    kinds = Counter(result.kind for result in each.results)
    total = ", ".join(counted(number, kind) for kind, number in kinds.items()) or "no examples"
    return f"{total}: {len(each.failures)} failed" if each.failures else f"{total}: passed"
