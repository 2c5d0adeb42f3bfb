"""Formats of answers that are calls of tools: one call or several, or calls or text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcache.diagnostics import InvalidGeneration, shown
from promptcache.structured.call_style import CallStyle
from promptcache.structured.calls import parse_calls
from promptcache.structured.formats import OutputFormat, check_format, literal
from promptcache.structured.tools import Tool, ToolCall


@dataclass(frozen=True, slots=True)
class ToolCalls(OutputFormat):
    """An answer that is one call of one of several tools, or more calls.

    Attributes:
        several: Whether it may have more than one call.
    """

    tools: tuple[Tool, ...]
    style: CallStyle
    several: bool = True

    @property
    def written_style(self) -> CallStyle:
        """The style of its text: that of the model, or JSON in the tags of a model that writes arguments one by one."""
        style = self.style
        if style.elements is None:
            return style
        end = style.end_tag if style.tag else ""
        return CallStyle(
            head=f'{style.tag}[{{"name": "', joint='}, {"name": "', tail=f"}}]{end}", controls=style.controls
        )

    @property
    def grammar(self) -> Mapping[str, Any]:
        """A grammar with one alternative for each tool, and its JSON schema for the arguments."""
        style = self.written_style

        def written(text: str) -> str:
            return literal(text, style.controls or {})

        more = f" ({written(style.joint)} any)*" if self.several and style.joint is not None else ""
        rules = [
            f"start: {written(style.head)} any{more} {written(style.tail)}",
            f"any: {' | '.join(f'call{index}' for index in range(len(self.tools)))}",
        ]
        for index, tool in enumerate(self.tools):
            rules.append(f"call{index}: {written(tool.name + style.middle)} arguments{index}")
            rules.append(f"arguments{index}: %json {json.dumps(tool.parameters.grammar['json_schema'])}")
        return {"lark_grammar": "\n".join(rules)}

    @property
    def inner(self) -> Iterable[tuple[str, OutputFormat]]:
        """The parameters of the tools."""
        return ((f"tools: the parameters of {shown(each.name)}", each.parameters) for each in self.tools)

    def _value(self, text: str) -> tuple[ToolCall, ...]:
        content, calls = parse_calls(text, {each.name for each in self.tools}, self.style)
        if content or not calls:
            raise ValueError(f"{shown(text)} is no call of a tool")
        return calls


@dataclass(frozen=True, slots=True)
class CallsOrText(OutputFormat):
    """An answer that is calls of tools, or text of another format.

    Attributes:
        before: What the template writes in front of a text, and not in front of calls.
    """

    calls: ToolCalls
    text: OutputFormat
    before: str = ""

    def __post_init__(self) -> None:
        """Check that the first character decides.

        Raises:
            InvalidGeneration: Calls and text may begin alike: the lexer of llguidance would only allow calls then.
        """
        style = self.calls.written_style
        first = style.head[:1]
        controls = tuple(style.controls or ())
        is_control = style.head.startswith(controls) or self.before.startswith(controls)
        if not is_control and check_format(self.text).matcher().consume_tokens([*first.encode()]):
            raise InvalidGeneration(
                f"the format of the answer does not work with tools of this model: calls and answers both begin with "
                f"{shown(first)}; leave one of them out"
            )

    @property
    def grammar(self) -> Mapping[str, Any]:
        """Either of two grammars."""
        before = literal(self.before, self.calls.style.controls or {}) if self.before else ""
        return {"lark_grammar": f"start: @calls | {before} @text"}

    @property
    def parts(self) -> Sequence[Mapping[str, Any]]:
        """Both grammars."""
        return ({"name": "calls", **self.calls.grammar}, {"name": "text", **self.text.grammar})

    @property
    def inner(self) -> Iterable[tuple[str, OutputFormat]]:
        """The calls; the text was checked."""
        return (("the calls of tools", self.calls),)

    def _value(self, text: str) -> Any:
        names = {each.name for each in self.calls.tools}
        content, calls = parse_calls(text, names, self.calls.style)
        return calls if calls and not content and not self.text.accepts(text) else self.text.parse(text)
