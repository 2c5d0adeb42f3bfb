"""Formats of answers that are calls of tools: one call or several, or calls or text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcache.diagnostics import InvalidGeneration, shown
from promptcache.structured.arguments import alternatives, choices_of, keyword
from promptcache.structured.call_style import CallStyle, common_start
from promptcache.structured.calls import parse_calls
from promptcache.structured.formats import JSONSchema, OutputFormat, literal, may_begin
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
    def grammar(self) -> Mapping[str, Any]:
        """A grammar with one alternative for each tool, and its JSON schema for the arguments."""
        style = self.style
        rules = _element_rules(self) if style.elements is not None else _json_rules(self)
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


def _json_rules(output: ToolCalls) -> Iterator[str]:
    style = output.style
    written = _Literals(style)
    more = f" ({written(style.joint)} any)*" if output.several and style.joint is not None else ""
    yield f"start: {written(style.head)} any{more} {written(style.tail)}"
    yield f"any: {' | '.join(f'call{index}' for index in range(len(output.tools)))}"
    for index, tool in enumerate(output.tools):
        yield f"call{index}: {written(tool.name + style.middle)} arguments{index}"
        yield f"arguments{index}: %json {json.dumps(tool.parameters.grammar['json_schema'])}"


def _element_rules(output: ToolCalls) -> Iterator[str]:
    """Yield the rules of calls whose arguments are written one by one: `some` have arguments, and `none` have none."""
    style, elements = output.style, output.style.elements
    assert elements is not None
    written, end = _Literals(style), _end_of_value(style)
    calls: dict[str, list[str]] = {"some": [], "none": []}
    for index, tool in enumerate(output.tools):
        schema = json.loads(tool.parameters.schema)
        properties, required = keyword(schema, "properties", dict), keyword(schema, "required", list)
        begin, firsts = written(tool.name + style.middle), list[str]()
        yield f'more{index}_{len(properties)}: ""'
        for number, (name, value) in reversed([*enumerate(properties.items())]):
            own, more, rest = f"own{index}_{number}", f"more{index}_{number}", f"more{index}_{number + 1}"
            yield from _argument_rules(own, written(name + elements.equals), value, schema, style)
            optional = "" if name in required else f" | {rest}"
            yield f"{more}: {written(elements.between[len(end) :])} {own} {rest}{optional}"
            firsts = [f"{begin} {own} {rest}", *([] if name in required else firsts)]
        calls["some"] += firsts
        calls["none"] += [] if any(name in required for name in properties) else [written(tool.name)]
    calls = {kind: each for kind, each in calls.items() if each}
    yield from (f"{kind}: {' | '.join(each)}" for kind, each in calls.items())
    tails = {"some": style.tail[len(end) :], "none": elements.empty_tail}
    last = " | ".join(f"{kind} {written(tails[kind])}" for kind in calls)
    more = ""
    if output.several and style.joint is not None and elements.empty_joint is not None:
        joints = {"some": style.joint[len(end) :], "none": elements.empty_joint}
        more = f"({' | '.join(f'{kind} {written(joints[kind])}' for kind in calls)})* "
    yield f"start: {written(style.head)} {more}({last})"


def _end_of_value(style: CallStyle) -> str:
    """Return the text that ends each value, whatever follows."""
    assert style.elements is not None
    return common_start(style.elements.between, style.tail, style.tail if style.joint is None else style.joint)


def _argument_rules(own: str, start: str, value: Any, root: Mapping[str, Any], style: CallStyle) -> Iterator[str]:
    """Yield the rules of an argument. Of a text, only its choices are part of the grammar."""
    assert style.elements is not None
    written, end = _Literals(style), _end_of_value(style)
    opening, closing = style.elements.quotes
    texts, others = list[str](), list[str]()
    is_json = (opening, closing) == ('"', '"')
    for number, each in enumerate(alternatives(value, root)):
        choices = choices_of(each)
        words = [word for word in choices or () if isinstance(word, str)]
        if is_json or (choices is None and each.get("type", "string") != "string") or (choices and not words):
            shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
            closed = JSONSchema(json.dumps({**each, **shared})).grammar["json_schema"]
            yield f"{own}_value{number}: %json {json.dumps(closed)}"
            others.append(f"{own}_value{number}")
        elif choices is None:
            texts.append(own)
        else:
            others += [written(f"{opening}{word}{closing}") for word in words]
            others += [written(json.dumps(word)) for word in choices if not isinstance(word, str)]
    if not texts:
        yield f"{own}: {start} ({' | '.join(others)}) {written(end)}"
    elif opening:
        any_text = "/(.|\\n)*/" if written.is_control(closing) else r"/([^'\\\\\n]|\\.)*/"
        also = "".join(f" | {each}" for each in others)
        yield f"{own}: {start} ({written(opening)} {own}_text {written(closing)}{also}) {written(end)}"
        yield f"{own}_text: {any_text}"
    else:  # a text may be any text, that of the others included
        yield f"{own}: {start} {own}_text"
        yield f"{own}_text[suffix={written(end)}]: /(.|\\n)*/"


class _Literals:
    """Writes texts of a style in a grammar."""

    def __init__(self, style: CallStyle) -> None:
        self._controls = style.controls or {}

    def __call__(self, text: str) -> str:
        return literal(text, self._controls)

    def is_control(self, text: str) -> bool:
        """Whether a text is a control token."""
        return text in self._controls


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
        style = self.calls.style
        first = style.head[:1]
        controls = tuple(style.controls or ())
        if not (style.head.startswith(controls) or self.before.startswith(controls)) and may_begin(self.text, first):
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
