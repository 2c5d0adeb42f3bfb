"""Compute the variants of a layout's runs: the encodings of every cached run, with their contexts.

Variants are in layout order, so every context precedes the encodings that use it. The plain variant of a run precedes
its scaffold variants.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from operator import attrgetter

from promptcache.language import CheckedScaffold, Context, Placement, Selection
from promptcache.layout.encoding import Encoding
from promptcache.layout.types import Layout, Run, Variant, VariantKind


def run_variants(layout: Layout, codec: str = "full") -> tuple[Variant, ...]:
    """Return the variants of a schema's runs.

    Each cached run has a plain variant, and one for each scaffold that covers it. A run without tokens (slots without
    fillers) has none. Variants of a run with the same context are one. Variants behind the module before it are not
    among them: they depend on the prompt (`variants_in_use`).

    With fixed positions, a run is encoded at its places in the layout. With closed positions, it is encoded directly
    behind its context, and its context has no gaps.
    """
    covering: dict[str, list[CheckedScaffold]] = {}  # the scaffolds of each module
    for scaffold in layout.schema.scaffolds:
        for path in covered_modules(scaffold, scaffold.guaranteed):
            covering.setdefault(path, []).append(scaffold)
    made = list[Variant]()
    plain: dict[int, int] = {}  # index of the plain variant of each run that has one
    in_scaffold: dict[str, dict[int, int]] = {}  # that of its variant in each scaffold
    visibility = Visibility(layout)
    for run in layout.runs:
        if not run.cached or not run.token_ids:
            continue
        seen = [made[plain[index]] for index in visibility.plain(run) if index in plain]
        first = plain[run.index] = len(made)
        made.append(variant_behind(layout, run, first, VariantKind.PLAIN, seen, codec))
        for scaffold in covering.get(run.module, ()):
            own = in_scaffold.setdefault(scaffold.name, {})
            known = ChainMap(own, plain)
            visible = visibility.before(run, visibility.runs_of(scaffold.guaranteed))
            sees = tuple(known[index] for index in visible if index in known)
            variant = next((each for each in made[first:] if each.sees == sees), None)
            if variant is None:
                seen = [made[index] for index in sees]
                variant = variant_behind(layout, run, len(made), VariantKind.SCAFFOLD, seen, codec)
                made.append(variant)
            if variant.index != first:
                made[variant.index] = replace(variant, scaffolds=(*variant.scaffolds, scaffold.name))
            own[run.index] = variant.index
    return tuple(made)


def variants_in_use(
    selection: Selection, layout: Layout, variants: Sequence[Variant], members: Sequence[Run]
) -> Iterator[tuple[Run, Variant | None]]:
    """Yield the runs of a prompt in document order, each with the variant that it is used in.

    There is none for a run that is not cached, or has no tokens. A run is used in its plain variant if that attended to
    exactly the runs in use before it. Otherwise a run with `context="previous"` is used behind the module before it in
    the prompt.

    Args:
        variants: Those of the schema and of the members.
        members: Runs of the members of collections. They come behind the runs before their collection.
    """
    scaffolds = scaffolds_in_use(selection.schema.scaffolds, selection.modules)
    indices = sorted(index for path in ("", *selection.modules) for index in layout.runs_of.get(path, ()))
    runs = [layout.runs[index] for index in indices]
    if members:
        places = layout.collections
        runs = sorted([*members, *runs], key=lambda run: places.get(run.parent, run.index))
    used: list[int] = []
    plain: list[tuple[Run, Variant]] = []  # of the runs in use so far
    is_exact = True
    for run in runs:
        if (own := find_variant(variants, run.index, None) if run.cached else None) is None:
            is_exact = is_exact and run.cached
            yield run, None
            continue
        scaffold = scaffolds.get(run.module)
        variant = own if scaffold is None else find_variant(variants, run.index, scaffold)
        assert variant is not None, "a run with a plain variant has one in each scaffold"
        is_exact = is_exact and variant.sees == tuple(used)
        if scaffold is None and not is_exact and sees_previous(layout, run):
            variant = _behind_previous(layout, run, own, plain)
        used.append(variant.index)
        plain.append((run, own))
        yield run, variant


def _behind_previous(layout: Layout, run: Run, own: Variant, before: Sequence[tuple[Run, Variant]]) -> Variant:
    """Return the variant of a run behind the last run before it in a prompt that its plain variant does not attend to.

    The context are the runs of both plain variants, and that run. The plain variant is returned if there is no such
    run, or if the model has not enough positions.

    Args:
        own: The plain variant of the run.
        before: The runs in use before it, with their plain variants.
    """
    others = (variant for other, variant in reversed(before) if may_be_previous(layout, other))
    previous = next((variant for variant in others if variant.index not in own.sees), None)
    if previous is None:
        return own
    wanted = {*own.sees, *previous.sees, previous.index}
    seen = [variant for _, variant in before if variant.index in wanted]
    variant = variant_behind(layout, run, -1, VariantKind.PREVIOUS, seen, own.encoding.codec)
    has_room = layout.max_positions is None or variant.encoding.position_ids[-1] < layout.max_positions
    return variant if has_room else own


def variant_behind(
    layout: Layout, run: Run, index: int, kind: VariantKind, seen: Sequence[Variant], codec: str
) -> Variant:
    """Return the variant of a run that attends to `seen`: at its places in the layout, or directly behind them."""
    context, token_ids = [each.encoding.whole for each in seen], run.token_ids
    if layout.placement is Placement.FIXED:
        places = run.places
    else:
        stops = [0, *accumulate(part.num_tokens for part in context)]
        context = [part.at(start) for part, start in zip(context, stops, strict=False)]
        places = tuple(range(stops[-1], stops[-1] + len(token_ids)))
    encoding = Encoding(token_ids=token_ids, position_ids=places, context=tuple(context), codec=codec)
    sees = tuple(each.index for each in seen)
    return Variant(index=index, run=run.index, kind=kind, scaffolds=(), sees=sees, encoding=encoding)


def sees_previous(layout: Layout, run: Run) -> bool:
    """Whether a run is encoded behind the module before it in a prompt."""
    modules = layout.schema.modules
    declared = modules.get(run.module) or modules.get(run.parent)  # a member has the context of its collection
    return declared is not None and declared.context is Context.PREVIOUS


def may_be_previous(layout: Layout, other: Run) -> bool:
    """Whether `other` counts as the one before another run.

    A member of a collection counts only if it attends to the previous one itself. Otherwise each member would add an
    encoding of the module behind the collection.
    """
    return other.parent not in layout.collections or sees_previous(layout, other)


def pair_encodings(layout: Layout, variants: Sequence[Variant]) -> Iterator[tuple[str, Encoding]]:
    """Yield the path and the encoding of each module behind each module that may be the one before it in a prompt.

    These are all that prompts without members of collections use of modules with `context="previous"`, besides
    `variants`. Modules that a rule forbids together are not left out.

    Args:
        variants: The result of `run_variants(layout)`.
    """
    plain = [
        (run, variant)
        for run in layout.runs
        if run.cached and (variant := find_variant(variants, run.index, None)) is not None
    ]
    variants_of: dict[str, list[Variant]] = {}
    for run, variant in plain:
        variants_of.setdefault(run.module, []).append(variant)
    for number, (run, own) in enumerate(plain):
        if not sees_previous(layout, run):
            continue
        before = {variant.index: (other, variant) for other, variant in plain[:number] if other.stop <= run.start}
        others = {index for index in before.keys() - set(own.sees) if may_be_previous(layout, before[index][0])}
        for index in sorted(others):
            previous, variant = before[index]
            together = (previous.module, *layout.schema.guaranteed[previous.module])
            last = max(each.index for path in together for each in variants_of.get(path, ()) if each.index in others)
            if index == last:
                there = [before[each] for each in sorted({*own.sees, *variant.sees, index})]
                yield run.module, _behind_previous(layout, run, own, there).encoding


def find_variant(variants: Sequence[Variant], run: int, scaffold: str | None) -> Variant | None:
    """Return the variant of a run while `scaffold` is in use, or None if the run has no tokens.

    Args:
        variants: The result of `run_variants`.
        run: Index of a cached run.
        scaffold: The scaffold in use for the run's module, from `scaffolds_in_use`.
    """
    start, stop = (search(variants, run, key=attrgetter("run")) for search in (bisect_left, bisect_right))
    in_scaffold = (each for each in variants[start:stop] if scaffold in each.scaffolds)
    return next(in_scaffold, variants[start] if start < stop else None)


class Visibility:
    """Earlier runs that each run attends to."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stops = [run.stop for run in layout.runs]
        self._runs_of: dict[frozenset[str], list[int]] = {}

    def plain(self, run: Run) -> list[int]:
        """Return the context of `run` outside scaffolds: the guaranteed runs, or only those of its own module."""
        schema, path = self._layout.schema, run.module
        context = schema.modules[path].context if path else schema.source.context
        if context is not Context.OWN:
            return self.before(run, self.runs_of(schema.guaranteed[path]))
        bos = [0] if self._layout.has_bos and path else []
        return self.before(run, [*bos, *self._layout.runs_of[path]])

    def before(self, run: Run, visible: list[int]) -> list[int]:
        """Return the runs of the sorted indices `visible` that end before `run` starts."""
        stops, start = self._stops, run.start
        earlier = visible[: bisect_left(visible, run.index)]
        if max(map(stops.__getitem__, earlier), default=start) <= start:
            return earlier
        return [index for index in earlier if stops[index] <= start]  # alternatives of a union may overlap

    def runs_of(self, modules: frozenset[str]) -> list[int]:
        """Return the sorted runs of `modules` and of the root."""
        runs = self._runs_of.get(modules)
        if runs is None:
            own = (self._layout.runs_of[path] for path in modules | {""})
            runs = self._runs_of[modules] = sorted(chain.from_iterable(own))
        return runs


def covered_modules(scaffold: CheckedScaffold, modules: Iterable[str]) -> Iterator[str]:
    """Yield each of `modules` that has a variant of its own in `scaffold`.

    These are the members, and their descendants that are guaranteed if all members are present.
    """
    inside = tuple(f"{member}/" for member in scaffold.members)
    return (path for path in modules if path in scaffold.guaranteed and f"{path}/".startswith(inside))


def scaffolds_in_use(scaffolds: Iterable[CheckedScaffold], modules: Sequence[str]) -> dict[str, str]:
    """Return the name of the scaffold in use for every selected module that has one.

    A scaffold is used completely or not at all. In declared order, it is used if all its members are selected and
    no earlier scaffold covers one of its modules.
    """
    selected = frozenset(modules)
    taken: dict[str, str] = {}
    for scaffold in scaffolds:
        if selected.issuperset(scaffold.members):
            covered = tuple(covered_modules(scaffold, modules))
            if taken.keys().isdisjoint(covered):
                taken.update(dict.fromkeys(covered, scaffold.name))
    return taken
