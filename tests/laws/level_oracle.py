"""Compute from schema and tokens what each stored token attended to: level, contexts and variants of a plan.

These functions are slow and short. They share no code with the layout and the planner that they check; of a layout they
take the runs and their positions as given.
"""

from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from fractions import Fraction
from math import ceil

from promptcache.language import CheckedScaffold, CheckedSchema, Context, Placement, Repair, RepairKind, Selection
from promptcache.layout import Encoding, KVPart, Layout, Level, Origin, Plan, Run, Variant
from promptcache.tokenizer import Tokenizer
from tests.laws.members import variants_with_members

_Token = tuple[Encoding, int]  # with the index of the token


def true_level(plan: Plan) -> Level:
    """Return `exact` iff every reused token has seen the tokens in use before it, at their distances, and no other."""
    in_use = _in_use(plan)
    new_positions = [part.start + index for part in plan.new for index in range(len(part.token_ids))]
    for position, token in in_use.items():
        if not _is_exact(position, token, in_use) or any(new < position for new in new_positions):
            return Level.MODULAR
    return Level.EXACT


def inexact_positions(plan: Plan) -> list[int]:
    """Return the positions of the reused tokens from the first one on that has not seen what is in use before it."""
    in_use = _in_use(plan)
    first_new = min((part.start for part in plan.new), default=len(in_use) + plan.stop)
    exact = (_is_exact(position, token, in_use) and first_new > position for position, token in in_use.items())
    return [*in_use][next((index for index, holds in enumerate(exact) if not holds), len(in_use)) :]


def repaired_positions(plan: Plan, repair: Repair) -> set[int]:
    """Return the positions of the reused tokens of a plan that `repair` computes again.

    Args:
        plan: With the repair "slots", and without a token that is fed again: those count as tokens of their runs.
    """
    in_use = _in_use(plan)
    if repair.kind is RepairKind.ALL:
        return set(inexact_positions(plan))
    again: set[int] = set()
    is_behind = False
    runs: dict[int, list[int]] = {}  # positions of each run, in position order
    for piece in plan.reused:
        runs.setdefault(piece.run.index, []).extend(
            piece.source.encoding.position_ids[index] + piece.source.shift
            for index in range(piece.source.start, piece.source.stop)
        )
    for run, own in runs.items():
        others = {(position, token) for position, token in in_use.items() if position not in own and position < own[0]}
        encoding, _ = in_use[own[0]]
        context = {
            (part.encoding.position_ids[index] + part.shift, (part.encoding, index))
            for part in encoding.context
            for index in range(part.start, part.stop)
        }
        first = min(piece.start for piece in plan.pieces if piece.run is not None and piece.run.index == run)
        has_new = any(piece.start < first for piece in plan.new)
        is_behind = is_behind or has_new or context != others
        num_first = ceil(Fraction(repair.amount, 100) * len(own)) if repair.is_share else repair.amount
        again |= set(own[:num_first] if is_behind else ())
    return again


def _in_use(plan: Plan) -> dict[int, _Token]:
    """Return the reused tokens by their positions, in position order: one stored token may be in use at two of them."""
    return {
        piece.source.encoding.position_ids[index] + piece.source.shift: (piece.source.encoding, index)
        for piece in plan.reused
        for index in range(piece.source.start, piece.source.stop)
    }


def _seen(token: _Token) -> set[tuple[_Token, int]]:
    """Return every stored token that `token` attended to when it was encoded, with its distance."""
    encoding, number = token
    own = encoding.position_ids[number]
    stored = [((encoding, index), encoding.position_ids[index]) for index in range(len(encoding.token_ids))]
    for part in encoding.context:
        positions = part.encoding.position_ids
        stored += [((part.encoding, index), positions[index] + part.shift) for index in range(part.start, part.stop)]
    return {(other, own - position) for other, position in stored if position < own}


def _is_exact(position: int, token: _Token, in_use: Mapping[int, _Token]) -> bool:
    return _seen(token) == _before_it(position, in_use)


