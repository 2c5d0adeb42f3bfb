"""What goes wrong, where, and what to do about it: spans, diagnostics, and the error tree.

Comes in: facts about a fault from any room. Goes out: typed exceptions and records that a door of the house (command
line, server, notebook) renders. This file knows no XML, no tensors and no terminal.

    PromptCacheError
    ├── LanguageError            carries diagnostics, each with code and span
    │   ├── SchemaError          a schema document, PC0xx to PC3xx, PC5xx
    │   └── PromptError          a prompt document, PC0xx, PC4xx, PC5xx
    ├── UnknownSchema            a prompt names a schema that the engine does not have
    ├── ModelError
    │   ├── ModelNotFound        no such folder or hub id, or files missing in it
    │   └── UnsupportedModel     a model or tokenizer that this library refuses, by name and with the reason
    ├── ContextLengthExceeded    positions or generated tokens beyond what the model has
    └── StoreError
        ├── CorruptEncoding      bytes that are not what their key promises
        └── TierUnavailable      a disk or remote place that does not answer, is full or read-only
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

_MAX_SLIPS = 3


class Severity(StrEnum):
    """How much a diagnostic matters: an error stops the work, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open stretch of a source text.

    Lines and columns count from 1, columns in characters (code points); `stop_line:stop_column` is the first place
    after it.
    """

    source: str
    line: int
    column: int
    stop_line: int
    stop_column: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding: its code, where it stands, what is wrong, and how to mend it."""

    code: str
    message: str
    span: Span
    help: str | None = None
    severity: Severity = Severity.ERROR
    related: tuple[tuple[Span, str], ...] = ()

    def __str__(self) -> str:
        mend = f" ({self.help})" if self.help else ""
        return f"{self.span}: {self.code} {self.message}{mend}"


class PromptCacheError(Exception):
    """Whatever this library raises because of what it was given."""


