"""A schema compared with an earlier version of it: which stored KV stays in use, and what has to be encoded.

Two encodings are equal if their digests are equal. Encodings behind the module before are not compared, because prompts
decide which of them exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from promptcache.diagnostics import ROOT, counted, size_text
from promptcache.layout import Layout, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededEncoding:
    """An encoding that the earlier version does not have.

    Attributes:
        module: Its path; "" is the schema's text outside modules.
        is_new: Whether the earlier version has no such module. Otherwise its text, or what it attends to, has changed.
    """

    module: str
    scaffolds: tuple[str, ...]
    num_tokens: int
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """Encodings of a schema and of its earlier version; equal encodings count once."""

    num_kept: int
    num_kept_tokens: int
    num_dropped: int
    num_dropped_tokens: int
    kv_bytes: int  # of what has to be encoded
    needed: tuple[NeededEncoding, ...]

    @property
    def num_needed_tokens(self) -> int:
        """Number of tokens to encode."""
        return sum(each.num_tokens for each in self.needed)

    def lines(self) -> Iterator[str]:
        """Yield the comparison as text."""
        kept = f"{self.num_kept:,} kept ({counted(self.num_kept_tokens, 'token')})"
        needed = (
            f"{len(self.needed):,} to encode ({counted(self.num_needed_tokens, 'token')}, {size_text(self.kv_bytes)})"
        )
        dropped = f"{self.num_dropped:,} no longer used ({counted(self.num_dropped_tokens, 'token')})"
        yield f"encodings: {kept}, {needed}, {dropped}"
        for each in self.needed:
            scaffolds = f" in {', '.join(each.scaffolds)}" if each.scaffolds else ""
            why = "new" if each.is_new else "encoded again"
            yield f"  {each.module or ROOT}{scaffolds}  {counted(each.num_tokens, 'token')}, {why}"


def compare_layouts(
    old: tuple[Layout, Sequence[Variant]], new: tuple[Layout, Sequence[Variant]], token_bytes: int
) -> LayoutChange:
    """Compare two layouts under one tokenizer, each with what `run_variants` returned for it."""
    before, after = (_by_digest(variants) for _, variants in (old, new))
    kept = [variant for digest, variant in before.items() if digest in after]
    dropped = [variant for digest, variant in before.items() if digest not in after]
    needed = [variant for digest, variant in after.items() if digest not in before]
    return LayoutChange(
        num_kept=len(kept),
        num_kept_tokens=_num_tokens(kept),
        num_dropped=len(dropped),
        num_dropped_tokens=_num_tokens(dropped),
        kv_bytes=_num_tokens(needed) * token_bytes,
        needed=tuple(
            NeededEncoding(
                module=module,
                scaffolds=variant.scaffolds,
                num_tokens=variant.encoding.num_tokens,
                is_new=module not in old[0].runs_of,
            )
            for module, variant in ((variant.module(new[0]), variant) for variant in needed)
        ),
    )


def _by_digest(variants: Sequence[Variant]) -> Mapping[str, Variant]:
    """Return the first variant of each encoding."""
    found: dict[str, Variant] = {}
    for variant in variants:
        found.setdefault(variant.encoding.digest, variant)
    return found


def _num_tokens(variants: Sequence[Variant]) -> int:
    return sum(each.encoding.num_tokens for each in variants)
