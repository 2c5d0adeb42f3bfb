"""Errors as clients expect them: `{"error": {"message", "type", "param", "code"}}` and a status, as OpenAI has them.

The status decides which class the client raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from promptcache.diagnostics import (
    ContextLengthExceeded,
    EngineClosed,
    InvalidGeneration,
    InvalidValue,
    LanguageError,
    ModelError,
    PromptCacheError,
    QueueFull,
    QueueTimeout,
    ServiceClosed,
    StoreError,
    UnknownSchema,
    as_data,
    shown,
)

CLIENT_GONE = 499
"""nginx's status for a client that has left, for the log."""

_TYPES = {401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 405: "method_not_allowed"}


@dataclass(eq=False)
class ApiError(Exception):
    """An error that a client gets as an error object.

    Attributes:
        code: For programs, as "context_length_exceeded".
        message: For people.
        param: The parameter of the body that is wrong.
        headers: Headers of the answer.
        diagnostics: All diagnostics of a document.
    """

    status: int
    code: str
    message: str
    _: KW_ONLY
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    diagnostics: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> dict[str, Any]:
        """The error object of OpenAI."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        error: dict[str, Any] = {
            "message": self.message,
            "type": _TYPES.get(self.status, usual),
            "param": self.param,
            "code": self.code,
        }
        if self.diagnostics:
            error["diagnostics"] = list(self.diagnostics)
        return {"error": error}

    def response(self) -> Response:
        """Return the answer to a request. Escapes keep text that UTF-8 cannot represent."""
        content = json.dumps(self.body, separators=(",", ":"))
        return Response(content, self.status, self.headers, media_type="application/json")


class ClientGone(Exception):
    """The client has closed its connection, so no answer is sent."""


def as_api_error(error: BaseException) -> ApiError:
    """Return the error that a client gets for an error of the library. Unexpected errors keep their text to the log."""
    match error:
        case ApiError():
            return error
        case LanguageError():
            found = [as_data(each) for each in error.diagnostics]
            first = error.diagnostics[0]
            return ApiError(400, first.code, str(error), param=_param(first.span.source), diagnostics=found)
        case UnknownSchema():
            return ApiError(404, "schema_not_found", str(error))
        case ContextLengthExceeded():
            return ApiError(400, "context_length_exceeded", str(error))
        case QueueFull():
            return ApiError(429, error.reason, str(error), headers={"retry-after": "1"})
        case QueueTimeout():
            return ApiError(408, "queue_timeout", str(error), headers={"retry-after": "1"})
        case ServiceClosed():
            retry = {"x-should-retry": "false"} if error.reason == "worker_dead" else {"retry-after": "1"}
            return ApiError(503, error.reason, str(error), headers=retry)
        case EngineClosed():
            return ApiError(503, "engine_closed", str(error), headers={"x-should-retry": "false"})
        case InvalidGeneration() | InvalidValue():
            return ApiError(400, "invalid_value", str(error), param=_param(str(error)))
        case StoreError() | ModelError():
            return ApiError(500, "internal_error", str(error))
        case PromptCacheError():
            return ApiError(400, "invalid_request", str(error))
        case _:
            return ApiError(500, "internal_error", "the request failed; the log of the server has the reason")


_JSON_PATH = re.compile(
    r"(messages|prompt_cache|prompt|input|instructions|system|previous_response_id|tools)\b[^\s=:]*|(temperature|top_p|top_k|repetition_penalty)(?==)"
)


def _param(place: str) -> str | None:
    """Return the JSON path that a place or message begins with: "messages[0].content"."""
    found = _JSON_PATH.match(place)
    return found[0] if found else None


def install_handlers(app: FastAPI) -> None:
    """Answer every error of an application with an error object."""

    async def refused(request: Request, error: Exception) -> Response:
        made = as_api_error(error)
        request.state.record.setdefault("error", made.code)
        return made.response()

    async def gone(request: Request, _error: Exception) -> Response:
        request.state.record["error"] = "disconnected"
        return Response(status_code=CLIENT_GONE)

    async def of_framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "invalid_request")
        request.state.record["error"] = code
        headers = dict(error.headers or {})
        if "Allow" in headers:  # it has the methods of one route only
            allowed = [
                method
                for method in ("GET", "PUT", "POST", "DELETE")
                if any(each.matches({**request.scope, "method": method})[0] is Match.FULL for each in app.routes)
            ]
            allowed = ["HEAD", *allowed] if "GET" in allowed else allowed
            headers["Allow"] = ", ".join(allowed) or headers["Allow"]  # files have no route
        message = str(error.detail)
        if error.status_code in _CODES:
            place = f"{request.method} {shown(request.url.path)}"
            message = f"{place}: {message}; GET / lists the endpoints, such as POST /v1/chat/completions"
        return ApiError(error.status_code, code, message, headers=headers).response()

    async def of_query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        param = str(fault["loc"][-1])
        return await refused(request, ApiError(400, "invalid_value", f"{param}: {fault['msg']}", param=param))

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(PromptCacheError, refused)
    app.add_exception_handler(ClientGone, gone)
    app.add_exception_handler(HTTPException, of_framework)
    app.add_exception_handler(RequestValidationError, of_query)
    app.add_exception_handler(Exception, refused)
