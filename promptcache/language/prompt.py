"""Parse a prompt document, or build a prompt in Python. Its nodes are those of `syntax.prompt_nodes`.

`resolve_prompt` checks that the schema has the modules of a prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from promptcache.diagnostics import (
    PATH,
    TEXT,
    InvalidValue,
    Kind,
    PromptError,
    Span,
    instance,
    is_text,
    number,
    shown,
    tuple_of,
)
from promptcache.language.check_values import field_faults
from promptcache.language.format.printer import print_prompt
from promptcache.language.messages import ChatMessages, read_messages
from promptcache.language.read_prompt import misplaced_text, read_prompt
from promptcache.language.syntax import nodes
from promptcache.language.syntax.files import Files, Folder, is_template, no_template, open_document
from promptcache.language.syntax.nodes import IN_PYTHON
from promptcache.language.syntax.source import decode, read_document
from promptcache.language.syntax.values import answer_faults

_MAX_SHOWN = 30

_FIELDS = {
    "schema": TEXT,
    "references": tuple_of("a tuple of Reference", nodes.Reference),
    "arguments": tuple_of("a tuple of Argument", nodes.Argument),
    "messages": tuple_of("a tuple of Message", nodes.Message),
    "version": TEXT | None,
    "answer_format": instance("an AnswerFormat", nodes.AnswerFormat) | None,
    "span": instance("a Span", Span),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prompt(nodes.PromptDocument):
    """One request against a schema, as written.

    `Prompt("travel").use("cities/miami", days="three").user("…")` builds a prompt without XML. Every method
    returns a new prompt. Arguments and texts are used exactly as given.

    `str(prompt)` is its document, or its repr if XML cannot express the prompt (`to_xml` says why).

    Raises:
        PromptError: bare text is combined with turns.
    """

    def __post_init__(self) -> None:
        for name, kind in _FIELDS.items():
            kind.check(name, getattr(self, name), InvalidValue)
        if self.span is IN_PYTHON:
            object.__setattr__(self, "span", _in_python(f"Prompt({self.schema!r:.60})"))
        if faults := tuple(misplaced_text(self.messages)):
            raise PromptError(faults)

    def __str__(self) -> str:
        try:
            return self.to_xml()
        except PromptError:  # in the message of another error, for example
            return repr(self)

    @classmethod
    def from_xml(cls, text: str | bytes) -> Prompt:
        """Return the prompt of a document.

        Raises:
            PromptError: as `parse_prompt`.
        """
        return parse_prompt(text)

    @classmethod
    def from_file(cls, path: str | Path, *, context: Mapping[str, object] | None = None) -> Prompt:
        """Load a prompt file; the file that it names must be in the same folder or below.

        Args:
            path: A document, or a template of one, `*.xml.j2`.
            context: Values for the template: plain data, as in JSON.

        Raises:
            PromptError: the file cannot be read, or as `parse_prompt`.
        """
        PATH.check("path", path, InvalidValue)
        name = str(path)
        data = read_document(Path(path), PromptError)
        if context is not None and not is_template(name):
            raise PromptError([no_template(name)])
        return cls(**read_prompt(open_document(data, name, context, PromptError), Folder.of(Path(path).parent)))

    @classmethod
    def from_messages(cls, schema: str, messages: ChatMessages) -> Prompt:
        """Return a prompt for a schema that adds a chat; `use` and `fill` name modules and arguments as always.

        Args:
            schema: Name of the schema.
            messages: `{"role": …, "content": …}` each; the content is text, or a list of text parts, used exactly. An
                answer may have `reasoning_content`, which the chat template keeps or drops, and `tool_calls`. Results
                of tools have the role "tool". A final message of the assistant stays open, and generation continues it.

        Raises:
            InvalidValue: A message is not supported; names its place.
        """
        return cls(schema, messages=read_messages(messages, of_model=True))

    def use(self, module: str, /, **arguments: str | float) -> Prompt:
        """Use a module, given by its path from the root, with arguments for its parameters: texts, or numbers.

        Raises:
            InvalidValue: an argument is neither text nor a finite number.
        """
        if isinstance(module, list | tuple):
            raise InvalidValue(f"module={shown(module)} is not allowed: call use(path) for each module")
        TEXT.check("module", module, InvalidValue)
        call = f"use({module!r})"
        reference = nodes.Reference(
            path=module.removeprefix("/"),
            span=_in_python(call),
            absolute=module.startswith("/"),
            arguments=_arguments(arguments, call),
        )
        return replace(self, references=(*self.references, reference))

    def fill(self, **arguments: str | float) -> Prompt:
        """Set arguments for the schema's own parameters, as for `use`."""
        return replace(self, arguments=(*self.arguments, *_arguments(arguments, "fill()")))

    def text(self, text: str) -> Prompt:
        """Add bare text at the end; the empty text adds nothing."""
        TEXT.check("text", text, InvalidValue)
        return self._say(None, text) if text else self

    def system(self, text: str) -> Prompt:
        """Add a system turn."""
        return self._say(nodes.Role.SYSTEM, text)

    def user(self, text: str) -> Prompt:
        """Add a user turn."""
        return self._say(nodes.Role.USER, text)

    def assistant(self, text: str) -> Prompt:
        """Add an assistant turn; a final assistant turn stays open, and generation continues it."""
        return self._say(nodes.Role.ASSISTANT, text)

    def answer(
        self,
        kind: nodes.ParameterType = nodes.ParameterType.TEXT,
        *,
        choices: tuple[str, ...] = (),
        pattern: str | None = None,
    ) -> Prompt:
        """Set the format of the answer; the arguments are those of `slot`. It wins over the format of the schema.

        Raises:
            PromptError: There is no such format.
        """
        answer = nodes.AnswerFormat(type=kind, choices=choices, pattern=pattern, span=_in_python("answer()"))
        if faults := tuple(field_faults(answer, nodes.AnswerFormat)) or tuple(answer_faults(answer)):
            raise PromptError(faults)
        return replace(self, answer_format=answer)

    def to_xml(self) -> str:
        """Return the prompt as an XML document; `parse_prompt` returns the same prompt for it.

        An argument that is given twice is written twice, and `parse_prompt` refuses the document (PC403).

        Raises:
            PromptError: a text has a character that XML cannot represent, or a message has reasoning or
                calls of tools, or is a result of a tool.
        """
        return print_prompt(self)

    def _say(self, role: nodes.Role | None, text: str) -> Prompt:
        TEXT.check("text", text, InvalidValue)
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        span = _in_python(f"{role or 'text'}({shown!r})")
        return replace(self, messages=(*self.messages, nodes.Message(role=role, text=text, span=span)))


