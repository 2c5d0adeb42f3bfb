"""The arguments of calls as valid JSON, and the values that texts stand for under a JSON schema."""

from __future__ import annotations

import ast
import json
import math
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from promptcache.diagnostics import SURROGATE

_T = TypeVar("_T")

_WORDS = {"True": True, "False": False, "None": None}  # templates write values as Python does
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def read_json(text: str) -> Any:
    """Return the value of JSON as models write it.

    What JSON does not have becomes what it has: NaN, infinities and numbers that are too large are null, and a lone
    surrogate is U+FFFD. A text may have control characters.

    Raises:
        ValueError: The text is something else.
        RecursionError: It is nested too deeply.
    """
    return valid_json(_DECODER.decode(text))


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """Return the value of the JSON that begins at `start`, behind white space, and where it ends; see `read_json`."""
    value, stop = _DECODER.raw_decode(text, len(text) - len(text[start:].lstrip()))
    return valid_json(value), stop


def valid_json(value: Any) -> Any:
    """Return a value without what JSON in UTF-8 does not have."""
    match value:
        case str():
            return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [valid_json(each) for each in value]
        case dict():
            return {valid_json(name): valid_json(each) for name, each in value.items()}
    return value


_DECODER = json.JSONDecoder(strict=False)


def typed_value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the value of an argument that is written without quotes: JSON or a text, as the schema has it.

    Args:
        text: As the model wrote it.
        schema: The JSON schema of the argument.
        root: The schema with its definitions.

    Returns:
        The value in JSON, if it is no text and the schema takes it. Else the text, if the schema takes it. Else the
        value in JSON, or the text.
    """
    value = literal_value(text)
    if not isinstance(value, str) and _takes(schema, value, root):
        return value
    return text if _takes(schema, text, root) else value


def literal_value(text: str, *, is_code: bool = False) -> Any:
    """Return the value of a text that is JSON; else the text.

    Args:
        is_code: Whether the text may be a literal of Python.
    """
    if text in _WORDS:
        return _WORDS[text]
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        if not is_code:
            return text
    try:
        return read_json(json.dumps(ast.literal_eval(text)))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def keyword(schema: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    """Return the value of a keyword of a JSON schema; an empty one if it is missing or of another type."""
    value = schema.get(name)
    return value if isinstance(value, kind) else kind()


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return a schema in place of a reference to it; {} for one that is not found, or refers to itself."""
    for _ in range(len(root) + 16):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        found: Any = root
        for name in schema["$ref"].removeprefix("#").removeprefix("/").split("/"):
            key = name.replace("~1", "/").replace("~0", "~")
            found = found.get(key, {}) if isinstance(found, Mapping) and key else found
        schema = found
    return {}


def alternatives(schema: Any, root: Mapping[str, Any], depth: int = 8) -> Iterator[Any]:
    """Yield the schemas of which a value has one. They have no reference and no `anyOf` at the top, and one type."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        yield {}
        return
    name = next((each for each in ("allOf", "anyOf", "oneOf") if keyword(schema, each, list)), None)
    if name is not None and depth:
        rest = {key: each for key, each in schema.items() if key != name}
        parts = [each for each in (resolved(each, root) for each in schema[name]) if isinstance(each, Mapping)]
        for each in [dict(ChainMap(*map(dict, parts)))] if name == "allOf" else parts or [{}]:
            yield from alternatives({**rest, **each}, root, depth - 1)
    elif isinstance(schema.get("type"), list):
        for each in schema["type"]:
            yield {**schema, "type": each}
    else:
        yield schema


def _takes(schema: Any, value: Any, root: Mapping[str, Any]) -> bool:
    """Whether a value has the type or is one of the choices of a schema; other keywords are not read."""
    for each in alternatives(schema, root):
        choices = [each["const"]] if "const" in each else each.get("enum")
        kinds = _KINDS.get(str(each.get("type")))
        if isinstance(choices, list):
            is_taken = any(type(choice) is type(value) and choice == value for choice in choices)
        else:
            is_taken = kinds is None or (isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds))
        if is_taken:
            return True
    return False
