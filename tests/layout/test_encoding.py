"""Laws of digests: two encodings, or two parts, have one digest exactly if their KV is the same."""

import hashlib
import struct
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.layout import Encoding, KVPart, context_digest
from tests.conftest import law_examples

Drawn = TypeVar("Drawn")
NUMBERS = st.integers(0, 2)
CODECS = st.sampled_from(["full", "int8"])


@st.composite
def encodings(draw: st.DrawFn, depth: int = 2) -> Encoding:
    """Encodings of few tokens at low positions, so that two of them are often alike in something."""
    positions = sorted(draw(st.sets(NUMBERS, min_size=1)))
    context = draw(st.lists(parts(depth - 1), max_size=2)) if depth else []
    return Encoding(
        token_ids=tuple(draw(NUMBERS) for _ in positions),
        position_ids=tuple(positions),
        context=tuple(context),
        codec=draw(CODECS),
    )


@st.composite
def parts(draw: st.DrawFn, depth: int = 2) -> KVPart:
    encoding = draw(encodings(depth))
    stop = draw(st.integers(1, encoding.num_tokens))
    return KVPart(encoding, draw(st.integers(0, stop - 1)), stop, draw(NUMBERS))


def like(encoding: Encoding) -> st.SearchStrategy[Encoding]:
    """Encodings that differ from this one in at most one place, and others."""
    return one_of_these(
        encodings,
        lambda: st.just(rebuilt(encoding)),
        lambda: CODECS.map(lambda codec: replace(encoding, codec=codec)),
        lambda: NUMBERS.map(lambda token_id: replace(encoding, token_ids=(*encoding.token_ids[:-1], token_id))),
        lambda: NUMBERS.map(lambda more: replace(encoding, position_ids=(*encoding.position_ids[:-1], 2 + more))),
        lambda: NUMBERS.map(lambda stop: replace(encoding, context=encoding.context[:stop])),
        lambda: st.permutations(encoding.context).map(lambda context: replace(encoding, context=tuple(context))),
        *(
            lambda at=at, part=part: part_like(part).map(
                lambda other: replace(encoding, context=swapped(encoding.context, at, other))
            )
            for at, part in enumerate(encoding.context)
        ),
    )


def part_like(part: KVPart) -> st.SearchStrategy[KVPart]:
    """Parts that differ from this one in at most one place, and others; what follows the part may differ, too."""
    return one_of_these(
        parts,
        lambda: st.lists(NUMBERS, max_size=2).map(lambda more: replace(part, encoding=extended(part, more))),
        lambda: st.integers(0, part.stop - 1).map(lambda start: replace(part, start=start)),
        lambda: NUMBERS.map(lambda shift: replace(part, shift=shift)),
        lambda: like(part.encoding).filter(lambda encoding: encoding.num_tokens >= part.stop).map(
            lambda encoding: replace(part, encoding=encoding)
        ),
    )  # fmt: skip


def one_of_these(*makers: Callable[[], st.SearchStrategy[Drawn]]) -> st.SearchStrategy[Drawn]:
    """`st.one_of` that makes only the strategy it draws from: making all of a tree takes much longer than drawing."""
    return st.integers(0, len(makers) - 1).flatmap(lambda number: makers[number]())


def rebuilt(encoding: Encoding) -> Encoding:
    """The same encoding as another object, as another schema or process would make it."""
    context = tuple(replace(part, encoding=rebuilt(part.encoding)) for part in encoding.context)
    return replace(encoding, context=context)


def extended(part: KVPart, more: list[int]) -> Encoding:
    """The encoding of a part, with other tokens behind the part, or with none."""
    own, last = part.encoding, part.encoding.position_ids[part.stop - 1]
    position_ids = (*own.position_ids[: part.stop], *range(last + 1, last + 1 + len(more)))
    return replace(own, token_ids=(*own.token_ids[: part.stop], *more), position_ids=position_ids)


def swapped(context: tuple[KVPart, ...], at: int, part: KVPart) -> tuple[KVPart, ...]:
    return (*context[:at], part, *context[at + 1 :])


def content(encoding: Encoding, stop: int | None = None) -> Hashable:
    """Everything that the KV of an encoding's first tokens depends on, written out in full."""
    context = tuple(map(part_content, encoding.context))
    return encoding.codec, encoding.token_ids[:stop], encoding.position_ids[:stop], context


def part_content(part: KVPart) -> Hashable:
    return content(part.encoding, part.stop), part.start, part.shift


@pytest.mark.law
@settings(max_examples=law_examples(4))
@given(data=st.data(), one=encodings())
def test_digests_are_equal_when_everything_is(data: st.DataObject, one: Encoding) -> None:
    """Encodings have one digest, and are equal, exactly if codec, tokens, positions and context are, however deep."""
    other = data.draw(like(one))

    assert (one.digest == other.digest) == (content(one) == content(other)) == (one == other)
    assert (context_digest(one.context) == context_digest(other.context)) == (content(one)[-1] == content(other)[-1])
    assert {rebuilt(one): "found"}[one] == {rebuilt(one).whole: "found"}[one.whole] == "found"
    assert one != one.digest


@pytest.mark.law
@settings(max_examples=law_examples(4))
@given(data=st.data(), one=parts())
def test_digests_of_parts_are_equal_when_their_kv_is(data: st.DataObject, one: KVPart) -> None:
    """A part's digest says its encoding up to its stop, its start and its shift, and nothing else."""
    other = data.draw(part_like(one))

    assert (one.digest == other.digest) == (part_content(one) == part_content(other))


def test_the_digest_is_that_of_the_specification() -> None:
    first = Encoding(token_ids=(1, 2), position_ids=(0, 1))
    made = Encoding(
        token_ids=(2**40, 7),
        position_ids=(5, 9),
        context=(KVPart(first, 0, 1), KVPart(first, 0, 2, shift=3), KVPart(first, 1, 2)),
        codec="int8",
    )

    def sha256(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    nothing = sha256(b"").encode()
    until_one = sha256(b"promptcache encoding 3\nfull\n1\n" + struct.pack("<2q", 1, 0) + nothing)
    until_two = sha256(b"promptcache encoding 3\nfull\n2\n" + struct.pack("<4q", 1, 2, 0, 1) + nothing)
    context = sha256(f"{until_one}\n{until_two} 0 3\n{until_two} 1 0".encode())
    tokens = struct.pack("<4q", 2**40, 7, 5, 9)

    assert (first.digest, context_digest(made.context)) == (until_two, context)
    assert made.digest == sha256(b"promptcache encoding 3\nint8\n2\n" + tokens + context.encode())


def test_long_encodings_are_shown_in_one_short_line() -> None:
    """The representation says how much there is and where, not every token, and does not go down into the context."""
    encoding = Encoding(token_ids=(7,) * 5_000, position_ids=tuple(range(5_000)))
    for start in range(5_000, 5_050):
        encoding = Encoding(token_ids=(7,), position_ids=(start,), context=(encoding.whole,) * 2)

    assert repr(encoding) == f"Encoding({encoding.digest[:12]}, 1 tokens at 5049-5049, 2 in context)"
    assert repr(encoding.whole) == f"KVPart(encoding={encoding!r}, start=0, stop=1, shift=0)"
