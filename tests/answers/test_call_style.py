"""The style of calls, learned from the chat template: calls that the template writes are read, and may be forced."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from promptcache.answers.call_style import call_style
from promptcache.answers.token_grammars import token_grammars
from promptcache.diagnostics import InvalidGeneration
from promptcache.structured import CallSplit, ToolCalls, parse_calls, read_tools
from promptcache.tokenizer import Before, HubTokenizer, Markup
from tests.tokenizer.small_tokenizers import with_controls

_BEFORE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.role != 'assistant' %}"
    "<|user|>{{ m.content }}{% else %}<|model|>THINK{{ m.content or '' }}"
)
_AFTER = "<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|model|>{% endif %}"
_EACH = "{% for c in m.tool_calls or [] %}"
_ITEMS = "{% for k, v in c.function.arguments.items() %}"
FORMS: dict[str, tuple[str, Sequence[str]]] = {
    "GLM": (
        f"{_EACH}\n<tool_call>{{{{ c.function.name }}}}\n{_ITEMS}<arg_key>{{{{ k }}}}</arg_key>\n"
        "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}",
        (),
    ),
    "DeepSeek": (  # joins arguments as text
        f"{_EACH}{{% if loop.first %}}<calls>{{% else %}}\n{{% endif %}}"
        "{{ '<call>function<sep>' + c.function.name + '\n```json\n' + c.function.arguments + '\n```<end_call>' }}"
        "{% if loop.last %}<end_calls>{% endif %}{% endfor %}",
        ("<calls>", "<call>", "<sep>", "<end_call>", "<end_calls>"),
    ),
    "Mistral": (
        f"{_EACH}[TOOL_CALLS]{{{{ c.function.name }}}}[CALL_ID]{{{{ c.id }}}}[ARGS]"
        "{{ c.function.arguments | tojson }}{% endfor %}",
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    "Mistral in JSON": (
        f"{{% if m.tool_calls %}}[TOOL_CALLS] [{_EACH}"
        """{{ '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson }}"""
        """{{ ', "id": "' + c.id + '"}' }}{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}""",
        ("[TOOL_CALLS]",),
    ),
    "Command R": (
        f"{{% if m.tool_calls %}}<|START_ACTION|>[\n{_EACH}"
        """{{ '    {"tool_call_id": "' ~ loop.index0 ~ '", "tool_name": "' + c.function.name + '", "parameters": ' }}"""
        "{{ c.function.arguments | tojson }}}{% if not loop.last %},\n{% endif %}{% endfor %}\n]<|END_ACTION|>"
        "{% endif %}",
        ("<|START_ACTION|>", "<|END_ACTION|>"),
    ),
    "Hunyuan": (
        f"{{% if m.tool_calls %}}<tool_calls>\n{_EACH}<tool_call>{{{{ c.function.name }}}}\n```json\n"
        "{{ c.function.arguments | tojson }}\n```\n</tool_call>\n{% endfor %}</tool_calls>{% endif %}",
        (),
    ),
    "Seed": (
        f"{_EACH}\n<seed:tool_call>\n<function={{{{ c.function.name }}}}>\n{_ITEMS}"
        "<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>{% endfor %}",
        (),
    ),
    "code": (
        f"{{% if m.tool_calls %}}[{_EACH}{{{{ c.function.name }}}}({_ITEMS}{{{{ k }}}}={{{{ v | tojson }}}}"
        "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}",
        (),
    ),
    "Gemma": (
        f"{_EACH}<|tool_call>call:{{{{ c.function.name }}}}{{ {{%- {_ITEMS[3:]}{{{{ k }}}}:"
        '{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v | tojson }}{% endif %}'
        "{% if not loop.last %},{% endif %}{% endfor -%} }<tool_call|>{% endfor %}",
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    "harmony": (
        f"{_EACH} to=functions.{{{{ c.function.name }}}}<|channel|>commentary json<|message|>"
        "{{ c.function.arguments | tojson }}{% endfor %}",
        ("<|channel|>", "<|message|>"),
    ),
}
TOOLS = read_tools(
    [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    },
                    "required": ["city"],
                },
            },
        },
        {"type": "function", "function": {"name": "now"}},
    ]
)
NAMES = [each.name for each in TOOLS]
QUESTION = {"role": "user", "content": "How warm is it?"}
CALLS: list[tuple[str, dict[str, Any]]] = [("weather", {"city": 'São, "x" [y]', "days": 3}), ("now", {})]


