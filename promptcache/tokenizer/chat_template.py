"""The chat template of a model, rendered as transformers renders it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from promptcache.diagnostics import TemplateRefusal, UnsupportedModel, first_line
from promptcache.language import ChatMessages
from promptcache.tokenizer.types import FROZEN_DATE

PLAIN_TEMPLATE = """{{ tokenizer_prefix }}
{%- for message in messages %}{{ message.role | capitalize }}:
{{ message.content + "\n\n" }}{% endfor %}
{%- if add_generation_prompt %}{{ "Assistant:\n" }}{% endif %}"""
"""For models without a chat template. A header ends with a newline: a space at its end would be tokenized alone if a
module follows, which models rarely see before a word. `tokenizer_prefix` is what the tokenizer puts before every text.
"""

_REASONING = (
    *((each.replace("/", "", 1), each) for each in ("</think>", "[/THINK]", "</reasoning>", "</seed:think>")),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
)
"""Texts around reasoning, for templates that do not write it."""

_REASONING_FIELDS = ("reasoning_content", "thinking")
_ARGUMENTS = {"key0of0call": "value0of0call"}

CHANNEL = "<|channel|>"
"""Begins the name of a channel in the form of OpenAI (harmony)."""

_ROLE = "<|start|>assistant"

# Errors of templates for conversations that they do not support.
_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class ChatTemplate:
    """A compiled chat template with the special tokens that it can use."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise UnsupportedModel(f"the chat template is not valid Jinja2: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self._special_tokens)

    def render(
        self, messages: ChatMessages, *, generation_prompt: bool, options: Mapping[str, Any], date: datetime
    ) -> str:
        """Return a rendered conversation. Arguments and errors are those of `Tokenizer.render_chat`."""
        read = list[Mapping[str, Any]]()
        for message in messages:
            fields = {**message}
            if fields.get("tool_calls") and self._joins_arguments:
                fields["tool_calls"] = [
                    {**call, "function": {**call["function"], "arguments": _tojson(call["function"]["arguments"])}}
                    for call in fields["tool_calls"]
                ]
            if reasoning := fields.get(_REASONING_FIELDS[0]):
                fields[self._reasoning_field] = reasoning
            read.append(fields)
        return self._rendered(read, generation_prompt, options, date)

    @cached_property
    def _joins_arguments(self) -> bool:
        """Whether the arguments of a call are a text, because the template does not write JSON of an object."""
        is_written = list[bool]()  # and not as Python prints an object
        for arguments in (_ARGUMENTS, _tojson(_ARGUMENTS)):
            call = {"type": "function", "id": "call00000", "function": {"name": "name0of0call", "arguments": arguments}}
            text = self._probe({"role": "assistant", "content": "", "tool_calls": [call]})
            is_written.append(
                all(each in text for pair in _ARGUMENTS.items() for each in pair) and str(_ARGUMENTS) not in text
            )
        return is_written == [False, True]

    @cached_property
    def _reasoning_field(self) -> str:
        """The field of a message that the template reads as reasoning."""
        answer = {"role": "assistant", "content": "TEXT0ANSWER"}
        found = (
            each for each in _REASONING_FIELDS if "TEXT0REASONING" in self._probe({**answer, each: "TEXT0REASONING"})
        )
        return next(found, _REASONING_FIELDS[0])

    def _probe(self, answer: Mapping[str, Any]) -> str:
        """Return a conversation that ends with an answer; "" if the template refuses it."""
        with suppress(TemplateRefusal):
            return self._rendered([{"role": "user", "content": "TEXT0QUESTION"}, answer], False, {}, FROZEN_DATE)
        return ""

    def _rendered(
        self, messages: ChatMessages, generation_prompt: bool, options: Mapping[str, Any], date: datetime
    ) -> str:
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": generation_prompt}
        try:
            return self._template.render(strftime_now=date.strftime, **self._special_tokens, **{**given, **options})
        except _REFUSALS as error:
            raise TemplateRefusal(f"the chat template refuses this conversation: {first_line(error)}") from error


def answer_start(template: ChatTemplate) -> str:
    """Return what a chat template writes between the beginning of an answer and its text, without reasoning."""
    user, answer = {"role": "user", "content": "TEXT0QUESTION"}, {"role": "assistant", "content": "TEXT0ANSWER"}
    with suppress(TemplateRefusal):
        header, said = (
            template.render(messages, generation_prompt=is_asked, options={}, date=FROZEN_DATE).partition(
                "TEXT0QUESTION"
            )[2]
            for messages, is_asked in (([user], True), ([user, answer], False))
        )
        if said.startswith(header):
            return said.removeprefix(header).partition("TEXT0ANSWER")[0]
    return ""


def reasoning_tags(template: ChatTemplate, start: str) -> tuple[str, str] | None:
    """Return the texts that a chat template writes around reasoning; None if it knows none.

    A template either renders the reasoning of a message, or cuts reasoning out of its content.

    Args:
        start: What the template writes in front of an answer, see `answer_start`.
    """
    if CHANNEL in start:
        return start.replace("final", "analysis"), f"<|end|>{_ROLE}"
    answer = {"role": "assistant", "content": "TEXT0ANSWER", "reasoning_content": "TEXT0REASONING"}
    messages = [{"role": "user", "content": "TEXT0QUESTION"}, answer]
    with suppress(TemplateRefusal):
        rendered = template.render(messages, generation_prompt=False, options={}, date=FROZEN_DATE)
        before = re.escape(start.strip())
        found = re.search(rf"(\S+)\s*TEXT0REASONING\s*(\S+?)\s*{before}\s*TEXT0ANSWER", rendered)
        if found is not None:
            known = next((each for each in _REASONING if each[1] == found[2]), None)
            opening = found[2].replace("/", "", 1) if known is None else known[0]
            if opening != found[2] and found[1].endswith(opening):
                return opening, found[2]
    return next((each for each in _REASONING if each[1] in template.source), None)


class _Generation(Extension):
    """Jinja2 extension for `{% generation %}`, which marks the text of the assistant and renders its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Return JSON without HTML escapes, like the filter of transformers."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
