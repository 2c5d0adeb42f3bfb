"""A model's chat template, rendered as the transformers library renders it.

Comes in: the Jinja2 source and the tokenizer's special tokens. Goes out: rendered conversations, or None where the
template refuses one. This file does not know what a turn's header is.
"""

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

# What a template sees as today: one fixed day, so that the same schema has the same tokens tomorrow.
FROZEN_DATE = datetime(2024, 7, 26)

# What code in a template raises for a conversation it was not written for.
_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class ChatTemplate:
    """A compiled chat template with the special tokens it may name."""

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
        """Render a conversation, or return None where the template refuses it."""
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
    """`{% generation %}` marks what the assistant wrote, for training: rendered, it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """Dump JSON without HTML escapes, which is what transformers gives to templates in place of Jinja2's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
