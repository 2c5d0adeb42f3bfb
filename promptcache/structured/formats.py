"""Output formats: what an answer must look like, and the value that its text stands for.

A format is a grammar of llguidance, which reads JSON schemas, regular expressions and grammars in the notation of Lark.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, get_origin

from llguidance import LLTokenizer, regex_to_lark
from typing_extensions import TypeVar

from promptcache.diagnostics import TEXT, InvalidGeneration, InvalidOutput, first_line, shown
from promptcache.structured.grammars import CompiledGrammar, GrammarCache

_WHITE_SPACE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""White space in JSON, as options of llguidance: one space or none behind `:` and `,`. Small models never end more."""

_MAX_CHARACTERS = 250_000
"""Limit of the text of a grammar."""

_ASCII = "dws"
"""Classes of characters, such as `\\d`, that are ASCII only, as in patterns of parameters."""

_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
"""Values of `format` in JSON schemas that answers have. Others are annotations, as JSON Schema says."""

_ANNOTATIONS = ("$comment", "default", "description", "examples", "title")
_VALUES = ("const", "enum")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
"""Keywords of JSON Schema that allow the same answers without them; that have values; that have schemas by name."""

_REASONS = (
    (re.compile("NoExtension|Regex is empty"), "no answer has it"),
    (
        re.compile("coerce_one_of"),
        "the schemas of 'oneOf' have to exclude each other, such as by a 'const'; use 'anyOf'",
    ),
    (
        re.compile("too (big|large|many|complex)|Current row has|panic", re.IGNORECASE),
        "it is too large: fewer or shorter choices, properties, texts and repetitions are needed",
    ),
)
"""Our words for messages of llguidance that are about its own options, or about what a grammar became."""

_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")
_MAX_REASON = 300


class OutputFormat(ABC):
    """Base class of output formats. Formats that are equal have the same grammar."""

    __slots__ = ()

    @property
    @abstractmethod
    def grammar(self) -> Mapping[str, Any]:
        """The grammar, in the JSON form of llguidance."""

    @property
    def parts(self) -> Sequence[Mapping[str, Any]]:
        """Further grammars, each with a `name`, by which `grammar` refers to it."""
        return ()

    @property
    def inner(self) -> Iterable[tuple[str, OutputFormat]]:
        """The formats that it is made of, with their names in errors."""
        return ()

    def accepts(self, text: str) -> bool:
        """Whether a text has the format. JSON has one space or none behind `:` and `,`, as in answers.

        Raises:
            InvalidGeneration: llguidance does not support the format.
            InvalidOutput: `text` is not text.
        """
        TEXT.check("text", text, InvalidOutput)
        matcher = check_format(self).matcher()
        return bool(matcher.consume_tokens([*text.encode()]) and matcher.is_accepting())

    def parse(self, text: str) -> Any:
        """Return the value of an answer of this format.

        Raises:
            InvalidOutput: The text does not have the format.
        """
        TEXT.check("text", text, InvalidOutput)
        try:
            return self._value(text)
        except ValueError as error:
            raise InvalidOutput(
                f"the answer does not have the format that was asked for: {first_line(error)}"
            ) from error

    @abstractmethod
    def _value(self, text: str) -> Any:
        """Return the value of a text; a ValueError if it has none."""


@dataclass(frozen=True, slots=True, init=False)
class Choice(OutputFormat):
    """One of several texts.

    Attributes:
        values: The texts, not empty.
    """

    values: tuple[str, ...]

    def __init__(self, values: Iterable[str]) -> None:
        """Create a format.

        Raises:
            InvalidGeneration: There are no texts, or one of them is empty or not text.
        """
        found = () if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
        if not found or not all(isinstance(each, str) and each and TEXT.takes(each) for each in found):
            raise InvalidGeneration(
                f"Choice({shown(values)}) is not allowed: it takes a list of texts, none of them empty"
            )
        object.__setattr__(self, "values", found)

    @property
    def grammar(self) -> Mapping[str, Any]:
        """A grammar with one alternative for each text."""
        return {"lark_grammar": f"start: {' | '.join(map(json.dumps, self.values))}"}

    def _value(self, text: str) -> str:
        if text not in self.values:
            raise ValueError(f"{shown(text)} is not one of {shown(self.values)}")
        return text


