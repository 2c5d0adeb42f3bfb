"""Documents of a retriever, and tools, become members of a collection."""

import json
from typing import Any

import pytest

from promptcache import Engine
from promptcache.diagnostics import InvalidValue, UnknownSchema
from promptcache.model import function_schema
from promptcache.retrieval import Documents, document_name, tool_member
from tests.engine.asking import engine_of

SCHEMA = """<schema name="kb"><system>Notes:
<collection name="docs" max="3"><module name="gate">The gate is blue.</module></collection></system>{}</schema>"""
OPEN = SCHEMA.format("<user>Question:</user>")


def engine(schema: str = SCHEMA.format("")) -> Engine:
    return engine_of(schema=schema)


def test_a_document_is_encoded_once() -> None:
    """A document becomes a member when it comes first; a declared one keeps its name, and a second use encodes nothing."""
    made = engine()
    documents = Documents(made, "kb", "/docs/", max_new_tokens=1)
    texts = ["The lamp is new.", "The gate is blue.", "The lamp is new."]

    first = documents.answer(texts, "Well?")
    again = documents.answer(texts, "Really?")

    assert [*made.members("kb", "docs")] == ["gate", document_name(texts[0])]
    assert documents.prompt(texts, "Well?").to_xml().count(document_name(texts[0])) == 1
    assert first.usage.num_encoded_tokens > 0 == again.usage.num_encoded_tokens
    assert "".join(documents.stream(texts, "Well?")) == first.text


def test_order_and_question_are_those_given() -> None:
    """Documents stand in the order of the retriever; the question continues an open turn, or is a turn."""
    for schema, turn in ((OPEN, "Question:\nWho?"), (SCHEMA.format(""), "Who?")):
        made = engine(schema)
        prompt = Documents(made, "kb", "docs").prompt(["B is second.", "The gate is blue."], "Who?")
        text = made.render(prompt)
        assert "Notes:\nB is second.\nThe gate is blue." in text
        assert turn in text


def test_a_removed_or_replaced_document_comes_back() -> None:
    """A member that somebody removed is added again; one with another text is not taken for the document."""
    made = engine()
    documents = Documents(made, "kb", "docs")
    (name,) = documents.add(["The lamp is new."])
    made.remove_member("kb", "docs", name)
    assert documents.add(["The lamp is new."]) == [name]
    assert name in made.members("kb", "docs")

    made.add_member("kb", "docs", "gate", "The gate is red now.")
    assert documents.add(["The gate is blue."]) == ["gate"]
    assert made.members("kb", "docs")["gate"] == "The gate is blue."


def test_wrong_documents_are_named() -> None:
    """A schema or collection that there is not, and an empty document, are errors."""
    with pytest.raises(UnknownSchema):
        Documents(engine(), "bk", "docs")
    with pytest.raises(InvalidValue, match="docs"):
        Documents(engine(), "kb", "dcos")
    with pytest.raises(InvalidValue, match="empty"):
        Documents(engine(), "kb", "docs").add([" "])


def weather(city: str, days: int = 1) -> str:
    """Return the weather of a city.

    Args:
        city: Its name, such as "Köln".
        days: How many days.
    """
    return f"{city} {days}"


def test_tools_are_members_as_templates_write_them() -> None:
    """A function and its schema give the same member: the JSON that `tojson` of chat templates writes."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    (written,), _ = render_jinja_template([[]], tools=[weather], chat_template=template)

    assert tool_member(weather) == ("weather", written)
    assert tool_member(function_schema(weather)) == ("weather", written)
    assert json.loads(written)["function"]["parameters"]["required"] == ["city"]


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (lambda city: city, "cannot be a tool"),
        ({"name": "weather"}, "has no name"),
        ({"type": "function", "function": {"name": 3}}, "has no name"),
        ({"type": "function", "function": {"name": "a", "parameters": {1, 2}}}, "is not JSON"),
        ("weather", "has no name"),
    ],
)
def test_wrong_tools_are_named(tool: Any, said: str) -> None:
    """What is no tool is refused with the form that is expected."""
    with pytest.raises(InvalidValue, match=said):
        tool_member(tool)
