"""A prompt as it is written, and the builder that writes one in Python.

Whether the schema has the modules that a prompt names is checked by `resolve_prompt`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from promptcache.diagnostics import (
    TEXT,
    Diagnostic,
    InvalidValue,
    Kind,
    PromptError,
    Short,
    Span,
    instance,
    is_text,
    number,
    tuple_of,
)
from promptcache.language.schema import IN_PYTHON, Role, Whitespace
from promptcache.language.syntax.names import RESERVED_MODULES, is_element, is_range, quoted
from promptcache.language.syntax.whitespace import finish
from promptcache.language.syntax.writing import Written, holds_line_break, print_document

__all__ = ["IN_PYTHON", "Argument", "Message", "Prompt", "Reference", "bad_range", "misplaced_text"]


_MAX_SHOWN = 30


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Argument(Short):
    """The text that a prompt puts into a parameter, exactly as given."""

    name: str
    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reference(Short):
    """A module that the prompt names.

    `path` is relative to the enclosing reference, or starts at the root when `absolute`; it has one step in element
    form and any number in `<use module="…">` form.
    """

    path: str
    span: Span
    absolute: bool = False
    arguments: tuple[Argument, ...] = ()
    children: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message(Short):
    """One chat turn of the prompt's own; `role` None is bare trailing text."""

    role: Role | None
    text: str
    span: Span


