"""Tools: their definitions, and the calls of tools in the text of an answer.

Models write a call as JSON with the name and the arguments, and many chat templates put tags around it. Some write XML:
`<function=weather>` with an element `<parameter=city>` for each argument. A `CallStyle` has the text that the template
of a model writes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from promptcache.diagnostics import InvalidGeneration, InvalidValue, instance, shown
from promptcache.structured.formats import JSONSchema, OutputFormat, may_begin

MAX_TOOLS = 1000
"""Limit of the tools of one request."""

_TOOLS = instance('a list of tools, {"type": "function", "function": {"name": …}},', list, tuple)
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_ARGUMENTS = ("arguments", "parameters")
_FENCE = re.compile(r"```[a-z_]*\n(.*?)\n?```", re.DOTALL)
_OPEN_FENCE = re.compile(r"```[a-z_]*\n\s*")
_DECODER = json.JSONDecoder()
FUNCTION = "<function="
"""Begins a call in XML."""
_XML_CALL = re.compile(rf"\s*{FUNCTION}([^>\s]+)>(.*?)</function>", re.DOTALL)
_XML_ARGUMENT = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None}  # templates write values as Python does


class ToolCall(NamedTuple):
    """A call of a tool: its name, and its arguments as JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that a model may call.

    Attributes:
        definition: The definition as given.
        parameters: The JSON schema of its arguments.
    """

    name: str
    definition: Mapping[str, Any]
    parameters: JSONSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStyle:
    """The text around names and arguments: `head name middle arguments (joint name middle arguments)* tail`.

    Attributes:
        joint: Between two calls of one answer; None if an answer has one call.
        is_xml: Whether the arguments are elements `<parameter=NAME>`, and no JSON.
        texts: Tools with those of their parameters that are texts. In XML, these have no quotes.
    """

    head: str = '{"name": "'
    middle: str = '", "arguments": '
    joint: str | None = None
    tail: str = "}"
    is_xml: bool = False
    texts: frozenset[tuple[str, str]] = frozenset()

    def of(self, tools: Sequence[Tool]) -> CallStyle:
        """Return the style of calls of some tools."""
        if not self.is_xml:
            return self
        texts = ((each.name, name) for each in tools for name, schema in _properties(each).items() if _is_text(schema))
        return replace(self, texts=frozenset(texts))

    @property
    def tag(self) -> str:
        """The text that begins a call, in front of its JSON or XML; empty without one."""
        if self.is_xml:
            return self.head.removesuffix(FUNCTION).strip()
        return self.head[: self.head.find("{")].strip().removesuffix("[").strip()

    @property
    def end_tag(self) -> str:
        """The text that ends a call, behind its JSON or XML; empty without one."""
        if self.is_xml:
            return self.tail.strip().removeprefix("</function>").strip()
        return self.tail[self.tail.rfind("}") + 1 :].strip().removeprefix("]").strip()


def read_tools(tools: Sequence[Mapping[str, Any]], name: str = "tools") -> tuple[Tool, ...]:
    """Return tools in the form of OpenAI.

    Args:
        tools: `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}` each.
        name: Name of the list in errors.

    Raises:
        InvalidValue: It is no such list, or two tools have one name; names the place.
    """
    _TOOLS.check(name, tools, InvalidValue)
    if len(tools) > MAX_TOOLS:
        raise InvalidValue(f"{name} has {len(tools)} tools, and the limit is {MAX_TOOLS}")
    found = [_tool(each, f"{name}[{index}]") for index, each in enumerate(tools)]
    counts = Counter(each.name for each in found)
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise InvalidValue(f"{name} has two tools with the name {shown(twice)}")
    return tuple(found)


def _tool(tool: Any, place: str) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
        raise InvalidValue(
            f'{place}={shown(tool)} is not supported: {{"type": "function", "function": {{"name": …}}}} is expected'
        )
    function = tool["function"]
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{place}.function.name={shown(name)} is not allowed: up to 64 letters, digits, '_', '-' and '.' are "
            "expected"
        )
    if not isinstance(parameters, Mapping | None):
        raise InvalidValue(f"{place}.function.parameters={shown(parameters)} is not allowed: a JSON schema is expected")
    schema = parameters or {"type": "object", "properties": {}, "additionalProperties": False}
    try:
        return Tool(name=name, definition=tool, parameters=JSONSchema(json.dumps(schema)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"{place}.function.parameters cannot be written as JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class ToolCalls(OutputFormat):
    """An answer that is one call of one of several tools, or more calls.

    Attributes:
        several: Whether it may have more than one call.
    """

    tools: tuple[Tool, ...]
    style: CallStyle
    several: bool = True

    @property
    def grammar(self) -> Mapping[str, Any]:
        """A grammar with one alternative for each tool, and its JSON schema for the arguments."""
        style = self.style
        calls = " | ".join(f"call{index}" for index in range(len(self.tools)))
        more = f" ({json.dumps(style.joint)} any)*" if self.several and style.joint is not None else ""
        rules = [
            f"start: {json.dumps(style.head)} any{more} {json.dumps(style.tail)}",
            f"any: {calls}",
            *(
                f"call{index}: {json.dumps(tool.name + style.middle)} arguments{index}\n"
                + (_xml_rules(f"arguments{index}", tool) if style.is_xml else _json_rule(f"arguments{index}", tool))
                for index, tool in enumerate(self.tools)
            ),
        ]
        return {"lark_grammar": "\n".join(rules)}

    @property
    def inner(self) -> Iterable[tuple[str, OutputFormat]]:
        """The parameters of the tools."""
        return ((f"tools: the parameters of {shown(each.name)}", each.parameters) for each in self.tools)

    def _value(self, text: str) -> tuple[ToolCall, ...]:
        content, calls = parse_calls(text, {each.name for each in self.tools}, self.style)
        if content or not calls:
            raise ValueError(f"{shown(text)} is no call of a tool")
        return calls


def _json_rule(rule: str, tool: Tool) -> str:
    return f"{rule}: %json {json.dumps(tool.parameters.grammar['json_schema'])}"


def _xml_rules(rule: str, tool: Tool) -> str:
    """Return the rules of arguments in XML. Of a text, only its choices are part of the grammar."""
    schema = json.loads(tool.parameters.schema)
    required, shared = (
        schema.get("required", ()),
        {key: schema[key] for key in ("$defs", "definitions") if key in schema},
    )
    names, rules, end = list[str](), list[str](), json.dumps("\n</parameter>\n")
    for number, (name, value) in enumerate(_properties(tool).items()):
        own = f"{rule}_{number}"
        names.append(own if name in required else f"{own}?")
        start = json.dumps(f"<parameter={name}>\n")
        choices = [value["const"]] if "const" in value else value.get("enum")
        if not _is_text(value):
            closed = JSONSchema(json.dumps({**value, **shared})).grammar["json_schema"]
            rules.append(f"{own}: {start} {own}_value {end}\n{own}_value: %json {json.dumps(closed)}")
        elif choices:
            rules.append(f"{own}: {start} ({' | '.join(map(json.dumps, choices))}) {end}")
        else:
            rules.append(f"{own}: {start} {own}_value\n{own}_value[suffix={end}]: /(.|\\n)*/")
    return "\n".join([f"{rule}: {' '.join(names) or json.dumps('')}", *rules])


def _properties(tool: Tool) -> Mapping[str, Mapping[str, Any]]:
    """Return the schemas of the arguments of a tool."""
    properties = json.loads(tool.parameters.schema).get("properties", {})
    return {name: each for name, each in properties.items() if isinstance(each, dict)}


def _is_text(schema: Mapping[str, Any]) -> bool:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return all(isinstance(each, str) for each in values) if values else schema.get("type") == "string"


@dataclass(frozen=True, slots=True)
class CallsOrText(OutputFormat):
    """An answer that is calls of tools, or text of another format."""

    calls: ToolCalls
    text: OutputFormat

    def __post_init__(self) -> None:
        """Check that the first character decides.

        Raises:
            InvalidGeneration: Calls and text may begin alike: the lexer of llguidance would only allow calls then.
        """
        first = self.calls.style.head[:1]
        if may_begin(self.text, first):
            raise InvalidGeneration(
                f"the format of the answer does not work with tools of this model: calls and answers both begin with "
                f"{shown(first)}; leave one of them out"
            )

    @property
    def grammar(self) -> Mapping[str, Any]:
        """Either of two grammars."""
        return {"lark_grammar": "start: @calls | @text"}

    @property
    def parts(self) -> Sequence[Mapping[str, Any]]:
        """Both grammars."""
        return ({"name": "calls", **self.calls.grammar}, {"name": "text", **self.text.grammar})

    @property
    def inner(self) -> Iterable[tuple[str, OutputFormat]]:
        """The calls; the text was checked."""
        return (("the calls of tools", self.calls),)

    def _value(self, text: str) -> Any:
        return self.calls.parse(text) if self.calls.accepts(text) else self.text.parse(text)


def parse_calls(text: str, names: Collection[str], style: CallStyle) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of an answer without its calls, and the calls.

    These are tagged calls, a whole answer in JSON that is a call or a list of calls, and code blocks with such JSON.
    What names no tool of `names` stays text.
    """
    found, rest, at = list[ToolCall](), list[str](), 0
    while style.tag and (start := text.find(style.tag, at)) >= 0:
        calls, stop = _calls_at(text, start + len(style.tag), names, style)
        rest.append(text[at:start] if calls else text[at : start + len(style.tag)])
        found += calls
        at = stop if calls else start + len(style.tag)
    rest.append(text[at:])
    content = "".join(rest)
    if not found and (calls := _calls_of(content.strip(), names)):
        return "", calls
    if not found:
        for block in _FENCE.finditer(content):
            found += _calls_of(block[1].strip(), names)
        if found:
            content = _FENCE.sub(lambda block: "" if _calls_of(block[1].strip(), names) else block[0], content)
    return content.rstrip() if found else text, tuple(found)


