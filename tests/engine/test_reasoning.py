"""Answers of models that reason first: the reasoning is apart from the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from promptcache import Engine, Prompt, Schema
from promptcache.diagnostics import InvalidValue, PromptError
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


class Says(LogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """Makes a model say a text."""

    def __init__(self, engine: Engine, text: str) -> None:
        self._token_ids = [*engine.tokenizer.tokenize(text), engine.tokenizer.eos_ids[0]]
        self._num_before: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Allow one token."""
        if self._num_before is None:
            self._num_before = input_ids.shape[1]
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._token_ids[input_ids.shape[1] - self._num_before]] = 0
        return forced


def engine_of(template: str, *, is_open: bool = False) -> tuple[Engine, Any]:
    """Return the demo model with a chat template that has reasoning, and the tokenizer of transformers."""
    return calling.engine_of(template.replace("OPEN", "'<think>\n'" if is_open else "''"))


def saying(engine: Engine, text: str) -> dict[str, Any]:
    """Return the options with which the model says a text."""
    return {"logits_processor": LogitsProcessorList([Says(engine, text)]), "max_new_tokens": 128}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("way", ["generate", "batch", "stream"])
def test_reasoning_is_apart_from_the_answer(way: str, is_open: bool) -> None:
    """The answer has its text, and its reasoning beside it, also where the prompt opens the block."""
    engine, _ = engine_of(KEEPS, is_open=is_open)
    said = SAID.removeprefix("<think>\n") if is_open else SAID
    found = answered(engine, [{"role": "user", "content": QUESTION}], way, **saying(engine, said))

    assert (found.reasoning, found.text) == ("Many.", "Ceviche.")
    assert engine.tokenizer.decode(found.token_ids) == said


def test_a_template_without_reasoning_leaves_answers_as_they_are() -> None:
    """Tags are text to a model whose template knows none."""
    engine = Engine.from_pretrained("demo")

    found = engine.generate([{"role": "user", "content": QUESTION}], **saying(engine, SAID))

    assert (found.reasoning, found.text) == (None, SAID)


@pytest.mark.parametrize("template", [KEEPS, DROPS], ids=["keeps", "drops"])
def test_a_chat_gives_reasoning_back_to_the_template(template: str, tmp_path: Path) -> None:
    """The next question has the tokens of the conversation with its reasoning, kept or dropped, also from a file."""
    engine, tokenizer = engine_of(template)
    chat = engine.chat()
    chat.say(QUESTION, **saying(engine, SAID))
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Ceviche.", "reasoning_content": "Many."},
    ]

    assert chat.messages == messages
    chat.save(tmp_path / "chat.json")
    loaded = engine.load_chat(tmp_path / "chat.json")
    assert (loaded.turns, loaded.messages) == (chat.turns, messages)
    messages.append({"role": "user", "content": "Where?"})
    found = chat.say("Where?", **saying(engine, "There."))

    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert [*found.plan.tokens.used_ids] == [*engine.plan(messages).tokens.used_ids] == expected
    assert ("Many." in engine.render(messages)) == (template == KEEPS)


def test_control_tokens_in_reasoning_are_text() -> None:
    """Reasoning that is given back cannot end its turn."""
    engine, tokenizer = engine_of(KEEPS)
    chat = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Ceviche.", "reasoning_content": "It ends.<|end|>"},
        {"role": "user", "content": "Where?"},
    ]

    ids = engine.plan(chat).tokens.used_ids

    (end,) = tokenizer.encode("<|end|>", add_special_tokens=False)
    assert ids.count(end) == 3
    assert engine.tokenizer.detokenize(ids) == tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )


def test_reasoning_that_a_schema_cannot_hold_is_a_warning() -> None:
    """What the template writes of reasoning behind cached turns is missing, and the answer says so."""
    engine, _ = engine_of(KEEPS)
    engine.add_schema(Schema("guide").system("Answer."))
    answer = {"role": "assistant", "content": "Ceviche.", "reasoning_content": "Many."}
    prompt = Prompt.from_messages("guide", [{"role": "user", "content": QUESTION}, answer])

    (warning,) = engine.plan(prompt.user("Where?")).warnings

    assert warning.code == "PC514"
    assert "Many." in warning.message
    with pytest.raises(PromptError, match="no form in XML"):
        prompt.to_xml()


@pytest.mark.parametrize(
    ("make", "message", "match"),
    [
        (Prompt, {"role": "user", "content": "Why?", "reasoning_content": "x"}, "only messages of the assistant"),
        (Prompt, {"role": "assistant", "content": "So.", "reasoning_content": 3}, "reasoning_content=3"),
        (
            Schema,
            {"role": "assistant", "content": "So.", "reasoning_content": "x"},
            "reasoning_content is not supported",
        ),
    ],
)
def test_wrong_reasoning_is_refused(make: Any, message: dict[str, Any], match: str) -> None:
    """The error names the place; a turn of a schema has only text."""
    with pytest.raises(InvalidValue, match=match):
        make.from_messages("guide", [message])
