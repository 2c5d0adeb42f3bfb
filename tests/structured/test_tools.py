"""Tools: definitions, calls in texts of answers, and forced calls."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import InvalidGeneration, InvalidOutput, InvalidValue
from promptcache.structured import (
    CallsOrText,
    CallSplit,
    CallStyle,
    Choice,
    Elements,
    JSONSchema,
    OutputFormat,
    Regex,
    ToolCall,
    ToolCalls,
    check_format,
    parse_calls,
    read_tools,
)
from tests.structured.test_formats import END, GRAMMARS, accepts

HERMES = CallStyle(
    head='<tool_call>\n{"name": "', joint='}\n</tool_call>\n<tool_call>\n{"name": "', tail="}\n</tool_call>"
)
LLAMA = CallStyle(middle='", "parameters": ')
MISTRAL = CallStyle(head='[{"name": "', joint='}, {"name": "', tail="}]")


def tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {each: {"type": kind} for each, kind in properties.items()},
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = read_tools([tool("f", a="integer"), tool("g", x="boolean"), {"type": "function", "function": {"name": "now"}}])
NAMES = ("f", "g", "now")
F1, GX = ToolCall("f", '{"a": 1}'), ToolCall("g", '{"x": true}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", (F1,)),
        ('Hi.\n<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>', "Hi.", (F1,)),
        (
            '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>\n<tool_call>{"name":"g","arguments":{"x":true}}',
            "",
            (F1, GX),
        ),
        ('<tool_call>{"name":"f","arguments":{"a":1}}\n</tool_', "", (F1,)),
        ('{"name": "f", "parameters": {"a": 1}}', "", (F1,)),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', "", (F1,)),
        ('{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}', "", (F1,)),
        ('[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"x": true}}]', "", (F1, GX)),
        ('```json\n{"name": "f", "arguments": {"a": 1}}\n```', "", (F1,)),
        ('I call it:\n```json\n{"name": "f", "arguments": {"a": 1}}\n```', "I call it:", (F1,)),
        ('{"name": "now"}', "", (ToolCall("now", "{}"),)),
        ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', ()),
        ('{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": [1]}', ()),
        ("<tool_call> is a tag", "<tool_call> is a tag", ()),
        ('Code:\n```json\n{"a": 1}\n```\nfine', 'Code:\n```json\n{"a": 1}\n```\nfine', ()),
        ("[" * 100_000, "[" * 100_000, ()),
        ("", "", ()),
    ],
)
def test_calls_of_a_text(text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    """Calls with tags, in JSON and in code blocks are found; all else is text."""
    assert parse_calls(text, NAMES, HERMES) == (content, calls)


_PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool", "```json\n", "```\n", "\n```", "``", "{", "}", "[", " ", "\n", "Hi"),
        *('{"name": "f", "arguments": {"a": 1}}', '{"name": "other"}', '{"a": 1}'),
    ]
)


@pytest.mark.law
@given(pieces=st.lists(_PIECES, max_size=12), style=st.sampled_from([HERMES, LLAMA]))
def test_pieces_are_the_whole(pieces: list[str], style: CallStyle) -> None:
    """A streamed answer has the text and the calls of the whole one, and no text is taken back."""
    text = "".join(pieces)
    split = CallSplit(NAMES, style)
    said = "".join(map(split.add, pieces))
    assert (said + split.rest(), split.calls) == parse_calls(text, NAMES, style)


@pytest.mark.parametrize("text", ["Hello, world. ", "a < b", "```python\nprint(1)\n```\nDone. ", 'x = {"a": 1}; '])
def test_text_without_calls_is_not_held_back(text: str) -> None:
    """Only white space and what may begin a call waits."""
    split = CallSplit(NAMES, HERMES)
    assert "".join(map(split.add, text)) == text.rstrip()


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 12}}\n</tool_call>', True),
        (HERMES, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', True),
        (
            HERMES,
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {"x": true}}\n</tool_call>',
            True,
        ),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"x": true}}\n</tool_call>', False),
        (HERMES, '<tool_call>\n{"name": "h", "arguments": {}}\n</tool_call>', False),
        (HERMES, "Hello", False),
        (LLAMA, '{"name": "g", "parameters": {"x": false}}', True),
        (MISTRAL, '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"x": true}}]', True),
    ],
)
def test_forced_calls(style: CallStyle, text: str, expected: bool) -> None:
    """The grammar takes calls of the tools in the style of the template, with arguments of their schemas."""
    output = ToolCalls(TOOLS, style)
    assert accepts(output, text) is expected
    if expected:
        assert output.parse(text)


def test_a_tool_with_parameters_that_are_not_possible_is_named() -> None:
    """Also if a text is another choice. Nothing of the grammar of the calls is quoted."""
    sets = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    calls = ToolCalls(
        (*TOOLS, *read_tools([{"type": "function", "function": {"name": "h", "parameters": sets}}])), HERMES
    )
    message = r"^tools: the parameters of 'h' cannot be used: Unimplemented keys: \[\"uniqueItems\"\]$"
    for output in (calls, CallsOrText(calls, Choice(["yes"]))):
        for check in (check_format, lambda output: GRAMMARS.matcher(output, [END], None, is_open=False)):
            with pytest.raises(InvalidGeneration, match=message):
                check(output)


def test_one_forced_call() -> None:
    two = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"x": true}}]'
    assert not accepts(ToolCalls(TOOLS, MISTRAL, several=False), two)
    with pytest.raises(InvalidOutput, match="is no call of a tool"):
        ToolCalls(TOOLS, MISTRAL).parse("Hello")


def xml(name: str, **arguments: str) -> str:
    written = "".join(f"<parameter={each}>\n{value}\n</parameter>\n" for each, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


_NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "tags": {"$ref": "#/$defs/tags"}, "kind": {"enum": ["a", "b"]}},
    "required": ["text"],
    "$defs": {"tags": {"type": "array", "items": {"type": "string"}}},
}
NOTES = read_tools(
    [{"type": "function", "function": {"name": "note", "parameters": _NOTE}}, tool("f", a="integer"), tool("now")]
)
XML = CallStyle(
    head="<tool_call>\n<function=",
    middle=">\n<parameter=",
    joint="\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=",
    tail="\n</parameter>\n</function>\n</tool_call>",
    elements=Elements(
        equals=">\n",
        between="\n</parameter>\n<parameter=",
        empty_joint=">\n</function>\n</tool_call>\n<tool_call>\n<function=",
        empty_tail=">\n</function>\n</tool_call>",
    ),
    tools=NOTES,
)


@pytest.mark.parametrize(
    ("text", "content", "calls", "forced"),
    [
        (xml("f", a="12"), "", [("f", {"a": 12})], True),
        (xml("now"), "", [("now", {})], True),
        (f"{xml('f', a='1')}\n{xml('now')}", "", [("f", {"a": 1}), ("now", {})], True),
        (xml("note", text="1\n<b>"), "", [("note", {"text": "1\n<b>"})], True),
        (xml("note", text="", tags='["x"]', kind="b"), "", [("note", {"text": "", "tags": ["x"], "kind": "b"})], True),
        (xml("note", text="x", kind="c"), "", [("note", {"text": "x", "kind": "c"})], False),
        (xml("f", a="True"), "", [("f", {"a": True})], False),
        (f"Hi.\n{xml('f', a='x y')}", "Hi.", [("f", {"a": "x y"})], False),
        (xml("f", a="1").removesuffix("_call>"), "", [("f", {"a": 1})], True),
        (
            f"{xml('f', a='1')}\n<tool_call>\n<function=f>\n<para",
            "\n<tool_call>\n<function=f>\n<para",
            [("f", {"a": 1})],
            True,
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "", [("f", {"a": 1})], True),
        (xml("other"), xml("other"), [], False),
        ("<tool_call>\n<function=f>\nx</function>", "<tool_call>\n<function=f>\nx</function>", [], False),
    ],
)
def test_calls_in_xml(text: str, content: str, calls: list[Any], forced: bool) -> None:
    """Texts need no quotes, other arguments are JSON. Forced calls are JSON of their schema. Streams agree."""
    found = parse_calls(text, [each.name for each in NOTES], XML)
    assert (found[0], [(each.name, json.loads(each.arguments)) for each in found[1]]) == (content, calls)
    made = ", ".join(json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    assert accepts(ToolCalls(NOTES, XML), f"<tool_call>[{made}]</tool_call>") is forced
    assert not forced or ToolCalls(NOTES, XML).parse(f"<tool_call>[{made}]</tool_call>") == found[1]
    split = CallSplit([each.name for each in NOTES], XML)
    assert "".join(map(split.add, text)) + split.rest() == content
    assert [(each.name, json.loads(each.arguments)) for each in split.calls] == calls


PERSON = JSONSchema('{"type": "object", "properties": {"name": {"enum": ["f", "Ann"]}}, "required": ["name"]}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 12}}\n</tool_call>', (ToolCall("f", '{"a": 12}'),)),
        ('{"name": "f"}', {"name": "f"}),
        ('{"name": "Ann"}', {"name": "Ann"}),
        ("<tool_call>", None),
        ('{"name": "f", "arguments": {"a": 12}}', None),
        ('<tool_call>\n{"name": "f"}\n</tool_call>', None),
        ('{"name": "Ann"}<tool_call>', None),
    ],
)
def test_calls_or_text(text: str, expected: Any) -> None:
    output = CallsOrText(ToolCalls(TOOLS, HERMES), PERSON)
    assert accepts(output, text) is (expected is not None)
    if expected is not None:
        assert output.parse(text) == expected


@pytest.mark.parametrize(
    ("style", "output", "fits"),
    [
        (LLAMA, PERSON, False),
        (LLAMA, Choice(["yes", "no"]), True),
        (MISTRAL, PERSON, True),
        (MISTRAL, JSONSchema('{"type": "array"}'), False),
        (HERMES, Regex("<b>.*"), False),
    ],
)
def test_calls_and_text_begin_with_different_characters(style: CallStyle, output: OutputFormat, fits: bool) -> None:
    """Formats whose texts may begin as calls do are refused, because such texts would never be generated."""
    if fits:
        assert accepts(CallsOrText(ToolCalls(TOOLS, style), output), '[{"name": "now", "arguments": {}}]') is (
            style is MISTRAL
        )
        return
    with pytest.raises(InvalidGeneration, match="calls and answers both begin with"):
        CallsOrText(ToolCalls(TOOLS, style), output)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ({}, "tools={} is not allowed: a list of tools"),
        (["f"], r"tools\[0\]='f' is not supported"),
        ([{"type": "web_search"}], r"tools\[0\]=.*is not supported"),
        ([{"type": "function", "function": {}}], r"tools\[0\].function.name=None is not allowed"),
        ([tool("a b")], r"tools\[0\].function.name='a b' is not allowed"),
        ([tool("f"), tool("f")], "two tools with the name 'f'"),
        ([{"type": "function", "function": {"name": "f", "parameters": 3}}], r"parameters=3 is not allowed"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"a": {1}}}}], "cannot be written as JSON"),
        ([tool(f"f{index}") for index in range(1001)], "1001 tools, and the limit is 1000"),
    ],
)
def test_wrong_tools_are_refused(tools: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        read_tools(tools)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "integer"}, "7", 7),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "7", "7"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"type": ["string", "null"]}, "true", "true"),
        ({"type": ["integer", "string"]}, "7", 7),
        ({"type": ["integer", "string"]}, "seven", "seven"),
        ({"$ref": "#/$defs/name"}, "7", "7"),
        ({"anyOf": [{"$ref": "#/$defs/name"}, {"type": "null"}]}, "[1]", "[1]"),
        ({"allOf": [{"$ref": "#/$defs/name"}]}, "7", "7"),
        ({"$ref": "#/$defs/itself"}, "7", 7),
        ({"enum": ["7", 8]}, "7", "7"),
        ({"enum": ["7", 8]}, "8", 8),
        ({"type": "number"}, "NaN", None),
        ({}, "7", 7),
        ({}, "seven", "seven"),
        ({"type": "boolean"}, "True", True),
    ],
)
def test_arguments_without_quotes_have_the_type_of_their_schema(schema: Any, text: str, expected: Any) -> None:
    """References, `anyOf` and lists of types say whether a text is JSON."""
    defs = {"name": {"type": "string"}, "itself": {"$ref": "#/$defs/itself"}}
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": defs}
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    _, (call,) = parse_calls(xml("f", x=text), ["f"], replace(XML, tools=tools))
    assert json.loads(call.arguments) == {"x": expected}


_KEYS = (
    "name",
    "arguments",
    "parameters",
    "function",
    "properties",
    "required",
    "type",
    "anyOf",
    "allOf",
    "enum",
    "$ref",
)
_VALUES = st.recursive(
    st.sampled_from([None, True, 7, "f", "string", "{}", "#/properties"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.law
@given(value=_VALUES, style=st.sampled_from([HERMES, LLAMA]), is_tagged=st.booleans())
def test_json_is_calls_or_text(value: Any, style: CallStyle, is_tagged: bool) -> None:
    """Whatever JSON a model writes, the answer has calls, or it is text as it stands; a stream of it agrees."""
    text = f"<tool_call>{json.dumps(value)}</tool_call>" if is_tagged else json.dumps(value)
    content, calls = parse_calls(text, frozenset({"f"}), style)
    assert {each.name for each in calls} <= {"f"}
    assert all(isinstance(json.loads(each.arguments), dict) for each in calls)
    assert calls or content == text
    split = CallSplit(frozenset({"f"}), style)
    assert (split.add(text) + split.rest(), split.calls) == (content, calls)


@pytest.mark.law
@given(schema=_VALUES, parameters=st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=3))
def test_any_schema_leaves_arguments_readable(schema: Any, parameters: dict[str, Any]) -> None:
    """Keywords of a schema with values that JSON Schema does not have say nothing about arguments."""
    own = {"properties": {"x": schema}, **parameters}
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": own}}])
    _, (call,) = parse_calls(xml("f", x="7"), frozenset({"f"}), replace(XML, tools=tools))
    assert json.loads(call.arguments)["x"] in (7, "7")
    assert ToolCalls(tools, replace(XML, tools=tools)).grammar
