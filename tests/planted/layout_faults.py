"""Faults of layout and plan: wrong positions, wrong contexts, wrong variants, wrong levels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from promptcache.language import Context, Repair
from promptcache.layout import LayoutNode, Level, Origin, Piece, Plan
from tests.planted.registry import fault
from tests.planted.targets import module_of

lay_out, schema_texts, run_variants, run_tokens, repair, plan, plan_pieces, encoding = (
    module_of(f"promptcache.layout.{name}")
    for name in ("lay_out", "schema_texts", "run_variants", "run_tokens", "repair", "plan", "pieces", "encoding")
)
Patch = pytest.MonkeyPatch
PLACE, CONTEXTS, VARIANTS, LEVEL = (
    "tokens are in place",
    "contexts are as declared",
    "variants are right",
    "level is right",
)
REPAIR = "repairs are right"


@fault("a slot is one position short", law=PLACE)
def _short_slot(patch: Patch) -> None:
    original = lay_out._Walk._add_slot

    def short(self: Any, parameter: Any, owner: Any) -> Any:
        leaf = original(self, parameter, owner)
        self._position -= 1
        return leaf

    patch.setattr(lay_out._Walk, "_add_slot", short)


@fault("union members are laid out one after another", law=PLACE)
def _consecutive_members(patch: Patch) -> None:
    def union(self: Any, union: Any) -> Any:
        start = self._position
        members = tuple(self._module(member) for member in union.members)
        return LayoutNode(item=union, start=start, stop=self._position, children=members)

    patch.setattr(lay_out._Walk, "_union", union)


@fault("a union stops with its last member, not its longest", law=PLACE)
def _union_of_last(patch: Patch) -> None:
    def union(self: Any, union: Any) -> Any:
        start, members = self._position, []
        for member in union.members:
            self._position = start
            members.append(self._module(member))
        return LayoutNode(item=union, start=start, stop=self._position, children=tuple(members))

    patch.setattr(lay_out._Walk, "_union", union)


@fault("union members are swapped", law=PLACE)
def _swapped_members(patch: Patch) -> None:
    original = lay_out._runs_of

    def swapped(schema: Any, runs: Any) -> dict[str, tuple[int, ...]]:
        found = dict(original(schema, runs))
        for union in _unions(schema.children):
            first, last = union.members[0].path, union.members[-1].path
            found[first], found[last] = found[last], found[first]
        return found

    patch.setattr(lay_out, "_runs_of", swapped)


def _unions(items: Any) -> Any:
    for item in items:
        if hasattr(item, "members"):
            yield item
        yield from _unions(getattr(item, "children", ()) or getattr(item, "members", ()))


@fault("reserve is ignored", law=PLACE)
def _no_reserve(patch: Patch) -> None:
    original = lay_out._Walk._module
    patch.setattr(
        lay_out._Walk,
        "_module",
        lambda self, module: original(self, replace(module, node=replace(module.node, reserve=None))),
    )


@fault("BOS is left out", law=PLACE)
def _no_bos(patch: Patch) -> None:
    patch.setattr(lay_out._Walk, "add_beginning", lambda self, span: [])


@fault("uncached modules are cached", law=VARIANTS)
def _all_cached(patch: Patch) -> None:
    original = lay_out._Walk._module
    patch.setattr(lay_out._Walk, "_module", lambda self, module: original(self, replace(module, cache=True)))


@fault("a run's context misses its last run", law=CONTEXTS)
def _context_misses_last(patch: Patch) -> None:
    original = run_variants.Visibility.before
    patch.setattr(run_variants.Visibility, "before", lambda self, run, visible: original(self, run, visible)[:-1])


@fault("context=own sees all that is guaranteed", law=CONTEXTS)
def _own_ignored(patch: Patch) -> None:
    patch.setattr(run_variants, "Context", _Always)


class _Always:
    """Replacement for `Context` in `run_variants`."""

    class OWN:
        """Class that is never identical to a context; the library compares by identity."""

    PREVIOUS = Context.PREVIOUS


@fault("a module sees another that may be absent", law="unselected text changes nothing", quick=True)
def _sees_the_absent(patch: Patch) -> None:
    original = run_variants.Visibility.plain

    def plain(self: Any, run: Any) -> list[int]:
        if not run.module:
            return original(self, run)
        return [index for index in range(run.index) if self._layout.runs[index].stop <= run.start]

    patch.setattr(run_variants.Visibility, "plain", plain)


@fault("a module sees the previous module of another prompt", law=VARIANTS)
def _sees_another(patch: Patch) -> None:
    original = run_variants._behind_previous
    patch.setattr(run_variants, "_behind_previous", lambda *args: original(*args[:-1], args[-1][:-1]))


@fault("a module with context=guaranteed sees the previous module", law=VARIANTS)
def _guaranteed_ignored(patch: Patch) -> None:
    patch.setattr(run_variants, "sees_previous", lambda layout, run: run.module != "")


@fault("modules behind others are used as if they were the first", law=VARIANTS)
def _always_plain(patch: Patch) -> None:
    patch.setattr(run_variants, "_behind_previous", lambda layout, run, own, before: own)


@fault("a scaffold variant sees plain variants only", law=CONTEXTS)
def _plain_in_scaffold(patch: Patch) -> None:
    original = run_variants._Maker.add_scaffold

    def add(self: Any, run: Any, scaffold: str, visible: Any) -> None:
        original(self, run, scaffold, visible)
        self._scaffold[scaffold] = {}

    patch.setattr(run_variants._Maker, "add_scaffold", add)


@fault("a scaffold is used when incomplete", law=VARIANTS)
def _incomplete_scaffold(patch: Patch) -> None:
    original = plan.scaffolds_in_use

    def some(scaffolds: Any, modules: Any) -> dict[str, str]:
        return original([replace(each, members=each.members[:1]) for each in scaffolds], modules)

    patch.setattr(plan, "scaffolds_in_use", some)


@fault("a scaffold is never used", law=VARIANTS)
def _no_scaffold(patch: Patch) -> None:
    patch.setattr(plan, "scaffolds_in_use", lambda scaffolds, modules: {})


@fault("the last of two scaffolds wins", law=VARIANTS, rare=True)
def _last_scaffold(patch: Patch) -> None:
    original = plan.scaffolds_in_use
    patch.setattr(plan, "scaffolds_in_use", lambda scaffolds, modules: original(scaffolds[::-1], modules))


def _from_start(part: Any) -> dict[str, Any]:
    part = replace(part, start=0)
    return {"source": part, "token_ids": part.token_ids, "start": part.first, "index": 0}


@fault("the filler stays beside the argument", law=PLACE)
def _filler_stays(patch: Patch) -> None:
    original = run_tokens.RunTokens.add

    def add(self: Any, run: Any, state: Any) -> None:
        original(self, run, state)
        last = self.pieces[-1] if self.pieces else None
        if state is not None and last is not None and last.source and last.source.encoding == state.encoding:
            self.pieces[-1] = replace(last, **_from_start(last.source))

    patch.setattr(run_tokens.RunTokens, "add", add)


@fault("an empty slot shows its placeholder", law=PLACE)
def _placeholder_shown(patch: Patch) -> None:
    patch.setattr(run_tokens.SlotContents, "of", _contents(lambda slot: slot.filler_ids))


@fault("a slot's default is not applied", law=PLACE)
def _no_default_text(patch: Patch) -> None:
    patch.setattr(run_tokens.SlotContents, "of", _contents(lambda slot: ()))


def _contents(unfilled: Any) -> Any:
    original = run_tokens.SlotContents.of

    def of(self: Any, slot: Any) -> Any:
        content = original(self, slot)
        return content if content.origin is Origin.ARGUMENT else replace(content, token_ids=unfilled(slot))

    return of


@fault("the space before a slot stays in the text", law=PLACE)
def _space_stays(patch: Patch) -> None:
    original = schema_texts.SchemaTexts._slot

    def slot(self: Any, parameter: Any) -> None:
        original(self, replace(parameter, lead=""))

    patch.setattr(schema_texts.SchemaTexts, "_slot", slot)


@fault("the boundary tokens stay at their places", law=PLACE)
def _boundary_stays(patch: Patch) -> None:
    def move_boundary(self: Any, piece: Any, run: Any, index: int, *, before_slot: bool) -> int:
        self._behind = None
        return 0

    patch.setattr(run_tokens.RunTokens, "_move_boundary", move_boundary)


@fault("a fifth boundary token moves", law=PLACE, rare=True)
def _five_move(patch: Patch) -> None:
    patch.setattr(run_tokens, "MAX_BOUNDARY_TOKENS", 5)


@fault("boundary tokens do not end before whitespace", law=PLACE)
def _boundary_too_long(patch: Patch) -> None:
    patch.setattr(
        run_tokens.SlotContents,
        "num_boundary_tokens",
        lambda self, piece: min(run_tokens.MAX_BOUNDARY_TOKENS, len(piece.token_ids)),
    )


@fault("slots side by side do not form a group", law=PLACE, rare=True)
def _no_group(patch: Patch) -> None:
    original = run_tokens.RunTokens._add_content

    def add_content(self: Any, start: int, content: Any, run: Any, slot: Any) -> None:
        original(self, slot.start, content, run, slot)

    patch.setattr(run_tokens.RunTokens, "_add_content", add_content)


@fault("an argument longer than its slot is taken", law="fault is reported first")
def _long_argument(patch: Patch) -> None:
    original = run_tokens.SlotContents.of

    def of(self: Any, slot: Any) -> Any:
        content = original(self, slot)
        self.faults.clear()
        return content

    patch.setattr(run_tokens.SlotContents, "of", of)


@fault("added text starts one position late", law=PLACE, quick=True)
def _late_text(patch: Patch) -> None:
    original = plan.Plan

    def late(**fields: Any) -> Any:
        added = {Origin.TEXT, Origin.HEADER, Origin.FOOTER}
        moved = (replace(each, start=each.start + (each.origin in added)) for each in fields.pop("pieces"))
        return original(pieces=tuple(moved), **fields)

    patch.setattr(plan, "Plan", late)


@fault("the last token is not fed again behind other new tokens", law=PLACE)
def _not_fed_again(patch: Patch) -> None:
    original = plan._with_new_end

    def with_new_end(pieces: Any) -> Any:
        return pieces if any(piece.source is None for piece in pieces) else original(pieces)

    patch.setattr(plan, "_with_new_end", with_new_end)


@fault("the token that is fed again stays in the view", law="positions are disjoint")
def _fed_twice(patch: Patch) -> None:
    original = plan._with_new_end

    def with_new_end(pieces: Any) -> Any:
        made = original(pieces)
        return made if made == pieces else (*pieces, made[-1])

    patch.setattr(plan, "_with_new_end", with_new_end)


@fault("closed positions are those of the encodings", law=PLACE, quick=True)
def _not_moved(patch: Patch) -> None:
    patch.setattr(encoding.KVPart, "at", lambda self, position: self)


@fault("new tokens keep their fixed positions", law=PLACE)
def _new_not_moved(patch: Patch) -> None:
    original = plan.placed

    def placed(found: Any, placement: Any) -> Any:
        moved = original(found, placement)
        return tuple(
            new if new.source else replace(new, start=old.start) for old, new in zip(found, moved, strict=True)
        )

    patch.setattr(plan, "placed", placed)


@fault("contexts are not closed up", law=CONTEXTS)
def _open_contexts(patch: Patch) -> None:
    patch.setattr(run_variants, "closed_up", tuple)


@fault("runs are encoded with the gaps of their slots", law=CONTEXTS)
def _gaps_of_slots(patch: Patch) -> None:
    original = run_variants._Maker._add

    def add(self: Any, run: Any, kind: Any, sees: Any) -> Any:
        index = original(self, run, kind, sees)
        variant, places = self.variants[index], run.places
        gap = places[-1] - places[0] + 1 - len(places) if places else 0
        *others, last = variant.encoding.position_ids
        self.variants[index] = replace(variant, encoding=replace(variant.encoding, position_ids=(*others, last + gap)))
        return index

    patch.setattr(run_variants._Maker, "_add", add)


@fault("text at another distance counts as exact", law=LEVEL, rare=True)
def _any_distance(patch: Patch) -> None:
    original = plan_pieces.num_exact

    def num_exact(found: Any) -> Any:
        return original([replace(each, source=each.source and replace(each.source, shift=0)) for each in found])

    patch.setattr(plan_pieces, "num_exact", num_exact)


@fault("every answer is called exact", law=LEVEL)
def _always_exact(patch: Patch) -> None:
    patch.setattr(Plan, "level", Level.EXACT)


@fault("no answer is called exact", law=LEVEL)
def _never_exact(patch: Patch) -> None:
    patch.setattr(Plan, "level", Level.MODULAR)


@fault("the level overlooks replaced fillers", law="exact is plain prefill")
def _level_without_fillers(patch: Patch) -> None:
    original = plan_pieces.num_exact

    def num_exact(found: Any) -> int:
        kept: list[Any] = []
        for each in found:
            if each.source is None:
                kept += [each] if each.run is None else []
            elif not kept or kept[-1].source is None or kept[-1].source.encoding != each.source.encoding:
                kept.append(replace(each, source=each.source.encoding.whole))
        number = original(kept)
        return len(found) if number == len(kept) else number

    patch.setattr(plan_pieces, "num_exact", num_exact)


@fault("first-K computes the last tokens of a run again", law=REPAIR, quick=True)
def _last_repaired(patch: Patch) -> None:
    original = plan.positions_to_repair

    def last_positions(found: Any, setting: Repair) -> Any:
        again, runs = original(found, setting), {}
        for each in found:
            if each.source is not None:
                runs.setdefault(each.run.index, []).extend(each.position_ids)
        numbers = {run: len(again.intersection(own)) for run, own in runs.items()}
        return frozenset(position for run, own in runs.items() for position in own[len(own) - numbers[run] :])

    patch.setattr(plan, "positions_to_repair", last_positions)


@fault("first-K computes one token too few", law=REPAIR)
def _one_too_few(patch: Patch) -> None:
    original = Repair.num_again
    patch.setattr(Repair, "num_again", lambda self, num_tokens: max(0, original(self, num_tokens) - 1))


@fault("a share of a run is rounded down", law=REPAIR)
def _rounded_down(patch: Patch) -> None:
    original = Repair.num_again

    def num_again(self: Repair, num_tokens: int) -> int:
        return num_tokens * self.amount // 100 if self.is_share else original(self, num_tokens)

    patch.setattr(Repair, "num_again", num_again)


@fault("repair starts one part late", law=REPAIR, quick=True)
def _one_part_late(patch: Patch) -> None:
    original = repair.num_exact
    patch.setattr(repair, "num_exact", lambda found: min(len(found), original(found) + 1))


@fault("first-K starts in a run whose context is exact", law=REPAIR)
def _exact_run_repaired(patch: Patch) -> None:
    patch.setattr(repair, "_is_context_exact", lambda *args: False)


@fault("first-K counts each part of a run", law=REPAIR)
def _per_part(patch: Patch) -> None:
    patch.setattr(repair, "groupby", lambda found, key: ((None, [each]) for each in found))


@fault("tokens that are computed again lose the gap between them", law=REPAIR, rare=True)
def _gap_lost(patch: Patch) -> None:
    def as_new(self: Any, origin: Any) -> Any:
        yield replace(self, source=None, origin=origin)

    patch.setattr(Piece, "as_new", as_new)


@fault("a stored token stays beside its repair", law="repaired is the reference")
def _repaired_twice(patch: Patch) -> None:
    original = plan.recomputed

    def recomputed(found: Any, positions: Any, *origin: Any) -> Any:
        made = original(found, positions, *origin)
        return (
            made if origin else (*(each for each in found if each.source), *(each for each in made if not each.source))
        )

    patch.setattr(plan, "recomputed", recomputed)