def parse_prompt(text: str | bytes, *, source: str = "<prompt>", folder: Files | None = None) -> Prompt:
    """Parse a prompt document.

    Args:
        text: The document; bytes must be UTF-8.
        source: Name of the document in diagnostics.
        folder: Folder of the file that `src` names, or the texts of files by path. If it is None, `src` is an error.

    Raises:
        PromptError: all faults of XML or structure, in document order.
    """
    return Prompt(**read_prompt(decode(text, source, PromptError), None if folder is None else Folder.of(folder)))


def example_prompt(example: nodes.Example) -> Prompt:
    """Parse the prompt of an example; its spans are places in the schema document.

    Raises:
        PromptError: as `parse_prompt`.
    """
    span = example.prompt_span
    source = replace(decode(example.prompt, span.source, PromptError), first=(span.line, span.column))
    return Prompt(**read_prompt(source))


_NUMBER = number(-sys.float_info.max)
_ARGUMENT = Kind(
    "text without lone surrogates, or a finite number,",
    lambda value: is_text(value) or _NUMBER.takes(value),
)


def _in_python(path: str) -> Span:
    """Return the span of a part of a prompt that was built in Python: the call that built it."""
    return Span(path, 0, 0, 0, 0)


def _arguments(given: Mapping[str, str | float], call: str) -> tuple[nodes.Argument, ...]:
    found = []
    for name, value in given.items():
        _ARGUMENT.check(f"argument {name}", value, InvalidValue)
        path = f"{call}.{name}" if name.isidentifier() else f"{call}[{name!r}]"
        found.append(nodes.Argument(name=name, text=str(value), span=_in_python(path)))
    return tuple(found)


def split_question(prompt: Prompt) -> tuple[Prompt, str | None]:
    """Return a prompt without its last user turn or bare text, and that text; None if it ends with another turn."""
    if not prompt.messages or prompt.messages[-1].role not in (None, nodes.Role.USER):
        return prompt, None
    *before, last = prompt.messages
    return replace(prompt, messages=tuple(before)), last.text
