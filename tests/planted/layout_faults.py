"""Faults of layout and plan: wrong positions, wrong contexts, wrong variants, wrong levels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from promptcache.language import Context, Repair
from promptcache.layout import LayoutNode, Level, Origin, Piece, Plan
from tests.planted.registry import replaced, wrapped
from tests.planted.targets import module_of

lay_out, schema_texts, run_variants, run_tokens, repair, plan, plan_pieces, encoding = (
    module_of(f"promptcache.layout.{name}")
    for name in ("lay_out", "schema_texts", "run_variants", "run_tokens", "repair", "plan", "pieces", "encoding")
)
Patch = pytest.MonkeyPatch
PLACE, CONTEXTS, VARIANTS = "tokens are in place", "contexts are as declared", "variants are right"
LEVEL, REPAIR = "level is right", "repairs are right"


@wrapped("a slot is one position short", lay_out._Walk, "_add_slot", law=PLACE)
def _short_slot(original: Any, self: Any, parameter: Any, owner: Any) -> Any:
    leaf = original(self, parameter, owner)
    self._position -= 1
    return leaf


@wrapped("union members are laid out one after another", lay_out._Walk, "_union", law=PLACE)
def _consecutive_members(_: Any, self: Any, union: Any) -> Any:
    start = self._position
    members = tuple(self._module(member) for member in union.members)
    return LayoutNode(item=union, start=start, stop=self._position, children=members)


@wrapped("a union stops with its last member, not its longest", lay_out._Walk, "_union", law=PLACE)
def _union_of_last(_: Any, self: Any, union: Any) -> Any:
    start, members = self._position, []
    for member in union.members:
        self._position = start
        members.append(self._module(member))
    return LayoutNode(item=union, start=start, stop=self._position, children=tuple(members))


@wrapped("union members are swapped", lay_out, "_runs_of", law=PLACE)
def _swapped_members(original: Any, schema: Any, runs: Any) -> dict[str, tuple[int, ...]]:
    found = dict(original(schema, runs))
    for union in _unions(schema.children):
        first, last = union.members[0].path, union.members[-1].path
        found[first], found[last] = found[last], found[first]
    return found


def _unions(items: Any) -> Any:
    for item in items:
        if hasattr(item, "members"):
            yield item
        yield from _unions(getattr(item, "children", ()) or getattr(item, "members", ()))


wrapped("reserve is ignored", lay_out._Walk, "_module", law=PLACE)(
    lambda original, self, module: original(self, replace(module, node=replace(module.node, reserve=None)))
)
replaced("BOS is left out", lay_out._Walk, "add_beginning", lambda self, span: [], law=PLACE)
wrapped("uncached modules are cached", lay_out._Walk, "_module", law=VARIANTS)(
    lambda original, self, module: original(self, replace(module, cache=True))
)
wrapped("a run's context misses its last run", run_variants.Visibility, "before", law=CONTEXTS)(
    lambda original, self, run, visible: original(self, run, visible)[:-1]
)


class _Always:
    """Replacement for `Context` in `run_variants`."""

    class OWN:
        """Class that is never identical to a context; the library compares by identity."""

    PREVIOUS = Context.PREVIOUS


replaced("context=own sees all that is guaranteed", run_variants, "Context", _Always, law=CONTEXTS)


@wrapped(
    "a module sees another that may be absent",
    run_variants.Visibility,
    "plain",
    law="unselected text changes nothing",
    quick=True,
)
def _sees_the_absent(original: Any, self: Any, run: Any) -> list[int]:
    if not run.module:
        return original(self, run)
    return [index for index in range(run.index) if self._layout.runs[index].stop <= run.start]


wrapped("a module sees the previous module of another prompt", run_variants, "_behind_previous", law=VARIANTS)(
    lambda original, *args: original(*args[:-1], args[-1][:-1])
)
replaced(
    "a module with context=guaranteed sees the previous module",
    run_variants,
    "sees_previous",
    lambda layout, run: run.module != "",
    law=VARIANTS,
)
replaced(
    "modules behind others are used as if they were the first",
    run_variants,
    "_behind_previous",
    lambda layout, run, own, before: own,
    law=VARIANTS,
)


@wrapped("a scaffold variant sees plain variants only", run_variants._Maker, "add_scaffold", law=CONTEXTS)
def _plain_in_scaffold(original: Any, self: Any, run: Any, scaffold: str, visible: Any) -> None:
    original(self, run, scaffold, visible)
    self._scaffold[scaffold] = {}


@wrapped("a scaffold is used when incomplete", plan, "scaffolds_in_use", law=VARIANTS)
def _incomplete_scaffold(original: Any, scaffolds: Any, modules: Any) -> dict[str, str]:
    return original([replace(each, members=each.members[:1]) for each in scaffolds], modules)


replaced("a scaffold is never used", plan, "scaffolds_in_use", lambda scaffolds, modules: {}, law=VARIANTS)
wrapped("the last of two scaffolds wins", plan, "scaffolds_in_use", law=VARIANTS, rare=True)(
    lambda original, scaffolds, modules: original(scaffolds[::-1], modules)
)


def _from_start(part: Any) -> dict[str, Any]:
    part = replace(part, start=0)
    return {"source": part, "token_ids": part.token_ids, "start": part.first, "index": 0}


@wrapped("the filler stays beside the argument", run_tokens.RunTokens, "add", law=PLACE)
def _filler_stays(original: Any, self: Any, run: Any, state: Any) -> None:
    original(self, run, state)
    last = self.pieces[-1] if self.pieces else None
    if state is not None and last is not None and last.source and last.source.encoding == state.encoding:
        self.pieces[-1] = replace(last, **_from_start(last.source))


def _unfilled(ids: Any) -> Any:
    """Return a function that gives other tokens to slots without an argument."""

    def of(original: Any, self: Any, slot: Any) -> Any:
        content = original(self, slot)
        return content if content.origin is Origin.ARGUMENT else replace(content, token_ids=ids(slot))

    return of


_unfilled_slots = partial(wrapped, target=run_tokens.SlotContents, attribute="of", law=PLACE)
_unfilled_slots("an empty slot shows its placeholder")(_unfilled(lambda slot: slot.filler_ids))
_unfilled_slots("a slot's default is not applied")(_unfilled(lambda slot: ()))


@wrapped("the space before a slot stays in the text", schema_texts.SchemaTexts, "_slot", law=PLACE)
def _space_stays(original: Any, self: Any, parameter: Any) -> None:
    original(self, replace(parameter, lead=""))


@wrapped("the boundary tokens stay at their places", run_tokens.RunTokens, "_move_boundary", law=PLACE)
def _boundary_stays(_: Any, self: Any, piece: Any, run: Any, index: int, *, before_slot: bool) -> int:
    self._behind = None
    return 0


replaced("a fifth boundary token moves", run_tokens, "MAX_BOUNDARY_TOKENS", 5, law=PLACE, rare=True)
replaced(
    "boundary tokens do not end before whitespace",
    run_tokens.SlotContents,
    "num_boundary_tokens",
    lambda self, piece: min(run_tokens.MAX_BOUNDARY_TOKENS, len(piece.token_ids)),
    law=PLACE,
)


@wrapped("slots side by side do not form a group", run_tokens.RunTokens, "_add_content", law=PLACE, rare=True)
def _no_group(original: Any, self: Any, start: int, content: Any, run: Any, slot: Any) -> None:
    original(self, slot.start, content, run, slot)


@wrapped("an argument longer than its slot is taken", run_tokens.SlotContents, "of", law="fault is reported first")
def _long_argument(original: Any, self: Any, slot: Any) -> Any:
    content = original(self, slot)
    self.faults.clear()
    return content


@wrapped("the text of a prompt has no separator", plan, "added_text", law=PLACE)
def _text_without_separator(original: Any, selection: Any, *args: Any) -> Any:
    return original(replace(selection, schema=replace(selection.schema, open_separator="")), *args)


@wrapped("added text starts one position late", plan, "Plan", law=PLACE, quick=True)
def _late_text(original: Any, **fields: Any) -> Any:
    added = {Origin.TEXT, Origin.HEADER, Origin.FOOTER}
    moved = (replace(each, start=each.start + (each.origin in added)) for each in fields.pop("pieces"))
    return original(pieces=tuple(moved), **fields)


@wrapped("the last token is not fed again behind other new tokens", plan, "_with_new_end", law=PLACE)
def _not_fed_again(original: Any, pieces: Any) -> Any:
    return pieces if any(piece.source is None for piece in pieces) else original(pieces)


@wrapped("the token that is fed again stays in the view", plan, "_with_new_end", law="positions are disjoint")
def _fed_twice(original: Any, pieces: Any) -> Any:
    made = original(pieces)
    return made if made == pieces else (*pieces, made[-1])


replaced(
    "closed positions are those of the encodings",
    encoding.KVPart,
    "at",
    lambda self, position: self,
    law=PLACE,
    quick=True,
)


@wrapped("new tokens keep their fixed positions", plan, "placed", law=PLACE)
def _new_not_moved(original: Any, found: Any, placement: Any) -> Any:
    moved = original(found, placement)
    return tuple(new if new.source else replace(new, start=old.start) for old, new in zip(found, moved, strict=True))


replaced("contexts are not closed up", run_variants, "closed_up", tuple, law=CONTEXTS)


@wrapped("runs are encoded with the gaps of their slots", run_variants, "variant_behind", law=CONTEXTS)
def _gaps_of_slots(original: Any, layout: Any, run: Any, *args: Any) -> Any:
    variant, places = original(layout, run, *args), run.places
    gap = places[-1] - places[0] + 1 - len(places) if places else 0
    *others, last = variant.encoding.position_ids
    return replace(variant, encoding=replace(variant.encoding, position_ids=(*others, last + gap)))


@wrapped("text at another distance counts as exact", plan_pieces, "num_exact", law=LEVEL, rare=True)
def _any_distance(original: Any, found: Any) -> Any:
    return original([replace(each, source=each.source and replace(each.source, shift=0)) for each in found])


replaced("every answer is called exact", Plan, "level", Level.EXACT, law=LEVEL)
replaced("no answer is called exact", Plan, "level", Level.MODULAR, law=LEVEL)


@wrapped("the level overlooks replaced fillers", plan_pieces, "num_exact", law="exact is ordinary prefill")
def _level_without_fillers(original: Any, found: Any) -> int:
    kept: list[Any] = []
    for each in found:
        if each.source is None:
            kept += [each] if each.run is None else []
        elif not kept or kept[-1].source is None or kept[-1].source.encoding != each.source.encoding:
            kept.append(replace(each, source=each.source.encoding.whole))
    number = original(kept)
    return len(found) if number == len(kept) else number


@wrapped("first-K computes the last tokens of a run again", plan, "positions_to_repair", law=REPAIR, quick=True)
def _last_repaired(original: Any, found: Any, setting: Repair) -> Any:
    again, runs = original(found, setting), {}
    for each in found:
        if each.source is not None:
            runs.setdefault(each.run.index, []).extend(each.position_ids)
    numbers = {run: len(again.intersection(own)) for run, own in runs.items()}
    return frozenset(position for run, own in runs.items() for position in own[len(own) - numbers[run] :])


wrapped("first-K computes one token too few", Repair, "num_again", law=REPAIR)(
    lambda original, self, num_tokens: max(0, original(self, num_tokens) - 1)
)


@wrapped("a share of a run is rounded down", Repair, "num_again", law=REPAIR)
def _rounded_down(original: Any, self: Repair, num_tokens: int) -> int:
    return num_tokens * self.amount // 100 if self.is_share else original(self, num_tokens)


wrapped("repair starts one part late", repair, "num_exact", law=REPAIR, quick=True)(
    lambda original, found: min(len(found), original(found) + 1)
)
replaced("first-K starts in a run whose context is exact", repair, "_is_context_exact", lambda *args: False, law=REPAIR)
replaced(
    "first-K counts each part of a run",
    repair,
    "groupby",
    lambda found, key: ((None, [each]) for each in found),
    law=REPAIR,
)


@wrapped("tokens that are computed again lose the gap between them", Piece, "as_new", law=REPAIR, rare=True)
def _gap_lost(_: Any, self: Any, origin: Any) -> Any:
    yield replace(self, source=None, origin=origin)


@wrapped("a stored token stays beside its repair", plan, "recomputed", law="repaired is the reference")
def _repaired_twice(original: Any, found: Any, positions: Any, *origin: Any) -> Any:
    made = original(found, positions, *origin)
    return made if origin else (*(each for each in found if each.source), *(each for each in made if not each.source))
