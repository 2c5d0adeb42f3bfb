"""Tests of the text that a plain conversation adds: that of the chat template, whatever the template does with it."""

from __future__ import annotations

import pytest

from promptcache.language import CHAT_SCHEMA, DEFAULT_REPAIR, Prompt, Role
from promptcache.layout import Plan
from promptcache.planning import Catalog, Planner
from promptcache.planning.turns import ChatPrompt, ChatTurn
from promptcache.tokenizer import HubTokenizer
from tests.laws.position_oracle import planned_tokens
from tests.tokenizer import small_tokenizers as small

CONFIG = {"eos_token": "<|endoftext|>"}


def chat(source: str, *messages: tuple[Role, str]) -> tuple[str, Plan]:
    """Return the text of a conversation, and its plan."""
    tokenizer = HubTokenizer.from_parts(small.byte_level(), CONFIG, source)
    planner = Planner(Catalog(None), tokenizer, 1000, DEFAULT_REPAIR)
    plan = planner.plan([{"role": str(role), "content": text} for role, text in messages])
    return tokenizer.detokenize(ids_of(plan)), plan


@pytest.mark.parametrize("said", ["", " ", "end", "<", "Sure: "])
def test_an_answer_that_goes_on_has_no_footer(said: str):
    """Generation continues the last answer directly behind its text, also if the text occurs in the footer."""
    text, plan = chat(small.CHATML, (Role.USER, "Why?"), (Role.ASSISTANT, said))

    assert text == f"<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n{said}"
    assert plan.warnings == ()


def test_an_answer_that_goes_on_is_trimmed_as_transformers_does():
    """If the template trims an answer, spaces at the end of what was rendered are left out."""
    text, _ = chat(small.CHATML.replace("m.content", "m.content | trim"), (Role.USER, "Why?"), (Role.ASSISTANT, " "))

    assert text == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant"


def test_an_answer_that_the_template_changes_has_the_tokens_of_its_text():
    """An answer whose text the template changes has the tokens of the changed text."""
    source = small.CHATML.replace("m.content", "m.content.split('</b>')[-1]")
    tokenizer = HubTokenizer.from_parts(small.byte_level(), CONFIG, source)
    planner = Planner(Catalog(None), tokenizer, 1000, DEFAULT_REPAIR)
    answer = tuple(token_id for letter in "Hm</b>dog" for token_id in tokenizer.tokenize(letter))

    turn = ChatTurn(question="Who?", answer="Hm</b>dog", token_ids=answer)
    plan = planner.plan(ChatPrompt(prompt=Prompt(CHAT_SCHEMA), turns=(turn,), question="Why?"))

    messages = [("user", "Who?"), ("assistant", "Hm</b>dog"), ("user", "Why?")]
    plain = planner.plan([{"role": role, "content": text} for role, text in messages])
    assert ids_of(plan) == ids_of(plain)
    assert "assistant\ndog<" in tokenizer.detokenize(ids_of(plan))


def ids_of(plan: Plan) -> list[int]:
    return [token_id for _, token_id in sorted(planned_tokens(plan))]
