"""Batches: each answer equals the answer to the request alone."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import InvalidGeneration
from promptcache.engine import Engine
from promptcache.model.model import Model
from promptcache.rows.coalesce import Copies
from promptcache.rows.link import SharedSegment, coalesced_segments, shared_segments
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.rows.test_coalesce import contents, segment, segments

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
    """An engine with both schemas."""
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
    """A streamer takes the tokens of one answer."""
    with pytest.raises(InvalidGeneration, match="use stream"):
        ENGINE.generate_batch(PROMPTS[:1], streamer=Mock())


@pytest.mark.parametrize("failing", ["criterion", "model"])
def test_an_error_ends_the_batch(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the caller's code or of a forward pass is raised as it is, and the next batch is answered."""
    calls = iter(range(100))

    def fail(*args: Any, **kwargs: Any) -> torch.Tensor:
        if next(calls) == 3:
            raise ValueError("mine")
        return torch.tensor([False]) if failing == "criterion" else forward(*args, **kwargs)

    forward = ENGINE.model.forward
    criteria = [fail] if failing == "criterion" else []
    with monkeypatch.context() as patch:
        if failing == "model":
            patch.setattr(ENGINE.model, "forward", fail)
        with pytest.raises(ValueError, match=r"^mine$"):
            ENGINE.generate_batch(PROMPTS[:3], max_new_tokens=8, stopping_criteria=criteria, **GREEDY)

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
    """An empty batch has no answers."""
    assert ENGINE.generate_batch([]) == ()


@given(cuts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.integers(1, 6)), min_size=1, max_size=6))
def test_pieces_hold_every_token_of_every_row_once(cuts: list[tuple[int, int, int]]) -> None:
    """Cutting segments loses and repeats no token, and no two pieces share memory."""
    whole = segment(0, 20)
    rows: list[list] = [[], [], [], []]
    for row, start, length in cuts:
        if all(each.stop <= start or start + length <= each.start for each in rows[row]):
            rows[row].append(part(whole, start, start + length))

    pieces = list(shared_segments(rows))

    for row, views in enumerate(rows):
        mine = sorted(token for each in views for token in range(each.start, each.stop))
        assert mine == sorted(token for each, seen in pieces if row in seen for token in range(each.start, each.stop))
    tokens = [token for each, _ in pieces for token in range(each.start, each.stop)]
    assert len(tokens) == len(set(tokens))
    assert all(list(each.position_array()) == list(range(each.start, each.stop)) for each, _ in pieces)


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    small=st.sampled_from([0, 4, 100]),
    data=st.data(),
)
def test_coalesced_pieces_keep_every_token_of_every_row(sizes: list[int], small: int, data: st.DataObject) -> None:
    """Coalescing keeps every row's tokens and their KV; no segment extends across a new token of its rows."""
    whole = segments(sizes)
    gaps = [before.last + 1 for before in whole[:-1]]
    starts = [sorted(data.draw(st.sets(st.sampled_from(gaps))) if gaps else []) for _ in range(3)]
    pieces = [SharedSegment(each, data.draw(st.sampled_from([(0,), (0, 1), (1, 2), (0, 1, 2)]))) for each in whole]

    found, copied = coalesced_segments(pieces, starts, Copies(ENGINE.model, small_tokens=small))

    for row in range(3):
        views = sorted((each.segment for each in found if row in each.rows), key=lambda view: view.first)
        places = [int(place) for view in views for place in view.position_array()]
        assert places == contents(tuple(views))
        assert sorted(places) == [int(place) for each, seen in pieces if row in seen for place in each.position_array()]
        assert not any(view.first < start < view.last for view in views for start in starts[row])
    assert sum(copied) == sum(each.segment.num_tokens for each in found if each.segment not in whole)


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


def part(whole, start: int, stop: int):  # type: ignore[no-untyped-def] # segments
    """Return a view of part of a segment whose positions are its places."""
    from promptcache.layout import KVPart
    from promptcache.rows.segments import Segment

    view = KVPart(whole.parts[0].encoding, start, stop)
    return Segment(kv=whole.kv, start=start, stop=stop, parts=(view,))
