"""Bodies of requests, checked by pydantic.

A field that this server does not know is refused, because an answer that ignores it would be another answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from promptcache.diagnostics import InvalidValue, shown
from promptcache.language import Repair
from promptcache.runtime import MAX_LOGPROBS
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


def _repair(value: str) -> str:
    try:
        Repair.parse(value)
    except InvalidValue as error:
        raise ValueError(str(error).rpartition(" is not allowed: ")[2]) from None  # pydantic adds the place
    return value


_Repair: TypeAlias = Annotated[str, AfterValidator(_repair)]
StopString: TypeAlias = Annotated[str, Field(min_length=1)]
"""A text that ends an answer."""

MAX_STOP_STRINGS = 16
"""Limit of the texts that end an answer."""


def _whole(value: Any) -> Any:
    """Return a whole number that is written with a point, such as 12.0, as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unless(neutral: int) -> BeforeValidator:
    """Return a validator for a number that some clients write for "not set"."""
    return BeforeValidator(lambda value: None if value == neutral and not isinstance(value, bool) else _whole(value))


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
        data: The fields.
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


class GenerationBody(StrictBody):
    """The part of a body that all answers have."""

    model: str | None = None
    max_tokens: WholeNumber | None = Field(None, ge=1)
    max_completion_tokens: WholeNumber | None = Field(None, ge=1)
    min_tokens: WholeNumber | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Annotated[int | None, Field(ge=0), _unless(-1)] = None
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[dict[str, float], _OneByOne] | None = None
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    seed: Annotated[int | None, Field(ge=0, lt=2**63), _unless(-1)] = None
    n: WholeNumber | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormatBody | None = None
    tools: Annotated[list[Any], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
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
    def format_name(self) -> str:
        """The field with the format of the answer, for errors."""
        return "response_format"

    @property
    def form(self) -> dict[str, Any]:
        """The options of `Service.submit` that give the answer a form: its format, and its tools."""
        choice: Any = self.tool_choice or "auto"
        if isinstance(choice, dict):
            function = choice.get("function")
            choice = function.get("name") if isinstance(function, dict) and choice.get("type") == "function" else None
            if not isinstance(choice, str):
                message = 'tool_choice is not supported: {"type": "function", "function": {"name": …}} is expected'
                raise ApiError(400, "invalid_value", message, param="tool_choice")
        try:
            read_tools(tools := self.tools or ())
        except InvalidValue as error:
            raise ApiError(400, "invalid_value", str(error), param="tools") from None
        if choice not in ("auto", "none", "required", *(each["function"]["name"] for each in tools)):
            message = f"tool_choice names '{choice}', which is none of the tools"
            raise ApiError(400, "invalid_value", message, param="tool_choice")
        bias = self.logit_bias or {}
        if (wrong := next((each for each in bias if not (each.isascii() and each.isdigit())), None)) is not None:
            raise ApiError(400, "invalid_value", f"logit_bias: {shown(wrong)} is no token ID", param="logit_bias")
        return {
            "presence_penalty": self.presence_penalty or 0.0,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "logit_bias": {int(token): value for token, value in bias.items()},
            "output": None if self.response_format is None else self.response_format.output,
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
        }

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def generation(self) -> dict[str, Any]:
        """Options of `Service.submit`. Without a temperature the generation settings of the model apply."""
        options: dict[str, Any] = {}
        if self.temperature == 0:
            options["do_sample"] = False
        elif (self.temperature, self.top_p, self.top_k, self.min_p or None) != (None, None, None, None):
            sampling = {
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "min_p": self.min_p or None,
            }
            options = {"do_sample": True, **{name: value for name, value in sampling.items() if value is not None}}
        others = {
            "repetition_penalty": self.repetition_penalty,
            "min_new_tokens": self.min_tokens,
            "stop_strings": list(self.stop_strings) or None,
        }
        return {**options, **{name: value for name, value in others.items() if value is not None}}


class FunctionBody(StrictBody):
    """A tool as `/v1/responses` has it: without an object `function` in it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None

    @property
    def definition(self) -> dict[str, Any]:
        """The tool in the form of chats."""
        fields = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {name: each for name, each in fields.items() if each is not None}}


def definitions(tools: Sequence[FunctionBody]) -> list[dict[str, Any]] | None:
    """Return tools in the form of chats; None without any.

    Raises:
        ApiError: Two tools have one name, or a name is not allowed.
    """
    found = [each.definition for each in tools]
    try:
        read_tools(found)
    except InvalidValue as error:
        raise ApiError(400, "invalid_value", str(error).replace(".function.", "."), param="tools") from None
    return found or None


class ModuleBody(StrictBody):
    """`prompt_cache` of a chat: the schema and what a prompt uses of it."""

    schema_name: str | None = Field(default=None, alias="schema")
    use: Annotated[dict[str, ModuleArguments | None], _OneByOne] | Annotated[list[str], Field(fail_fast=True)] = Field(
        default_factory=dict
    )
    fill: ModuleArguments = Field(default_factory=dict)
    repair: _Repair | None = None
    deterministic: bool = False


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
    def num_logprobs(self) -> int | None:
        """The number of the most probable tokens to report for each token; None reports none."""
        return self.top_logprobs or 0 if self.logprobs else None


class ChatBody(_LogprobsBody):
    """The body of `/v1/chat/completions`. `read_messages` checks the messages."""

    model: str
    messages: list[Any]
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = None
    prompt_cache: Annotated[ModuleBody, BeforeValidator(lambda value: {} if value is None else value)] = Field(
        default_factory=ModuleBody
    )


class PlainBody(GenerationBody):
    """The body of `/v1/completions`."""

    model: str
    prompt: str | Annotated[list[str], Field(min_length=1, fail_fast=True)]
    repair: _Repair | None = None
    logprobs: WholeNumber | None = Field(None, ge=0, le=MAX_LOGPROBS)


class PromptBody(_LogprobsBody):
    """The body of `/v1/prompts` as JSON: a prompt document and options.

    Attributes:
        messages: Messages behind the turns of the document, such as calls and results of tools, which XML cannot write.
    """

    prompt: str
    messages: list[Any] = Field(default_factory=list)
    repair: _Repair | None = None
    reuse: bool = True
    deterministic: bool = False


class CheckBody(StrictBody):
    """The body of `/v1/check` as JSON: a schema or prompt document.

    Attributes:
        schema_text: A schema document that takes the place of the server's schema of its name.
    """

    document: str
    schema_text: str | None = Field(default=None, alias="schema")


class LayoutBody(CheckBody):
    """The body of `/v1/layout.svg` as JSON. `width` is in pixels."""

    width: int = Field(default=1000, ge=240, le=4000)
