"""Tools: their definitions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from promptcache.diagnostics import InvalidValue, instance, shown
from promptcache.structured.formats import JSONSchema

MAX_TOOLS = 1000
"""Limit of the tools of one request."""

_TOOLS = instance('a list of tools, {"type": "function", "function": {"name": …}},', list, tuple)
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


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
