"""Chats and plain prompts to schemas; the paper's dialect to ours.

Comes in: the text of a document and a name. Goes out: a `Converted`. This file reads and writes no files.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcache.cli.chats import not_in_xml, read_chat
from promptcache.cli.exits import UsageMistake
from promptcache.language import Prompt, Schema, module, parse_schema, print_schema
from promptcache.language.formatter import format_document
from promptcache.language.names import RESERVED_MODULES, is_name
from promptcache.language.prompt import Reference
from promptcache.language.schema import IN_PYTHON, Item, Module, Role, Text, Turn, Whitespace
from promptcache.language.whitespace import finish

# a heading, or a fence around code, in which lines that look like headings are none
_HEADING = re.compile(r"^(?P<fence>```|~~~)(?P<info>[^\n]*)$|^##[ \t]+(?P<name>\S[^\n]*)$", re.MULTILINE)
_BLANK_START = re.compile(r"\A(?:[ \t]*\n)+")
_OWN_TEXT = "user"
_SAYING = {Role.SYSTEM: Prompt.system, Role.USER: Prompt.user, Role.ASSISTANT: Prompt.assistant}
# the documents are well formed, without DOCTYPE and processing instructions, when this looks for start tags
_TAG = re.compile(r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<(parameter|union)\b(?:[^<>"']|"[^"]*"|'[^']*')*>""", re.DOTALL)
_STRING = re.compile(r'"[^"]*"|\'[^\']*\'')
_SCAFFOLD = re.compile(r"""\s+(scaffold)\s*=\s*("[^"]*"|'[^']*')""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A schema document, a prompt document for it where there is one, and what was changed, a line for each."""

    schema: str
    prompt: str | None = None
    changes: tuple[str, ...] = ()


def convert_text(text: str, name: str, source: str, folder: Path | None = None) -> Converted:
    """Convert a document: a schema, a chat as JSON, or else a plain prompt with marked sections.

    Raises:
        SchemaError: a schema does not parse.
        UsageMistake: there is no text, a chat has no form that we know, two sections have one name, or a text holds a
            character that XML cannot.
    """
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if not start:
        raise UsageMistake(f"{source} is empty")
    if start == "<":
        return convert_dialect(text, source, folder)
    if start in {"[", "{"}:
        return convert_chat(text, name, source)
    return convert_sections(text, name, source)


def convert_chat(text: str, name: str, source: str) -> Converted:
    """Make a module of each message before the last one of the user, which the prompt keeps with what follows it.

    The modules are required, so that each is encoded seeing those before it, as the model saw them in the chat.
    """
    messages = list(read_chat(text, source))
    last = max((place for place, message in enumerate(messages) if message.role is Role.USER), default=len(messages))
    modules = [
        module(
            f"{message.role}-{number}",
            Turn(role=message.role, children=(_text(message.text),), span=IN_PYTHON),
            required=True,
        )
        for number, message in enumerate(messages[:last], 1)
    ]
    prompt = _naming(name, modules)
    for message in messages[last:]:
        prompt = _SAYING[message.role](prompt, message.text)
    return _converted(Schema(name).with_module(*modules), prompt)


def convert_sections(text: str, name: str, source: str) -> Converted:
    """Make a module of each section that a heading `## its name` begins; the section `## user` stays in the prompt.

    What stands before the first heading is part of every prompt.
    """
    if fault := not_in_xml(text):
        line, column = text.count("\n", 0, fault[1]) + 1, fault[1] - text.rfind("\n", 0, fault[1])
        raise UsageMistake(f"{source}:{line}:{column} holds {fault[0]}, which no XML document can: remove it")
    before, *sections = _sections(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    names = Counter(each for each, _ in sections)
    if twice := next((each for each, number in names.items() if number > 1), None):
        raise UsageMistake(f"{source} has two sections called '{twice}'")
    own = dict(sections).get(_OWN_TEXT)
    modules = [
        Module(name=each, children=(_text(body),), span=IN_PYTHON) for each, body in sections if each != _OWN_TEXT
    ]
    content: tuple[Item, ...] = (*([_text(before[1])] if before[1] else []), *modules)
    prompt = _naming(name, modules)
    if own is None:
        return _converted(Schema(name, children=content), prompt)
    turn = Turn(role=Role.SYSTEM, children=content, span=IN_PYTHON)
    return _converted(Schema(name, children=(turn,) if content else ()), prompt.user(own))


def _naming(name: str, modules: Sequence[Module]) -> Prompt:
    """Return a prompt for the schema `name` that names its modules."""
    return Prompt(name, references=tuple(Reference(path=each.name, span=IN_PYTHON) for each in modules))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before the first heading, under no name, then the name and text of each section."""
    name, start = "", 0
    for heading in _headings(text):
        yield name, _without_blank_ends(text[start : heading.start()])
        name, start = _module_name(heading["name"].strip()), heading.end()
    yield name, _without_blank_ends(text[start:])


def _headings(text: str) -> Iterator[re.Match[str]]:
    """Yield the headings outside fenced code; a fence that nothing closes is none."""
    found = list(_HEADING.finditer(text))
    last = {each["fence"]: each.start() for each in found if each["fence"] and not each["info"].strip(" \t")}
    opened = None
    for each in found:
        if opened is not None:
            opened = None if each["fence"] == opened and not each["info"].strip(" \t") else opened
        elif each["name"]:
            yield each
        elif each.start() < last.get(each["fence"], 0):
            opened = each["fence"]


def _without_blank_ends(text: str) -> str:
    return _BLANK_START.sub("", text).rstrip()


def convert_dialect(text: str, source: str, folder: Path | None = None) -> Converted:
    """Write a schema of the paper's dialect in ours; its tokens stay as they are where its placeholders fit."""
    parse_schema(text, source=source, folder=folder)
    lines = [0, *(match.end() for match in re.finditer("\n", text))]
    pieces, changes, done = [], [], 0
    for tag in _TAG.finditer(text):
        element, found = tag[1], _attribute(tag[0]) if tag[1] else None
        if found is None:
            continue
        start, stop = tag.start() + found.start(1), tag.start() + found.end(1)
        line = bisect_right(lines, start)
        place = f"{source}:{line}:{start - lines[line - 1] + 1}"
        if element == "parameter":
            pieces += [text[done:start], "placeholder"]
            changes.append(f"{place}: scaffold of a parameter is called placeholder, and must fit into its slot")
        else:
            pieces.append(text[done : tag.start() + found.start()])
            stop = tag.start() + found.end()
            changes.append(f"{place}: scaffold of a union has no effect; it was left out")
        done = stop
    return Converted(schema="".join((*pieces, text[done:])), changes=tuple(changes))


def _attribute(tag: str) -> re.Match[str] | None:
    """Return where a start tag has the attribute `scaffold`, not where a value reads like it."""
    values = [match.span() for match in _STRING.finditer(tag)]
    found = _SCAFFOLD.finditer(tag)
    return next((each for each in found if not any(start < each.start(1) < stop for start, stop in values)), None)


def _module_name(heading: str) -> str:
    """Return a heading as a module's name: "Return policy" is `return-policy`."""
    if heading.lower() == _OWN_TEXT:
        return _OWN_TEXT
    found = re.sub(r"[^\w.]+", "-", heading.lower()).strip("-.") or "section"
    if not is_name(found) or found in RESERVED_MODULES or found.startswith("xml"):
        return f"section-{found}"
    return found


def _text(text: str) -> Text:
    """Return a text, exact only where laying it out would change it."""
    return Text(text=text, span=IN_PYTHON, exact=finish([text], Whitespace.DEDENT) != [text])


def _converted(schema: Schema, prompt: Prompt) -> Converted:
    return Converted(schema=format_document(print_schema(schema)), prompt=format_document(prompt.to_xml()))
