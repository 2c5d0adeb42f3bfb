"""Tests of the text that a plain conversation adds: that of the chat template, whatever the template does with it."""

from __future__ import annotations

import pytest

from promptcache.language import DEFAULT_REPAIR, Role
from promptcache.layout import Plan
from promptcache.runtime import Catalog, Planner
from promptcache.testing.position_oracle import planned_tokens
from promptcache.tokenizer import HubTokenizer
from tests.tokenizer import small_tokenizers as small

CONFIG = {"eos_token": "<|endoftext|>"}


def chat(source: str, *messages: tuple[Role, str]) -> tuple[str, Plan]:
    """Return the text of a conversation, and its plan."""
    tokenizer = HubTokenizer.from_parts(small.byte_level(), CONFIG, source)
    planner = Planner(Catalog(None), tokenizer, 1000, DEFAULT_REPAIR)
    plan = planner.plan([{"role": str(role), "content": text} for role, text in messages])
    return tokenizer.detokenize([token_id for _, token_id in sorted(planned_tokens(plan))]), plan


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
