"""Output formats: what they accept, what they refuse, and the values of answers."""

from __future__ import annotations

import enum
import json
import threading
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from promptcache import Choice, Grammar, JSONSchema, Regex
from promptcache.diagnostics import InvalidGeneration, InvalidOutput
from promptcache.runtime.token_grammars import TokenGrammars
from promptcache.structured import OutputFormat, check_format, read_output

END = 256
GRAMMARS = TokenGrammars([*(bytes([each]) for each in range(256)), b""], lambda text: [*text.encode()], {})
"""Grammars over bytes, with an end token behind them."""


class Person(BaseModel):
    """A model of pydantic."""

    name: str
    age: int


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int = 0


class Colour(enum.StrEnum):
    """An enumeration."""

    RED = "red"
    BLUE = "blue"


class Pair(TypedDict):
    """A dictionary with known keys."""

    left: int


def accepts(output: OutputFormat, text: str, tags: tuple[str, str] | None = None, *, is_open: bool = False) -> bool:
    """Whether each byte of a text may come next, and then an end token."""
    matcher = GRAMMARS.matcher(output, [END], tags, is_open=is_open)
    for token_id in [*text.encode(), END]:
        if not matcher.mask()[token_id]:
            return False
        assert matcher.add(token_id)
    return True


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (Choice(["red", "dark red"]), "dark red", "dark red"),
        (Choice(['"', "\\", "\n"]), "\\", "\\"),
        (Regex("[A-Z]{3}-[0-9]+"), "ABC-12", "ABC-12"),
        (Regex("[+-]?[0-9]+", also="..", load=int), "+7", 7),
        (Grammar('start: "x" start | "y"'), "xxy", "xxy"),
        (JSONSchema('{"type": "integer"}'), "12", 12),
        ({"type": "array", "items": {"type": "boolean"}}, "[true, false]", [True, False]),
        (Person, '{"name": "Ann", "age": 3}', Person(name="Ann", age=3)),
        (Person, '{\n  "name": "Ann",\n  "age": 3\n}', Person(name="Ann", age=3)),
        (Point, '{"x": 1}', Point(1)),
        (Pair, '{"left": 1}', {"left": 1}),
        (list[int], "[1, 2]", [1, 2]),
        ({"type": "object", "properties": {}, "additionalProperties": True}, '{"b": 1}', {"b": 1}),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, '{"b": 1}', {"b": 1}),
        (
            {"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["b"]}]},
            '{"a": 1, "b": 1}',
            {"a": 1, "b": 1},
        ),
        (Literal["yes", "no"], '"no"', "no"),
        (Colour, '"red"', Colour.RED),
        (int | None, "null", None),
    ],
)
def test_an_answer_of_the_format_has_its_value(output: Any, text: str, value: object) -> None:
    """The grammar takes the text, and the format reads its value."""
    found = read_output(output)
    assert accepts(found, text)
    assert found.accepts(text)
    assert found.parse(text) == value


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (Choice(["red"]), "redd"),
        (Choice(["red"]), "re"),
        (Regex("a+"), "ab"),
        (Regex("[+-]?[0-9]+", also=".."), "7"),
        (Regex("[+-]?[0-9]+", also=".."), "ab"),
        (Grammar('start: "x" start | "y"'), "xx"),
        (Person, '{"name": "Ann"}'),
        (Person, '{"name": "Ann", "age": 3, "city": "Rome"}'),
        (Person, '{"name":' + " " * 50 + '"Ann", "age": 3}'),
        (Point, "{}"),
        ({"type": "integer"}, " 1 x"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"a": null, "b": 1}'),
    ],
)
def test_another_text_is_refused(output: Any, text: str) -> None:
    """The grammar refuses a text without the format, properties that the type lacks, and endless white space."""
    found = read_output(output)
    assert not accepts(found, text)
    assert not found.accepts(text)