def _before_it(position: int, in_use: Mapping[int, _Token]) -> set[tuple[_Token, int]]:
    """Return the tokens in use below a position, with their distances."""
    return {(other, position - lower) for lower, other in in_use.items() if lower < position}


def wrong_contexts(layout: Layout, variants: Sequence[Variant]) -> Iterator[str]:
    """Yield every variant of a run whose context differs from what the schema says."""
    schema = layout.schema
    for run in (run for run in layout.runs if run.cached):
        plain = _variant(variants, run.index, None)
        if plain is not None:
            expected = [_variant(variants, index, None) for index in _before(layout, run, *_visible(layout, run))]
            if not _has_seen(layout, plain, expected):
                yield f"run {run.index} of '{run.module}' has seen variants {plain.sees}"
            for scaffold in schema.scaffolds:
                if run.module in _covered(scaffold, scaffold.guaranteed):
                    yield from _wrong_in_scaffold(layout, variants, run, scaffold)


def wrong_variants(plan: Plan, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield every run that a plan reuses in a wrong variant, and every run that it wrongly reuses or prefills."""
    layout, variants = variants_with_members(plan.selection, plan.layout, tokenizer)
    encodings = _encodings_in_use(plan.selection, layout, variants)
    right_encodings = {_place(layout, index): encoding for index, encoding in encodings.items()}
    for piece in plan.reused:
        module, of_member = piece.run.module, piece.run.module in plan.selection.members
        right = right_encodings.get((module, 0) if of_member else _place(plan.layout, piece.run.index))
        if piece.source.encoding != right:
            yield f"run {piece.run.index} of '{module}' is {piece.source.encoding}, not {right}"
        if module and not plan.selection.module(module).cache:
            yield f"'{module}' is not to be cached"
    for piece in plan.new:
        if piece.origin is Origin.UNCACHED and plan.selection.module(piece.module).cache:
            yield f"'{piece.module}' is to be cached"


def _place(layout: Layout, index: int) -> tuple[str, int]:
    """Return the module of a run, and the number of its runs before this one."""
    module = layout.runs[index].module
    return module, sum(run.module == module for run in layout.runs[:index])


def _encodings_in_use(selection: Selection, layout: Layout, variants: Sequence[Variant]) -> dict[int, Encoding]:
    """Return the encodings of the cached runs in use, for a layout with members: plain ones while they are exact."""
    schema, modules = layout.schema, frozenset(selection.modules)
    taken = _scaffolds_taken(schema, modules)
    found: dict[int, Encoding] = {}
    is_exact = True
    for run in (run for run in layout.runs if not run.module or run.module in modules):
        variant = _variant(variants, run.index, taken.get(run.module)) if run.cached else None
        if variant is not None:
            seen = [part.encoding for part in variant.encoding.context]
            is_exact = is_exact and seen == [*found.values()]
            if is_exact or run.module in taken:
                found[run.index] = variant.encoding
            elif run.module and schema.modules[run.module].context is Context.PREVIOUS:
                found[run.index] = _behind_previous(layout, variants, run, [*found], selection.members).encoding
            else:
                found[run.index] = variant.encoding
        is_exact = is_exact and run.cached
    return found


def _behind_previous(
    layout: Layout, variants: Sequence[Variant], run: Run, before: Sequence[int], members: Container[str]
) -> Variant:
    """Return the variant of a run behind the last run in use that it need not see, and what that one sees."""
    plain = _variant(variants, run.index, None)
    assert plain is not None
    visible = _before(layout, run, *_visible(layout, run))
    modules = layout.schema.modules
    passed = {each.index for each in layout.runs if each.module in members}
    passed = {index for index in passed if modules[layout.runs[index].module].context is not Context.PREVIOUS}
    others = [index for index in before if index not in visible and index not in passed]
    if not others:
        return plain
    previous = layout.runs[others[-1]]
    seen = {previous.index, *visible, *_before(layout, previous, *_visible(layout, previous))}
    position, parts, places = 0, list[KVPart](), plain.encoding.position_ids
    for index in (each for each in before if each in seen):
        variant = _variant(variants, index, None)
        assert variant is not None
        num_tokens = len(variant.encoding.token_ids)
        shift = position - variant.encoding.position_ids[0] if layout.placement is Placement.CLOSED else 0
        parts.append(KVPart(variant.encoding, 0, num_tokens, shift))
        position += num_tokens
    if layout.placement is Placement.CLOSED:
        places = tuple(range(position, position + len(places)))
        if layout.max_positions is not None and position + len(places) > layout.max_positions:
            return plain
    encoding = replace(plain.encoding, position_ids=places, context=tuple(parts))
    return replace(plain, encoding=encoding)


def _wrong_in_scaffold(
    layout: Layout, variants: Sequence[Variant], run: Run, scaffold: CheckedScaffold
) -> Iterator[str]:
    variant = _variant(variants, run.index, scaffold.name)
    seen = _before(layout, run, scaffold.guaranteed | {""}, everything=True)
    expected = [_variant(variants, index, scaffold.name) for index in seen]
    if variant is None or not _has_seen(layout, variant, expected):
        yield f"run {run.index} of '{run.module}' has not seen what it must in scaffold {scaffold.name}"


def _visible(layout: Layout, run: Run) -> tuple[Set[str], bool]:
    """Return the modules whose runs a plain variant sees, and whether those of the root are all among them."""
    schema, path = layout.schema, run.module
    context = schema.modules[path].context if path else schema.source.context
    if context is Context.OWN:
        return {path}, not path
    return schema.guaranteed[path] | {path, ""}, True


def _before(layout: Layout, run: Run, modules: Set[str], everything: bool) -> list[int]:
    """Return the runs of `modules` that stop before `run` starts; BOS is always among them."""
    return [
        other.index
        for other in layout.runs[: run.index]
        if other.stop <= run.start
        and (other.module in modules or (not everything and layout.has_bos and other.index == 0))
    ]


def _has_seen(layout: Layout, variant: Variant, expected: Sequence[Variant | None]) -> bool:
    """Whether a variant sees these variants, in this order, and its encoding all of their tokens, where they must be."""
    present = [each for each in expected if each is not None]
    wholes, num_seen = [], 0
    for each in present:
        num_tokens = len(each.encoding.token_ids)
        shift = num_seen - each.encoding.position_ids[0] if layout.placement is Placement.CLOSED else 0
        wholes.append(KVPart(each.encoding, 0, num_tokens, shift))
        num_seen += num_tokens
    own = variant.encoding.position_ids
    if layout.placement is Placement.CLOSED and own != tuple(range(num_seen, num_seen + len(own))):
        return False
    return variant.sees == tuple(each.index for each in present) and variant.encoding.context == tuple(wholes)


def _variant(variants: Sequence[Variant], run: int, scaffold: str | None) -> Variant | None:
    """Return the variant of a run in a scaffold, or its plain one: the first."""
    own = [each for each in variants if each.run == run]
    return next((each for each in own if scaffold in each.scaffolds), own[0] if own else None)


def _scaffolds_taken(schema: CheckedSchema, selected: Set[str]) -> dict[str, str]:
    taken: dict[str, str] = {}
    for scaffold in schema.scaffolds:
        covered = _covered(scaffold, selected)
        if set(scaffold.members) <= selected and not covered & taken.keys():
            taken |= dict.fromkeys(covered, scaffold.name)
    return taken


def _covered(scaffold: CheckedScaffold, modules: Set[str]) -> set[str]:
    """Return the members of a scaffold and the modules inside them that are guaranteed with all of them."""
    return {
        path
        for path in modules & scaffold.guaranteed
        for member in scaffold.members
        if path == member or path.startswith(f"{member}/")
    }
