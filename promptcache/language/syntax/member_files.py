"""Files of members of a collection: JSON lines with `name` and `text`.

Such a file can have 100,000 members, so each is read once, and becomes a `Member` when it is used.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, TypeAlias

from promptcache.diagnostics import Diagnostic, Short, Span, counted, diagnostic, is_text, shown
from promptcache.language.syntax.files import Folder, open_src
from promptcache.language.syntax.names import MEMBER_HELP, as_name, is_member, quoted
from promptcache.language.syntax.nodes import Member

_decode = json.JSONDecoder().raw_decode
_KEYS = {"name", "text"}
_FORM = 'write {"name": "wifi", "text": "The password is on the door."}'
_FIELDS = "`promptcache collect` with --name-field and --text-field makes such a file of others"

_MemberLine: TypeAlias = tuple[str, int, int]
"""Text of a member, and number and length of its line; in a tuple, because the garbage collector skips such ones."""


class MemberFields(NamedTuple):
    """The fields of a line that a member is made of. Those of `metadata` are lines above its text."""

    name: str = "name"
    text: str = "text"
    metadata: tuple[str, ...] = ()


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
    if folder is not None:
        with suppress(OSError, RuntimeError):  # `open_src` reports it
            path = folder.path(src)
            if folder.members is not None and path in folder.members:
                return folder.members[path]
            is_free = not path.exists() if folder.texts is None else path not in folder.texts
            if is_free and path.is_relative_to(folder.home):
                return {}

    def read(file: BinaryIO) -> Mapping[str, Member] | list[Diagnostic]:
        assert folder is not None, "a file was found in it"
        return parse_members(file, folder.name(folder.path(src)))

    found = open_src(src, folder, span, read)
    return [found] if isinstance(found, Diagnostic) else found


def parse_members(
    lines: Iterable[bytes], source: str, fields: MemberFields | None = None
) -> Mapping[str, Member] | list[Diagnostic]:
    """Return members by name from JSON lines, or their faults. Equal faults have one diagnostic, at their first line.

    Args:
        source: The name of the file.
        fields: Those of a file that was not written for a collection; None means exactly `name` and `text`.
    """
    entries: dict[str, _MemberLine] = {}
    faults = defaultdict[tuple[str, str], list[tuple[_Fault, Span]]](list)
    for number, data in enumerate(lines, 1):
        found: tuple[str, str] | _Fault | None
        try:
            line = data.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
            found = _read(line, fields)
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
        faults[found.code, found.fix].append((found, _span(source, number, len(line))))
    found_faults = []
    for (fault, span), *others in faults.values():
        more = f"; {counted(len(others), 'more line')} like this" if others else ""
        found_faults.append(diagnostic(fault.code, fault.message + more, span, fault.fix))
    return found_faults or ListedMembers(source=source, entries=entries)


def write_members(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a file of members, from texts by name."""
    for name, text in texts.items():
        yield json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n"


def _span(source: str, line: int, length: int) -> Span:
    return Span(source, line, 1, line, length + 1)


def _read(line: str, fields: MemberFields | None) -> tuple[str, str] | _Fault | None:
    """Return the name and the text of a line, or its fault; None for a line without a member."""
    if not line or line.isspace():
        return None
    try:
        value, stop = _decode(line := line.strip(" \t\r"))
        if stop < len(line):
            return _Fault("PC224", f"there is more behind the member: {shown(line[stop:])}", _FORM)
    except (ValueError, RecursionError) as error:
        return _Fault("PC224", f"the line is not JSON: {error}", _FORM)
    if not isinstance(value, dict) or (fields is None and value.keys() != _KEYS):
        fix = f"{_FORM}; {_FIELDS}" if isinstance(value, dict) else _FORM
        return _Fault("PC224", f"a member has a name and a text, not {shown(value)}", fix)
    named = fields or MemberFields()
    if missing := [each for each in (named.name, named.text) if each not in value]:
        return _Fault("PC224", f"there is no {missing[0]!r} in {shown(value)}", "name a field that all lines have")
    name, text = value[named.name], value[named.text]
    if fields is not None:
        name = as_name(str(name))
    if not isinstance(name, str) or not isinstance(text, str):
        return _Fault("PC224", f"a member has a name and a text, not {shown(value)}", _FORM)
    if not is_member(name):
        return _Fault("PC201", f"{quoted(name)} cannot be the name of a member", MEMBER_HELP)
    if not text or text.isspace():
        return _Fault("PC224", f"the text of member '{name}' is empty", "write a text, or remove the line")
    above = (
        f"{field}: {found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)}"
        for field in named.metadata
        if (found := value.get(field)) is not None
    )
    text = "\n".join((*above, text))
    if not is_text(text):
        message = f"the text of member '{name}' has half of a surrogate pair, which is no character"
        return _Fault("PC224", message, "write the character itself")
    return name, text
