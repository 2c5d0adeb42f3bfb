"""Render a plan as text: the input of the model, with the text of each piece."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from promptcache.layout.encoding import num_shared
from promptcache.layout.pieces import Plan
from promptcache.tokenizer import Tokenizer


class Rendering(NamedTuple):
    """Text of one prompt, control tokens included, and of each of its pieces, in position order."""

    text: str
    texts: tuple[str, ...]


def render(plan: Plan, tokenizer: Tokenizer) -> Rendering:
    """Return the text of a plan's tokens in position order, and of each piece.

    Args:
        plan: The plan of one prompt.
        tokenizer: The tokenizer of the plan.
    """
    texts = _texts([piece.token_ids for piece in plan.pieces], tokenizer)
    return Rendering("".join(texts), tuple(texts))


def _texts(token_ids: Sequence[tuple[int, ...]], tokenizer: Tokenizer) -> list[str]:
    """Return the text of each part of a sequence of tokens.

    Some tokenizers decode a token differently next to other tokens (a character split in two, spaces between
    words). In this case, a part gets the text that its tokens add to the text of all tokens before them.
    """
    text = tokenizer.detokenize([*chain.from_iterable(token_ids)])
    alone = [tokenizer.detokenize(part) for part in token_ids]
    if "".join(alone) == text:
        return alone
    cuts, seen = [0], list[int]()
    for part in token_ids[:-1]:
        seen.extend(part)
        so_far = tokenizer.detokenize(seen)
        cuts.append(max(cuts[-1], num_shared(so_far, text)))
    return [text[start:stop] for start, stop in pairwise([*cuts, len(text)])]
