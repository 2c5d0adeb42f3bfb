"""History changes no answer: requests on an engine with history equal those on an engine without."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from promptcache.decode import Completion
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.layout import context_digest, num_shared
from promptcache.rows import History
from promptcache.rows.history import _append
from promptcache.testing.cached import distance
from tests.engine.asking import engine_of
from tests.families import random_model

SCHEMA = """<schema name="s">Root. <module name="a">Text of <parameter name="p" length="8" default="none"/> goes on.</module>
<union name="u"><module name="c">The c.</module><module name="d">Some other d.</module></union>
<module name="e">In the end <parameter name="q" length="5"/>.</module></schema>"""
SELECTIONS = ("", "<a/>", '<a p="some"/>', '<a p="some"/><c/>', "<c/>", '<a p="word"/><d/><e q="ab"/>', '<e q="ab"/>')
TEXTS = ("Go on", "Go on, please", "Go off", "No")
PROMPTS = tuple(f'<prompt schema="s">{each}{text}</prompt>' for each in SELECTIONS for text in TEXTS)
TOLERANCE = 1e-9


def engine(**options: Any) -> Engine:
    return engine_of(schema=SCHEMA, **options)


PLAIN = engine(history=False)


def asked(on: Engine, prompt: str, number: int) -> Completion:
    return on.generate(prompt, max_new_tokens=number, do_sample=False, logprobs=20)


def logprobs(completion: Completion) -> torch.Tensor:
    """Return the log-probabilities `[n, 21]` of each generated token and of the most probable ones."""
    assert completion.logprobs is not None
    return torch.tensor([[each.logprob, *(value for _, value in each.top)] for each in completion.logprobs])


def ask_in_turn(made: Engine, prompts: Sequence[str] = PROMPTS * 2, number: int = 3) -> None:
    """Ask prompts, and compare every answer with that of an engine without history. The usage counts every token once."""
    for prompt in prompts:
        found, expected = (asked(each, prompt, number) for each in (made, PLAIN))
        assert found.token_ids == expected.token_ids
        assert distance(logprobs(found), logprobs(expected)) < TOLERANCE
        usage = found.usage
        assert usage.num_history_tokens + usage.num_new_tokens == found.plan.num_new_tokens
        assert sum(each.num_tokens for each in usage.modules) == usage.num_reused_tokens + usage.num_history_tokens


def test_all_prompts_in_turn_are_answered_as_without_history() -> None:
    """Prompts that share arguments, texts and beginnings do not mix; without room for history, nothing is left of them."""
    made, full = engine(), engine(store=StoreConfig(memory_bytes=1))
    ask_in_turn(made)
    ask_in_turn(full, PROMPTS[:6])

    assert made._executor.history._trees
    assert not full._executor.history._trees


FAULTS: dict[str, tuple[str, Any]] = {
    "the key lacks the context": ("context_digest", lambda context: ""),
    "the key lacks the modules": (
        "context_digest",
        lambda context: context_digest([part for part in context if part.encoding.num_tokens < 8]),
    ),
    "one token too many is shared": (
        "num_shared",
        lambda known, wanted: min(num_shared(known, wanted) + 1, len(known), len(wanted)),
    ),
    "KV is kept one token late": (
        "_append",
        lambda node, run, token_ids, own_kv, at: _append(node, run, token_ids, own_kv, max(0, at - 1)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_change_answers(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[History.__module__], *FAULTS[fault])

    with pytest.raises(AssertionError):
        ask_in_turn(engine())


def test_salts_do_not_share() -> None:
    made = engine()
    found = [
        made.generate(PROMPTS[5], max_new_tokens=1, salt=salt).usage.num_history_tokens
        for salt in (None, "None", "a", "b", "a", "", None)
    ]

    assert [bool(each) for each in found] == [False, False, False, False, True, False, True]


def test_learned_positions_answer_as_without_history() -> None:
    """A model with learned positions, which the law of requests lacks, answers a second time as the first."""
    model = random_model("gpt2")
    with_history, without = engine(model=model), engine(model=model, history=False)
    for prompt in (PROMPTS[21], PROMPTS[22], PROMPTS[21]):
        found, expected = (asked(each, prompt, 4) for each in (with_history, without))
        assert found.token_ids == expected.token_ids
        assert distance(logprobs(found), logprobs(expected)) < 1e-5


@pytest.mark.parametrize("prompt", [PROMPTS[8], '<prompt schema="s"><a/>Go on, and on</prompt>'])
def test_an_interrupted_write_leaves_history_as_it_was(prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a first or a later node is filled frees its memory; the next request is answered and kept."""
    made = engine()
    made.generate(PROMPTS[9], max_new_tokens=80, do_sample=False)  # the next request needs a node of its own
    before = made._executor.history.nbytes

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[History.__module__], "_append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.generate(prompt, max_new_tokens=9, do_sample=False)

    assert made._executor.history.nbytes == before
    ask_in_turn(made, [prompt], 9)
    assert asked(made, prompt, 9).usage.num_new_tokens == 1


def test_turns_of_a_conversation_choose_the_same_tokens() -> None:
    """What the first question attends to is computed again in all turns, so history serves all of them."""
    made = engine()
    chat = made.chat('<prompt schema="s"><e q="ab"/><c/></prompt>', repair="attended-3")
    turns = [chat.say(text, max_new_tokens=3, do_sample=False) for text in ("Where is the end?", "Why?", "How?")]
    first, *others = (each.plan.repaired for each in turns)

    assert 0 < sum(len(piece.token_ids) for piece in first) <= 6
    assert others == [first, first]
    assert [each.usage.num_repaired_tokens for each in turns[1:]] == [0, 0]
    assert turns[-1].usage.num_new_tokens < 20
