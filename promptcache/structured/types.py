"""The output formats of Python types: models of pydantic, dataclasses, and all other types that pydantic reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, get_origin

from typing_extensions import TypeVar

from promptcache.diagnostics import InvalidGeneration, first_line, shown
from promptcache.structured.formats import JSONSchema, OutputFormat

Parsed = TypeVar("Parsed", default=Any)
"""The type of the value of an answer."""

OutputType: TypeAlias = type[Parsed] | OutputFormat | Mapping[str, Any] | None
"""What a caller may ask for as the format of an answer. Type checkers know the value of an answer of a type."""


def read_output(output: object) -> OutputFormat:
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
    if isinstance(output, type) or get_origin(output) is not None:
        return _of_type(output)
    raise InvalidGeneration(
        f"output={shown(output)} is not allowed: a type, a JSON schema as a dict, Choice([…]), Regex(…), JSONSchema(…) "
        "or Grammar(…) is expected"
    )


def _of_type(output: Any) -> OutputFormat:
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
