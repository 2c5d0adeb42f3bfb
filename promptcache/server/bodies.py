"""The bodies of requests: their content type, their JSON or XML, and their fields.

All endpoints read their bodies here, so that a fault has one answer everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from promptcache.diagnostics import TEXT, is_text, shown
from promptcache.server.errors import ApiError

_JSON = ("application/json",)
_XML = ("application/xml", "text/xml")
_MAX_DIGITS = 4300  # as in Python

_Body = TypeVar("_Body", bound=BaseModel)


async def read_body(request: Request, kind: type[_Body], *, document: str | None = None) -> _Body:
    """Return the body of a request; arguments and errors are those of `read_data` and `checked_body`."""
    return checked_body(kind, await read_data(request, document=document))


async def read_data(request: Request, *, document: str | None = None) -> dict[str, Any]:
    """Return the fields of a body.

    Args:
        document: The field that a body in XML stands for; None refuses XML.

    Raises:
        ApiError: The body is not a JSON object, its content type is another one, or a text in it has a lone surrogate.
    """
    found = _media_type(request, *_JSON, *(_XML if document else ()))
    if document and found in _XML:
        return {document: await _text(request)}
    try:
        data = json.loads(await request.body(), parse_constant=_not_json, parse_float=_float, parse_int=_int)
        place = _place_without_text(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "invalid_json", "the body is not a JSON object")
    if place is not None:
        place = place.removeprefix(".")
        message = f"{place or 'the body'} is not allowed: {TEXT.words} is expected"
        raise ApiError(400, "invalid_value", message, param=place or None)
    return data


def _not_json(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _float(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"the number {shown(digits)} is too large")
    return number


def _int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has more than {_MAX_DIGITS} digits")
    return int(digits)


async def read_document(request: Request) -> str:
    """Return the text of a body in XML.

    Raises:
        ApiError: It is not XML in UTF-8.
    """
    _media_type(request, *_XML)
    return await _text(request)


def checked_body(kind: type[_Body], data: dict[str, Any]) -> _Body:
    """Return a body with these fields.

    Raises:
        ApiError: A field is missing, not known or not valid; names its place.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _refused(error.errors(), data) from None


def _media_type(request: Request, *expected: str) -> str:
    """Return the content type of a request, without its parameters."""
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in expected:
        raise ApiError(415, "unsupported_media_type", f"the body is expected as {' or '.join(expected)}")
    return found


async def _text(request: Request) -> str:
    try:
        return (await request.body()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiError(400, "invalid_encoding", f"the document is not UTF-8: {error}") from None


def _place_without_text(value: Any) -> str | None:
    """Return the place of the first text or name with a lone surrogate, which UTF-8 cannot represent; None without."""
    if isinstance(value, str):
        return None if is_text(value) else ""
    if isinstance(value, dict):
        if not all(map(is_text, value)):
            return ""
        items = ((f".{name}", each) for name, each in value.items())
    elif isinstance(value, list):
        items = ((f"[{index}]", each) for index, each in enumerate(value))
    else:
        return None
    return next((step + place for step, each in items if (place := _place_without_text(each)) is not None), None)


def _refused(faults: Sequence[ErrorDetails], data: dict[str, Any]) -> ApiError:
    """Return the error for the first field with a fault.

    A union has faults of all its members. Those deepest in the body count, and wrong values before wrong types.
    """
    fields = dict.fromkeys(each["loc"][0] for each in faults)
    places = [(_steps(each, data), each) for each in faults if each["loc"][0] == next(iter(fields))]
    steps = max((steps for steps, _ in places), key=len)
    found = [each for others, each in places if others == steps]
    found = [each for each in found if not each["type"].endswith("_type")] or found
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
    words = " or ".join(dict.fromkeys(each["msg"].removeprefix("Value error, ") for each in found))
    words = words.replace(" or Input should be ", " or ")
    more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
    is_unknown = found[0]["type"] == "extra_forbidden"
    message = f"{place} is not known{more}" if is_unknown else f"{place} is not allowed: {words}{more}"
    return ApiError(400, "invalid_value", message, param=place)


def _steps(fault: ErrorDetails, data: Any) -> tuple[int | str, ...]:
    """Return the keys and indices of a fault. pydantic's own place also names the members of unions."""
    steps: list[int | str] = []
    for step in fault["loc"]:
        if isinstance(step, int) if isinstance(data, list) else isinstance(data, dict) and step in data:
            data = data[step]
            steps.append(step)
    return (*steps, fault["loc"][-1]) if fault["type"] == "missing" else tuple(steps)
