"""Definitions of tools are found in the text of a prompt."""

from __future__ import annotations

import pytest

from promptcache.language import Prompt, Schema, check_schema, resolve_prompt, tool_definitions

TEXTS: list[tuple[str, list[str]]] = [
    ("", []),
    (
        '{"type": "function", "function": {"name": "f"}} or\n{ "type" : "function", "function": {"name": "g"}}.',
        ["f", "g"],
    ),
    ('{"type": "function", "function": {}} {"type": "function", "function": {"name": "f"}}', ["f"]),
    ('{"type": "function", "function": {"name": "f"', []),
    ('{"type": "function", ' * 100_000, []),
]


@pytest.mark.parametrize(("text", "names"), TEXTS, ids=["none", "two", "no name", "cut", "deep"])
def test_definitions_in_a_text_are_found(text: str, names: list[str]) -> None:
    """Each object that is a tool is found, whatever is around it; JSON that is not complete ends the search."""
    schema = Schema("agent").module("a", f"Tools: {text}")
    selection = resolve_prompt(Prompt("agent").use("a"), check_schema(schema))

    assert [each["function"]["name"] for each in tool_definitions(selection)] == names