def tokenizer_of(calls: str, controls: Sequence[str], think: str = "") -> HubTokenizer:
    template = _BEFORE.replace("THINK", think) + calls + _AFTER
    return with_controls(template, ("<|user|>", "<|model|>", "<|end|>", *controls), eos="<|end|>")


def written(tokenizer: HubTokenizer, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    made = [
        {"type": "function", "id": "call00000", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": made}
    rendered = tokenizer.render_chat([QUESTION, answer], generation_prompt=False)
    return rendered.partition("<|model|>")[2].removesuffix("<|end|>")


def is_allowed(tokenizer: HubTokenizer, output: ToolCalls, text: str) -> bool:
    """Whether an answer may be this text of the template, with its control tokens."""
    matcher = token_grammars(tokenizer, 1 + max(tokenizer.control_ids)).matcher(
        output, tokenizer.eos_ids, tokenizer.reasoning_tags, is_open=False
    )
    (token_ids,) = tokenizer.tokenize_parts([Markup(text)], Before.CONTROL)
    for token_id in (*token_ids, tokenizer.eos_ids[0]):
        if not matcher.mask()[token_id]:
            return False
        matcher.add(token_id)
    return True


@pytest.mark.parametrize("calls", [CALLS[:1], CALLS, CALLS[::-1]], ids=["one", "two", "empty first"])
@pytest.mark.parametrize("form", FORMS)
def test_calls_of_the_template_are_read_and_forced(form: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    """Calls that the template writes are the calls of the answer, whole and streamed, and a forced answer may be them."""
    tokenizer = tokenizer_of(*FORMS[form])
    if form == "harmony":  # an answer has one call
        calls = calls[:1]
    style = call_style(tokenizer, TOOLS)
    text = written(tokenizer, calls)
    content, found = parse_calls(f"I look.{text}", NAMES, style)
    assert (content, [(each.name, json.loads(each.arguments)) for each in found]) == ("I look.", calls)
    split = CallSplit(NAMES, style)
    assert "".join(map(split.add, text)) + split.rest() == ""
    assert [(each.name, json.loads(each.arguments)) for each in split.calls] == calls
    form_of = ToolCalls(TOOLS, style).written_style
    made = (f"{name}{form_of.middle}{json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls)
    forced = text if style.elements is None else f"{form_of.head}{(form_of.joint or '').join(made)}{form_of.tail}"
    assert is_allowed(tokenizer, ToolCalls(TOOLS, style), forced)
    assert [each.name for each in ToolCalls(TOOLS, style).parse(forced)] == [name for name, _ in calls]
    assert not is_allowed(tokenizer, ToolCalls(TOOLS, style), "I look.")


@pytest.mark.parametrize("think", ["<think>\n\n</think>\n\n", "</think>"])
@pytest.mark.parametrize("form", [each for each in FORMS if each != "harmony"])
def test_a_block_of_reasoning_is_no_part_of_calls(form: str, think: str) -> None:
    """Templates that write a block of reasoning in front of the last answer have the style of those that write none."""
    style = call_style(tokenizer_of(*FORMS[form], think=think), ())
    assert style == call_style(tokenizer_of(*FORMS[form]), ())


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ("", "its chat template writes tools, and no calls of them"),
        (
            f"{_EACH}<call>{{{{ c.id }}}}<args>{{{{ c.function.arguments | tojson }}}}{{% endfor %}}",
            "in an unknown form",
        ),
        (f"{_EACH}{{{{ c.function.name }}}}:{_ITEMS}{{{{ v }}}}{{% endfor %}}{{% endfor %}}", "in an unknown form"),
    ],
    ids=["none", "without a name", "without names of arguments"],
)
def test_other_forms_are_refused(calls: str, words: str) -> None:
    """Tools are refused by name if calls could not be found in answers."""
    with pytest.raises(InvalidGeneration, match=f"tools do not work with this model: .*{words}.*leave `tools` out"):
        call_style(tokenizer_of(calls, ()), TOOLS)
