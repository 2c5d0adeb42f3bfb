"""How a model writes calls of tools, learned from what its chat template writes for known calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from os.path import commonprefix
from typing import Any

from promptcache.diagnostics import InvalidGeneration, TemplateRefusal
from promptcache.structured import CALL_ID, CallStyle, Elements, Tool
from promptcache.tokenizer import Before, Markup, Tokenizer

_QUESTION = "TEXT0QUESTION"
_NAMES, _KEYS, _TEXT, _NUMBERS = (
    ("name0of0tool", "name1of0tool"),
    ("key0of0tool", "key1of0tool"),
    "text0of0tool",
    (70707, 80808),
)
_JSON = rf'\{{\s*"{_KEYS[0]}"\s*:\s*"{_TEXT}"\s*\}}'


def call_style(tokenizer: Tokenizer, tools: Sequence[Tool]) -> CallStyle:
    """Return the style of calls of a tokenizer's chat template; that of plain JSON if it knows no tools.

    Raises:
        InvalidGeneration: The template writes calls in a form that cannot be derived from it, or none.
    """
    return replace(_style_of_template(tokenizer), tools=tuple(tools))


@lru_cache(maxsize=4)
def _style_of_template(tokenizer: Tokenizer) -> CallStyle:
    """Return the style for any tools, which is learned once."""
    writer = _CallWriter(tokenizer)
    one = writer.text([{_KEYS[0]: _TEXT}])
    writes_call = one is not None and (_NAMES[0] in one or _TEXT in one)
    if not writes_call and not writer.writes_tools:
        return CallStyle()
    style = None if one is None else _json_style(writer, one) or _element_style(writer)
    if style is None:
        reason = "writes calls of tools in an unknown form" if writes_call else "writes tools, and no calls of them"
        raise InvalidGeneration(
            f"tools do not work with this model: its chat template {reason}, so calls cannot be found in answers; "
            "leave `tools` out, and describe the tools and the form of calls in a message"
        )
    return style


def _json_style(writer: _CallWriter, one: str) -> CallStyle | None:
    """Return the style of calls whose arguments are JSON; None if they are something else."""
    single = re.fullmatch(rf"(.*){_NAMES[0]}(.*?){_JSON}(.*)", one, re.DOTALL)
    if single is None:
        return None
    head, middle, tail = single.groups()
    two = writer.text([{_KEYS[0]: _TEXT}] * 2)
    double = re.fullmatch(rf"(.*){_NAMES[0]}.*?{_JSON}(.*){_NAMES[1]}(.*?){_JSON}(.*)", two or "", re.DOTALL)
    if double is None:
        return writer.style(head=head, middle=middle, tail=tail)
    return writer.style(head=double[1], middle=middle, joint=double[2], tail=double[4])


def _element_style(writer: _CallWriter) -> CallStyle | None:
    """Return the style of calls whose arguments are written one by one; None if they are something else."""
    (name, other), (key, more), (number, last) = _NAMES, _KEYS, map(str, _NUMBERS)
    texts = writer.cut([{key: _TEXT}], name, key, _TEXT)
    numbers = writer.cut([{key: _NUMBERS[0]}], name, key, number)
    pair = writer.cut([{key: _NUMBERS[0], more: _NUMBERS[1]}], name, key, number, more, last)
    empty = writer.cut([{}], name)
    if texts is None or numbers is None or pair is None or empty is None:
        return None
    head, middle, equals, tail = numbers
    opening, closing = texts[2].removeprefix(equals), texts[3].removesuffix(tail)
    elements = Elements(equals=equals, between=pair[3], quotes=(opening, closing), empty_tail=empty[1])
    calls = writer.cut([{key: _NUMBERS[0]}, {}], name, key, number, other)
    empties = writer.cut([{}, {}], name, other)
    several = calls is not None and empties is not None
    style = writer.style(
        head=head,
        middle=middle,
        tail=tail,
        joint=calls[3] if calls is not None and several else None,
        elements=replace(elements, empty_joint=empties[1] if empties is not None and several else None),
    )
    ends = commonprefix([elements.between, tail, style.joint or tail])  # a text without quotes ends with it
    return style if equals and "\\" not in equals and (opening or ends) else None


class _CallWriter:
    """Writes answers with calls as a chat template does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, arguments: Sequence[Mapping[str, Any]]) -> str | None:
        """Return an answer with calls, without reasoning and without its end; None if the template refuses it."""
        calls = [
            {"type": "function", "id": CALL_ID, "function": {"name": name, "arguments": each}}
            for name, each in zip(_NAMES, arguments, strict=False)
        ]
        answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
        try:
            header, said = (each.rpartition(_QUESTION)[2] for each in (self._asked, self._render(answer)))
        except TemplateRefusal:
            return None
        tags = self._tokenizer.reasoning_tags
        for tag in tags or ():
            header = header.partition(tag)[0]  # a block that the prompt opens or closes is no part of calls
        header = header if said.startswith(header) else header.rstrip()
        if not said.startswith(header):
            return None
        text = said.removeprefix(header)
        if tags is not None and tags[1] in text:
            text = text.rpartition(tags[1])[2].lstrip()
        (token_ids,) = self._tokenizer.tokenize_parts([Markup(text)], Before.CONTROL)
        stop = next((index for index, each in enumerate(token_ids) if each in self._tokenizer.eos_ids), len(token_ids))
        return self._tokenizer.decode(token_ids[:stop])

    @property
    def writes_tools(self) -> bool:
        """Whether the template writes definitions of tools."""
        try:
            return _NAMES[0] in self._asked
        except TemplateRefusal:
            return False

    @cached_property
    def _asked(self) -> str:
        """The question with the beginning of an answer."""
        return self._render()

    def _render(self, *answer: Mapping[str, Any]) -> str:
        """Return a question with an answer, or with the beginning of one."""
        parameters = {"type": "object", "properties": {each: {"type": "string"} for each in _KEYS}}
        tools = [
            {"type": "function", "function": {"name": each, "description": each, "parameters": parameters}}
            for each in _NAMES
        ]
        messages = [{"role": "user", "content": _QUESTION}, *answer]
        return self._tokenizer.render_chat(messages, generation_prompt=not answer, options={"tools": tools})

    def cut(self, arguments: Sequence[Mapping[str, Any]], *marks: str) -> tuple[str, ...] | None:
        """Return an answer with calls, cut at marks that it has once and in this order; None if it does not."""
        text = self.text(arguments)
        found = None if text is None else re.fullmatch("(.*)" + "(.*)".join(marks) + "(.*)", text, re.DOTALL)
        if found is None or any(found[0].count(each) != 1 for each in marks):
            return None
        return found.groups()

    def style(self, **texts: Any) -> CallStyle:
        """Return a style with the control tokens in its texts."""
        style = CallStyle(**texts)
        elements = style.elements
        written = [style.head, style.middle, style.joint, style.tail]
        if elements is not None:
            written += [elements.equals, elements.between, *elements.quotes, elements.empty_joint, elements.empty_tail]
        return replace(style, controls=control_tokens(self._tokenizer, *filter(None, written)))


def control_tokens(tokenizer: Tokenizer, *texts: str) -> dict[str, int]:
    """Return the written forms of the control tokens that a template writes in texts, with their IDs."""
    found = {
        each for (ids,) in (tokenizer.tokenize_parts([Markup(text)], Before.TEXT) for text in texts) for each in ids
    }
    return {tokenizer.detokenize((each,)): each for each in sorted(found & tokenizer.control_ids)}
