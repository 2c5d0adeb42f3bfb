"""The text that a chat template writes for calls of tools."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from promptcache.diagnostics import TemplateRefusal
from promptcache.structured import CallStyle
from promptcache.tokenizer import Before, Markup, Tokenizer

_QUESTION, _NAMES, _KEY = "TEXT0QUESTION", ("name0of0tool", "name1of0tool"), "key0of0tool"
_CALL = r'\{{"name": "{name}", "(?:arguments|parameters)": \{{"{key}": "value"\}}\}}'


def call_style(tokenizer: Tokenizer) -> CallStyle:
    """Return the style of calls of a tokenizer's chat template; that of plain JSON if it writes none."""
    single, double = (_written(tokenizer, _NAMES[:count]) for count in (1, 2))
    if single is None:
        return CallStyle()
    head, middle, tail = single
    if double is None:
        return CallStyle(head=head, middle=middle, tail=tail)
    return CallStyle(head=double[0], middle=middle, tail=double[-1], joint=double[2])


def _written(tokenizer: Tokenizer, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the texts before, between and behind names and arguments of calls; None if they are no JSON."""
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
        arguments = re.escape(f'{{"{_KEY}": "value"}}')
        pattern = "(.*)" + rf'(", "(?:arguments|parameters)": ){arguments}(.*)'.join(map(re.escape, names))
        found = re.fullmatch(rf'{pattern}(", "(?:arguments|parameters)": ){arguments}(.*)', text, re.DOTALL)
        if found is not None and '{"name": "' in found[1]:
            return found.groups()
    return None


def _shown(tokenizer: Tokenizer, text: str) -> str:
    """Return what an answer shows of a text of the template: up to its end, without special tokens."""
    (token_ids,) = tokenizer.tokenize_parts([Markup(text)], Before.CONTROL)
    stop = next((index for index, each in enumerate(token_ids) if each in tokenizer.eos_ids), len(token_ids))
    return tokenizer.decode(token_ids[:stop])
