"""Chats and plain prompts to schemas; the paper's dialect to ours.

Comes in: the text of a document and a name. Goes out: a `Converted`. This file reads and writes no files.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcache.cli.chats import not_in_xml, read_chat
from promptcache.cli.exits import UsageMistake
from promptcache.language import Prompt, Schema, module, parse_schema, print_schema
from promptcache.language.format.formatter import format_document
from promptcache.language.prompt import Argument, Reference
from promptcache.language.schema import IN_PYTHON, Item, Module, Parameter, Role, Text, Turn, Whitespace
from promptcache.language.syntax.names import RESERVED_MODULES, RESERVED_OUTSIDE_MODULES, RESERVED_PARAMETERS, is_name
from promptcache.language.syntax.whitespace import finish

_FENCE = re.compile(r"^(?P<fence>```|~~~)(?P<info>[^\n]*)$", re.MULTILINE)  # around code, where nothing is a heading
_HEADING = re.compile(r"^##[ \t]+(?P<name>\S[^\n]*)$", re.MULTILINE)
_FIELD = re.compile(r"\$?\{\{?[ \t]*([^\W\d]\w*)[ \t]*\}?\}")  # {name}, and what other templates write for it
_FIELD_TOKENS = 32
_MAX_FIELD_BYTES = 24  # of a name in braces, which is the slot's first argument
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
    fields = [
        f"{source}: {field} in message {number} stayed text"
        for number, message in enumerate(messages, 1)
        for field in dict.fromkeys(each[0] for each in _FIELD.finditer(message.text))
    ]
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
    return _converted(Schema(name).with_module(*modules), prompt, fields)


def convert_sections(text: str, name: str, source: str) -> Converted:
    """Make a module of each section that a heading `## its name` begins; the section `## user` stays in the prompt.

    What stands before the first heading is part of every prompt. `{name}` becomes a parameter, and the prompt fills it
    with the same text, so that the model sees what it saw.
    """
    if fault := not_in_xml(text):
        line, column = text.count("\n", 0, fault[1]) + 1, fault[1] - text.rfind("\n", 0, fault[1])
        raise UsageMistake(f"{source}:{line}:{column} holds {fault[0]}, which no XML document can: remove it")
    before, *sections = _sections(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    names = Counter(each for each, _ in sections)
    if twice := next((each for each, number in names.items() if number > 1), None):
        raise UsageMistake(f"{source} has two sections called '{twice}'")
    own = dict(sections).get(_OWN_TEXT)
    root = _divided(before[1], "the text before the first heading")
    bodies = {each: _divided(body, f"section '{each}'") for each, body in sections if each != _OWN_TEXT}
    modules = [Module(name=each, children=body.children, span=IN_PYTHON) for each, body in bodies.items()]
    content: tuple[Item, ...] = (*root.children, *modules)
    prompt = Prompt(
        name,
        references=tuple(
            Reference(path=each, span=IN_PYTHON, arguments=body.arguments) for each, body in bodies.items()
        ),
        arguments=root.arguments,
    )
    fields = [f"{source}: {line}" for each in (root, *bodies.values()) for line in each.changes]
    if own is None:
        return _converted(Schema(name, children=content), prompt, fields)
    left = dict.fromkeys(each[0] for each in _FIELD.finditer(own))
    fields += [f"{source}: {field} in section '{_OWN_TEXT}' stayed text" for field in left]
    turn = Turn(role=Role.SYSTEM, children=content, span=IN_PYTHON)
    return _converted(Schema(name, children=(turn,) if content else ()), prompt.user(own), fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Divided:
    """A text with its fields as parameters, what a prompt fills them with, and a line for each field."""

    children: tuple[Text | Parameter, ...]
    arguments: tuple[Argument, ...]
    changes: tuple[str, ...]


def _divided(text: str, where: str) -> _Divided:
    """Make a parameter of each `{name}` outside code; `where` says in messages what the text is."""
    code = list(_code(text))
    pieces: list[str | Parameter] = []
    arguments: list[Argument] = []
    changes: dict[str, None] = {}
    names = Counter[str]()
    done = 0
    for field in _FIELD.finditer(text):
        name = field[1] if field[1] not in RESERVED_PARAMETERS | RESERVED_OUTSIDE_MODULES else f"{field[1]}-text"
        if field[0] != f"{{{field[1]}}}" or not _is_field(field, code) or not is_name(name):
            changes[f"{field[0]} in {where} stayed text"] = None
            continue
        names[name] += 1
        called = name if names[name] == 1 else f"{name}-{names[name]}"
        pieces += [
            text[done : field.start()],
            Parameter(name=called, length=_FIELD_TOKENS, required=True, span=IN_PYTHON),
        ]
        arguments.append(Argument(name=called, text=field[0], span=IN_PYTHON))
        changes[f"{field[0]} in {where} became the parameter '{called}', which holds {_FIELD_TOKENS} tokens"] = None
        done = field.end()
    pieces = [piece for piece in (*pieces, text[done:]) if piece]
    texts = [piece if isinstance(piece, str) else None for piece in pieces]
    exact = finish(texts, Whitespace.DEDENT) != texts  # laying it out would change it
    children = (Text(text=each, span=IN_PYTHON, exact=exact) if isinstance(each, str) else each for each in pieces)
    return _Divided(children=tuple(children), arguments=tuple(arguments), changes=tuple(changes))


def _is_field(field: re.Match[str], code: Sequence[tuple[int, int]]) -> bool:
    """Whether a name in braces stands outside code, and fits a slot itself whatever the tokenizer."""
    last = bisect_right(code, (field.start(), field.end())) - 1
    in_code = last >= 0 and field.start() < code[last][1]
    return not in_code and len(field[0].encode()) <= _MAX_FIELD_BYTES


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
    """Yield the headings outside fenced code."""
    code = deque(_code(text))
    for heading in _HEADING.finditer(text):
        while code and code[0][1] <= heading.start():
            code.popleft()
        if not code or heading.start() < code[0][0]:
            yield heading


def _code(text: str) -> Iterator[tuple[int, int]]:
    """Yield where fenced code starts and stops; a fence that nothing closes is none."""
    found = list(_FENCE.finditer(text))
    last = {each["fence"]: each.start() for each in found if not each["info"].strip(" \t")}
    opened: re.Match[str] | None = None
    for each in found:
        if opened is not None:
            if each["fence"] == opened["fence"] and not each["info"].strip(" \t"):
                yield opened.start(), each.end()
                opened = None
        elif each.start() < last.get(each["fence"], 0):
            opened = each


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


def _converted(schema: Schema, prompt: Prompt, changes: Sequence[str]) -> Converted:
    return Converted(
        schema=format_document(print_schema(schema)), prompt=format_document(prompt.to_xml()), changes=tuple(changes)
    )