_FIELDS = {
    "schema": TEXT,
    "references": tuple_of("a tuple of Reference", Reference),
    "arguments": tuple_of("a tuple of Argument", Argument),
    "messages": tuple_of("a tuple of Message", Message),
    "version": TEXT | None,
    "span": instance("a Span", Span),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prompt(Short):
    """One request against a schema, as written.

    `Prompt("travel").use("cities/miami", days="three").user("…")` builds one without XML. Every method returns a new
    prompt; arguments and texts are data, taken exactly as they are given.

    Attributes:
        schema: Name of the schema that the prompt is for.
        references: The modules that it names, as nested.
        arguments: Arguments for the schema's own parameters (those outside any module).
        messages: The prompt's own turns in order, or one bare text (`role` None) alone.
        version: The range of versions of the schema that the prompt is for, as ">=1.2,<2".
        warnings: What the author of a document should know, although it can be used.

    Raises:
        PromptError: bare text stands beside turns, or `version` is no range.
    """

    schema: str = field(kw_only=False)
    references: tuple[Reference, ...] = ()
    arguments: tuple[Argument, ...] = ()
    messages: tuple[Message, ...] = ()
    version: str | None = None
    span: Span = IN_PYTHON
    warnings: tuple[Diagnostic, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, kind in _FIELDS.items():
            kind.check(name, getattr(self, name), InvalidValue)
        if self.span is IN_PYTHON:
            object.__setattr__(self, "span", _in_python(f"Prompt({self.schema!r:.60})"))
        if faults := tuple(misplaced_text(self.messages)):
            raise PromptError(faults)
        if self.version is not None and not is_range(self.version):
            raise PromptError([bad_range(self.version, self.span)])

    def use(self, module: str, /, **arguments: str | float) -> Prompt:
        """Name a module by its path from the root, with arguments for its parameters: texts, or numbers.

        Raises:
            InvalidValue: an argument is neither text nor a finite number.
        """
        TEXT.check("module", module, InvalidValue)
        call = f"use({module!r})"
        reference = Reference(
            path=module.removeprefix("/"),
            span=_in_python(call),
            absolute=module.startswith("/"),
            arguments=_arguments(arguments.items(), call),
        )
        return replace(self, references=(*self.references, reference))

    def fill(self, **arguments: str | float) -> Prompt:
        """Give arguments for the schema's own parameters, as for `use`."""
        return replace(self, arguments=(*self.arguments, *_arguments(arguments.items(), "fill()")))

    def text(self, text: str) -> Prompt:
        """End with bare text; the empty text adds nothing."""
        TEXT.check("text", text, InvalidValue)
        return self._say(None, text) if text else self

    def system(self, text: str) -> Prompt:
        """Add a system turn."""
        return self._say(Role.SYSTEM, text)

    def user(self, text: str) -> Prompt:
        """Add a user turn."""
        return self._say(Role.USER, text)

    def assistant(self, text: str) -> Prompt:
        """Add an assistant turn; as the last turn it stays open and generation continues it."""
        return self._say(Role.ASSISTANT, text)

    def to_xml(self) -> str:
        """Return the prompt as a document that `parse_prompt` reads as the same prompt.

        Raises:
            PromptError: a text holds a character that XML cannot.
        """
        return print_document(_prompt_element(self), self.span, PromptError)

    def _say(self, role: Role | None, text: str) -> Prompt:
        TEXT.check("text", text, InvalidValue)
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        span = _in_python(f"{role or 'text'}({shown!r})")
        return replace(self, messages=(*self.messages, Message(role=role, text=text, span=span)))


def misplaced_text(messages: tuple[Message, ...]) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every bare text that does not stand alone."""
    if len(messages) < 2:
        return
    for message in messages:
        if message.role is None:
            yield Diagnostic(
                code="PC416",
                message="bare text stands beside other text or turns of the prompt",
                span=message.span,
                help="put it into a turn, <user>…</user>",
            )


def bad_range(version: str, span: Span) -> Diagnostic:
    """Say that a range of versions cannot be read."""
    message = f"version={quoted(version)} is not allowed: a range of versions is expected"
    return Diagnostic(code="PC105", message=message, span=span, help="write bounds separated by commas, as >=1.2,<2")


_NUMBER = number(-sys.float_info.max)
_ARGUMENT = Kind(
    "text without lone surrogates, or a finite number,",
    lambda value: is_text(value) or _NUMBER.takes(value),
)


def _in_python(path: str) -> Span:
    """Return the place of a part of a prompt that was built in Python: the call that made it."""
    return Span(path, 0, 0, 0, 0)


def _arguments(items: Iterable[tuple[str, str | float]], call: str) -> tuple[Argument, ...]:
    return tuple(_argument(name, value, _path(call, name)) for name, value in items)


def _argument(name: str, value: str | float, path: str) -> Argument:
    _ARGUMENT.check(f"argument {name}", value, InvalidValue)
    return Argument(name=name, text=str(value), span=_in_python(path))


def _path(call: str, name: str) -> str:
    return f"{call}.{name}" if name.isidentifier() else f"{call}[{name!r}]"


def _prompt_element(prompt: Prompt) -> Written:
    attributes, children = _written_arguments(prompt.arguments, reserved=("schema", "version"))
    attributes = [*((("version", prompt.version),) if prompt.version is not None else ()), *attributes]
    children += [_reference_element(reference) for reference in prompt.references]
    children += [_message_element(message) for message in prompt.messages]
    return Written("prompt", (("schema", prompt.schema), *attributes), tuple(children))


def _reference_element(reference: Reference) -> Written:
    attributes, children = _written_arguments(reference.arguments, reserved=("module",))
    inner = (*children, *(_reference_element(child) for child in reference.children))
    if not reference.absolute and is_element(reference.path) and reference.path not in RESERVED_MODULES:
        return Written(reference.path, tuple(attributes), inner)
    path = f"/{reference.path}" if reference.absolute else reference.path
    return Written("use", (("module", path), *attributes), inner)


def _written_arguments(
    arguments: tuple[Argument, ...], reserved: tuple[str, ...]
) -> tuple[list[tuple[str, str]], list[Written]]:
    """Divide arguments into attributes and <arg> elements; where order would be lost, all become elements."""
    plain = [
        is_element(item.name) and item.name not in reserved and not holds_line_break(item.text) for item in arguments
    ]
    if all(plain):
        return [(item.name, item.text) for item in arguments], []
    return [], [Written("arg", (("name", item.name),), (item.text,)) for item in arguments]


def _message_element(message: Message) -> Written:
    exact = Written("text", (), (message.text,))
    if message.role is None:
        return exact
    as_it_is = not message.text or finish([message.text], Whitespace.DEDENT) == [message.text]
    return Written(message.role.value, (), (message.text,) if as_it_is else (exact,))
