"""Members of collections: their runs and variants in a prompt, and the encodings of all of them.

A schema has a place for each collection, and no run of any member. `members_in_use` makes those of the members that a
prompt names. So the work does not grow with the collection. `member_encodings` has the encodings of all members, to
encode them ahead of time.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from promptcache.diagnostics import ContextLengthExceeded
from promptcache.language import CheckedModule, CheckedSchema, FinalText, Member, Selection, join_path
from promptcache.layout.encoding import Encoding, closed_up, positions_behind
from promptcache.layout.run_variants import Visibility, find_variant
from promptcache.layout.types import Layout, Run, TextGroup, TextPiece, Variant, VariantKind
from promptcache.tokenizer import Before, Tokenizer


def members_in_use(
    selection: Selection, layout: Layout, variants: Sequence[Variant], tokenizer: Tokenizer, codec: str = "full"
) -> tuple[tuple[Run, ...], tuple[Variant, ...]]:
    """Return the runs of the members that a prompt names, in the order of its modules, and all variants with theirs.

    Their indices go on behind those of the layout and of `variants`. Their positions in the layout are all 0: a prompt
    with members has closed positions.

    Args:
        layout, variants: Those of the schema.
        codec: The codec of the variants.

    Raises:
        ContextLengthExceeded: A member alone needs more positions than the model has; names it.
    """
    if not selection.members:
        return (), tuple(variants)
    visibility, makers = Visibility(layout), dict[str, _Members]()
    runs: list[Run] = []
    made: list[Variant] = []
    for path in (each for each in selection.modules if each in selection.members):
        collection = path.rpartition("/")[0]
        if collection not in makers:
            makers[collection] = _Members(visibility.of_collection(collection), layout, variants, codec)
        run = _run(selection.module(path), len(layout.runs) + len(runs), tokenizer)
        runs.append(run)
        made.append(makers[collection].variant(run, len(variants) + len(made)))
    return tuple(runs), (*variants, *made)


def member_encodings(
    schema: CheckedSchema,
    members: Mapping[str, Mapping[str, Member]],
    layout: Layout,
    variants: Sequence[Variant],
    tokenizer: Tokenizer,
    codec: str = "full",
) -> Iterator[tuple[str, Encoding]]:
    """Yield the path and the encoding of each member, as prompts use it that name it first.

    Args:
        schema, layout, variants: As of `members_in_use`.
        members: The members of each collection, by name. They may change meanwhile.
        codec: The codec of the variants.

    Raises:
        ContextLengthExceeded: A member alone needs more positions than the model has; names it.
    """
    visibility = Visibility(layout)
    for path, own in members.items():
        maker = _Members(visibility.of_collection(path), layout, variants, codec)
        for name, member in tuple(own.items()):
            run = _run(schema.modules[path].member(name, member), len(layout.runs), tokenizer)
            yield join_path(path, name), maker.variant(run, len(variants)).encoding


class _Members:
    """Builder of the variants of members of one collection, which all have the same context."""

    def __init__(self, context: Sequence[int], layout: Layout, variants: Sequence[Variant], codec: str) -> None:
        found = (find_variant(variants, run, None) for run in context)
        seen = [variant for variant in found if variant is not None]  # runs that have tokens and are cached
        self._sees = tuple(variant.index for variant in seen)
        self._context = closed_up([variant.encoding.whole for variant in seen])
        self._max_positions = layout.max_positions or sys.maxsize
        self._codec = codec

    def variant(self, run: Run, index: int) -> Variant:
        """Return the variant of a member.

        Args:
            run: Of the member.
            index: Of the variant.

        Raises:
            ContextLengthExceeded: The member alone needs more positions than the model has.
        """
        places = positions_behind(self._context, len(run.token_ids))
        needed = places[-1] + 1
        if needed > self._max_positions:
            raise ContextLengthExceeded(
                f"member '{run.module}' needs {needed} positions, the model has {self._max_positions}: shorten its "
                "text, or make several members of it"
            )
        encoding = Encoding(token_ids=run.token_ids, position_ids=places, context=self._context, codec=self._codec)
        return Variant(
            index=index, run=run.index, kind=VariantKind.PLAIN, scaffolds=(), sees=self._sees, encoding=encoding
        )


def _run(module: CheckedModule, index: int, tokenizer: Tokenizer) -> Run:
    text = "".join(item.text for item in module.children if isinstance(item, FinalText))
    piece = TextPiece(start=0, token_ids=_tokens(cast("Hashable", tokenizer), text), text=text, span=module.span)
    ending = TextGroup(texts=(text,), before=Before.TEXT)
    return Run(index=index, module=module.path, pieces=(piece,), cached=True, ending=ending)


@lru_cache(maxsize=4096)
def _tokens(tokenizer: Any, text: str) -> tuple[int, ...]:
    token_ids: tuple[int, ...]
    (token_ids,) = tokenizer.tokenize_parts([text], Before.TEXT)
    return token_ids
