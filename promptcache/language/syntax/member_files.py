"""Files of members of a collection: JSON lines with `name` and `text`.

Such a file can have 100,000 members, so each is read once, into no node of a document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from promptcache.diagnostics import Diagnostic, Span, is_text, shown
from promptcache.language.syntax.files import Folder, read_src
from promptcache.language.syntax.names import is_name, name_help, quoted
from promptcache.language.syntax.nodes import Member
from promptcache.language.syntax.source import diagnostic

_MAX_BYTES = 1024 * 1024 * 1024
_MAX_FAULTS = 20
_decode = json.JSONDecoder().raw_decode
_KEYS = {"name", "text"}
_FORM = 'write {"name": "wifi", "text": "The password is on the door."}'


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
    found = read_src(src, folder, span, limit=_MAX_BYTES)
    if isinstance(found, Diagnostic):
        return [found]
    assert folder is not None, "a file was found in it"
    return parse_members(found, folder.name(folder.path(src)))


def parse_members(lines: str, source: str) -> dict[str, Member] | list[Diagnostic]:
    """Return members by name from JSON lines, or the first faults; `source` is the name of the file."""
    members: dict[str, Member] = {}
    faults: list[Diagnostic] = []
    for number, line in enumerate(lines.split("\n"), 1):
        if not line or line.isspace():
            continue
        place = Span(source, number, 1, number, len(line) + 1)
        member = _read(line, place)
        if isinstance(member, Diagnostic):
            faults.append(member)
        elif member[0] in members:
            first = members[member[0]].span
            message = f"member '{member[0]}' is defined twice (first in line {first.line})"
            faults.append(diagnostic("PC203", message, place, "give one of them another name"))
        else:
            members[member[0]] = Member(text=member[1], span=place)
        if len(faults) == _MAX_FAULTS:
            break
    return faults or members


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


def _read(line: str, place: Span) -> tuple[str, str] | Diagnostic:
    """Return the name and the text of a line, or its fault."""
    try:
        value, stop = _decode(line := line.strip(" \t\r"))
        if stop < len(line):
            return diagnostic("PC224", f"there is more behind the member: {shown(line[stop:])}", place, _FORM)
    except (ValueError, RecursionError) as error:
        return diagnostic("PC224", f"the line is not JSON: {error}", place, _FORM)
    if not isinstance(value, dict) or value.keys() != _KEYS:
        return diagnostic("PC224", f"a member has a name and a text, not {shown(value)}", place, _FORM)
    name, text = value["name"], value["text"]
    if not isinstance(name, str) or not isinstance(text, str):
        return diagnostic("PC224", f"a member has a name and a text, not {shown(value)}", place, _FORM)
    if not is_name(name):
        return diagnostic("PC201", f"{quoted(name)} cannot be the name of a member", place, name_help(name))
    if not text or text.isspace():
        return diagnostic("PC224", f"the text of member '{name}' is empty", place, "write a text, or remove the line")
    if not is_text(text):
        message = f"the text of member '{name}' has half of a surrogate pair, which is no character"
        return diagnostic("PC224", message, place, "write the character itself")
    return name, text
