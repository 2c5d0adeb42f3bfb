"""The tokens of the shortest and of the longest prompt of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from promptcache.language import CheckedParameter, Combinations, Extreme, ParameterType, refusal
from promptcache.layout import Layout, Slot, TextPiece, fill_tokens, slot_tokens
from promptcache.tokenizer import Tokenizer


class SlotLength(NamedTuple):
    """Tokens of a text in a slot, with the space before it. `exact` means that no text has fewer (or more)."""

    num_tokens: int
    exact: bool


_SlotLengths: TypeAlias = Mapping[tuple[str, str], SlotLength]  # by module path ("" for the schema) and name
_REPEATED = {ParameterType.INT: ("1", "9", "10"), ParameterType.NUMBER: ("1", "9", "10")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLength:
    """Tokens of a prompt without text of its own. If it is not `exact`, there may be a shorter or longer one."""

    num_tokens: int
    exact: bool


def prompt_lengths(layout: Layout, tokenizer: Tokenizer) -> tuple[PromptLength, PromptLength]:
    """Return the lengths of the shortest and of the longest prompt of a schema.

    The shortest one leaves arguments out, or gives the shortest allowed ones. The longest one fills every slot as far
    as its parameter allows. Members of collections are not counted. Of a pattern no text is made: lengths of its slot
    are estimates.
    """
    combinations = Combinations(layout.schema.rules)
    slots = [((path, each.name), each) for path, own in layout.schema.parameters.items() for each in own.values()]
    fewest = {slot: shortest_length(each, tokenizer) for slot, each in slots if each.required}
    most = {slot: longest_length(each, tokenizer) for slot, each in slots}
    least, greatest = _num_tokens(layout, fewest), _num_tokens(layout, most)
    return (
        _length(combinations.least(least), least[""], fewest),
        _length(combinations.greatest(greatest), greatest[""], most),
    )


def shortest_length(parameter: CheckedParameter, tokenizer: Tokenizer) -> SlotLength:
    """Return the tokens of the shortest argument that a parameter takes."""
    known = ("", "0", "a", parameter.default, parameter.placeholder, *parameter.choices)
    accepted = [text for text in known if text is not None and refusal(parameter, text) is None]
    least = min((slot_tokens(parameter, text, tokenizer) for text in accepted), default=1)
    is_least = least <= 1 or parameter.type is ParameterType.CHOICE
    return SlotLength(least, exact=bool(accepted) and is_least)


def longest_length(parameter: CheckedParameter, tokenizer: Tokenizer) -> SlotLength:
    """Return the tokens of the longest argument that a parameter takes and its slot holds."""
    size = parameter.num_positions
    if parameter.type is ParameterType.CHOICE:
        accepted = (text for text in parameter.choices if refusal(parameter, text) is None)
        lengths = [slot_tokens(parameter, text, tokenizer) for text in accepted]
        return SlotLength(max((each for each in lengths if each <= size), default=0), exact=True)
    if parameter.pattern is not None:
        return SlotLength(size, exact=False)
    words = _REPEATED.get(parameter.type, (" x", "x"))
    filled = (fill_tokens(parameter.lead + word.strip(), word, size, tokenizer) for word in words)
    most = max(len(tokenizer.tokenize(text)) for text in filled)
    return SlotLength(most, exact=most == size)


def _length(extreme: Extreme, root_tokens: int, lengths: _SlotLengths) -> PromptLength:
    exact = extreme.exact and all(given.exact for given in lengths.values())
    return PromptLength(num_tokens=extreme.weight + root_tokens, exact=exact)


def _num_tokens(layout: Layout, lengths: _SlotLengths) -> Mapping[str, int]:
    """Return the tokens of each module's own text, with texts of these lengths in its slots, otherwise defaults."""
    return {
        path: sum(
            len(piece.token_ids) if isinstance(piece, TextPiece) else _slot_tokens(piece, lengths)
            for run in runs
            for piece in layout.runs[run].pieces
        )
        for path, runs in layout.runs_of.items()
    }


def _slot_tokens(slot: Slot, lengths: _SlotLengths) -> int:
    given = lengths.get((slot.module, slot.parameter))
    if given is not None:
        return given.num_tokens
    return 0 if slot.required else len(slot.default_ids)