@pytest.mark.parametrize(
    ("output", "text", "message"),
    [
        (Choice(["red"]), "re", "'re' is not one of"),
        (Regex("a+"), "ab", r"'ab' does not match a\+"),
        (Regex("[0-9]+", also="[1-5]"), "7", r"'7' does not match \[0-9\]\+ and \[1-5\]"),
        (Regex("[0-9]+", load=int), "9" * 5000, "Exceeds the limit"),
        (Grammar('start: "x" start | "y"'), "xx", "'xx' is not text of the grammar"),
        (Person, '{"name": "Ann"}', "1 validation error for Person"),
    ],
)
def test_a_text_without_the_format_has_no_value(output: Any, text: str, message: str) -> None:
    """`parse` refuses it, with the reason."""
    with pytest.raises(InvalidOutput, match=message):
        read_output(output).parse(text)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (3, "output=3 is not allowed: a type, a JSON schema as a dict, Choice"),
        ("yes", "output='yes' is not allowed"),
        (["yes"], r"output=\['yes'\] is not allowed"),
        ({"not": {"type": "string"}}, 'cannot be used: Unimplemented keys: \\["not"\\]'),
        ({"type": "strin"}, "cannot be used: Invalid type: strin"),
        ({"$ref": "#"}, "no answer has it"),
        ({"$ref": "file:///etc/passwd"}, "cannot be used: Resource"),
        ({"enum": [{1, 2}]}, "cannot be written as JSON"),
        (False, "output=False is not allowed"),
        (Regex("a("), "cannot be used: .*invalid regex"),
        (Regex("[0-9]+", also="[a-z]"), "no answer has it"),
        (Regex(r"a\b"), "lookarounds not supported"),
        (Grammar("start: other"), "unknown name"),
        ({"enum": [f"value {each}" for each in range(100_000)]}, "the limit is 1000000|too big"),
        (object(), "is not allowed: a type"),
        (threading.Event, "has no JSON schema"),
    ],
)
def test_a_format_that_is_not_possible_is_refused_by_name(output: Any, message: str) -> None:
    """The error says what is wrong, before anything is computed."""
    with pytest.raises(InvalidGeneration, match=message):
        GRAMMARS.matcher(read_output(output), [END], None, is_open=False)
    with pytest.raises(InvalidGeneration, match=message):
        check_format(read_output(output))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choice([]), "none of them empty"),
        (lambda: Choice("red"), "takes a list of texts"),
        (lambda: Choice(["a", ""]), "none of them empty"),
        (lambda: Choice([1]), "takes a list of texts"),  # type: ignore[list-item]
        (lambda: Regex(1), "it takes text"),  # type: ignore[arg-type]
        (lambda: Regex("a", also=1), "it takes text"),  # type: ignore[arg-type]
        (lambda: Grammar("\ud800"), "it takes text"),
        (lambda: JSONSchema("{"), "is not JSON"),
        (lambda: JSONSchema("[" * 100_000), "is not JSON"),
        (lambda: JSONSchema("3"), "a JSON schema is an object"),
    ],
)
def test_wrong_arguments_of_formats_are_refused(make: Any, message: str) -> None:
    """Formats check their arguments when they are made."""
    with pytest.raises(InvalidGeneration, match=message):
        make()


def deep(depth: int) -> str:
    """Return a JSON schema of nested arrays."""
    return '{"type": "array", "items":' * depth + "{}" + "}" * depth


@pytest.mark.parametrize(
    "output",
    [
        Regex("((a{1,1000}){1,1000}){1,1000}"),
        Regex("(.|\n)*a(.|\n){500}"),
        Regex("(a|aa)*(.{0,300}b){10}c"),
        read_output({"type": "string", "minLength": 1_000_000}),
        read_output({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
        JSONSchema(deep(100)),
        JSONSchema(deep(900)),
        JSONSchema(
            json.dumps(
                {
                    "allOf": [
                        {"anyOf": [{"properties": {f"p{i}{j}": {"type": "null"}}} for j in range(9)]} for i in range(9)
                    ]
                }
            )
        ),
    ],
    ids=lambda output: str(output)[:40],
)
def test_hostile_formats_end_or_are_refused(output: OutputFormat) -> None:
    """Formats that would need endless memory or time are refused by name, or give their first tokens."""
    try:
        matcher = GRAMMARS.matcher(output, [END], None, is_open=False)
        for _ in range(50):
            allowed = matcher.mask().nonzero()[0]
            assert matcher.add(int(allowed[-1]))
    except InvalidGeneration as error:
        assert "the format of the answer" in str(error)  # noqa: PT017 - both ends are right


TAGS = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("yes", False, True),
        ("<think>\nno { maybe\n</think>\n\nyes", False, True),
        ("<think>yes", False, False),
        ("hm\n</think>\n\nyes", True, True),
        ("yes", True, False),
        ("hm</think>no", True, False),
    ],
)
def test_reasoning_before_the_answer_is_free(text: str, is_open: bool, expected: bool) -> None:
    """Reasoning between its tags has any form; the answer behind it has its own."""
    assert accepts(Choice(["yes"]), text, TAGS, is_open=is_open) is expected


def test_a_format_needs_an_end_token() -> None:
    """Without an end token an answer of a format could not end."""
    with pytest.raises(InvalidGeneration, match="needs an end token"):
        GRAMMARS.matcher(Choice(["a"]), [], None, is_open=False)


def test_an_end_token_is_no_text() -> None:
    """A token that ends answers is allowed where the answer is complete, and nowhere else."""
    matcher = GRAMMARS.matcher(Regex("ab?b"), [ord("b")], None, is_open=False)
    assert matcher.add(ord("a"))
    with pytest.raises(InvalidGeneration, match="allows no further token"):
        matcher.mask()


def test_checking_needs_no_tokenizer() -> None:
    """`check_format` refuses what a matcher refuses."""
    check_format(Choice(["a"]))
    strin = read_output({"type": "strin"})
    for check in (check_format, lambda output: output.accepts("a")):
        with pytest.raises(InvalidGeneration, match="Invalid type"):
            check(strin)
