"""Output formats: what they accept, what they refuse, and the values of answers."""

import enum
import itertools
import json
import random
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from llguidance import LLTokenizer
from pydantic import BaseModel, SecretStr
from typing_extensions import TypedDict

from promptcache import Choice, Grammar, JSONSchema, Regex
from promptcache.answers.token_grammars import TokenGrammars
from promptcache.diagnostics import InvalidGeneration, InvalidOutput, QueueFull
from promptcache.structured import CompiledGrammar, GrammarCache, OutputFormat, check_format, read_output

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
END = 256
GRAMMARS = TokenGrammars([*(bytes([each]) for each in range(256)), b""], lambda text: [*text.encode()], {})
"""Grammars over bytes, with an end token behind them."""


class Person(BaseModel):
    name: str
    age: int


@dataclass
class Point:
    x: int
    y: int = 0


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Upload(BaseModel):
    """A model whose JSON schema has values of `format` that are annotations only."""

    file: Path
    key: SecretStr
    data: bytes


class Pair(TypedDict):
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
        (Person, '{"name":"Ann","age":3}', Person(name="Ann", age=3)),
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
        ({"type": "string", "format": "path"}, '"a/b"', "a/b"),
        ({"type": "integer", "format": "int32"}, "3", 3),
        ({"type": "string", "format": ["no text"]}, '""', ""),
        (Upload, '{"file": "/tmp", "key": "k", "data": "d"}', Upload(file="/tmp", key="k", data="d")),
        (
            {"type": "object", "properties": {"format": {"const": "path"}, "title": {"enum": [{"title": 1}]}}},
            '{"format": "path", "title": {"title": 1}}',
            {"format": "path", "title": {"title": 1}},
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
        (Person, '{"name":  "Ann", "age": 3}'),
        (Person, '{"name": "Ann"                    ,"age": 3}'),
        (Person, '{ "name": "Ann", "age": 3}'),
        (Person, '{"name":\n"Ann", "age": 3}'),
        (JSONSchema("true"), "[1,  2]"),
        ({"type": "object", "properties": {"a": {"type": "null"}, "title": {}}, "required": ["title"]}, '{"a": null}'),
        *(({"type": "string", "format": each}, '"x y"') for each in FORMATS),
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
    with pytest.raises(InvalidOutput, match=message):
        read_output(output).parse(text)


LARGE = (
    {"const": "a" * 200_000},
    {"const": "a" * 900_000},
    {"type": "string", "pattern": f"^{'ab' * 100_000}$"},
    {"type": "object", "properties": {f"p{each}": {"type": "integer"} for each in range(5000)}},
    Regex("a*b" * 40_000),
)
"""Formats that took hundreds of megabytes or many seconds."""


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (3, "output=3 is not allowed: a type, a JSON schema as a dict, Choice"),
        ("yes", "output='yes' is not allowed"),
        (["yes"], r"output=\['yes'\] is not allowed"),
        ({"not": {"type": "string"}}, 'cannot be used: Unimplemented keys: \\["not"\\]'),
        ({"type": "strin"}, "cannot be used: Invalid type: strin"),
        ({"$ref": "#"}, "no answer has it"),
        ({"type": "object", "properties": {}, "required": [[]]}, "cannot be used: "),
        ({"$ref": "file:///etc/passwd"}, "cannot be used: Resource"),
        ({"enum": [{1, 2}]}, "cannot be written as JSON"),
        (False, "output=False is not allowed"),
        (Regex("a("), "cannot be used: .*invalid regex"),
        (Regex("[0-9]+", also="[a-z]"), "no answer has it"),
        (Regex(r"a\b"), "lookarounds not supported"),
        (Grammar("start: other"), r'unknown name: "other"\n   1 \| start: other'),
        (Regex("a("), r'cannot be used: invalid regex "a\(" \(in regex\): regex parse error: unclosed group$'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf' have to exclude each other, .*; use 'anyOf'$"),
        ({"type": "string", "format": "date", "pattern": "x"}, "cannot be used: no answer has it$"),
        ({"enum": [f"value {each}" for each in range(100_000)]}, "the limit is 250000$"),
        *((each, "cannot be used: it is too large: fewer or shorter choices|the limit is 250000$") for each in LARGE),
        (object(), "is not allowed: a type"),
        (threading.Event, "has no JSON schema"),
    ],
)
def test_a_format_that_is_not_possible_is_refused_by_name(output: Any, message: str) -> None:
    """The error says what is wrong, before anything is computed, and quotes no grammar that the library wrote."""
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
    with pytest.raises(InvalidGeneration, match=message):
        make()


def deep(depth: int) -> str:
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


def test_answers_share_states_and_never_use_them_up() -> None:
    """A format whose answers have reached the limit of its states is compiled again for the next answer."""
    output = Regex("(.|\n)*a(.|\n){2000}b(.|\n)*c(.|\n){300}")
    matcher, texts = GRAMMARS.matcher(output, [END], None, is_open=False), random.Random(0).choices(b"abcd", k=20_000)
    with pytest.raises(InvalidGeneration, match="too large"):
        [(matcher.add(token_id), matcher.mask()) for token_id in texts]
    assert GRAMMARS.matcher(output, [END], None, is_open=False).mask().any()


def test_a_mask_tokenizes_little_of_a_text_that_has_to_come() -> None:
    """A long text in a format stops no other answer; the masks are those of its tokens as a whole."""
    lengths, text = list[int](), "".join(random.Random(0).choices("abcdef ", k=3000))
    pairs = {bytes(each): 256 + number for number, each in enumerate(itertools.product(b"abcdef ", repeat=2))}

    def tokenize(part: str) -> list[int]:
        lengths.append(len(part))
        return [
            pairs[part[at : at + 2].encode()] if part[at + 1 : at + 2] else ord(part[at])
            for at in range(0, len(part), 2)
        ]

    end = 256 + len(pairs)
    grammars = TokenGrammars([*(bytes([each]) for each in range(256)), *pairs, b""], tokenize, {})
    matcher, made = grammars.matcher(Choice([text]), [end], None, is_open=False), list[int]()
    while not matcher.mask()[end]:
        made.append(int(matcher.mask().argmax()))
        assert matcher.mask().sum() == 1
        assert matcher.add(made[-1])
    assert made == tokenize(text)
    assert max(lengths[:-1]) <= 256


def grammar(size: int, number: int) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f'start: "{number}{"a" * size}"'}]})


def test_kept_grammars_are_bounded_in_number_and_bytes() -> None:
    """Grammars that no answer uses are dropped: the oldest of many small ones, and of few large ones."""
    for size, most in ((10, 16), (50_000, 2)):
        cache = GrammarCache(LLTokenizer("byte"))
        made = [weakref.ref(cache.compiled(grammar(size, number))) for number in range(20)]
        assert [each() is not None for each in made] == [False] * (20 - most) + [True] * most


def test_grammars_of_answers_are_bounded_in_bytes() -> None:
    """Answers that wait or run hold their grammars; more than the limit are refused until some of them end."""
    cache = GrammarCache(LLTokenizer("byte"))
    made = list[CompiledGrammar]()
    with pytest.raises(QueueFull, match=r"the formats of other answers take \d+ bytes, and this one \d+"):
        made.extend(cache.compiled(grammar(50_000, number)) for number in range(40))
    assert len(made) > 10
    made.clear()
    assert not cache.compiled(grammar(50_000, 99)).fault
