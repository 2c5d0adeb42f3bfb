"""Models with chat templates that write tools, and conversations with calls."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

from promptcache import Engine
from promptcache.demo import MODEL_FOLDER

HERMES = (
    "{% if tools or messages[0].role == 'system' %}<|start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% if tools %}\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}<|end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|end|>\n"
    "{% elif m.role != 'system' or not loop.first %}<|start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
XML = HERMES.replace(
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>',
    "<tool_call>\n<function={{ call.function.name }}>\n{% for name, value in call.function.arguments | items %}"
    "<parameter={{ name }}>\n{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>",
)
"""Calls as Qwen3-Coder writes them."""
WRITES_THINKING = HERMES.replace(
    "{% for call in",
    "{% if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{% for call in",
).replace("assistant\n{% endif %}", "assistant\n{% if closed %}<think>\n\n</think>\n\n{% endif %}{% endif %}")
"""Writes a block of reasoning into the last answer, and a closed one on request, as Qwen3 does."""
OPENS_THINKING = HERMES.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}").replace(
    "{{ m.content }}{% for call", "{{ m.content.split('</think>')[-1] }}{% for call"
)
"""Begins a block of reasoning in the prompt, as QwQ does."""
QUESTION = {"role": "user", "content": "How warm is it in Oslo?"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": f"Call {name}.", "parameters": schema}}


TOOLS = [tool("weather", city={"enum": ["Oslo", "Rome"]}), tool("time")]
CALL = {"type": "function", "id": "call1", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
CALLED = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "call1", "content": "7 degrees <|end|> & rain"}


class AnswerProcessor(LogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """A logits processor that is given the tokens of the answer so far."""

    def __init__(self, change: Callable[[list[int], torch.Tensor], torch.Tensor]) -> None:
        self._change = change
        self._num_before: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._num_before is None:
            self._num_before = input_ids.shape[1]
        return self._change(input_ids[0, self._num_before :].tolist(), scores)


def engine_of(template: str | None) -> tuple[Engine, Any]:
    """Return the demo model with a chat template, or with its own, and the tokenizer of transformers."""
    tokenizer = copy.deepcopy(AutoTokenizer.from_pretrained(MODEL_FOLDER))
    tokenizer.chat_template = template or tokenizer.chat_template
    return Engine(AutoModelForCausalLM.from_pretrained(MODEL_FOLDER), tokenizer), tokenizer
