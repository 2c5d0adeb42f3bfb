"""Batches: each answer equals the answer to the request alone."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from promptcache.diagnostics import InvalidGeneration
from promptcache.engine import Engine
from promptcache.model.model import Model
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMAS = (
    """<schema name="one">Root.<module name="a">Text of a <parameter name="p" length="6" placeholder="filler"/> goes on.
<module name="b">Text of b.</module></module><union name="u"><module name="c">The c.</module><module name="d">Some d.</module>
</union><module name="e" cache="false">Anew.</module></schema>""",
    """<schema name="two">Root.<module name="a">Text of a.</module><module name="x">x x x</module><module name="y">y y</module>
<scaffold modules="x y"/><user>Tell me.</user></schema>""",
)
REFERENCES = {
    "one": ("", "<a/>", '<a p="other"/><c/>', "<a><b/></a><d/>", "<e/><c/>", '<a p="ab"><b/></a><e/>', "<c/>"),
    "two": ("", "<a/>", "<x/>", "<x/><y/>", "<a/><y/>"),
}
PROMPTS = [
    f'<prompt schema="{name}">{references}{text}</prompt>'
    for name, all_references in REFERENCES.items()
    for references in all_references
    for text in ("Go?", "And what about a longer question?")
]
GREEDY = {"do_sample": False}


def engine_of(model: Model) -> Engine:
    made = Engine(model, ByteTokenizer())
    for text in SCHEMAS:
        made.add_schema(text)
    return made


ENGINE = engine_of(tiny_model())


def test_batches_are_cut_by_memory() -> None:
    """With any memory limit of a batch, every request is answered, in order."""
    expected = ENGINE.generate_batch(PROMPTS, max_new_tokens=3, **GREEDY)

    for batch_bytes in (1, 40 * ENGINE.model.shape.token_bytes, 2**30):
        answers = ENGINE.generate_batch(PROMPTS, max_new_tokens=3, batch_bytes=batch_bytes, **GREEDY)
        assert [each.token_ids for each in answers] == [each.token_ids for each in expected]


def test_a_streamer_is_refused() -> None:
    with pytest.raises(InvalidGeneration, match="use stream"):
        ENGINE.generate_batch(PROMPTS[:1], streamer=Mock())


def test_an_error_ends_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a forward pass is raised as it is, and the next batch is answered."""
    calls, forward = iter(range(100)), ENGINE.model.forward

    def fail(*args: Any, **kwargs: Any) -> torch.Tensor:
        if next(calls) == 3:
            raise ValueError("mine")
        return forward(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ENGINE.model, "forward", fail)
        with pytest.raises(ValueError, match=r"^mine$"):
            ENGINE.generate_batch(PROMPTS[:3], max_new_tokens=8, **GREEDY)

    again = ENGINE.generate_batch(PROMPTS[:3], max_new_tokens=8, **GREEDY)
    assert [each.token_ids for each in again] == [
        ENGINE.generate(prompt, max_new_tokens=8, **GREEDY).token_ids for prompt in PROMPTS[:3]
    ]


def test_a_cold_batch_encodes_before_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch on a cold store takes as many forward passes as on a warm store, beside those that encode."""
    cold, counts = engine_of(tiny_model()), []
    forward = cold.model.forward
    monkeypatch.setattr(cold.model, "forward", lambda *args, **kwargs: counts.append(1) or forward(*args, **kwargs))
    prompts = [PROMPTS[0], PROMPTS[5], PROMPTS[-1]]

    found = cold.generate_batch(prompts, max_new_tokens=4, eos_token_id=[], **GREEDY)

    assert found[0].usage.num_encoded_tokens > 0 < found[-1].usage.num_encoded_tokens
    assert len(counts) == 4


def test_an_empty_batch_has_no_answers() -> None:
    assert ENGINE.generate_batch([]) == ()


SMALL = '<schema name="small">Root.{}</schema>'.format(
    "".join(f'<module name="m{number}">This is the {number}.</module>' for number in range(8))
)


@pytest.mark.parametrize("history", [False, True])
def test_small_pieces_that_the_same_rows_see_are_one(history: bool) -> None:
    """Small segments of the same rows, and shifted ones, are copied once; the next batch copies nothing."""
    engine = Engine(tiny_model(), ByteTokenizer(), history=history)
    engine.add_schema(SMALL)
    prompts = [f'<prompt schema="small"><m1/><m3/><m5/>{own}Go?</prompt>' for own in ("<m7/>", "", "")]
    first, again = (engine.generate_batch(prompts, max_new_tokens=2, eos_token_id=[]) for _ in range(2))

    all_bytes = engine.plan(prompts[0]).num_reused_tokens * engine.model.shape.token_bytes
    copied = [each.usage.copied_bytes for each in first]  # a row may join before one whose KV is still fetched
    assert sum(copied) == all_bytes
    assert [each.usage.copied_bytes for each in again] == [0, 0, 0]
    assert history is any(each.usage.num_history_tokens for each in again)
