"""Tests of the rules of a `tokenizer.json`."""

from __future__ import annotations

from promptcache.tokenizer.rules import with_declared_tokens


def test_a_token_that_is_declared_twice_is_added_once() -> None:
    """A token that `tokenizer_config.json` declares and the rules have already is not added again."""
    rules = {"added_tokens": [{"id": 1, "content": "<a>", "special": True}]}
    declared = {"1": {"content": "<a>", "special": True}, "0": {"content": "<b>", "special": True}}

    added = with_declared_tokens(rules, declared)["added_tokens"]

    assert [(token["id"], token["content"]) for token in added] == [(0, "<b>"), (1, "<a>")]
