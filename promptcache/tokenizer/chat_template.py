"""The chat template of a model, rendered as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from promptcache.diagnostics import UnsupportedModel

# The date that templates get. It is fixed, so that a schema has the same tokens every day.
FROZEN_DATE = datetime(2024, 7, 26)

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
        environment.globals["strftime_now"] = FROZEN_DATE.strftime
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise UnsupportedModel(f"the chat template is not valid Jinja2: {error}") from error

    def render(self, messages: Sequence[Mapping[str, object]], *, generation_prompt: bool) -> str | None:
        """Return a rendered conversation, or None if the template refuses it."""
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._special_tokens,
            )
        except _REFUSALS:
            return None


class _Generation(Extension):
    """Jinja2 extension for `{% generation %}`, which marks the assistant's text for training and renders its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """Return JSON without HTML escapes, like the filter of transformers."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
