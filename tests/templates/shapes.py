"""Chat templates in the shapes that public models have, written for these tests, one for each habit.

`habit` is a text of the template, and what stands there in a template without the habit. The laws must fail if the
library had the second template: a test shows that their conversations exercise the habit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.tokenizer.chat_templates import CASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A chat template.

    Attributes:
        source: The template.
        habit: A text of `source`, and its replacement in a template without the habit.
        options: Variables of the template that a request may set.
        tokens: Special tokens of the model, if they are not `<s>` and `</s>`.
        in_parts: Whether the template takes contents in parts only.
    """

    source: str
    habit: tuple[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    in_parts: bool = False

    @property
    def without_habit(self) -> str:
        """The template without its habit."""
        return self.source.replace(*self.habit)


def loop(body: str, before: str = "", after: str = "") -> str:
    """Return a template that writes `body` for each message `m`."""
    return before + "{% for m in messages %}" + body + "{% endfor %}" + after


def asked(text: str) -> str:
    """Return a template that writes `text` as the generation prompt."""
    return "{% if add_generation_prompt %}{{ '" + text + "' }}{% endif %}"


def refused(condition: str, reason: str) -> str:
    """Return a template that refuses a conversation."""
    return "{% if " + condition + " %}{{ raise_exception('" + reason + "') }}{% endif %}"


ALTERNATE = refused("(m.role == 'user') != (loop.index0 % 2 == 0)", "roles must alternate")
TAKE_SYSTEM = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}"
    "{% else %}{% set system = '' %}{% endif %}"
)
IM = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
IM_ASKED = asked("<|im_start|>assistant\n")
IM_DEFAULT = (
    "{% if loop.first and m.role != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
)
THINKING = "{% set text = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content %}"
IM_TEXT = "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}"
INST = (
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}"
)
PHI = "{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}"
HEADER = "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}"
HEADER_ASKED = asked("<|start_header_id|>assistant<|end_header_id|>\n\n")
GEMMA = (
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}"
)
GEMMA_ASKED = asked("<start_of_turn>model\n")