class LanguageError(PromptCacheError):
    """A schema or prompt document that cannot be used; every fault that was found is in `diagnostics`."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))


class SchemaError(LanguageError):
    """A schema document that cannot be used."""


class PromptError(LanguageError):
    """A prompt document that cannot be used with its schema."""


class UnknownSchema(PromptCacheError):
    """A prompt names a schema that is not there."""


class ModelError(PromptCacheError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """No model stands under this name."""


class UnsupportedModel(ModelError):
    """A model or tokenizer whose computation this library cannot reproduce; the message names it and says why."""


class ContextLengthExceeded(PromptCacheError):
    """A request needs positions that the model does not have."""


class StoreError(PromptCacheError):
    """A store cannot do what it was asked to."""


class CorruptEncoding(StoreError):
    """Stored bytes differ from what their key promises."""


class TierUnavailable(StoreError):
    """A place where encodings rest does not answer, is full or cannot be written; the message names it and says why."""


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return diagnostics by their places; those of one place stay in the order in which they came."""
    return tuple(sorted(diagnostics, key=lambda diagnostic: diagnostic.span))


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was most likely meant to be, or None when nothing is near."""
    folded = {candidate.casefold(): candidate for candidate in reversed(tuple(known))}
    wanted = name.casefold()
    near = _nearest(wanted, folded) or next(iter(difflib.get_close_matches(wanted, folded, n=1, cutoff=0.6)), None)
    return None if near is None else folded[near]


def _nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that the fewest slips of a typist turn into `name`: at most one for every three letters.

    Of several, one of the same letters is preferred, then one with the same first letter, then that of nearest length.
    """
    best, least = None, (_MAX_SLIPS + 1, True, True, 0)
    letters = set(name)
    for candidate in candidates:
        difference = abs(len(candidate) - len(name))
        limit = min(_MAX_SLIPS, max(len(candidate), len(name)) // 3, least[0])
        if difference > limit or len(letters.difference(candidate)) > limit:
            continue
        slips = num_slips(name, candidate)
        rank = (slips, sorted(candidate) != sorted(name), candidate[:1] != name[:1], difference)
        if slips <= limit and rank < least:
            best, least = candidate, rank
    return best


def num_slips(first: str, second: str) -> int:
    """Return how many letters must be added, left out, replaced or swapped with their neighbour to get `second`.

    This is the optimal string alignment distance: Damerau-Levenshtein, with no letter touched twice. Where both texts
    begin or end alike, nothing needs to be counted.
    """
    start = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if start is None:
        return abs(len(first) - len(second))
    first, second = first[start:], second[start:]
    while first and second and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    before, above = list[int](), list(range(len(second) + 1))
    for row, letter in enumerate(first, 1):
        here = [row]
        for column, other in enumerate(second, 1):
            slips = min(above[column] + 1, here[-1] + 1, above[column - 1] + (letter != other))
            if row > 1 < column and letter == second[column - 2] and other == first[row - 2]:
                slips = min(slips, before[column - 2] + 1)
            here.append(slips)
        before, above = above, here
    return above[-1]


def did_you_mean(name: str, known: Iterable[str], form: str = "'{}'") -> str | None:
    """Return "did you mean 'x'?" for the nearest known name, or None; `form` shows how such a name is written."""
    near = suggest(name, known)
    return f"did you mean {form.format(near)}?" if near is not None else None


@dataclass(frozen=True, slots=True)
class Code:
    """An entry of the table of codes: what `code` means in a few words, and how much it matters."""

    code: str
    title: str
    severity: Severity = Severity.ERROR


CODES: Mapping[str, Code] = MappingProxyType(
    {
        entry.code: entry
        for entry in (
            # 0xx: XML and security
            Code("PC001", "not well-formed XML"),
            Code("PC002", "DOCTYPE is not allowed"),
            Code("PC003", "unknown entity"),
            Code("PC004", "document too large"),
            Code("PC005", "elements nested too deeply"),
            Code("PC006", "not UTF-8"),
            Code("PC007", "processing instruction is not allowed"),
            Code("PC008", "namespaces are not allowed"),
            Code("PC009", "too many elements"),
            Code("PC010", "file cannot be read"),
            Code("PC011", "character that XML cannot hold"),
            # 1xx: structure
            Code("PC101", "unknown element"),
            Code("PC102", "element not allowed here"),
            Code("PC103", "unknown attribute"),
            Code("PC104", "missing attribute"),
            Code("PC105", "attribute value not allowed"),
            Code("PC106", "text not allowed here"),
            Code("PC107", "wrong kind of document"),
            Code("PC108", "union without members"),
            Code("PC109", "module with both src and content"),
            Code("PC110", "turn inside a turn"),
            # 2xx: names, paths, files
            Code("PC201", "not a name"),
            Code("PC202", "reserved name"),
            Code("PC203", "module defined twice"),
            Code("PC204", "parameter defined twice"),
            Code("PC205", "union defined twice"),
            Code("PC206", "scaffold defined twice"),
            Code("PC207", "not a path"),
            Code("PC208", "path leads to no module"),
            Code("PC209", "default is no member of its union"),
            Code("PC210", "file outside the folder"),
            Code("PC211", "file that is named cannot be read"),
            Code("PC212", "src file is not UTF-8"),
            Code("PC213", "src file too large"),
            Code("PC214", "file named without a folder"),
            Code("PC215", "pattern cannot be read"),
            Code("PC216", "default or placeholder that the parameter does not take"),
            Code("PC217", "files include each other"),
            Code("PC218", "nothing there to include"),
            Code("PC219", "included file with text outside modules"),
            Code("PC220", "module left out of what is included"),
            Code("PC221", "too much is included"),
            # 3xx: rules of the schema
            Code("PC301", "no prompt can satisfy the schema"),
            Code("PC302", "module can never be used", Severity.WARNING),
            Code("PC303", "default can never be used"),
            Code("PC304", "after names a module that is not laid out earlier"),
            Code("PC305", "scaffold members cannot be present together"),
            Code("PC306", "scaffold member is not cached"),
            Code("PC307", "condition cannot be read"),
            Code("PC308", "rule too large"),
            Code("PC309", "choice that can never be made"),
            Code("PC310", "example is not valid"),
            Code("PC311", "example is valid although it should not be"),
            Code("PC312", "example without its text"),
            # 4xx: prompts
            Code("PC401", "unknown module"),
            Code("PC402", "unknown parameter"),
            Code("PC403", "argument given twice"),
            Code("PC404", "required argument missing"),
            Code("PC405", "module named twice"),
            Code("PC406", "required module missing"),
            Code("PC407", "union choice missing"),
            Code("PC408", "two members of a union"),
            Code("PC409", "required by a named module, but missing"),
            Code("PC410", "modules that exclude each other"),
            Code("PC411", "union default breaks a rule"),
            Code("PC412", "text between references"),
            Code("PC413", "prompt for another schema"),
            Code("PC414", "must follow a module that is missing"),
            Code("PC415", "reference after the prompt's own text or turns"),
            Code("PC416", "bare text beside turns"),
            Code("PC417", "modules that cannot be used together"),
            Code("PC418", "rule of the schema broken"),
            Code("PC419", "wrong number of modules chosen"),
            Code("PC420", "argument that its parameter does not take"),
            Code("PC421", "other version of the schema"),
            # 5xx: tokens and positions (found by layout, which knows the tokenizer)
            Code("PC501", "argument longer than its slot"),
            Code("PC502", "placeholder or default longer than its slot"),
            Code("PC503", "schema needs more positions than the model has"),
            Code("PC504", "prompt needs more positions than the model has"),
            Code("PC505", "text longer than its module's reserve", Severity.WARNING),
            Code("PC506", "empty prompt"),
            Code("PC507", "system turn rendered as a user turn", Severity.WARNING),
            Code("PC508", "text that the tokenizer does not give back"),
            Code("PC509", "joined text would tokenize otherwise", Severity.WARNING),
            Code("PC510", "role that the chat template does not have"),
            # 6xx: templates
            Code("PC601", "template cannot be read"),
            Code("PC602", "not available in templates"),
            Code("PC603", "name without a value"),
            Code("PC604", "template does too much"),
            Code("PC605", "context is not plain data"),
            Code("PC606", "template fails"),
        )
    }
)
