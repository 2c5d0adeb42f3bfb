"""Faults of layout and plan: wrong positions, wrong contexts, wrong variants, wrong levels."""

from dataclasses import replace
from typing import Any

import pytest

from promptcache.language import Context, Repair
from promptcache.layout import LayoutNode, Level, Origin, Plan
from tests.planted.registry import edited, module_of, replaced, wrapped

lay_out, schema_texts, run_variants, run_tokens, plan, plan_pieces, encoding = (
    module_of(f"promptcache.layout.{name}")
    for name in ("lay_out", "schema_texts", "run_variants", "run_tokens", "plan", "pieces", "encoding")
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


@wrapped("union members are swapped", lay_out, "Layout", law=PLACE)
def _swapped_members(original: Any, **fields: Any) -> Any:
    found = dict(fields.pop("runs_of"))
    for union in _unions(fields["schema"].children):
        first, last = union.members[0].path, union.members[-1].path
        found[first], found[last] = found[last], found[first]
    return original(runs_of=found, **fields)


def _unions(items: Any) -> Any:
    for item in items:
        if hasattr(item, "members"):
            yield item
        yield from _unions(getattr(item, "children", ()) or getattr(item, "members", ()))


wrapped("reserve is ignored", lay_out._Walk, "_module", law=PLACE)(
    lambda original, self, module: original(self, replace(module, node=replace(module.node, reserve=None)))
)
edited(
    "BOS is left out",
    lay_out._Walk.tree,
    ("self._text_piece(LeafKind.BOS, self._written.beginning, schema.source.span)", "[]"),
    law=PLACE,
)
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


edited(
    "a scaffold variant sees plain variants only",
    run_variants.run_variants,
    ("known = ChainMap(own, plain)", "known = plain"),
    law=CONTEXTS,
)


@wrapped("a scaffold is used when incomplete", run_variants, "scaffolds_in_use", law=VARIANTS)
def _incomplete_scaffold(original: Any, scaffolds: Any, modules: Any) -> dict[str, str]:
    return original([replace(each, members=each.members[:1]) for each in scaffolds], modules)


replaced("a scaffold is never used", run_variants, "scaffolds_in_use", lambda scaffolds, modules: {}, law=VARIANTS)
wrapped("the last of two scaffolds wins", run_variants, "scaffolds_in_use", law=VARIANTS, rare=True)(
    lambda original, scaffolds, modules: original(scaffolds[::-1], modules)
)


edited(
    "the filler stays beside the argument",
    run_tokens.run_pieces,
    ("variant, start, stop)\n    if faults", "variant, 0, stop)\n    if faults"),
    law=PLACE,
)
edited(
    "an empty slot shows its placeholder",
    run_tokens._content,
    ("return slot.default_ids,", "return slot.token_ids,"),
    law=PLACE,
)
edited("a slot's default is not applied", run_tokens._content, ("return slot.default_ids,", "return (),"), law=PLACE)


@wrapped("the space before a slot stays in the text", schema_texts.SchemaTexts, "_slot", law=PLACE)
def _space_stays(original: Any, self: Any, parameter: Any) -> None:
    original(self, replace(parameter, lead=""))


edited(
    "the boundary tokens stay at their places",
    run_tokens.run_pieces,
    ("if behind is not None:", "if behind is not None and (behind := None):"),
    law=PLACE,
)
replaced("a fifth boundary token moves", run_tokens, "MAX_BOUNDARY_TOKENS", 5, law=PLACE, rare=True)
replaced(
    "boundary tokens do not end before whitespace",
    run_tokens,
    "num_boundary_tokens",
    lambda piece, tokenizer: min(run_tokens.MAX_BOUNDARY_TOKENS, len(piece.token_ids)),
    law=PLACE,
)


edited(
    "slots side by side do not form a group",
    run_tokens.run_pieces,
    ("Piece(token_ids=token_ids, start=position,", "Piece(token_ids=token_ids, start=piece.start,"),
    law=PLACE,
    rare=True,
)
edited(
    "an argument longer than its slot is taken",
    run_tokens.run_pieces,
    ("if faults:", "if False:"),
    law="fault is reported first",
)


@wrapped("the text of a prompt has no separator", plan, "with_added_text", law=PLACE)
def _text_without_separator(original: Any, found: Any, selection: Any, *args: Any) -> Any:
    return original(found, replace(selection, schema=replace(selection.schema, open_separator="")), *args)


@wrapped("added text starts one position late", plan, "Plan", law=PLACE, quick=True)
def _late_text(original: Any, **fields: Any) -> Any:
    added = {Origin.TEXT, Origin.HEADER, Origin.FOOTER}
    moved = (replace(each, start=each.start + (each.origin in added)) for each in fields.pop("pieces"))
    return original(pieces=tuple(moved), **fields)


_END = "    end = recomputed([last], (last.stop - 1,), Origin.LAST)"
edited(
    "the last token is not fed again behind other new tokens",
    plan.make_plan,
    (_END, "    end = [last] if any(each.source is None for each in pieces) else " + _END.partition("=")[2]),
    law=PLACE,
)
edited(
    "the token that is fed again stays in the view",
    plan.make_plan,
    (_END, _END + " if last.source is None else (last, *recomputed([last], (last.stop - 1,), Origin.LAST)[-1:])"),
    law="positions are disjoint",
)


replaced(
    "closed positions are those of the encodings",
    encoding.KVPart,
    "at",
    lambda self, position: self,
    law=PLACE,
    quick=True,
)


edited(
    "new tokens keep their fixed positions",
    plan.make_plan,
    ("replace(piece, start=start, source", "replace(piece, start=start if piece.source else piece.start, source"),
    law=PLACE,
)
edited(
    "contexts are not closed up",
    run_variants.variant_behind,
    ("[part.at(start) for", "[part for"),
    law=CONTEXTS,
)


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


edited(
    "repair starts one part late",
    plan_pieces.positions_to_repair,
    ("index = num_exact(pieces)", "index = min(len(pieces), num_exact(pieces) + 1)"),
    law=REPAIR,
    quick=True,
)
edited(
    "first-K starts in a run whose context is exact",
    plan_pieces.positions_to_repair,
    ("if repair.kind is RepairKind.FIRST and", "if False and"),
    law=REPAIR,
)
edited(
    "first-K counts each part of a run",
    plan_pieces.positions_to_repair,
    ('groupby(stored, key=attrgetter("run.index"))', "((None, [each]) for each in stored)"),
    law=REPAIR,
)
edited(
    "tokens that are computed again lose the gap between them",
    plan_pieces.recomputed,
    ("place - index if", "0 if"),
    law=REPAIR,
    rare=True,
)


@wrapped("a stored token stays beside its repair", plan, "recomputed", law="repaired is the reference")
def _repaired_twice(original: Any, found: Any, positions: Any, *origin: Any) -> Any:
    made = original(found, positions, *origin)
    return made if origin else (*(each for each in found if each.source), *(each for each in made if not each.source))
