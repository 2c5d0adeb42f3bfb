"""Arguments of calls: valid JSON, of the type of their schema."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.structured import CallSplit, CallStyle, ToolCalls, parse_calls, read_tools
from tests.structured.test_tools import HERMES, LLAMA, XML, xml


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