def _calls_at(text: str, start: int, names: Collection[str], style: CallStyle) -> tuple[tuple[ToolCall, ...], int]:
    """Return the calls whose JSON or XML begins behind `start`, and where they end with the end tag."""
    found = _XML_CALL.match(text, start) if style.is_xml else None
    if found is not None:
        calls, stop = _xml_call(found[1], found[2], names, style), found.end()
    else:
        try:
            value, stop = _DECODER.raw_decode(text, len(text) - len(text[start:].lstrip()))
        except (ValueError, RecursionError):
            return (), start
        calls = _calls(value, names)
    end = style.end_tag
    rest = text[stop:].lstrip()
    if rest.startswith(end) or end.startswith(rest):  # a limit may have cut the tag
        stop = len(text) - len(rest) + min(len(end), len(rest))
    return calls, stop


def _xml_call(name: str, text: str, names: Collection[str], style: CallStyle) -> tuple[ToolCall, ...]:
    """Return the call of a function whose element has a text; none if that is something else than arguments."""
    if name not in names or _XML_ARGUMENT.sub("", text).strip():
        return ()
    arguments = {
        found[1]: found[2] if (name, found[1]) in style.texts else _xml_value(found[2])
        for found in _XML_ARGUMENT.finditer(text)
    }
    return (ToolCall(name, json.dumps(arguments, ensure_ascii=False)),)


