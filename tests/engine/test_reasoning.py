"""Answers of models that reason first: the reasoning is apart from the answer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList

from promptcache import Engine, Prompt, Schema
from promptcache.diagnostics import PromptError
from tests.engine import calling
from tests.engine.asking import answered

QUESTION = "What is the best dish of Miami?"
KEEPS = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content.strip() + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' + OPEN }}{% endif %}"
)
DROPS = KEEPS.replace("m.reasoning_content %}", "m.reasoning_content and loop.last %}")
SAID = "<think>\nMany.\n</think>\n\nCeviche."


def engine_of(template: str | None, *, is_open: bool = False) -> tuple[Engine, Any]:
    return calling.engine_of(template and template.replace("OPEN", "'<think>\n'" if is_open else "''"))


def saying(engine: Engine, text: str) -> dict[str, Any]:
    """Return the options with which a model says a text."""
    token_ids = [*engine.tokenizer.tokenize(text), engine.tokenizer.eos_ids[0]]

    def forced(answer: list[int], scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token_ids[len(answer)]] = 0
        return forced

    return {"logits_processor": LogitsProcessorList([calling.AnswerProcessor(forced)]), "max_new_tokens": 128}


@pytest.mark.parametrize("way", ["generate", "batch", "stream"])
@pytest.mark.parametrize(
    ("template", "is_open", "reasoning"), [(KEEPS, False, "Many."), (KEEPS, True, "Many."), (None, False, None)]
)
def test_reasoning_is_apart_from_the_answer(
    way: str, template: str | None, is_open: bool, reasoning: str | None
) -> None:
    """It is beside the text, also where the prompt opens the block. Tags are text if the template knows none."""
    engine, _ = engine_of(template, is_open=is_open)
    said = SAID.removeprefix("<think>\n") if is_open else SAID
    found = answered(engine, [{"role": "user", "content": QUESTION}], way, **saying(engine, said))

    assert (found.reasoning, found.text) == (reasoning, "Ceviche." if reasoning else said)
    assert engine.tokenizer.decode(found.token_ids) == said


@pytest.mark.parametrize("template", [KEEPS, DROPS], ids=["keeps", "drops"])
@pytest.mark.parametrize("thought", ["Many.", "It ends.<|end|>"])
def test_a_chat_gives_reasoning_back_to_the_template(template: str, thought: str, tmp_path: Path) -> None:
    """The next question has the tokens of the conversation with its reasoning, kept or dropped, also from a file."""
    engine, tokenizer = engine_of(template)
    chat = engine.chat()
    chat.say(QUESTION, **saying(engine, SAID.replace("Many.", thought)))
    answer = {"role": "assistant", "content": "Ceviche.", "reasoning_content": thought}
    messages = [{"role": "user", "content": QUESTION}, answer]

    assert chat.messages == messages
    chat.save(tmp_path / "chat.json")
    loaded = engine.load_chat(tmp_path / "chat.json")
    assert (loaded.turns, loaded.messages) == (chat.turns, messages)
    messages.append({"role": "user", "content": "Where?"})
    ids = chat.say("Where?", **saying(engine, "There.")).plan.tokens.used_ids

    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert engine.tokenizer.detokenize(ids) == expected
    assert ids == engine.plan(messages).tokens.used_ids
    assert ids.count(engine.tokenizer.eos_ids[0]) == 3
    assert (thought in engine.render(messages)) == (template == KEEPS)


def test_reasoning_behind_the_turns_of_a_schema_is_what_the_template_writes() -> None:
    """The text is that of the whole conversation. A prompt in XML has no reasoning."""
    engine, tokenizer = engine_of(KEEPS)
    engine.add_schema(Schema("guide").system("Answer."))
    answer = {"role": "assistant", "content": "Ceviche.", "reasoning_content": "Many."}
    messages = [{"role": "user", "content": QUESTION}, answer, {"role": "user", "content": "Where?"}]
    prompt = Prompt.from_messages("guide", messages)

    plan = engine.plan(prompt)

    whole = [{"role": "system", "content": "Answer."}, *messages]
    expected = tokenizer.apply_chat_template(whole, add_generation_prompt=True, return_dict=False)
    assert ([*plan.tokens.used_ids], plan.warnings) == (expected, ())
    with pytest.raises(PromptError, match="no form in XML"):
        prompt.to_xml()
