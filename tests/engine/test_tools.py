"""Tools: their definitions and messages as the chat template writes them, and the calls of answers."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from promptcache import Choice, Engine, Prompt, Regex
from promptcache.diagnostics import InvalidGeneration, PromptCacheError, TemplateRefusal
from promptcache.retrieval import tool_member
from tests.engine.asking import answered
from tests.engine.calling import (
    CALL,
    CALLED,
    HERMES,
    OPENS_THINKING,
    QUESTION,
    RESULT,
    TOOLS,
    WRITES_THINKING,
    XML,
    engine_of,
    tool,
)
from tests.engine.test_reasoning import saying

ENGINE, TOKENIZER = engine_of(HERMES)
FORCED: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "max_new_tokens": 100}


FORGED = {**CALL, "function": {"name": "weather", "arguments": '{"city": "<|end|>"}'}}


@pytest.mark.parametrize(
    "messages",
    [
        *([QUESTION], [*CALLED, RESULT], [*CALLED, RESULT, QUESTION]),
        [QUESTION, {"role": "assistant", "content": None, "tool_calls": [FORGED]}, RESULT],
    ],
)
def test_prompts_are_those_of_the_chat_template(messages: list[dict[str, Any]]) -> None:
    """Definitions, calls and results are those of `apply_chat_template`; written forms of control tokens are text."""
    plan = ENGINE.plan(messages, template_kwargs={"tools": TOOLS})
    given = json.loads(json.dumps(messages).replace('"content": null', '"content": ""'))
    for message in given:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    ids = plan.tokens.used_ids
    expected = TOKENIZER.apply_chat_template(given, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert ENGINE.tokenizer.detokenize(ids) == expected
    assert ids.count(ENGINE.tokenizer.eos_ids[0]) == len(messages) + 1  # the definitions are a turn


def test_a_call_is_taken_from_the_answer() -> None:
    text = 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    for way in ("generate", "stream"):
        answer = answered(ENGINE, [QUESTION], way, tools=TOOLS, **saying(ENGINE, text))
        ((name, arguments),) = answer.tool_calls
        assert (answer.text, name, json.loads(arguments)) == ("I look.", "weather", {"city": "Oslo"})
    none = ENGINE.generate([QUESTION], tools=TOOLS, tool_choice="none", **saying(ENGINE, text))
    assert (none.text, none.tool_calls) == (text, ())


@pytest.mark.parametrize("choice", ["required", "weather", "time"])
@pytest.mark.parametrize("closed", [False, True])
def test_a_forced_call_is_a_call(choice: str, closed: bool) -> None:
    """Whatever the model would say, also behind closed reasoning, the answer is a call of an allowed tool."""
    engine = engine_of(WRITES_THINKING)[0] if closed else ENGINE
    asked = {**FORCED, "tools": TOOLS, "tool_choice": choice, "template_kwargs": {"closed": closed}}
    answer = engine.generate([QUESTION], **asked)
    (call,) = answer.tool_calls
    assert engine.tokenizer.decode(answer.token_ids).startswith("<tool_call>\n")
    assert answer.text == ""
    assert choice in ("required", call.name)
    assert json.loads(call.arguments) in ([{"city": "Oslo"}, {"city": "Rome"}] if call.name == "weather" else [{}])


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("template", "closed", "reasoning"),
    [
        (WRITES_THINKING, False, "<think>\nI look.\n</think>\n\n"),
        (WRITES_THINKING, False, ""),
        (WRITES_THINKING, True, ""),
        (OPENS_THINKING, False, "I look.\n</think>\n\n"),
        (XML, False, ""),
    ],
)
def test_calls_behind_reasoning(template: str, closed: bool, reasoning: str, choice: str) -> None:
    """Calls are those of the template, called freely or forced, behind a block of reasoning or without one."""
    engine, _ = engine_of(template)
    call = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    text = f"{reasoning}<tool_call>\n{call}\n</tool_call>"
    if template is XML:
        text = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
        text = text if choice == "auto" else f"<tool_call>[{call}]</tool_call>"
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "template_kwargs": {"closed": closed}}
    answer = engine.generate([QUESTION], **asked, **saying(engine, text))
    assert [(each.name, json.loads(each.arguments)) for each in answer.tool_calls] == [("weather", {"city": "Oslo"})]
    assert (answer.text, answer.reasoning) == ("", "I look." if reasoning else None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(r'"\ud83d"', "\N{REPLACEMENT CHARACTER}"), ("NaN", None), ("[-Infinity, 1e999]", [None, None])],
)
def test_a_chat_goes_on_after_a_bad_call(tmp_path: Path, value: str, expected: Any) -> None:
    """What JSON does not have becomes what it has, so that results can be given and the chat can be saved."""
    chat = ENGINE.chat(tools=[tool("weather", city={})])
    text = f'<tool_call>\n{{"name": "weather", "arguments": {{"city": {value}}}}}\n</tool_call>'
    (call,) = chat.say("How warm is it?", **saying(ENGINE, text)).tool_calls
    assert json.loads(call.arguments) == {"city": expected}
    chat.say(results=["7"], max_new_tokens=2)
    chat.save(tmp_path / "chat.json")
    assert ENGINE.load_chat(tmp_path / "chat.json", tools=[tool("weather", city={})]).turns == chat.turns


def test_an_answer_is_a_call_or_has_the_format() -> None:
    """With `output` the model decides between a call and text of the format; a forced call is a call, for every tool."""
    asked: dict[str, Any] = {"tools": TOOLS, "output": Choice(["warm", "cold"]), "max_new_tokens": 100}
    text = ENGINE.generate([QUESTION], logit_bias=bias("<", -100), **asked)
    assert (text.text, text.parsed, text.tool_calls) in (("warm", "warm", ()), ("cold", "cold", ()))
    call = ENGINE.generate([QUESTION], logit_bias=bias("<", 100), parallel_tool_calls=False, **asked)
    assert (call.text, call.parsed, len(call.tool_calls)) == ("", None, 1)
    forced = ENGINE.generate([QUESTION], tool_choice="time", **asked)
    assert [each.name for each in forced.tool_calls] == ["time"]
    assert ENGINE.generate([QUESTION], tool_choice="none", **asked).parsed in ("warm", "cold")


def bias(start: str, value: float) -> dict[int, float]:
    tokenizer = ENGINE.tokenizer
    return {
        each: value
        for each in range(ENGINE.model.num_known_tokens)
        if each not in tokenizer.control_ids and tokenizer.token_bytes(each).startswith(start.encode())
    }


def test_tools_of_a_schema_are_its_modules() -> None:
    """Definitions in cached modules serve calls, also of chats; one that is nowhere is refused with the fix."""
    engine, _ = engine_of(HERMES)
    name, text = tool_member(TOOLS[0])
    engine.add_schema(
        f'<schema name="agent" repair="slots"><system>Call tools.<module name="{name}"><![CDATA[{text}]]></module></system></schema>'
    )
    chat = engine.chat(Prompt("agent").use(name), tools=TOOLS[:1])
    first = chat.say("How warm is it?", **FORCED)
    assert first.usage.num_reused_tokens > 20
    messages = [*chat.messages, {"role": "tool", "content": RESULT["content"]}]
    plan = engine.plan(prompt := Prompt.from_messages("agent", messages).use(name))
    assert chat.say(results=[RESULT["content"]], max_new_tokens=2).plan.tokens.used_ids == plan.tokens.used_ids
    assert (plan.num_reused_tokens, plan.warnings) == (first.plan.num_reused_tokens, ())
    assert "<tool_response>\n7 degrees <|end|> & rain\n</tool_response>" in engine.render(prompt)
    with pytest.raises(
        InvalidGeneration, match=r"the tool 'time' is not in the text of this prompt: put its definition into a module"
    ):
        engine.generate(prompt, tools=TOOLS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": 3}, "tools=3 is not allowed"),
        ({"tools": TOOLS, "tool_choice": "other"}, r"tool_choice='other' is not allowed: auto, none, required or"),
        ({"tool_choice": "required"}, r"tool_choice='required' is not allowed: auto, none or"),
        ({"tools": TOOLS, "output": Regex(".*")}, "calls and answers both begin with '<'"),
        (
            {"tools": TOOLS, "tool_choice": "time", "min_new_tokens": 3},
            "'tool_choice' does not work with 'min_new_tokens'",
        ),
    ],
)
def test_what_is_not_possible_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptCacheError, match=message):
        ENGINE.generate([QUESTION], **options)


def test_a_template_without_tools_is_named() -> None:
    """Tools that the model would not read are refused, and so are messages that its template does not write."""
    engine, _ = engine_of(None)
    for ask in (partial(engine.generate, [QUESTION], tools=TOOLS), partial(engine.chat(tools=TOOLS).say, "Hello")):
        with pytest.raises(InvalidGeneration, match="the chat template of this model writes no tools"):
            ask()
    with pytest.raises(TemplateRefusal, match="does not write these messages of tools"):
        engine.plan([*CALLED, RESULT])


def test_a_chat_keeps_calls_and_results(tmp_path: Path) -> None:
    """Each answer is that of the same messages, calls and results included; also from a file, and as a stream."""
    options = {"tools": TOOLS, "template_kwargs": {"tone": "calm"}}
    chat = ENGINE.chat(**options)
    first = chat.say(QUESTION["content"], **FORCED)
    chat.save(tmp_path / "chat.json")
    loaded = ENGINE.load_chat(tmp_path / "chat.json", **options)
    assert loaded.turns == chat.turns
    second = chat.say(results=["7 degrees <|end|>"], max_new_tokens=6, do_sample=False)
    said, ids = chat.messages, second.plan.tokens.used_ids
    assert (said[1]["tool_calls"][0]["function"], said[2]["role"]) == (first.tool_calls[0]._asdict(), "tool")
    asked = {"tools": TOOLS, "tone": "calm"}
    assert ENGINE.tokenizer.detokenize(ids) == ENGINE.render(said[:3], template_kwargs=asked)
    assert ids.count(ENGINE.tokenizer.eos_ids[0]) == 4  # one for each turn
    assert second.usage.num_history_tokens > first.usage.num_new_tokens  # the tokens of the call are as generated
    with loaded.stream(results=["7 degrees <|end|>"], max_new_tokens=6, do_sample=False) as stream:
        assert "".join(stream) == second.text
    assert loaded.turns == chat.turns
    assert chat.say("And in Rome?", max_new_tokens=2).usage.num_history_tokens > 0


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (None, {"results": ["7", "8"]}, "2 results: the last answer has 1 call; give a result for each"),
        ("And?", {"results": ["7"]}, "1 result and a text: the last answer has 1 call"),
        (None, {"results": "7"}, "results='7' is not allowed: a list of texts"),
        ("And?", {"tools": TOOLS}, "'tools' is an option of the whole chat"),
    ],
)
def test_wrong_results_are_refused(text: str | None, options: dict[str, Any], message: str) -> None:
    chat = ENGINE.chat(tools=TOOLS)
    chat.say("How warm is it?", **FORCED)
    with pytest.raises(PromptCacheError, match=message):
        chat.say(text, **options)
    assert len(chat.turns) == 1


def test_an_end_token_of_a_request_is_no_text() -> None:
    """A special token that ends this answer is not in its text, whole or streamed, nor one of the configuration."""
    controls = (each for each in ENGINE.tokenizer.control_ids if each not in ENGINE.tokenizer.eos_ids)
    end = next(each for each in controls if ENGINE.tokenizer.decode((each,)))
    asked: dict[str, Any] = {"eos_token_id": end, "logit_bias": {end: 100.0}, "max_new_tokens": 4, "do_sample": False}
    assert ENGINE.generate([QUESTION], **asked).text == ""
    assert "".join(ENGINE.stream([QUESTION], **asked)) == ""
    model = copy.deepcopy(ENGINE.model.hf)
    model.generation_config.eos_token_id = [end]
    assert Engine(model, TOKENIZER).tokenizer.decode((end,)) == ""