SHAPES: Mapping[str, Shape] = {
    # ChatML
    "chatml": Shape(source=loop(IM, after=IM_ASKED), habit=("<|im_end|>\n", "\n")),
    "chatml with a default system text": Shape(source=loop(IM_DEFAULT + IM, after=IM_ASKED), habit=("You are helpful.", "You are here.")),
    "a default system text that depends on the last turn": Shape(
        source=loop(
            IM,
            "{% if messages[0].role != 'system' and messages[-1].role == 'user' %}{{ '<|im_start|>system\nAnswer.<|im_end|>\n' }}"
            "{% endif %}",
            IM_ASKED,
        ),
        habit=(" and messages[-1].role == 'user'", ""),
    ),
    "bos opens every turn": Shape(
        source=loop(IM_DEFAULT + "{{ bos_token + m.role + '\n' + m.content + eos_token + '\n' }}", after=IM_ASKED),
        habit=("{{ bos_token + m.role", "{{ ('' if loop.first else bos_token) + m.role"),
        tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    ),
    "chatml behind bos": Shape(source=loop(IM, "{{ bos_token }}", IM_ASKED), habit=("{{ bos_token }}", "")),
    "no newline behind a turn": Shape(source=loop(IM.replace("<|im_end|>\n", "<|im_end|>"), after=IM_ASKED), habit=("<|im_end|>", "<|im_end|>\n")),
    "trimmed contents": Shape(source=loop(IM.replace("m.content", "m.content | trim"), after=IM_ASKED), habit=(" | trim", "")),
    "only answers are trimmed": Shape(
        source=loop(
            "{% set text = m.content.strip() if m.role == 'assistant' else m.content %}" + IM_TEXT, after=IM_ASKED
        ),
        habit=(" if m.role == 'assistant' else m.content", ""),
    ),
    "contents trimmed at the left": Shape(source=loop(IM.replace("m.content", "m.content.lstrip()"), after=IM_ASKED), habit=(".lstrip()", "")),
    "footer written by the next turn": Shape(
        source=loop(
            "{{ '<|im_end|>\n' if not loop.first }}{{ '<|im_start|>' + m.role + '\n' + m.content }}",
            after=asked("<|im_end|>\n<|im_start|>assistant\n"),
        ),
        habit=("{{ '<|im_end|>\n' if not loop.first }}", "{{ '<|im_end|>\n' }}"),
    ),
    "generation prompt without being asked": Shape(
        source=loop(IM, after="{{ '<|im_start|>assistant\n' if messages[-1].role != 'assistant' }}"),
        habit=("messages[-1].role != 'assistant'", "false"),
    ),
    "no generation prompt": Shape(source=loop(IM), habit=("<|im_end|>\n", "<|im_end|>\n\n")),
    "generation block": Shape(
        source=loop(
            "{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}{{ m.content + '<|im_end|>' }}"
            "{% endgeneration %}{{ '\n' }}{% else %}" + IM + "{% endif %}",
            after=IM_ASKED,
        ),
        habit=("{% generation %}", "{% generation %}{{ ' ' }}"),
    ),
    # the system text elsewhere
    "system text merged into the first user turn": Shape(
        source=loop(
            "{% set text = system + '\n\n' + m.content if system and loop.first else m.content %}" + IM_TEXT,
            TAKE_SYSTEM,
            IM_ASKED,
        ),
        habit=("system + '\n\n' + m.content", "m.content"),
    ),
    "system text in the last user turn": Shape(
        source=loop(
            "{% if m.role == 'user' and loop.last and system %}{{ '[INST] ' + system + '\n\n' + m.content + ' [/INST]' }}{% else %}"
            + INST
            + "{% endif %}",
            TAKE_SYSTEM + "{{ bos_token }}",
        ),
        habit=("loop.last and system", "loop.first and system"),
    ),
    "system texts gathered at the start": Shape(
        source="{% set ns = namespace(system='') %}"
        + loop("{% if m.role == 'system' %}{% set ns.system = ns.system + m.content + '\n' %}{% endif %}")
        + "{{ bos_token + ns.system }}"
        + loop(
            "{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% elif m.role == 'assistant' %}"
            "{{ '<|Assistant|>' + m.content + eos_token }}{% endif %}",
            after=asked("<|Assistant|>"),
        ),
        habit=("ns.system + m.content", "m.content"),
    ),
    "system text left out": Shape(
        source=loop("{% if m.role != 'system' %}" + IM + "{% endif %}", after=IM_ASKED),
        habit=("{% if m.role != 'system' %}", "{% if true %}"),
    ),
    "text behind the system text": Shape(
        source=loop(
            "{% if m.role == 'system' %}{{ '<|system|>\n' + m.content + '\n\nCutting knowledge: never.<|end|>\n' }}{% else %}"
            + PHI
            + "{% endif %}",
            after=asked("<|assistant|>\n"),
        ),
        habit=("\n\nCutting knowledge: never.", ""),
    ),
    "an empty system turn": Shape(
        source=loop(
            "{% if loop.first and m.role != 'system' %}{{ '[|system|][|endofturn|]\n' }}{% endif %}"
            "{% if m.role == 'user' %}{{ '[|user|]' + m.content + '\n' }}{% else %}"
            "{{ '[|' + m.role + '|]' + m.content + '[|endofturn|]\n' }}{% endif %}",
            after=asked("[|assistant|]"),
        ),
        habit=("[|system|][|endofturn|]\n", ""),
    ),
    "a system turn comes first": Shape(
        source=loop(IM, refused("messages[0].role != 'system'", "a system turn comes first"), IM_ASKED),
        habit=("messages[0].role != 'system'", "false"),
    ),
    "system turns only at the start": Shape(
        source=loop(refused("m.role == 'system' and not loop.first", "only the first turn is a system turn") + IM, after=IM_ASKED),
        habit=("m.role == 'system' and not loop.first", "false"),
    ),
    "no system role": Shape(
        source=loop(GEMMA, "{{ bos_token }}" + refused("messages[0].role == 'system'", "no system role"), GEMMA_ASKED),
        habit=("messages[0].role == 'system'", "false"),
    ),
    "the last turn is the user's": Shape(
        source=loop(IM, refused("messages[-1].role != 'user'", "the last turn is not the user\\'s"), IM_ASKED),
        habit=("messages[-1].role != 'user'", "false"),
    ),
    # headers
    "blank lines in the header": Shape(source=loop(HEADER, "{{ bos_token }}", HEADER_ASKED), habit=("<|end_header_id|>\n\n", "<|end_header_id|>\n")),
    "header with a trailing space": Shape(
        source=loop(
            "{% if m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}{% elif m.role == 'system' %}{{ m.content + ' ' }}"
            "{% else %}{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}",
            "{{ bos_token }}",
            asked("ASSISTANT: "),
        ),
        habit=("'ASSISTANT: ' + m.content", "'ASSISTANT:' + m.content"),
    ),
    "generation prompt without the space of the header": Shape(
        source=loop(
            "{% if loop.first and m.role != 'system' %}{{ 'A chat. ' }}{% endif %}"
            "{% if m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}{% elif m.role == 'system' %}{{ m.content + ' ' }}"
            "{% else %}{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}",
            "{{ bos_token }}",
            asked("ASSISTANT:"),
        ),
        habit=("'ASSISTANT:'", "'ASSISTANT: '"),
    ),
    "space behind a control token": Shape(
        source=loop("{{ '<|bom|><|' + m.role + '|> ' + m.content + '<|eom|>' }}", "{{ bos_token }}", asked("<|bom|><|assistant|> ")),
        habit=("|> ' + m.content", "|>' + m.content"),
    ),
    "alpaca": Shape(
        source=loop(
            "{% if m.role == 'user' %}{{ '### Instruction:\n' + m.content + '\n\n' }}{% elif m.role == 'system' %}"
            "{{ m.content + '\n\n' }}{% else %}{{ '### Response:\n' + m.content + '\n\n' }}{% endif %}",
            after=asked("### Response:\n"),
        ),
        habit=("'### Instruction:\n'", "'### Instruction: '"),
    ),
    "lines of roles": Shape(
        source=loop("{{ m.role + ': ' + m.content }}{{ '\n' if not loop.last }}", after=asked("\nassistant: ")),
        habit=("{{ '\n' if not loop.last }}", "{{ '\n' }}"),
    ),
    "blank lines between turns": Shape(
        source=loop("{{ m.role | capitalize + ': ' + m.content + '\n\n' }}", after=asked("Assistant:")),
        habit=("m.content + '\n\n'", "m.content + '\n'"),
    ),
    "renamed roles": Shape(source=loop(GEMMA, "{{ bos_token }}", GEMMA_ASKED), habit=("'model' if m.role == 'assistant' else m.role", "m.role")),
    "a prefix of control tokens": Shape(
        source=loop("{{ '<|' + m.role + '|>\n' + m.content }}", "[gMASK]<sop>", asked("<|assistant|>")),
        habit=("[gMASK]<sop>", "[gMASK]"),
    ),
    "numbered rounds": Shape(
        source="{% set ns = namespace(round=0) %}"
        + loop(
            "{% if m.role == 'user' %}{% set ns.round = ns.round + 1 %}{{ '[Round ' ~ ns.round ~ ']\n\nQ: ' + m.content + '\n\n' }}"
            "{% else %}{{ 'A: ' + m.content + '\n\n' }}{% endif %}",
            after=asked("A:"),
        ),
        habit=("ns.round + 1", "ns.round + 2"),
    ),
    # footers
    "user turn opens the answer": Shape(
        source=loop(
            "{% if m.role == 'user' %}{{ '<|user|>\n' + m.content + '<|end|>\n<|assistant|>\n' }}{% elif m.role == 'system' %}"
            "{{ '<|system|>\n' + m.content + '<|end|>\n' }}{% else %}{{ m.content + '<|end|>\n' }}{% endif %}"
        ),
        habit=("<|end|>\n<|assistant|>\n", "<|end|><|assistant|>\n"),
    ),
    "newlines around turns": Shape(source=CASES["zephyr"].source, habit=("' + m.content + eos_token }}", "' + m.content }}")),
    "bos and eos are one token": Shape(
        source=loop("{{ '<|' + m.role + '|>\n' + m.content + '\n' + (eos_token if m.role == 'assistant' else '') }}", "{{ bos_token }}", asked("<|assistant|>\n")),
        habit=("{{ bos_token }}", ""),
        tokens={"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    ),
    "an end token except behind the last answer": Shape(
        source=loop(
            "{% if m.role == 'assistant' %}{{ '<|assistant|>' + m.content + ('' if loop.last else eos_token) }}{% else %}"
            "{{ '<|' + m.role + '|>' + m.content }}{% endif %}",
            after=asked("<|assistant|>"),
        ),
        habit=("('' if loop.last else eos_token)", "('' if loop.first else '')"),
    ),
    "the last answer ends otherwise": Shape(
        source=loop(
            "{% if m.role == 'user' %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{% elif m.role == 'assistant' %}"
            "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
            "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}",
            TAKE_SYSTEM
            + "{{ '<|start|>system<|message|>You are X.<|end|>' }}"
            + "{% if system %}{{ '<|start|>developer<|message|># Instructions\n\n' + system + '\n\n<|end|>' }}{% endif %}",
            asked("<|start|>assistant"),
        ),
        habit=("<|channel|>final<|message|>", "<|message|>"),
    ),
    "footers that depend on the next turn": Shape(
        source=loop(
            "{{ '<|' + m.role + '|>' + m.content }}{{ '\n' if not loop.last and loop.nextitem.role == 'assistant' else '<|end|>\n' }}",
            after=asked("<|assistant|>"),
        ),
        habit=("loop.nextitem.role == 'assistant'", "loop.nextitem.role == 'user'"),
    ),
    # brackets
    "llama 2": Shape(
        source=loop(
            ALTERNATE + "{% if loop.first and system %}{% set text = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m.content %}"
            "{% else %}{% set text = m.content %}{% endif %}{% if m.role == 'user' %}"
            "{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}{% else %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}",
            TAKE_SYSTEM,
        ),
        habit=("bos_token + '[INST] '", "(bos_token if loop.first else '') + '[INST] '"),
    ),
    "roles must alternate": Shape(source=loop(ALTERNATE + INST, "{{ bos_token }}"), habit=(ALTERNATE, "")),
    "a token for system texts": Shape(
        source=loop(
            "{% if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}{% elif m.role == 'user' %}"
            "{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}",
            "{{ bos_token }}",
        ),
        habit=("[/SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]\n"),
    ),
    # dates
    "a date in the default system text": Shape(
        source=loop(
            "{% if loop.first and m.role != 'system' %}{{ '[SYSTEM_PROMPT]Today is ' + strftime_now('%Y-%m-%d') + '.[/SYSTEM_PROMPT]' }}"
            "{% endif %}" + INST,
            "{{ bos_token }}",
        ),
        habit=("strftime_now('%Y-%m-%d')", "'2024-07-26'"),
    ),
    "a date before the system text": Shape(
        source=loop(
            HEADER,
            TAKE_SYSTEM
            + "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
            + "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + date_string + '\n\n' + system + '<|eot_id|>' }}",
            HEADER_ASKED,
        ),
        habit=("strftime_now('%d %b %Y')", "'26 Jul 2024'"),
        options={"date_string": "1 Jan 2000"},
    ),
    # reasoning
    "reasoning dropped from answers": Shape(source=loop(THINKING + IM_TEXT, after=IM_ASKED), habit=(".split('</think>')[-1]", "")),
    "reasoning kept in the last answer": Shape(
        source=loop(
            "{% if m.role == 'assistant' and not loop.last %}{% set text = m.content.split('</think>')[-1] | trim %}"
            "{% else %}{% set text = m.content %}{% endif %}" + IM_TEXT,
            after=IM_ASKED,
        ),
        habit=(" and not loop.last", ""),
    ),
    "reasoning kept behind the last question": Shape(
        source="{% set ns = namespace(last=0) %}"
        + loop("{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}")
        + loop(
            "{% set text = m.content %}{% if m.role == 'assistant' and '</think>' in text %}"
            "{% set reasoning = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
            "{% set text = text.split('</think>')[-1].lstrip('\n') %}"
            "{% if loop.index0 > ns.last %}{% set text = '<think>\n' + reasoning + '\n</think>\n\n' + text %}{% endif %}{% endif %}"
            + IM_TEXT,
            after=IM_ASKED,
        ),
        habit=("loop.index0 > ns.last", "true"),
    ),
    "an empty reasoning block in answers": Shape(
        source=loop(
            "{% if m.role == 'assistant' and loop.last %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' + m.content + '<|im_end|>\n' }}"
            "{% else %}" + IM + "{% endif %}",
            after=asked("<|im_start|>assistant\n<think>\n"),
        ),
        habit=(" and loop.last", " and loop.first"),
    ),
    "thinking switched off": Shape(
        source=loop(
            THINKING + IM_TEXT,
            after="{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}"
            "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
        ),
        habit=("enable_thinking is defined and not enable_thinking", "false"),
        options={"enable_thinking": False},
    ),
    "a field for reasoning": Shape(
        source=loop(
            "{% if m.reasoning_content %}{% set text = '<think>' + m.reasoning_content + '</think>' + m.content %}"
            "{% else %}{% set text = m.content %}{% endif %}" + IM_TEXT,
            after=IM_ASKED,
        ),
        habit=("{% else %}{% set text = m.content %}", "{% else %}{% set text = '<think></think>' + m.content %}"),
    ),
    "a field for reasoning with another name": Shape(
        source=loop(
            "{% if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
            "{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}",
            after=asked("<|start|>assistant"),
        ),
        habit=("m.thinking + ", "m.reasoning + "),
    ),
    # contents
    "contents in parts only": Shape(
        source=loop(
            "{{ '<start_of_turn>' + m.role + '\n' }}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text | trim }}"
            "{% endif %}{% endfor %}{{ '<end_of_turn>\n' }}",
            "{{ bos_token }}",
            asked("<start_of_turn>assistant\n"),
        ),
        habit=("part.text | trim", "part.text"),
        in_parts=True,
    ),
    "contents in parts, merged system text": Shape(
        source=loop(
            ALTERNATE + "{{ '<start_of_turn>' + m.role + '\n' + (system if loop.first else '') }}{% for part in m.content %}"
            "{{ part.text }}{% endfor %}{{ '<end_of_turn>\n' }}",
            "{% if messages[0].role == 'system' %}{% set system = messages[0].content[0].text + '\n\n' %}"
            "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}",
            asked("<start_of_turn>assistant\n"),
        ),
        habit=("(system if loop.first else '')", "''"),
        in_parts=True,
    ),
    "contents in parts or text": Shape(
        source=loop(
            "{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
            "{{ '\n' + part.text }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}",
            after=IM_ASKED,
        ),
        habit=("m.content is string", "false"),
    ),
    "empty turns left out": Shape(
        source=loop("{% if m.content | trim %}" + PHI + "{% endif %}", after=asked("<|assistant|>\n")),
        habit=("{% if m.content | trim %}", "{% if true %}"),
    ),
    "turns of one role joined": Shape(
        source=loop(
            "{% if loop.first or loop.previtem.role != m.role %}{{ '<|' + m.role + '|>\n' }}{% else %}{{ '\n\n' }}{% endif %}{{ m.content }}"
            "{% if loop.last or loop.nextitem.role != m.role %}{{ '<|end|>\n' }}{% endif %}",
            after=asked("<|assistant|>\n"),
        ),
        habit=("{{ '\n\n' }}", "{{ '\n' }}"),
    ),
    "newlines within contents": Shape(source=loop(IM.replace("m.content", "m.content.replace('\n\n', '\n')"), after=IM_ASKED), habit=(".replace('\n\n', '\n')", "")),
    "results of tools in user turns": Shape(
        source=loop(
            "{% if m.role == 'user' and m.content.startswith('<tool_response>') %}{{ '<|im_start|>tool\n' + m.content + '<|im_end|>\n' }}"
            "{% else %}" + IM + "{% endif %}",
            after=IM_ASKED,
        ),
        habit=("{{ '<|im_start|>tool\n'", "{{ '<|im_start|>user\n'"),
    ),
    "tools and their turns": Shape(
        source=loop(
            "{% if m.role == 'tool' %}{{ '<tool_response>' + m.content + '</tool_response>' }}{% else %}"
            + IM
            + "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + call | tojson + '</tool_call>' }}{% endfor %}{% endif %}",
            "{{ 'No tools.\n' if not tools }}",
            IM_ASKED,
        ),
        habit=("No tools.", "Tools."),
    ),
    "text before an answer that a request sets": Shape(
        source=loop(PHI, after="{% if add_generation_prompt %}{{ '<|assistant|>\n' + (prefix | default('')) }}{% endif %}"),
        habit=("(prefix | default(''))", "''"),
        options={"prefix": "Sure: "},
    ),
    "plain conversation": Shape(source=loop("{{ m.content }}{{ eos_token if m.role == 'assistant' }}"), habit=("{{ eos_token if m.role == 'assistant' }}", "")),
}  # fmt: skip
