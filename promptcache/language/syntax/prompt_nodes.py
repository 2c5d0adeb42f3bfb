"""Nodes of a prompt: frozen dataclasses, each with a span. Equal prompts may have other spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from promptcache.diagnostics import Diagnostic, Short, Span, diagnostic
from promptcache.language.syntax.attributes import STRING
from promptcache.language.syntax.nodes import IN_PYTHON, AnswerFormat, Role


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Argument(Short):
    """Text for a parameter, exactly as given."""

    name: Annotated[str, STRING("the parameter that it fills")]
    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reference(Short):
    """Reference of a prompt to a module.

    `path` is relative to the enclosing reference, or starts at the root if `absolute`. It has one step in element
    form, and any number of steps in `<use module="…">` form.
    """

    path: Annotated[
        str, STRING("the path of a module, from the module around it or, with a slash, from the root", name="module")
    ]
    span: Span = field(compare=False)
    absolute: bool = False
    arguments: tuple[Argument, ...] = ()
    children: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message(Short):
    """A turn that the prompt adds; `role` None is bare text.

    Attributes:
        reasoning: The reasoning before an answer of the assistant, for the chat template. XML has no form for it.
        tool_fields: JSON of the fields that make it a message of tools, for the chat template: the `tool_calls` of an
            answer, or the role "tool" of a result. XML has no form for them.
    """

    role: Role | None
    text: str
    span: Span = field(compare=False)
    reasoning: str = ""
    tool_fields: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PromptDocument(Short):
    """Prompt document as written.

    Attributes:
        schema: Name of the schema.
        references: References to modules, nested as written.
        arguments: Arguments for the schema's own parameters (those outside any module).
        messages: The prompt's own turns in order. A bare text (`role` None) is alone, or comes before turns and
            continues the open turn of the schema.
        version: The version that the schema must have; None accepts every version.
        answer_format: The format of the answer; None means that of the schema.
        warnings: Problems of the document that do not prevent its use.
    """

    schema: Annotated[str, STRING("the name of the schema")] = field(kw_only=False)
    references: tuple[Reference, ...] = ()
    arguments: tuple[Argument, ...] = ()
    messages: tuple[Message, ...] = ()
    version: Annotated[str | None, STRING("the version that the schema must have")] = None
    answer_format: AnswerFormat | None = None
    span: Span = field(default=IN_PYTHON, compare=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), repr=False, compare=False)


def misplaced_text(messages: tuple[Message, ...]) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every bare text that is not the first message."""
    for message in messages[1:]:
        if message.role is None:
            words = "bare text can only come before the turns of a prompt"
            yield diagnostic("PC416", words, message.span, "put the text into a turn, <user>…</user>")
