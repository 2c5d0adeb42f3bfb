"""Bodies of requests, checked by pydantic.

A field that this server does not know is refused, because an answer that ignores it would be another answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
    model_validator,
)

from promptcache.diagnostics import InvalidValue, shown
from promptcache.options import MAX_LOGPROBS, OPTIONS, Body, with_sampling
from promptcache.server.errors import ApiError
from promptcache.structured import MAX_TOOLS, OutputFormat, read_output, read_tools

MAX_CHOICES = 16
"""Limit of `n`."""


def _one_by_one(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Check an object item by item, so that the first fault ends the check. pydantic would list all of them."""
    if not isinstance(value, dict) or len(value) < 2:
        return check(value)
    return {name: made for key, each in value.items() for name, made in check({key: each}).items()}


_OneByOne = WrapValidator(_one_by_one)

ModuleArguments: TypeAlias = Annotated[dict[str, str | int | float], _OneByOne]
"""Arguments of a module by name."""

_REFUSED: Mapping[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
}
"""Parameters that OpenAI has and this server does not, with the values that change nothing."""

_IGNORED = (
    *("metadata", "store", "service_tier"),
    *("prompt_cache_retention", "prompt_cache_breakpoint", "cache_control"),
)
"""Parameters that never change an answer."""


StopString: TypeAlias = Annotated[str, Field(min_length=1)]
"""A text that ends an answer."""

MAX_STOP_STRINGS = 16
"""Limit of the texts that end an answer."""


def _whole(value: Any) -> Any:
    """Return a whole number that is written with a point, such as 12.0, as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WholeNumber: TypeAlias = Annotated[int, BeforeValidator(_whole)]
"""A whole number, also one that is written with a point."""


class StrictBody(BaseModel):
    """Base class of bodies and their parts: fields that are not known are refused, and null is not set."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """Drop fields that are null: clients write it for what was not set."""
        return {name: each for name, each in data.items() if each is not None} if isinstance(data, dict) else data


_Part = TypeVar("_Part", bound=StrictBody)


def with_options(part: Body) -> Callable[[type[_Part]], type[_Part]]:
    """Return a decorator that adds the options of a part of a body to it, as fields."""

    def decorate(base: type[_Part]) -> type[_Part]:
        added: dict[str, Any] = {}
        for name, wire in _wire_names(part).items():
            option = OPTIONS[name]
            shown_as = {**TypeAdapter(option.kind.base).json_schema(), "description": option.words}
            check = AfterValidator(partial(_option_value, name))
            added[wire] = (Annotated[Any, check, WithJsonSchema(shown_as)], None)
        made = create_model(base.__name__, __base__=base, __module__=base.__module__, **added)
        made.__doc__ = base.__doc__
        return made

    return decorate


def _option_value(name: str, value: Any) -> Any:
    """Return the value of an option from JSON; None if the client wrote that it is not set."""
    kind, unset = OPTIONS[name].kind, OPTIONS[name].unset
    if value is None or (unset is not None and value == unset and not isinstance(value, bool)):
        return None
    value = _whole(value) if kind.base is int else value
    if not kind.takes(value):
        raise ValueError(f"{kind.words} is expected")  # pydantic adds the place
    return value


def _wire_names(part: Body) -> dict[str, str]:
    """Return the names of the options of a part of a body, with their names there."""
    return {name: option.wire or name for name, option in OPTIONS.items() if option.body is part}


def given_options(body: StrictBody, part: Body) -> dict[str, Any]:
    """Return the options that a part of a body gives."""
    values = {name: getattr(body, wire) for name, wire in _wire_names(part).items()}
    return {name: value for name, value in values.items() if value is not None}


class StreamOptions(StrictBody):
    """`stream_options` of OpenAI's body."""

    include_usage: bool = False
    include_obfuscation: bool = False


class JSONSchemaBody(StrictBody):
    """`response_format.json_schema` of OpenAI's body. Every schema is strict here: the answer always has it."""

    name: str = "answer"
    description: str | None = None
    schema_object: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool = True


