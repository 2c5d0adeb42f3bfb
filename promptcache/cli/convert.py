"""`promptcache convert`: make a schema and a prompt of a chat or a plain prompt, or update or repair a schema.

Parts of a chat that a schema cannot express, such as tools and images, are refused: leaving them out would make another
chat.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from promptcache.cli.exits import UsageMistake
from promptcache.cli.files import read, write_new
from promptcache.cli.new import checked_name, schema_file
from promptcache.cli.options import Output, output_option, with_json
from promptcache.cli.output import tell
from promptcache.cli.sources import Sources
from promptcache.diagnostics import InvalidValue, LanguageError, SchemaError, suggest
from promptcache.language import (
    IN_PYTHON,
    NOT_IN_XML,
    RESERVED_MODULES,
    RESERVED_OUTSIDE_MODULES,
    RESERVED_PARAMETERS,
    Argument,
    ChatMessage,
    Item,
    Module,
    Parameter,
    Prompt,
    Reference,
    Role,
    Schema,
    Text,
    Turn,
    Whitespace,
    bare_markup,
    decode,
    finish,
    format_document,
    is_name,
    is_template,
    module,
    parse_schema,
    print_schema,
    read_messages,
    root_tag,
)

_FENCE = re.compile(r"^(?P<fence>```|~~~)(?P<info>[^\n]*)$", re.MULTILINE)  # code: no headings inside
_HEADING = re.compile(r"^##[ \t]+(?P<name>\S[^\n]*)$", re.MULTILINE)
_FIELD = re.compile(r"\$?\{\{?[ \t]*([^\W\d]\w*)[ \t]*\}?\}")  # {name}, and the forms of other templates
_FIELD_TOKENS = 32
_MAX_FIELD_BYTES = 24  # of a name with its braces: it becomes the argument
_BLANK_START = re.compile(r"\A(?:[ \t]*\n)+")
_OWN_TEXT = "user"
_SAYING = {Role.SYSTEM: Prompt.system, Role.USER: Prompt.user, Role.ASSISTANT: Prompt.assistant}
# start tags in a document that was parsed before, so without DOCTYPE and processing instructions
_TAG = re.compile(r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<(parameter|union)\b(?:[^<>"']|"[^"]*"|'[^']*')*>""", re.DOTALL)
_STRING = re.compile(r'"[^"]*"|\'[^\']*\'')
_SCAFFOLD = re.compile(r"""\s+(scaffold)\s*=\s*("[^"]*"|'[^']*')""")
_TOOLS = ("tools", "functions")
_JSON_START = re.compile(r'[ \t\r\n]*+(?:\{[ \t\r\n]*+["}]|\[[ \t\r\n]*+["{\[\]])')


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A schema, perhaps a prompt for it, and a line for each change."""

    schema: str
    prompt: str | None = None
    changes: tuple[str, ...] = ()


@click.command("convert")
@click.argument("file", metavar="FILE")
@click.option("--name", metavar="NAME", help="Name of the new schema; default: the name of the file.")
@click.option("--repair", is_flag=True, help="Of a schema: write < and & that are text as &lt; and &amp;.")
@output_option
@with_json
def command(sources: Sources, file: str, name: str | None, repair: bool, output: Path | None) -> Output:
    """Make a schema and a prompt of a chat or a plain prompt; update the paper's schemas.

    FILE is a chat (JSON), a plain prompt with marked sections, or a schema; - is standard input.
    """
    if is_template(file):
        raise UsageMistake(f"{file} is a template: only the documents that it renders can be converted")
    document = read(file, sources)
    stem = document.path.stem if document.path is not None else ""
    decode(document.data, document.name, LanguageError)
    text = document.data.decode("utf-8-sig")  # keeps the line ends, which `decode` replaces
    if is_schema := _is_document(text):
        if name is not None:
            raise UsageMistake("--name is for chats and plain prompts: a schema keeps its name; -o says where to write")
        called = stem or document.schema_name or ""
    else:
        if repair:
            raise UsageMistake(f"--repair is for schemas, and {document.name} is none: text needs no repair")
        called = checked_name(stem if name is None else name, fix="say which with --name NAME")
    made = convert_text(text, called, document.name, document.folder, repair=repair)
    schema = output or schema_file(checked_name(called, fix="say where to write with -o FILE"))
    if is_schema and schema.parent.resolve() != document.folder.resolve():
        _check_movable(made.schema if repair else text, document.name, document.folder / schema.name)
    files = {schema: made.schema}
    if made.prompt is not None:
        files[schema.with_name(f"{schema.stem}-prompt.xml")] = made.prompt
    write_new(files)
    return Output(
        data={"files": [str(path) for path in files], "changes": made.changes},
        text=partial(tell, *made.changes, *(f"wrote {path}" for path in files)),
    )


def convert_text(text: str, name: str, source: str, folder: Path | None = None, *, repair: bool = False) -> Converted:
    """Convert a document: a schema, a chat as JSON, or else a plain prompt with marked sections.

    Args:
        repair: As for `convert_dialect`.

    Raises:
        SchemaError: A schema does not parse.
        UsageMistake: The document is empty, a chat cannot be converted, two sections have one name, or a text has a
            character that XML cannot express.
    """
    if not text.strip("\ufeff \t\r\n"):
        raise UsageMistake(f"{source} is empty")
    if _is_document(text):
        return convert_dialect(text, source, folder, repair=repair)
    if _is_json(text.removeprefix("\ufeff")):
        return convert_chat(text, name, source)
    return convert_sections(text, name, source)


def _is_document(text: str) -> bool:
    """Return whether the root element is `schema` or `prompt`, perhaps misspelt; a prompt in other tags is text."""
    root = root_tag(text.encode())
    return root is not None and suggest(root.name, ("schema", "prompt")) is not None


def _is_json(text: str) -> bool:
    """Return whether a text is a list or an object in JSON, or begins like one that has a mistake."""
    if _JSON_START.match(text):
        return True
    try:
        return isinstance(json.loads(text), list)  # [1]
    except (ValueError, RecursionError):
        return False


def convert_chat(text: str, name: str, source: str) -> Converted:
    """Make a module of each message before the last message of the user; the prompt keeps the rest.

    The modules are required, so that each one attends to those before it, as in the chat.
    """
    messages = read_chat(text, source)
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
    """Make a module of each section `## name`; the section `## user` stays in the prompt.

    Text before the first heading is part of every prompt. `{name}` becomes a parameter that the prompt fills with
    `{name}`, so that the model sees the same text.
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
    """A text with its fields as parameters, the arguments for them, and a line for each field."""

    children: tuple[Text | Parameter, ...]
    arguments: tuple[Argument, ...]
    changes: tuple[str, ...]


