"""Documents and tools that a retriever finds, as members of a collection: each is encoded once for many prompts.

`promptcache.retrieval.langchain` and `promptcache.retrieval.llama_index` put this into chains and query engines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Unpack

from promptcache.decode import Completion
from promptcache.diagnostics import InvalidValue, shown
from promptcache.engine import Engine
from promptcache.language import Prompt, as_name
from promptcache.model import function_schema
from promptcache.options import OptionKeywords

__all__ = ["Documents", "document_name", "tool_member"]


class Documents:
    """A collection of an engine for documents that are known by their text.

    A document that is no member yet becomes one when a prompt needs it first. It has the same name whenever it comes,
    so its KV is reused. A text that changed is another document.
    """

    def __init__(self, engine: Engine, schema: str, collection: str, **options: Unpack[OptionKeywords]) -> None:
        """Create it.

        Args:
            engine: It has the schema.
            schema: Name of the schema.
            collection: Path of the collection, such as "docs".
            options: For each answer: those of `Engine.generate`, such as `max_new_tokens`.

        Raises:
            UnknownSchema: The engine does not have the schema.
            InvalidValue: The schema does not have the collection.
        """
        self._members = engine.members(schema, collection)
        self._names = {text: name for name, text in self._members.items()}
        self._engine, self._schema, self._collection = engine, schema, collection.strip("/")
        self._options = options

    def add(self, texts: Iterable[str]) -> list[str]:
        """Add documents that are not members yet, and return the names of all, in the given order.

        Raises:
            InvalidValue: A text is empty.
        """
        names = []
        for text in texts:
            name = self._names.get(text) or document_name(text)
            if self._members.get(name) != text:
                self._engine.add_member(self._schema, self._collection, name, text)
            self._names[text] = name
            names.append(name)
        return names

    def prompt(self, texts: Iterable[str], question: str) -> Prompt:
        """Return a prompt with these documents, in this order, and a question.

        The question continues the schema's open turn of the user, or is a turn of its own if there is none. A document
        that comes twice is used once. Documents that are not members yet are added.

        Raises:
            InvalidValue: A text is empty.
        """
        prompt = Prompt(self._schema)
        for name in dict.fromkeys(self.add(texts)):
            prompt = prompt.use(f"{self._collection}/{name}")
        return prompt.text(question) if self._engine.schemas[self._schema].has_open_turn else prompt.user(question)

    def answer(self, texts: Iterable[str], question: str) -> Completion:
        """Answer a question from documents. Errors are those of `prompt` and of `Engine.generate`."""
        return self._engine.generate(self.prompt(texts, question), **self._options)

    def stream(self, texts: Iterable[str], question: str) -> Iterator[str]:
        """Answer a question piece by piece. Errors are those of `answer`."""
        with self._engine.stream(self.prompt(texts, question), **self._options) as pieces:
            yield from pieces


def document_name(text: str) -> str:
    """Return the name of a document: a digest of its text."""
    return f"d-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]}"


def tool_member(tool: Callable[..., Any] | Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the text of a tool as a member: `engine.add_member("agent", "tools", *tool_member(search))`.

    The text is the JSON that chat templates write of the tool.

    Args:
        tool: A function with type hints and a docstring as transformers reads it, or a schema in the form of OpenAI:
            `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}`.

    Raises:
        InvalidValue: The function has no such docstring, or the schema has no name or is not JSON.
    """
    schema = function_schema(tool) if callable(tool) else tool
    function = schema.get("function") if isinstance(schema, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidValue(
            f'tool={shown(tool)} has no name: {{"type": "function", "function": {{"name": …}}}} is expected'
        )
    try:
        return as_name(name), json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"tool {shown(name)} is not JSON: {error}") from None
