"""Files of members of a collection: JSON lines with `name` and `text`.

Such a file can have 100,000 members, so each is read once, and becomes a `Member` when it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, TypeAlias

from promptcache.diagnostics import Diagnostic, Short, Span, diagnostic, is_text, shown
from promptcache.language.syntax.files import Folder, open_src
from promptcache.language.syntax.names import is_name, name_help, quoted
from promptcache.language.syntax.nodes import Member

_MAX_FAULTS = 20
_decode = json.JSONDecoder().raw_decode
_KEYS = {"name", "text"}
_FORM = 'write {"name": "wifi", "text": "The password is on the door."}'

_MemberLine: TypeAlias = tuple[str, int, int]
"""Text of a member, and number and length of its line; in a tuple, because the garbage collector skips such ones."""


class _Fault(NamedTuple):
    """Fault of a line; only faults get a place, because places take longer than all other checks."""

    code: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ListedMembers(Mapping[str, Member], Short):
    """Members of a file by name. Each is made when it is asked for."""

    source: str
    entries: Mapping[str, _MemberLine]

    def __getitem__(self, name: str) -> Member:
        text, line, length = self.entries[name]
        return Member(text=text, span=_span(self.source, line, length))

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def read_members(src: str, folder: Folder | None, span: Span) -> Mapping[str, Member] | list[Diagnostic]:
    """Return the members of the file that `src` names, by name, or the first faults of the file.

    A file that does not exist yet has no members.
    """
    if folder is not None and folder.members is not None:
        known = folder.members.get(folder.path(src))
        if known is not None:
            return known
    if folder is not None and _is_free(src, folder):
        return {}

    def read(file: BinaryIO) -> Mapping[str, Member] | list[Diagnostic]:
        assert folder is not None, "a file was found in it"
        return parse_members(file, folder.name(folder.path(src)))

    found = open_src(src, folder, span, read)
    return [found] if isinstance(found, Diagnostic) else found


def parse_members(lines: Iterable[bytes], source: str) -> Mapping[str, Member] | list[Diagnostic]:
    """Return members by name from JSON lines, or the first faults; `source` is the name of the file."""
    entries: dict[str, _MemberLine] = {}
    faults: list[Diagnostic] = []
    for number, data in enumerate(lines, 1):
        found: tuple[str, str] | _Fault | None
        try:
            line = data.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
            found = _read(line)
        except UnicodeDecodeError as error:
            line = data.rstrip(b"\r\n").decode(errors="replace")
            found = _Fault("PC212", f"byte 0x{error.object[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        if found is None:
            continue
        if not isinstance(found, _Fault):
            name, text = found
            first = entries.setdefault(name, entry := (text, number, len(line)))
            if first is entry:
                continue
            message = f"member '{name}' is defined twice (first in line {first[1]})"
            found = _Fault("PC203", message, "give one of them another name")
        faults.append(diagnostic(found.code, found.message, _span(source, number, len(line)), found.fix))
        if len(faults) == _MAX_FAULTS:
            break
    return faults or ListedMembers(source=source, entries=entries)


def write_members(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a file of members, from texts by name."""
    for name, text in texts.items():
        yield json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n"


def _is_free(src: str, folder: Folder) -> bool:
    """Return whether `src` is a path inside the folder of the schema at which there is nothing."""
    try:
        path = folder.path(src)
        return path.is_relative_to(folder.home) and not folder.is_taken(path)
    except (OSError, RuntimeError):
        return False


def _span(source: str, line: int, length: int) -> Span:
    return Span(source, line, 1, line, length + 1)


def _read(line: str) -> tuple[str, str] | _Fault | None:
    """Return the name and the text of a line, or its fault; None for a line without a member."""
    if not line or line.isspace():
        return None
    try:
        value, stop = _decode(line := line.strip(" \t\r"))
        if stop < len(line):
            return _Fault("PC224", f"there is more behind the member: {shown(line[stop:])}", _FORM)
    except (ValueError, RecursionError) as error:
        return _Fault("PC224", f"the line is not JSON: {error}", _FORM)
    if not isinstance(value, dict) or value.keys() != _KEYS:
        return _Fault("PC224", f"a member has a name and a text, not {shown(value)}", _FORM)
    name, text = value["name"], value["text"]
    if not isinstance(name, str) or not isinstance(text, str):
        return _Fault("PC224", f"a member has a name and a text, not {shown(value)}", _FORM)
    if not is_name(name):
        return _Fault("PC201", f"{quoted(name)} cannot be the name of a member", name_help(name))
    if not text or text.isspace():
        return _Fault("PC224", f"the text of member '{name}' is empty", "write a text, or remove the line")
    if not is_text(text):
        message = f"the text of member '{name}' has half of a surrogate pair, which is no character"
        return _Fault("PC224", message, "write the character itself")
    return name, text
