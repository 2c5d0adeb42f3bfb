"""Render a plan as text: the input of the model, and the origin of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile

from promptcache.layout.pieces import Origin, Plan
from promptcache.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPart:
    """Adjacent tokens of a prompt with one origin.

    Attributes:
        position_ids: As long as `token_ids`, strictly increasing; a partly filled slot leaves a gap.
        text: Text of the tokens, control tokens included. The texts of all parts make the text of the prompt.
        module: Path of the module; "" for the schema's text outside modules and for text that the prompt adds.
        origin: Origin of new tokens; None for reused tokens.
        parameter: The parameter that an argument or default fills.
    """

    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    module: str
    text: str
    origin: Origin | None = None
    parameter: str | None = None

    @property
    def reused(self) -> bool:
        """Whether the KV of these tokens is stored."""
        return self.origin is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """Text of one prompt and its parts, in position order."""

    text: str
    parts: tuple[RenderedPart, ...]


def render(plan: Plan, tokenizer: Tokenizer) -> Rendering:
    """Return the text of a plan's tokens in position order, and its parts.

    Args:
        plan: The plan of one prompt.
        tokenizer: The tokenizer of the plan.
    """
    texts = _texts([piece.token_ids for piece in plan.pieces], tokenizer)
    parts = (
        RenderedPart(
            token_ids=piece.token_ids,
            position_ids=tuple(piece.position_ids),
            module=piece.module,
            text=text,
            origin=piece.origin,
            parameter=piece.parameter,
        )
        for piece, text in zip(plan.pieces, texts, strict=True)
    )
    return Rendering(text="".join(texts), parts=tuple(parts))


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
        cuts.append(max(cuts[-1], _num_common(so_far, text)))
    return [text[start:stop] for start, stop in pairwise([*cuts, len(text)])]


def _num_common(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