class ResponseFormatBody(StrictBody):
    """`response_format` of OpenAI's body."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaBody | None = None

    @property
    def output(self) -> OutputFormat | None:
        """The format of the answer. It is not checked here, because that takes time.

        Raises:
            ApiError: There is no schema.
        """
        if self.type == "text":
            return None
        if self.type == "json_schema" and self.json_schema is None:
            raise ApiError(400, "invalid_value", "response_format.json_schema is missing", param="response_format")
        return read_output({"type": "object"} if self.json_schema is None else self.json_schema.schema_object)


def without_others(data: Any, refused: Mapping[str, tuple[object, ...]], ignored: Collection[str]) -> Any:
    """Return the fields of a body without those that change nothing.

    Args:
        refused: Fields that this server does not have, with the values that change nothing.
        ignored: Fields that never change an answer.

    Raises:
        ApiError: A field is refused.
    """
    if not isinstance(data, dict):
        return data
    for name, neutral in refused.items():
        if (value := data.get(name)) is not None and value not in neutral:
            message = f"'{name}' is not supported by this server; leave it out"
            raise ApiError(400, "unsupported_parameter", message, param=name)
    return {name: value for name, value in data.items() if name not in refused and name not in ignored}


@with_options(Body.ANSWER)
class GenerationBody(StrictBody):
    """The part of a body that all answers have; `format_name` is its field with the format of the answer."""

    format_name: ClassVar[str] = "response_format"

    model: str | None = None
    max_tokens: WholeNumber | None = Field(None, ge=1)
    max_completion_tokens: WholeNumber | None = Field(None, ge=1)
    logit_bias: Annotated[dict[str, float], _OneByOne] | None = None
    n: WholeNumber | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormatBody | None = None
    tools: Annotated[list[Any], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_others(cls, data: Any) -> Any:
        """Drop parameters that change nothing, and refuse those that this server does not have."""
        return without_others(data, _REFUSED, _IGNORED)

    def salt(self, of_caller: str | None) -> str | None:
        """Return the salt of the history of a request: that of its caller, and of the end user that its fields name."""
        named = (self.user, self.safety_identifier, self.prompt_cache_key)
        if not any(named):
            return of_caller
        return hashlib.sha256(json.dumps([of_caller, *named]).encode()).hexdigest()

    @property
    def num_choices(self) -> int:
        """The number of answers."""
        return self.n or 1

    @property
    def limit(self) -> int | None:
        """The maximum number of generated tokens, or None."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def limit_name(self) -> str:
        """The field with the limit, for errors."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the answer, without its limit. Without a temperature the settings of the model apply.

        Raises:
            ApiError: `tool_choice` or `logit_bias` is not allowed.
        """
        bias = self.logit_bias or {}
        if (wrong := next((each for each in bias if not (each.isascii() and each.isdigit())), None)) is not None:
            raise ApiError(400, "invalid_value", f"logit_bias: {shown(wrong)} is no token ID", param="logit_bias")
        return {
            **with_sampling(given_options(self, Body.ANSWER)),
            "stop_strings": list(self.stop_strings),
            "logit_bias": {int(token): value for token, value in bias.items()},
            "output": None if self.response_format is None else self.response_format.output,
            "tools": self.tools or (),
            "tool_choice": self._chosen_tool,
        }

    @property
    def _chosen_tool(self) -> str:
        choice = self.tool_choice or "auto"
        if isinstance(choice, dict):
            function = choice.get("function")
            name = function.get("name") if isinstance(function, dict) and choice.get("type") == "function" else None
            if not isinstance(name, str):
                message = 'tool_choice is not supported: {"type": "function", "function": {"name": …}} is expected'
                raise ApiError(400, "invalid_value", message, param="tool_choice")
            choice = name
        try:
            tools = read_tools(self.tools or ())
        except InvalidValue as error:
            raise ApiError(400, "invalid_value", str(error), param="tools") from None
        if choice not in ("auto", "none", "required", *(each.name for each in tools)):
            message = f"tool_choice names '{choice}', which is none of the tools"
            raise ApiError(400, "invalid_value", message, param="tool_choice")
        return choice

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


@with_options(Body.PROMPT_CACHE)
class ModuleBody(StrictBody):
    """`prompt_cache` of a chat: the schema and what a prompt uses of it."""

    schema_name: str | None = Field(default=None, alias="schema")
    use: Annotated[dict[str, ModuleArguments | None], _OneByOne] | Annotated[list[str], Field(fail_fast=True)] = Field(
        default_factory=dict
    )
    fill: ModuleArguments = Field(default_factory=dict)


class _LogprobsBody(GenerationBody):
    logprobs: bool | None = None
    top_logprobs: WholeNumber | None = Field(None, ge=0, le=MAX_LOGPROBS)
    chat_template_kwargs: (
        Annotated[dict[str, bool | int | float | str | None], _OneByOne, Field(max_length=32)] | None
    ) = None

    @model_validator(mode="after")
    def _top_of_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "invalid_value", "top_logprobs needs logprobs=true", param="top_logprobs")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options of the answer, with the number of log-probabilities and the variables of the chat template."""
        num_logprobs = self.top_logprobs or 0 if self.logprobs else None
        return {**super().options, "logprobs": num_logprobs, "template_kwargs": self.chat_template_kwargs}


class ChatBody(_LogprobsBody):
    """The body of `/v1/chat/completions`. `read_messages` checks the messages."""

    model: str
    messages: list[Any]
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = None
    prompt_cache: Annotated[ModuleBody, BeforeValidator(lambda value: {} if value is None else value)] = Field(
        default_factory=ModuleBody
    )


@with_options(Body.PROMPT_CACHE)
class PlainBody(GenerationBody):
    """The body of `/v1/completions`."""

    model: str
    prompt: str | Annotated[list[str], Field(min_length=1, fail_fast=True)]
    logprobs: WholeNumber | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the answer, with the number of log-probabilities."""
        return {**super().options, "logprobs": self.logprobs}


@with_options(Body.PROMPT_CACHE)
class PromptBody(_LogprobsBody):
    """The body of `/v1/prompts` as JSON: a prompt document and options.

    Attributes:
        messages: Messages behind the turns of the document, such as calls and results of tools, which XML cannot write.
    """

    prompt: str
    messages: list[Any] = Field(default_factory=list)
    reuse: bool = True


class CheckBody(StrictBody):
    """The body of `/v1/check` and `/v1/layout.html` as JSON: a schema or prompt document.

    Attributes:
        schema_text: A schema document that takes the place of the server's schema of its name.
    """

    document: str
    schema_text: str | None = Field(default=None, alias="schema")