def _divided(text: str, where: str) -> _Divided:
    """Make a parameter of each `{name}` outside code; `where` names the text in messages."""
    code = list(_code(text))
    pieces: list[str | Parameter] = []
    arguments: list[Argument] = []
    changes: dict[str, None] = {}
    names = Counter[str]()
    done = 0
    for field in _FIELD.finditer(text):
        name = _parameter_name(field[1])
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
    exact = finish(texts, Whitespace.DEDENT) != texts  # whitespace rules would change it
    children = (Text(text=each, span=IN_PYTHON, exact=exact) if isinstance(each, str) else each for each in pieces)
    return _Divided(children=tuple(children), arguments=tuple(arguments), changes=tuple(changes))


def _is_field(field: re.Match[str], code: Sequence[tuple[int, int]]) -> bool:
    """Return whether a name in braces is outside code, and short enough for its slot with any tokenizer."""
    last = bisect_right(code, (field.start(), field.end())) - 1
    in_code = last >= 0 and field.start() < code[last][1]
    return not in_code and len(field[0].encode()) <= _MAX_FIELD_BYTES


def _naming(name: str, modules: Sequence[Module]) -> Prompt:
    """Return a prompt for the schema `name` with these modules."""
    return Prompt(name, references=tuple(Reference(path=each.name, span=IN_PYTHON) for each in modules))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each section; the text before the first heading has the name ""."""
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
    """Yield start and stop of fenced code; a fence that is not closed is text."""
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
    return _BLANK_START.sub("", text).rstrip(" \t\n")


def convert_dialect(text: str, source: str, folder: Path | None = None, *, repair: bool = False) -> Converted:
    """Rewrite a schema of the paper; its tokens do not change if its placeholders fit their slots.

    Args:
        repair: Write markup characters that are text as XML has them.
    """
    bare = [
        _Edit(
            start=each.start,
            stop=each.stop,
            text=each.written,
            place=each.start,
            note=f"{each.text} is text, and became {each.written}",
        )
        for each in (bare_markup(text) if repair else ())
    ]
    parse_schema(_edited(text, bare), source=f"{source}, repaired" if bare else source, folder=folder)
    edits = [*_apart(sorted((*_dialect_edits(text), *bare), key=lambda each: each.start))]
    lines = [0, *(match.end() for match in re.finditer("\n", text))]
    changes = []
    for edit in edits:
        line = bisect_right(lines, edit.place)
        changes.append(f"{source}:{line}:{edit.place - lines[line - 1] + 1}: {edit.note}")
    return Converted(schema=_edited(text, edits), changes=tuple(changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """A change of `[start, stop)` of a document to `text`, and what is reported for `place`."""

    start: int
    stop: int
    text: str
    place: int
    note: str


def _apart(edits: Iterable[_Edit]) -> Iterator[_Edit]:
    """Yield the edits that do not lie in another one before them."""
    done = 0
    for edit in edits:
        if edit.start >= done:
            yield edit
            done = edit.stop


def _edited(text: str, edits: Sequence[_Edit]) -> str:
    pieces, done = [], 0
    for edit in edits:
        pieces += [text[done : edit.start], edit.text]
        done = edit.stop
    return "".join((*pieces, text[done:]))


def _dialect_edits(text: str) -> Iterator[_Edit]:
    """Yield the changes of attributes that the paper's dialect has."""
    for tag in _TAG.finditer(text):
        found = _attribute(tag[0]) if tag[1] else None
        if found is None:
            continue
        at, place = tag.start(), tag.start() + found.start(1)
        if tag[1] == "parameter":
            note = "scaffold of a parameter is called placeholder, and must fit into its slot"
            yield _Edit(start=place, stop=at + found.end(1), text="placeholder", place=place, note=note)
        else:
            note = "scaffold of a union has no effect; it was left out"
            yield _Edit(start=at + found.start(), stop=at + found.end(), text="", place=place, note=note)


