"""Tools: definitions, calls in texts of answers, and forced calls."""

from __future__ import annotations

import json
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
    Tool,
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
    """Return the definition of a tool whose arguments have these types."""
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
    """Without parallel calls there is one."""
    two = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"x": true}}]'
    assert not accepts(ToolCalls(TOOLS, MISTRAL, several=False), two)
    with pytest.raises(InvalidOutput, match="is no call of a tool"):
        ToolCalls(TOOLS, MISTRAL).parse("Hello")


def xml(name: str, **arguments: str) -> str:
    """Return a call as Qwen3-Coder writes it."""
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
    """An answer is calls, or text of the format, and nothing else."""
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
    """The error names the place."""
    with pytest.raises(InvalidValue, match=message):
        read_tools(tools)


def test_tools_keep_their_definition() -> None:
    """Templates get what the caller gave."""
    assert [each.definition for each in TOOLS][:1] == [tool("f", a="integer")]
    assert isinstance(TOOLS[0], Tool)
