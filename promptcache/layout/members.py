"""Members of collections: their runs and variants in a prompt, and the encodings of all of them.

A schema has a place for each collection, and no run of any member. `members_in_use` makes those of the members that a
prompt names. So the work does not grow with the collection. `member_encodings` has the encodings of all members, to
encode them ahead of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from promptcache.diagnostics import ContextLengthExceeded
from promptcache.language import CheckedModule, FinalText, Member, Selection, join_path
from promptcache.layout.encoding import Encoding
from promptcache.layout.run_variants import Visibility, find_variant, variant_behind
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
    paths = [path for path in selection.modules if path in selection.members]
    runs = [_run(selection.module(path), index, tokenizer) for index, path in enumerate(paths, len(layout.runs))]
    seen = {path: _context(path, layout, variants) for path in {run.parent for run in runs}}
    made = [_variant(layout, run, index, seen[run.parent], codec) for index, run in enumerate(runs, len(variants))]
    return tuple(runs), (*variants, *made)


def member_encodings(
    members: Mapping[str, Mapping[str, Member]],
    layout: Layout,
    variants: Sequence[Variant],
    tokenizer: Tokenizer,
    codec: str = "full",
) -> Iterator[tuple[str, Encoding]]:
    """Yield the path and the encoding of each member, as prompts use it that name it first.

    Args:
        members: The members of each collection, by name. They may change meanwhile.
        layout, variants: As of `members_in_use`.
        codec: The codec of the variants.

    Raises:
        ContextLengthExceeded: A member alone needs more positions than the model has; names it.
    """
    for path, own in members.items():
        seen = _context(path, layout, variants)
        for name, member in tuple(own.items()):
            run = _run(layout.schema.modules[path].member(name, member), len(layout.runs), tokenizer)
            yield join_path(path, name), _variant(layout, run, len(variants), seen, codec).encoding


def _context(path: str, layout: Layout, variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants that members of a collection attend to: of runs that have tokens and are cached."""
    piece = TextPiece(start=layout.modules[path].start, token_ids=(), text="", span=layout.schema.source.span)
    place = Run(index=layout.collections[path], module=path, pieces=(piece,), cached=True)
    found = (find_variant(variants, run, None) for run in Visibility(layout).plain(place))
    return [variant for variant in found if variant is not None]


def _variant(layout: Layout, run: Run, index: int, seen: Sequence[Variant], codec: str) -> Variant:
    variant = variant_behind(layout, run, index, VariantKind.PLAIN, seen, codec)
    needed = variant.encoding.position_ids[-1] + 1
    if layout.max_positions is not None and needed > layout.max_positions:
        raise ContextLengthExceeded(
            f"member '{run.module}' needs {needed} positions, the model has {layout.max_positions}: shorten its text, "
            "or make several members of it"
        )
    return variant


def _run(module: CheckedModule, index: int, tokenizer: Tokenizer) -> Run:
    text = "".join(item.text for item in module.children if isinstance(item, FinalText))
    piece = TextPiece(start=0, token_ids=_tokens(tokenizer, text), text=text, span=module.span)
    ending = TextGroup(texts=(text,), before=Before.TEXT)
    return Run(index=index, module=module.path, pieces=(piece,), cached=True, ending=ending)


@lru_cache(maxsize=4096)
def _tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    (token_ids,) = tokenizer.tokenize_parts([text], Before.TEXT)
    return token_ids