@dataclass(frozen=True, slots=True)
class Regex(OutputFormat):
    """Text that a regular expression matches as a whole.

    Attributes:
        pattern: In the syntax of RE2, without look-around and backreferences.
        also: Another pattern that matches the text as a whole; None if there is none.
        load: Makes the value of a text; by default the text itself.
    """

    pattern: str
    also: str | None = None
    load: Callable[[str], Any] = field(default=str, compare=False)

    def __post_init__(self) -> None:
        _check_text(self, self.pattern)
        if self.also is not None:
            _check_text(self, self.also)

    @property
    def grammar(self) -> Mapping[str, Any]:
        """The patterns as a grammar."""
        patterns = (self.pattern,) if self.also is None else (self.pattern, self.also)
        matched = " & ".join(f"/{regex_to_lark(each, _ASCII)}/" for each in patterns)
        return {"lark_grammar": f"start: TEXT\nTEXT: {matched}"}

    def _value(self, text: str) -> Any:
        if not self.accepts(text):
            also = "" if self.also is None else f" and {self.also}"
            raise ValueError(f"{shown(text)} does not match {self.pattern}{also}")
        return self.load(text)


@dataclass(frozen=True, slots=True)
class Grammar(OutputFormat):
    """Text of a context-free grammar.

    Attributes:
        lark: The grammar, in llguidance's variant of the notation of Lark; its rule `start` is the answer.
    """

    lark: str

    def __post_init__(self) -> None:
        _check_text(self, self.lark)

    @property
    def grammar(self) -> Mapping[str, Any]:
        """The grammar itself."""
        return {"lark_grammar": self.lark}

    def _value(self, text: str) -> str:
        if not self.accepts(text):
            raise ValueError(f"{shown(text)} is not text of the grammar")
        return text


