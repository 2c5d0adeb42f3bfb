"""How a model writes calls of tools: the text around their names and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from typing import Any

from promptcache.structured.tools import Tool

CALL_ID = "call00000"
"""Stands for any id in the texts of a style. Mistral's have nine characters."""

NAME_KEY = re.compile(r'"([a-z_]*name)"\s*:\s*"\Z')
ARGUMENTS_KEY = re.compile(r'"(\w+)"\s*:\s*\Z')
"""The keys of the name and of the arguments in JSON of a call, at the end of `head` and of `middle`."""

_ANY_ID = r"[^\s\"<\[]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Arguments one by one, as in XML or in code.

    Attributes:
        equals: Between the name of an argument and its value.
        between: Between a value and the next name.
        quotes: Around a text; ("", "") if a text has none.
        empty_joint: As `CallStyle.joint`, behind the name of a call without arguments.
        empty_tail: As `CallStyle.tail`, behind such a name.
    """

    equals: str
    between: str
    quotes: tuple[str, str] = ("", "")
    empty_joint: str | None = None
    empty_tail: str

    @property
    def is_code(self) -> bool:
        """Whether texts have the quotes of JSON or Python."""
        return self.quotes in (('"', '"'), ("'", "'"))


@dataclass(frozen=True, kw_only=True)
class CallStyle:
    """The text around names and arguments: `head name middle arguments (joint name middle arguments)* tail`.

    Attributes:
        joint: Between two calls of one answer; None if an answer has one call.
        elements: The texts around single arguments; None if the arguments are JSON of an object.
        controls: Written forms in these texts that are control tokens, with their IDs.
        tools: The tools that may be called; their schemas give arguments without quotes their types.
    """

    head: str = '{"name": "'
    middle: str = '", "arguments": '
    joint: str | None = None
    tail: str = "}"
    elements: Elements | None = None
    controls: Mapping[str, int] | None = None
    tools: Sequence[Tool] = ()

    @property
    def is_json(self) -> bool:
        """Whether a call is JSON as a whole, with its name in it."""
        return self.elements is None and NAME_KEY.search(self.head) is not None

    @cached_property
    def tag(self) -> str:
        """The text that begins a call, in front of its JSON or its name; empty without one."""
        if self.is_json:
            return self.head[: self.head.find("{")].strip().removesuffix("[").strip()
        return self.head.split()[0] if re.search(r"\w", self.head) else ""

    @cached_property
    def end_tag(self) -> str:
        """The text that ends a call, behind its JSON; empty without one."""
        if self.is_json:
            return self.tail[self.tail.rfind("}") + 1 :].strip().removeprefix("]").strip()
        return self.tail.split()[-1] if self.tail.strip() else ""

    def signs(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the texts with which calls begin, wherever they are in an answer."""
        if self.tag or self.is_json:
            return (self.tag,) if self.tag else ()
        empty = self.middle if self.elements is None else self.elements.empty_tail
        behind = commonprefix([self.middle, empty]).strip()
        return tuple(f"{self.head.lstrip()}{name}{behind}" for name in names)

    def parameters(self, name: str) -> Mapping[str, Any]:
        """Return the JSON schema of the arguments of a tool; {} if it is not known."""
        found: Mapping[str, Any] = next((json.loads(e.parameters.schema) for e in self.tools if e.name == name), {})
        return found


def name_behind(text: str) -> re.Pattern[str]:
    """Return the pattern of a text of a template and a name behind it."""
    return re.compile(rf"{lenient(text)}(?P<name>[\w.-]+)")


def lenient(text: str) -> str:
    """Return a regular expression for a text of a template, in which models write white space and ids differently."""
    words = (re.escape(word).replace(CALL_ID, _ANY_ID) for word in text.split())
    return r"\s*" + r"\s*".join(words) + r"\s*" if text.strip() else r"\s*"
