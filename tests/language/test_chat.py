"""Chat messages become turns with exactly their text, or are refused with their place."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import InvalidValue, PromptError
from promptcache.language import Prompt, Role, Schema, Text, Turn, check_schema, parse_prompt, resolve_prompt
from promptcache.testing.texts import texts

ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
BOXES = '<user>&lt;miami/> & {{ "{% x %}" }}'
USER = {"role": "user", "content": "Hi"}


def chats() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return chats of any roles in any order, whose contents are texts or lists of text parts."""
    parts = st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts()), min_size=1, max_size=3)
    message = st.fixed_dictionaries({"role": st.sampled_from(list(ROLES)), "content": texts() | parts})
    return st.lists(message, min_size=1, max_size=5)


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message as chat templates write it."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@given(chats())
def test_roles_and_texts_are_those_of_the_messages(chat: list[dict[str, Any]]) -> None:
    """A prompt and a schema of messages have their roles and exact texts, also as documents."""
    expected = [(ROLES[each["role"]], text_of(each)) for each in chat]
    prompt = Prompt.from_messages("s", chat)
    turns = [item for item in Schema.from_messages("s", chat).children if isinstance(item, Turn)]

    assert [(each.role, each.text) for each in prompt.messages] == expected
    assert [(each.role, each.text) for each in parse_prompt(prompt.to_xml()).messages] == expected
    assert [each.role for each in turns] == [role for role, _ in expected]
    assert [[part.text for part in each.children if isinstance(part, Text)] for each in turns] == [
        [text] for _, text in expected
    ]


def test_markup_in_messages_is_text() -> None:
    """Markup, entities and templates in a message have no effect."""
    chat = [{"role": "user", "content": BOXES}]
    schema = check_schema(Schema.from_messages("s", chat).module("miami", "Warm."))

    assert resolve_prompt(Prompt.from_messages("s", chat), schema).modules == ()
    assert resolve_prompt(Prompt.from_messages("s", chat).use("miami"), schema).messages[0].text == BOXES


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def test_messages_of_tools_are_in_prompts() -> None:
    """Calls have their arguments as an object, and results their ID; neither has a form in XML, or in a schema."""
    prompt = Prompt.from_messages("s", [USER, CALLS, {"role": "tool", "tool_call_id": "1", "content": "2"}])
    _, calls, result = prompt.messages
    function = {"name": "f", "arguments": {"a": 1}}
    assert json.loads(calls.tool_fields) == {"tool_calls": [{"id": "1", "type": "function", "function": function}]}
    assert (calls.text, result.text) == ("", "2")
    assert json.loads(result.tool_fields) == {"role": "tool", "tool_call_id": "1"}
    with pytest.raises(PromptError, match="a message of tools has no form in XML"):
        prompt.to_xml()
    for message, words in (
        (CALLS, "messages[0].tool_calls is not supported"),
        ({"role": "tool", "content": "2"}, "messages[0].role='tool' is not"),
        ({"role": "assistant", "content": "So.", "reasoning_content": "x"}, "reasoning_content is not supported"),
    ):
        with pytest.raises(InvalidValue, match=re.escape(words)):
            Schema.from_messages("s", [message])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({**USER, "tool_calls": [CALL]}, "messages[0].tool_calls is not allowed: only messages of the assistant"),
        ({**CALLS, "tool_calls": "f"}, "messages[0].tool_calls='f' is not allowed: a list of calls"),
        ({**CALLS, "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0]={'id': '1'} is not a call of a tool"),
        ({**CALLS, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "arguments is not JSON"),
        ({**CALLS, "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}, "JSON of an object is expected"),
        *(
            ({**CALLS, "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}, f"function.{words}")
            for name, arguments, words in (
                ("\ud83d", "{}", "name="),
                ("f", r'{"a": "\ud83d"}', "arguments="),
                ("f", '{"a": NaN}', "arguments is not JSON"),
                ("f", '{"a": ' + "[" * 300 + "]" * 300 + "}", "arguments has more than 50 lists"),
            )
        ),
        ({**USER, "reasoning_content": "x"}, "only messages of the assistant"),
        ({"role": "assistant", "content": "So.", "reasoning_content": 3}, "reasoning_content=3"),
        ({**CALLS, "tool_calls": [{**CALL, "id": 1}]}, "messages[0].tool_calls[0].id=1 is not allowed"),
        ({"role": "tool", "tool_call_id": 1, "content": "x"}, "messages[0].tool_call_id=1 is not allowed"),
        ({"role": "tool", "tool_call_id": "1"}, "messages[0].content is missing"),
        ({"role": "function", "content": "x"}, "messages[0].role='function' is not supported"),
    ],
)
def test_wrong_messages_of_tools_are_refused(message: Any, words: str) -> None:
    """The error names the place."""
    with pytest.raises(InvalidValue, match=re.escape(words)):
        Prompt.from_messages("s", [message])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, 'messages=None is not allowed: a list of messages, {"role": …, "content": …}, is expected'),
        ("Hello", "messages='Hello' is not allowed: a list of messages"),
        (USER, "messages={'content': 'Hi', 'role': 'user'} is not allowed: a list of messages"),
        ([], "messages is empty: a chat has at least one message"),
        ([USER, "Hi"], "messages[1]='Hi' is not a message: "),
        ([USER, {"content": "Hi"}], "messages[1] has no 'role'"),
        ([{"role": None, "content": "Hi"}], "messages[0].role=None is not allowed: roles are system, user, "),
        ([{"role": "usr", "content": "Hi"}], "messages[0].role='usr' is not allowed: did you mean 'user'?"),
        ([USER, {"role": "user"}], "messages[1].content is missing: "),
        ([{"role": "assistant", "content": "Hi", "function_call": {}}, USER, {"role": "x"}], "messages[2].role='x' is"),
        ([{"role": "user", "content": 5}], "messages[0].content=5 is not allowed: text without lone surrogates"),
        ([{"role": "user", "content": "a\ud800"}], "messages[0].content="),
        ([{"role": "user", "content": ["Hi"]}], "messages[0].content[0]='Hi' is not a part: "),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {}}]}],
            "messages[0].content[1].type='image_url' is not supported: only parts of type 'text' are",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text=None is not allowed: text "),
    ],
)
def test_what_is_no_turn_is_refused_with_its_place(messages: Any, message: str) -> None:
    """Lists and messages that turns cannot express are refused with the place and the value."""
    for made in (Prompt.from_messages, Schema.from_messages):
        with pytest.raises(InvalidValue) as found:
            made("s", messages)
        assert str(found.value).startswith(message)
