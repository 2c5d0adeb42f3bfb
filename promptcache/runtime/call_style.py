"""The text that a chat template writes for calls of tools."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from promptcache.diagnostics import TemplateRefusal
from promptcache.structured import FUNCTION, CallStyle
from promptcache.tokenizer import Before, Markup, Tokenizer

_QUESTION, _NAMES, _KEY = "TEXT0QUESTION", ("name0of0tool", "name1of0tool"), "key0of0tool"
_OPENING = '{"name": "'
_JSON = rf'(", "(?:arguments|parameters)": )\{{"{_KEY}": "value"\}}'
_XML = rf"(>\n)<parameter={_KEY}>\nvalue\n</parameter>\n"


def call_style(tokenizer: Tokenizer) -> CallStyle:
    """Return the style of calls of a tokenizer's chat template; that of plain JSON if it writes none."""
    single, double = (_written(tokenizer, _NAMES[:count]) for count in (1, 2))
    if single is None:
        return CallStyle()
    is_xml = single[0].endswith(FUNCTION)
    head, middle, tail = single
    if double is None:
        return CallStyle(head=head, middle=middle, tail=tail, is_xml=is_xml)
    return CallStyle(head=double[0], middle=middle, tail=double[-1], joint=double[2], is_xml=is_xml)


def _written(tokenizer: Tokenizer, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the texts before, between and behind names and arguments of calls; None if they are no JSON or XML."""
    calls = [
        {"type": "function", "id": "call00000", "function": {"name": each, "arguments": {_KEY: "value"}}}
        for each in names
    ]
    user: dict[str, Any] = {"role": "user", "content": _QUESTION}
    answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    with suppress(TemplateRefusal):
        asked = tokenizer.render_chat([user], generation_prompt=True)
        rendered = tokenizer.render_chat([user, answer], generation_prompt=False)
        header = asked.partition(_QUESTION)[2]
        said = rendered.partition(_QUESTION)[2]
        if not said.startswith(header):
            return None
        text = _shown(tokenizer, said.removeprefix(header))
        for body in (_JSON, _XML):
            pattern = "(.*)" + rf"{body}(.*)".join(map(re.escape, names)) + rf"{body}(.*)"
            found = re.fullmatch(pattern, text, re.DOTALL)
            if found is None:
                continue
            has_tag = found[1].endswith(FUNCTION) and found[1].strip() != FUNCTION
            if has_tag or _OPENING in found[1]:
                return found.groups()
    return None


def _shown(tokenizer: Tokenizer, text: str) -> str:
    """Return what an answer shows of a text of the template: up to its end, without special tokens."""
    (token_ids,) = tokenizer.tokenize_parts([Markup(text)], Before.CONTROL)
    stop = next((index for index, each in enumerate(token_ids) if each in tokenizer.eos_ids), len(token_ids))
    return tokenizer.decode(token_ids[:stop])
