"""The tokens of the shortest and of the longest prompt of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from promptcache.language import Combinations, Extreme
from promptcache.layout import Layout, Slot, SlotText, TextPiece, longest_text, shortest_text
from promptcache.tokenizer import Tokenizer

_SlotTexts: TypeAlias = Mapping[tuple[str, str], SlotText]  # by module path ("" for the schema) and name


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLength:
    """Tokens of a prompt without text of its own. If it is not `exact`, there may be a shorter or longer one."""

    num_tokens: int
    exact: bool


def prompt_lengths(layout: Layout, tokenizer: Tokenizer) -> tuple[PromptLength, PromptLength]:
    """Return the lengths of the shortest and of the longest prompt of a schema.

    The shortest one leaves arguments out, or gives the shortest allowed ones. The longest one fills every slot as far
    as its parameter allows. Members of collections are not counted.
    """
    combinations = Combinations(layout.schema.rules)
    slots = [((path, each.name), each) for path, own in layout.schema.parameters.items() for each in own.values()]
    shortest = {slot: shortest_text(each, tokenizer) for slot, each in slots if each.required}
    fewest = {slot: text for slot, text in shortest.items() if text is not None}
    longest = {slot: longest_text(each, tokenizer) for slot, each in slots}
    most = {**fewest, **{slot: text for slot, text in longest.items() if text is not None}}
    least, greatest = _num_tokens(layout, fewest), _num_tokens(layout, most)
    return (
        _length(combinations.least(least), least[""], fewest),
        _length(combinations.greatest(greatest), greatest[""], most),
    )


def _length(extreme: Extreme, root_tokens: int, texts: _SlotTexts) -> PromptLength:
    exact = extreme.exact and all(given.extreme for given in texts.values())
    return PromptLength(num_tokens=extreme.weight + root_tokens, exact=exact)


def _num_tokens(layout: Layout, texts: _SlotTexts) -> Mapping[str, int]:
    """Return the tokens of each module's own text, with `texts` in its slots, otherwise defaults."""
    return {
        path: sum(
            len(piece.token_ids) if isinstance(piece, TextPiece) else _slot_tokens(piece, texts)
            for run in runs
            for piece in layout.runs[run].pieces
        )
        for path, runs in layout.runs_of.items()
    }


def _slot_tokens(slot: Slot, texts: _SlotTexts) -> int:
    given = texts.get((slot.module, slot.parameter))
    if given is not None:
        return given.num_tokens
    return 0 if slot.required else len(slot.default_ids)