@dataclass(frozen=True, slots=True)
class JSONSchema(OutputFormat):
    """JSON of a schema.

    Attributes:
        schema: The JSON schema, as JSON text.
        load: Makes the value of a text; by default `json.loads`.
    """

    schema: str
    load: Callable[[str], Any] = field(default=json.loads, compare=False)

    def __post_init__(self) -> None:
        try:
            read = json.loads(self.schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidGeneration(f"the JSON schema of the answer is not JSON: {error}") from error
        if not isinstance(read, dict | bool):
            raise InvalidGeneration(f"a JSON schema is an object, and this is {shown(read)}")

    @property
    def grammar(self) -> Mapping[str, Any]:
        """The schema without annotations, with bounded white space.

        An object that lists its properties has no others, unless the schema says so: small models never end them.
        """
        read = json.loads(self.schema)
        is_closed = '"allOf"' not in self.schema  # its parts add properties to each other
        schema = _read({} if read is True else read, is_closed=is_closed)
        if isinstance(schema, dict):
            schema["x-guidance"] = _WHITE_SPACE
        return {"json_schema": schema}

    def _value(self, text: str) -> Any:
        return self.load(text)


Parsed = TypeVar("Parsed", default=Any)
"""The type of the value of an answer."""

OutputType: TypeAlias = type[Parsed] | OutputFormat | Mapping[str, Any] | None
"""What a caller may ask for as the format of an answer. Type checkers know the value of an answer of a type."""


def read_output(output: Any) -> OutputFormat:
    """Return the format that a caller asks for.

    Args:
        output: An `OutputFormat`; a JSON schema as a mapping; or a type: a model of pydantic, a dataclass, a `Literal`,
            `list[int]`, ….

    Raises:
        InvalidGeneration: It is none of these, or pydantic has no JSON schema for the type, or is not installed.
    """
    if isinstance(output, OutputFormat):
        return output
    if isinstance(output, Mapping):
        try:
            return JSONSchema(json.dumps(dict(output)))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidGeneration(f"the JSON schema of the answer cannot be written as JSON: {error}") from error
    if not isinstance(output, type) and get_origin(output) is None:
        raise InvalidGeneration(
            f"output={shown(output)} is not allowed: a type, a JSON schema as a dict, Choice([…]), Regex(…), "
            "JSONSchema(…) or Grammar(…) is expected"
        )
    try:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError
    except ImportError as error:
        raise InvalidGeneration(
            f"output={shown(output)} needs pydantic, which is not installed: pip install pydantic, or give a JSON "
            "schema as a dict"
        ) from error
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(output)
        schema = adapter.json_schema()
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        raise InvalidGeneration(f"output={shown(output)} has no JSON schema: {first_line(error)}") from error
    return JSONSchema(json.dumps(schema), load=adapter.validate_json)


def check_format(output: OutputFormat) -> CompiledGrammar:
    """Return a format as a grammar over the bytes of a text. Takes no tokenizer.

    Raises:
        InvalidGeneration: It is not valid, has a keyword that is not supported, is too large, or no text has it; says
            which.
    """
    compiled = _bytes().compiled(grammar_text(output))
    if fault := compiled.fault:
        raise refused_format(fault, output)
    return compiled


def grammar_text(output: OutputFormat, *outer: Mapping[str, Any]) -> str:
    """Return the grammar of a format for llguidance, behind outer ones that name it as `@body`.

    Raises:
        InvalidGeneration: It is too large, or nested too deeply.
    """
    try:
        text = json.dumps({"grammars": [*outer, {"name": "body", **output.grammar}, *output.parts]})
    except RecursionError as error:
        raise refused_format("it is nested too deeply") from error
    if len(text) > _MAX_CHARACTERS:
        raise refused_format(f"it has {len(text)} characters, and the limit is {_MAX_CHARACTERS}")
    return text


def literal(text: str, controls: Mapping[str, int]) -> str:
    """Return a text in the notation of Lark.

    Args:
        controls: Written forms of control tokens, with their IDs. They are these tokens, and never text.
    """
    if not controls or not text:
        return json.dumps(text)
    forms = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
    pieces = filter(None, re.split(f"({forms})", text))
    return " ".join(f"<[{controls[each]}]>" if each in controls else json.dumps(each) for each in pieces)


def refused_format(
    fault: str, output: OutputFormat | None = None, name: str = "the format of the answer"
) -> InvalidGeneration:
    """Return the error for a format that llguidance refuses.

    Args:
        fault: The message of llguidance.
        output: The format, of which the inner one is named that is the reason; None if its start was not refused.
        name: What the format is, for the error.
    """
    for inner_name, inner in () if output is None else output.inner:
        if own := _bytes().compiled(grammar_text(inner)).fault:
            return refused_format(own, inner, inner_name)
    return InvalidGeneration(f"{name} cannot be used: {_reason(fault, is_own=isinstance(output, Grammar))}")


def _reason(fault: str, *, is_own: bool) -> str:
    """Return a message of llguidance in words for the author of a format.

    Args:
        fault: The message.
        is_own: Whether the author wrote the grammar, so that its places and lines say something.
    """
    for sign, words in _REASONS:
        if sign.search(fault):
            return words
    reason = fault.removesuffix("<non-verbose/>").strip()
    if is_own:
        return reason
    first, *others = _PLACE.sub("", reason).splitlines() or [""]
    reason = " ".join([first, *(each.removeprefix("error: ") for each in others if each.startswith("error:"))])
    return reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON // 2]}…{reason[-_MAX_REASON // 2 :]}"


@cache
def _bytes() -> GrammarCache:
    """Return the grammars over a tokenizer whose tokens are bytes, by their values."""
    return GrammarCache(LLTokenizer("byte"))


def _check_text(output: OutputFormat, text: object) -> None:
    if not isinstance(text, str) or not TEXT.takes(text):
        raise InvalidGeneration(f"{type(output).__name__}({shown(text)}) is not allowed: it takes text")


def _read(schema: Any, *, is_closed: bool, is_named: bool = False) -> Any:
    """Return a JSON schema without annotations.

    Args:
        schema: The schema, or a part of it.
        is_closed: Whether objects that list their properties have no others.
        is_named: Whether the keys of `schema` are names, and no keywords.
    """
    if isinstance(schema, list):
        return [_read(each, is_closed=is_closed) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if is_named:
        return {name: _read(each, is_closed=is_closed) for name, each in schema.items()}
    made = {
        name: value if name in _VALUES else _read(value, is_closed=is_closed, is_named=name in _NAMED)
        for name, value in schema.items()
        if name not in _ANNOTATIONS and (name != "format" or value in _FORMATS)
    }
    match made:
        case {"type": "object", "properties": dict(properties)} if is_closed:
            required = made.get("required", [])
            if isinstance(required, list) and set(map(str, required)) <= set(properties):
                made.setdefault("additionalProperties", False)
    return made
