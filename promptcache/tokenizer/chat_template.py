"""The chat template of a model, rendered as transformers renders it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
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

_REASONING_ENDS = ("</think>", "[/THINK]", "</reasoning>", "</seed:think>")

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
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": generation_prompt}
        try:
            return self._template.render(strftime_now=date.strftime, **self._special_tokens, **{**given, **options})
        except _REFUSALS as error:
            raise TemplateRefusal(f"the chat template refuses this conversation: {first_line(error)}") from error


def reasoning_tags(template: ChatTemplate) -> tuple[str, str] | None:
    """Return the texts that a chat template writes around reasoning; None if it knows none.

    A template either renders `reasoning_content` of a message, or cuts reasoning out of its content.
    """
    answer = {"role": "assistant", "content": "TEXT0ANSWER", "reasoning_content": "TEXT0REASONING"}
    messages = [{"role": "user", "content": "TEXT0QUESTION"}, answer]
    with suppress(TemplateRefusal):
        rendered = template.render(messages, generation_prompt=False, options={}, date=FROZEN_DATE)
        found = re.search(r"(\S+)\s*TEXT0REASONING\s*(\S*/\S+?)\s*TEXT0ANSWER", rendered)
        if found is not None and found[1].endswith(_opening(found[2])):
            return _opening(found[2]), found[2]
    return next(((_opening(closing), closing) for closing in _REASONING_ENDS if closing in template.source), None)


def _opening(closing: str) -> str:
    return closing.replace("/", "", 1)


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