def _xml_value(text: str) -> Any:
    """Return the value of an argument: JSON, else text."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _calls_of(text: str, names: Collection[str]) -> tuple[ToolCall, ...]:
    """Return the calls of a text that is JSON as a whole; none if it is something else."""
    try:
        return _calls(json.loads(text), names)
    except (ValueError, RecursionError):
        return ()


def _calls(value: Any, names: Collection[str]) -> tuple[ToolCall, ...]:
    items = value if isinstance(value, list) else [value]
    calls = [_call(each, names) for each in items]
    return tuple(each for each in calls if each is not None) if calls and all(calls) else ()


def _call(value: Any, names: Collection[str]) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    value = value["function"] if isinstance(value.get("function"), dict) else value
    name = value.get("name")
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if name not in names or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


class CallSplit:
    """Splits the text of an answer from its calls, piece by piece.

    Text is held back from where a call may begin. The pieces and the rest are the text that `parse_calls` returns.

    Attributes:
        calls: The calls, once `rest` was called.
    """

    def __init__(self, names: Collection[str], style: CallStyle) -> None:
        """Create a splitter for one answer.

        Args:
            names: Names of the tools.
        """
        self.calls: tuple[ToolCall, ...] = ()
        self._names, self._style = names, style
        self._said = self._held = ""
        self._signs = tuple(filter(None, (style.tag, "```")))

    def add(self, piece: str) -> str:
        """Add a piece of the text, and return the text that is certain now."""
        self._held += piece
        if not self._said and self._held.lstrip()[:1] in ("", "{", "["):
            return ""
        places = (at for at in range(len(self._held)) if self._may_begin(at))
        stop = next(places, len(self._held))
        return self._take(len(self._held[:stop].rstrip()))  # white space before a call is left out

    def rest(self) -> str:
        """Return the text that is held back, if no more follows, without the calls in it."""
        content, self.calls = parse_calls(self._said + self._held, self._names, self._style)
        rest = content[len(self._said) :] if content.startswith(self._said) else self._held
        self._held = ""
        return rest

    def _may_begin(self, at: int) -> bool:
        """Whether a call may begin at a place of the text that is held back."""
        for sign in self._signs:
            if self._held.startswith(sign, at) or sign.startswith(self._held[at:]):
                break
        else:
            return False
        found = _OPEN_FENCE.match(self._held, at)
        if found is None or found.end() == len(self._held):
            return True  # a tag, or the start of a code block
        block = _FENCE.match(self._held, at)
        return self._held[found.end()] in "{[" and (block is None or bool(_calls_of(block[1].strip(), self._names)))

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        self._said += taken
        return taken
