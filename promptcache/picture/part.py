"""Parts of a schema or a prompt as they are shown: the nodes of one tree, and what is said about each in words.

`view` makes the tree. Text on a terminal, JSON, HTML and SVG are forms of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from promptcache.diagnostics import ROOT, counted, listed, size_text

_MAX_SEEN = 4
_MAX_CHARS = 40


class PartKind(StrEnum):
    """PartKind of a part. `PROMPT` is what a prompt adds, `FRAME` what the chat template writes, and BOS."""

    SCHEMA = "schema"
    MODULE = "module"
    UNION = "union"
    TURN = "turn"
    SCAFFOLD = "scaffold"
    PROMPT = "prompt"
    FRAME = "frame"
    TEXT = "text"
    SLOT = "slot"

    @property
    def is_leaf(self) -> bool:
        """Whether such a part is a single text or slot."""
        return self in (PartKind.FRAME, PartKind.TEXT, PartKind.SLOT)


class Use(StrEnum):
    """Use of tokens: the first four in a schema (`TOGETHER` are those that a scaffold adds), the others in a prompt."""

    CACHED = "cached"
    FILLER = "filler"
    TOGETHER = "together"
    UNCACHED = "uncached"
    REUSED = "reused"
    REPAIRED = "repaired"
    NEW = "new"

    @property
    def is_stored(self) -> bool:
        """Whether the KV of these tokens is stored."""
        return self in (Use.CACHED, Use.FILLER, Use.TOGETHER, Use.REUSED)


class Stretch(NamedTuple):
    """Tokens at all positions `[start, stop)`, with one use."""

    start: int
    stop: int
    use: Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a schema or prompt in the positions `[start, stop)`.

    Attributes:
        name: Path of a module; name of a parameter, union or scaffold; role of a turn; otherwise what the part is.
        text: Of a text, and of the content of a slot in a prompt.
        tokens: Number of tokens of its own, by use. Modules, unions and turns inside have their own.
        kv_bytes: KV of those that are stored; None if the size of a token is not known.
        sees: Modules that a module's stored tokens attend to besides itself; "" is the schema's text outside modules.
        marks: Further properties in words.
        present: Whether the prompt has it. An absent part has no positions, and no parts.
        stretches: Where the tokens of a text, a slot or a scaffold are.
    """

    kind: PartKind
    name: str
    start: int
    stop: int
    text: str
    tokens: Mapping[Use, int]
    kv_bytes: int | None
    sees: tuple[str, ...]
    marks: tuple[str, ...]
    present: bool
    stretches: tuple[Stretch, ...]
    children: tuple[Part, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens of its own."""
        return sum(self.tokens.values())

    @property
    def leaves(self) -> Iterator[Part]:
        """Its own texts and slots."""
        return (child for child in self.children if child.kind.is_leaf)

    def walk(self) -> Iterator[Part]:
        """Yield the part and all parts in it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()


def title(part: Part) -> str:
    """Return the name of a part, or the beginning of its text."""
    match part.kind:
        case PartKind.TEXT:
            return f'"{_cut(" ".join(part.text.split()) or repr(part.text)[1:-1])}"' if part.text else part.name
        case PartKind.TURN:
            return f"<{part.name}>"
        case PartKind.SLOT | PartKind.UNION | PartKind.SCAFFOLD:
            return f"{part.kind} {part.name}".rstrip()
        case _:
            return part.name


def facts(part: Part) -> Iterator[str]:
    """Yield what is known about a part in words: positions, tokens, bytes, properties, context and reuse."""
    if part.present:
        yield _size(part)
    if part.kv_bytes and not (part.kind.is_leaf or part.kind is PartKind.SCHEMA):
        yield size_text(part.kv_bytes)
    yield from map(_cut, part.marks) if part.kind is PartKind.SLOT else part.marks
    if part.sees:
        yield f"sees {listed([path or ROOT for path in part.sees], _MAX_SEEN)}"
    for use in (Use.REUSED, Use.REPAIRED, Use.NEW):
        if part.kind is not PartKind.SCHEMA and part.tokens.get(use):
            yield f"{part.tokens[use]:,} {use}"
    if not part.present:
        yield "absent"


def _size(part: Part) -> str:
    where = f"[{part.start:,}, {part.stop:,})"
    match part.kind:
        case PartKind.SCHEMA:
            return f"positions {where}"
        case PartKind.UNION:
            return where
        case PartKind.SLOT:
            return f"{where} {counted(part.stop - part.start, 'position')}"
        case PartKind.SCAFFOLD:
            return f"{where} {counted(part.num_tokens, 'token')} once more" if part.tokens else where
        case _:
            return f"{where} {counted(part.num_tokens, 'token')}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"
