"""Chat templates in the shapes that models come with, written for these tests, with the texts around their turns.

`tests/templates` has one template for each habit; these are whole templates, with the places where they are cut.
"""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[str, str]

ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A template and what must be cut from it.

    Attributes:
        user: Header and footer of a user turn in the middle of a conversation; `assistant` in the same way.
        system: Header and footer of a system turn before a user turn; None if the template does not render it there.
        ending: The text behind an answer at the end.
        prompt: The generation prompt, without the footer of the turn before it.
        bos: BOS, if conversations begin with it.
        preamble: What begins a conversation without a system turn, before the header of its first turn.
    """

    source: str
    system: Pair | None
    user: Pair
    assistant: Pair
    ending: str
    prompt: str
    bos: str = ""
    preamble: str = ""


CASES = {
    "chatml with a default system text": Case(
        source="{% for m in messages %}{% if loop.first and m.role != 'system' %}"
        "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        system=("<|im_start|>system\n", "<|im_end|>\n"),
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        ending="<|im_end|>\n",
        prompt="<|im_start|>assistant\n",
        preamble="<|im_start|>system\nYou are helpful.<|im_end|>\n",
    ),
    "llama 2": Case(
        source="{% if messages[0].role == 'system' %}{% set given = messages[0].content %}{% set messages = messages[1:] %}"
        "{% endif %}{% for m in messages %}" + ALTERNATE + "{% if loop.first and given is defined %}"
        "{% set content = '<<SYS>>\n' + given + '\n<</SYS>>\n\n' + m.content %}{% else %}{% set content = m.content %}"
        "{% endif %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
        system=("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
        user=("<s>[INST] ", " [/INST]"),
        assistant=(" ", " </s>"),
        ending=" </s>",
        prompt="",
        bos="<s>",
    ),
    "mistral with the system text in the last user turn": Case(
        source="{% if messages[0].role == 'system' %}{% set given = messages[0].content %}{% set messages = messages[1:] %}"
        "{% endif %}{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{% if loop.last and given is defined %}"
        "{{ '[INST]' + given + '\n\n' + m.content + '[/INST]' }}{% else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}"
        "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
        system=None,
        user=("[INST]", "[/INST]"),
        assistant=("", "</s>"),
        ending="</s>",
        prompt="",
        bos="<s>",
        preamble="<s>",
    ),
    "gemma that refuses a system turn": Case(
        source="{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for m in messages %}" + ALTERNATE + "{% set role = 'model' if m.role == 'assistant' else m.role %}"
        "{{ '<turn>' + role + '\n' + m.content | trim + '</turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}",
        system=None,
        user=("<turn>user\n", "</turn>\n"),
        assistant=("<turn>model\n", "</turn>\n"),
        ending="</turn>\n",
        prompt="<turn>model\n",
        bos="<s>",
        preamble="<s>",
    ),
    "gemma that takes content in parts and merges the system text": Case(
        source="{{ bos_token }}{% if messages[0].role == 'system' %}{% set given = messages[0].content[0].text + '\n\n' %}"
        "{% set messages = messages[1:] %}{% else %}{% set given = '' %}{% endif %}{% for m in messages %}"
        + ALTERNATE
        + ""
        "{{ '<turn>' + m.role + '\n' + (given if loop.first else '') }}{% for part in m.content %}"
        "{% if part.type == 'text' %}{{ part.text | trim }}{% endif %}{% endfor %}{{ '</turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}",
        system=("<turn>user\n", "\n\n"),
        user=("<turn>user\n", "</turn>\n"),
        assistant=("<turn>assistant\n", "</turn>\n"),
        ending="</turn>\n",
        prompt="<turn>assistant\n",
        bos="<s>",
        preamble="<s>",
    ),
    "phi 3 whose user turn opens the assistant's": Case(
        source="{% for m in messages %}{% if m.role == 'user' %}"
        "{{ '<|user|>\n' + m.content + '<|end|>\n<|assistant|>\n' }}{% elif m.role == 'system' %}"
        "{{ '<|system|>\n' + m.content + '<|end|>\n' }}{% else %}{{ m.content + '<|end|>\n' }}{% endif %}{% endfor %}",
        system=("<|system|>\n", "<|end|>\n"),
        user=("<|user|>\n", "<|end|>\n<|assistant|>\n"),
        assistant=("", "<|end|>\n"),
        ending="<|end|>\n",
        prompt="",
    ),
    "zephyr": Case(
        source="""{% for m in messages %}
{% if m.role == 'user' %}
{{ '<|user|>
' + m.content + eos_token }}
{% elif m.role == 'system' %}
{{ '<|system|>
' + m.content + eos_token }}
{% elif m.role == 'assistant' %}
{{ '<|assistant|>
' + m.content + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
        system=("<|system|>\n", "</s>\n"),
        user=("<|user|>\n", "</s>\n"),
        assistant=("<|assistant|>\n", "</s>\n"),
        ending="</s>\n",
        prompt="<|assistant|>\n",
    ),
    "harmony, whose last turn ends otherwise": Case(
        source="{{ '<start>system<msg>You are X.<end>' }}{% if messages[0].role == 'system' %}"
        "{{ '<start>developer<msg># Instructions\n\n' + messages[0].content + '\n\n<end>' }}"
        "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if m.role == 'user' %}"
        "{{ '<start>user<msg>' + m.content + '<end>' }}{% elif m.role == 'assistant' %}"
        "{{ '<start>assistant<channel>final<msg>' + m.content }}"
        "{{ '<return>' if loop.last and not add_generation_prompt else '<end>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start>assistant' }}{% endif %}",
        system=("<start>system<msg>You are X.<end><start>developer<msg># Instructions\n\n", "\n\n<end>"),
        user=("<start>user<msg>", "<end>"),
        assistant=("<start>assistant<channel>final<msg>", "<end>"),
        ending="<return>",
        prompt="<start>assistant",
        preamble="<start>system<msg>You are X.<end>",
    ),
}
