"""Reads the bodies of requests: their content type, their JSON or XML, and their fields.

All endpoints read their bodies here, so that a fault has one answer everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_args

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from promptcache.diagnostics import TEXT, did_you_mean, is_text, listed, shown
from promptcache.server.errors import ApiError
from promptcache.server.state import ServerState

_JSON = ("application/json",)
XML = ("application/xml", "text/xml")
_MAX_DIGITS = 4300  # as in Python

_MAX_ITEMS = 10_000
"""Items of one list or object in a body."""

_MAX_DEPTH = 64
"""Lists and objects inside each other in a body."""

_MAX_TOLD, _MAX_LISTED = 3, 8  # fields

_OBJECT = "an object"
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "string_too_short": "text that is not empty",
}
"""What is expected instead of a value, by the type of pydantic's error."""

_WITHOUT_QUOTES = {_EXPECTED[each] for each in ("int_type", "float_type", "bool_type")}

_Body = TypeVar("_Body", bound=BaseModel)
_Made = TypeVar("_Made")


async def read_body(request: Request, kind: type[_Body], make: Callable[[_Body], _Made]) -> _Made:
    """Return what `make` makes of the body of a request. Errors are those of `read_data` and `checked_body`."""
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
        why = "it is empty" if not body.strip() else str(error)
        fix = "; XML is sent with content-type: application/xml" if body.lstrip().startswith(b"<") else ""
        raise ApiError(400, "invalid_json", f"the body is not JSON: {why}{fix}") from None
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
    """Return the text of a body of one of these content types, in UTF-8."""
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
        raise _refused(faults, data, place, kind) from None


def unsupported_type(place: str, kind: object, words: str) -> ApiError:
    """Return the error for a part of another type than those that `words` name."""
    place = f"{place}.type"
    return ApiError(400, "unsupported_parameter", f"{place}={shown(kind)} is not supported: {words}", param=place)


def _media_type(request: Request, *expected: str) -> str:
    """Return the content type of a request, without its parameters."""
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in expected:
        message = f"the body is expected as {' or '.join(expected)}: send the header content-type: {expected[0]}"
        raise ApiError(415, "unsupported_media_type", message)
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


def _refused(faults: Sequence[ErrorDetails], data: dict[str, Any], part: str, kind: type[BaseModel]) -> ApiError:
    """Return the error for the first fields with a fault, and its place as `param`; `part` is the JSON path of `data`.

    A union has faults of all its members. Those deepest in the body count, and wrong values before wrong types.
    """
    of_field: dict[int | str, list[ErrorDetails]] = {}
    for each in faults:
        of_field.setdefault(each["loc"][0], []).append(each)
    told = [_told(found, data, part, kind) for found in [*of_field.values()][:_MAX_TOLD]]
    more = f" (and {len(of_field) - _MAX_TOLD} more)" if len(of_field) > _MAX_TOLD else ""
    return ApiError(400, "invalid_value", f"{'; '.join(words for _, words in told)}{more}", param=told[0][0])


def _told(faults: Sequence[ErrorDetails], data: dict[str, Any], part: str, kind: type[BaseModel]) -> tuple[str, str]:
    """Return the place of the fault of a field, and the fault in words."""
    places = [(_steps(each, data), each) for each in faults]
    steps = max((steps for steps, _ in places), key=len)
    found = [each for others, each in places if others == steps]
    found = [each for each in found if not each["type"].endswith("_type")] or found
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    place = f"{part}{path}".removeprefix(".")
    match found[0]["type"]:
        case "missing":
            return place, f"{place} is missing: add it"
        case "extra_forbidden":
            known = _names_at(kind, steps[:-1])
            fix = did_you_mean(str(steps[-1]), known) or f"known here: {listed(known, _MAX_LISTED)}"
            return place, f"{place} is not known: {fix}"
    value: Any = data
    for step in steps:
        value = value[step]
    words = [_EXPECTED.get(each["type"]) or each["msg"] for each in found]
    names = listed(_names_at(kind, steps), _MAX_LISTED)
    words = [f"{each} with {names}" if each == _OBJECT and names else each for each in words]
    said = " or ".join(dict.fromkeys(words)).removeprefix("Value error, ").removeprefix("Input should be ")
    quotes = ", without quotes," if isinstance(value, str) and said in _WITHOUT_QUOTES else ""
    said = said if said[0].isupper() or said.endswith("expected") else f"{said}{quotes} is expected"
    return place, f"{place}={shown(value)} is not allowed: {said}"


def _names_at(kind: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """Return the names of the fields of a part of a body; nothing for a part with any names, or without names."""
    known: Sequence[type[BaseModel]] = (kind,)
    for step in steps:
        fields = (field for each in known for name, field in each.model_fields.items() if step in (name, field.alias))
        known = [model for field in fields for model in _models_in(field.annotation)]
    return [field.alias or name for each in known for name, field in each.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)


def _steps(fault: ErrorDetails, data: Any) -> tuple[int | str, ...]:
    """Return the keys and indices of a fault. pydantic's own place also names the members of unions."""
    steps: list[int | str] = []
    for step in fault["loc"]:
        if isinstance(step, int) if isinstance(data, list) else isinstance(data, dict) and step in data:
            data = data[step]
            steps.append(step)
    return (*steps, fault["loc"][-1]) if fault["type"] == "missing" else tuple(steps)
