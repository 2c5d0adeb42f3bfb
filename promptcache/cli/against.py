"""A schema compared with an earlier version of it: which stored KV stays in use, and what has to be encoded.

Two encodings are equal if their digests are equal. Encodings behind the module before are not compared, because prompts
decide which of them exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from promptcache.diagnostics import ROOT, counted, size_text
from promptcache.layout import Layout, RunState


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
    old: tuple[Layout, Sequence[RunState]], new: tuple[Layout, Sequence[RunState]], token_bytes: int
) -> LayoutChange:
    """Compare two layouts under one tokenizer, each with what `run_states` returned for it."""
    before, after = (_by_digest(states) for _, states in (old, new))
    kept = [state for digest, state in before.items() if digest in after]
    dropped = [state for digest, state in before.items() if digest not in after]
    needed = [state for digest, state in after.items() if digest not in before]
    return LayoutChange(
        num_kept=len(kept),
        num_kept_tokens=_num_tokens(kept),
        num_dropped=len(dropped),
        num_dropped_tokens=_num_tokens(dropped),
        kv_bytes=_num_tokens(needed) * token_bytes,
        needed=tuple(
            NeededEncoding(
                module=module,
                scaffolds=state.scaffolds,
                num_tokens=state.encoding.num_tokens,
                is_new=module not in old[0].runs_of,
            )
            for module, state in ((state.module(new[0]), state) for state in needed)
        ),
    )


def _by_digest(states: Sequence[RunState]) -> Mapping[str, RunState]:
    """Return the first state of each encoding."""
    found: dict[str, RunState] = {}
    for state in states:
        found.setdefault(state.encoding.digest, state)
    return found


def _num_tokens(states: Sequence[RunState]) -> int:
    return sum(each.encoding.num_tokens for each in states)
