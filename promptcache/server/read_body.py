"""Reads the bodies of requests: their content type, their JSON or XML, and their fields.

All endpoints read their bodies here, so that a fault has one answer everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from promptcache.diagnostics import TEXT, did_you_mean, is_text, shown
from promptcache.server.errors import ApiError
from promptcache.server.state import ServerState

_JSON = ("application/json",)
XML = ("application/xml", "text/xml")
_MAX_DIGITS = 4300  # as in Python

_MAX_ITEMS = 10_000
"""Items of one list or object in a body."""

_MAX_DEPTH = 64
"""Lists and objects inside each other in a body."""

_Body = TypeVar("_Body", bound=BaseModel)
_Made = TypeVar("_Made")


async def read_body(request: Request, kind: type[_Body], make: Callable[[_Body], _Made]) -> _Made:
    """Return what `make` makes of the body of a request; arguments and errors are those of `read_data`.

    Raises:
        ApiError: As `checked_body`.
    """
    return await read_data(request, lambda data: make(checked_body(kind, data)))


async def read_data(request: Request, make: Callable[[dict[str, Any]], _Made], *, document: str | None = None) -> _Made:
    """Return what `make` makes of the fields of a body. A large body is read outside the event loop.

    Args:
        document: The field that a body in XML stands for; None refuses XML.

    Raises:
        ApiError: The body is not a JSON object, its content type is another one, it has too many items, or a text in it
            has a lone surrogate.
        QueueFull: Too many requests wait to be read.
        ClientGone: The client has left.
    """
    found = _media_type(request, *_JSON, *(XML if document else ()))
    body = await request.body()

    def read() -> _Made:
        return make({document: _text(body)} if document and found in XML else _fields(body))

    state: ServerState = request.app.state.server
    return await state.pools.read(request, len(body), read)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body, parse_constant=_not_json, parse_float=_float, parse_int=_int)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "invalid_json", "the body is not a JSON object")
    if (fault := _first_fault(data)) is not None:
        place, words = fault[0].removeprefix("."), fault[1]
        raise ApiError(400, "invalid_value", f"{place or 'the body'} is not allowed: {words}", param=place or None)
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


async def read_text(request: Request, *media_types: str) -> str:
    """Return the text of a body of one of these content types.

    Raises:
        ApiError: It is of another type, or not UTF-8.
    """
    _media_type(request, *media_types)
    return _text(await request.body())


def checked_body(kind: type[_Body], data: Any, place: str = "") -> _Body:
    """Return a body with these fields, or the part of a body at a JSON path.

    Raises:
        ApiError: It is not an object, or a field is missing, not known or not valid; names its place.
    """
    if not isinstance(data, dict):
        raise ApiError(400, "invalid_value", f"{place} is not allowed: an object is expected", param=place)
    data = {name: value for name, value in data.items() if value is not None}  # a required field is missing then
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refused(faults, data, place, kind.model_fields) from None


def unsupported_type(place: str, kind: object, words: str) -> ApiError:
    """Return the error for a part of another type than those that `words` name."""
    place = f"{place}.type"
    return ApiError(400, "unsupported_parameter", f"{place}={shown(kind)} is not supported: {words}", param=place)


def _media_type(request: Request, *expected: str) -> str:
    """Return the content type of a request, without its parameters."""
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in expected:
        raise ApiError(415, "unsupported_media_type", f"the body is expected as {' or '.join(expected)}")
    return found


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiError(400, "invalid_encoding", f"the body is not UTF-8: {error}") from None


def _first_fault(value: Any, depth: int = 1) -> tuple[str, str] | None:
    """Return the place of the first value that no body may have, and what is wrong; None without.

    These are lists and objects that are too long or too deep, and texts and names with a lone surrogate, which UTF-8
    cannot represent.
    """
    if isinstance(value, str):
        return None if is_text(value) else ("", f"{TEXT.words} is expected")
    if not isinstance(value, list | dict):
        return None
    if len(value) > _MAX_ITEMS:
        return "", f"it has {len(value):,} items, and at most {_MAX_ITEMS:,} are allowed"
    if depth > _MAX_DEPTH:
        return "", f"lists and objects may be {_MAX_DEPTH} deep"
    if isinstance(value, dict):
        if not all(map(is_text, value)):
            return "", f"{TEXT.words} is expected"
        items = ((f".{name}", each) for name, each in value.items())
    else:
        items = ((f"[{index}]", each) for index, each in enumerate(value))
    for step, each in items:
        if isinstance(each, str | list | dict) and (fault := _first_fault(each, depth + 1)) is not None:
            return step + fault[0], fault[1]
    return None


def _refused(faults: Sequence[ErrorDetails], data: dict[str, Any], part: str, known: Iterable[str]) -> ApiError:
    """Return the error for the first field with a fault.

    Args:
        part: The JSON path of `data`.
        known: The names of its fields, for a suggestion.

    A union has faults of all its members. Those deepest in the body count, and wrong values before wrong types.
    """
    fields = dict.fromkeys(each["loc"][0] for each in faults)
    places = [(_steps(each, data), each) for each in faults if each["loc"][0] == next(iter(fields))]
    steps = max((steps for steps, _ in places), key=len)
    found = [each for others, each in places if others == steps]
    found = [each for each in found if not each["type"].endswith("_type")] or found
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    place = f"{part}{path}".removeprefix(".")
    words = " or ".join(dict.fromkeys(each["msg"].removeprefix("Value error, ") for each in found))
    words = words.replace(" or Input should be ", " or ")
    more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
    is_unknown = found[0]["type"] == "extra_forbidden"
    meant = did_you_mean(str(steps[-1]), known) if is_unknown and len(steps) == 1 else None
    unknown = f"{place} is not known: {meant}" if meant else f"{place} is not known"
    message = f"{unknown if is_unknown else f'{place} is not allowed: {words}'}{more}"
    return ApiError(400, "invalid_value", message, param=place)


def _steps(fault: ErrorDetails, data: Any) -> tuple[int | str, ...]:
    """Return the keys and indices of a fault. pydantic's own place also names the members of unions."""
    steps: list[int | str] = []
    for step in fault["loc"]:
        if isinstance(step, int) if isinstance(data, list) else isinstance(data, dict) and step in data:
            data = data[step]
            steps.append(step)
    return (*steps, fault["loc"][-1]) if fault["type"] == "missing" else tuple(steps)