def _check_movable(text: str, source: str, target: Path) -> None:
    """Refuse a valid schema that names files, if it is written to another folder than that of `target`.

    Raises:
        UsageMistake: It names a file.
    """
    try:
        parse_schema(text, source=source)  # without a folder, so that each name of a file is an error
    except SchemaError as error:
        place = error.diagnostics[0].span
        raise UsageMistake(f"{place} names a file of its folder: write into that folder, with -o {target}") from None


def _attribute(tag: str) -> re.Match[str] | None:
    """Return the attribute `scaffold` of a start tag, not a value that looks like it."""
    values = [match.span() for match in _STRING.finditer(tag)]
    found = _SCAFFOLD.finditer(tag)
    return next((each for each in found if not any(start < each.start(1) < stop for start, stop in values)), None)


def _module_name(heading: str) -> str:
    """Return the module name for a heading: `return-policy` for "Return policy"."""
    if heading.lower() == _OWN_TEXT:
        return _OWN_TEXT
    found = re.sub(r"[^\w.]+", "-", heading.lower()).strip("-.") or "section"
    if not is_name(found) or found in RESERVED_MODULES or found.startswith("xml"):
        return f"section-{found}"
    return found


def _parameter_name(field: str) -> str:
    """Return the parameter name for a field; names that are reserved get a prefix or suffix."""
    if field.lower().startswith("xml"):
        return f"field-{field}"
    return f"{field}-text" if field in RESERVED_PARAMETERS | RESERVED_OUTSIDE_MODULES else field


def _text(text: str) -> Text:
    """Return a text, marked exact only if whitespace rules would change it."""
    return Text(text=text, span=IN_PYTHON, exact=finish([text], Whitespace.DEDENT) != [text])


def _converted(schema: Schema, prompt: Prompt, changes: Sequence[str]) -> Converted:
    return Converted(
        schema=format_document(print_schema(schema)), prompt=format_document(prompt.to_xml()), changes=tuple(changes)
    )


def read_chat(text: str, source: str) -> tuple[ChatMessage, ...]:
    """Return the messages of a chat: a list, or an object with a list as `messages`.

    Raises:
        UsageMistake: It is not a chat, or a schema cannot express it.
    """
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise UsageMistake(f"{source} is not JSON: {error}") from None
    except RecursionError:
        raise UsageMistake(f"{source} is no chat: its values are nested too deeply") from None
    chat = data.get("messages") if isinstance(data, dict) else data
    if not isinstance(chat, list):
        raise UsageMistake(f"{source} is no chat: a list of messages, or an object with 'messages'")
    if isinstance(data, dict) and (declared := next((name for name in _TOOLS if data.get(name)), None)):
        fix = f"take '{declared}' out to convert the messages alone, or write them into the system message"
        raise UsageMistake(f"{source} declares {declared}, which the model sees and a schema has no form for: {fix}")
    try:
        messages = read_messages(chat)
    except InvalidValue as error:
        raise UsageMistake(f"{source}: {error}") from None
    for each in messages:
        if fault := not_in_xml(each.text):
            where = f"{source}: {each.span.source}.content"
            raise UsageMistake(f"{where} holds {fault[0]}, which no XML document can: remove it")
    return messages


def not_in_xml(text: str) -> tuple[str, int] | None:
    """Return the first character that XML cannot express, in words, with its index; None if there is none."""
    found = NOT_IN_XML.search(text)
    return None if found is None else (f"the character U+{ord(found[0]):04X}", found.start())
