"""What every encoding must have seen, and which state of a run a prompt must use: read off the schema, run by run.

Comes in: a schema under test or a plan. Goes out: what is not as the schema says. Of the layout, only runs and their
positions are taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from promptcache.language.checked import CheckedScaffold, CheckedSchema
from promptcache.language.schema import Context
from promptcache.layout.types import Encoding, Layout, Origin, Plan, Run


def wrong_contexts(layout: Layout, encodings: Sequence[Encoding]) -> Iterator[str]:
    """Yield every state of a run that has seen other runs, or other states of them, than the schema says."""
    schema = layout.schema
    for run in (run for run in layout.runs if run.cached):
        plain = _state(encodings, run.index, None)
        if plain is not None:
            expected = [_state(encodings, index, None) for index in _before(layout, run, *_visible(layout, run))]
            if plain.context != tuple(each.index for each in expected if each is not None):
                yield f"run {run.index} of '{run.module}' has seen encodings {plain.context}"
            for scaffold in schema.scaffolds:
                if run.module in _covered(scaffold, scaffold.guaranteed):
                    yield from _wrong_in_scaffold(layout, encodings, run, scaffold)


def wrong_states(plan: Plan) -> Iterator[str]:
    """Yield every run that a prompt takes in another state than its scaffolds say, or takes from the store or not."""
    taken = _scaffolds_taken(plan.selection.schema, frozenset(plan.selection.modules))
    for reuse in plan.reuse:
        used = plan.encodings[reuse.encoding]
        module = plan.layout.runs[used.run].module
        right = _state(plan.encodings, used.run, taken.get(module))
        if right is None or used.index != right.index:
            yield f"run {used.run} of '{module}' is in state {used.scaffolds}"
        if module and not plan.selection.schema.modules[module].cache:
            yield f"'{module}' is not to be cached"
    for prefill in plan.prefill:
        if prefill.origin is Origin.UNCACHED and plan.selection.schema.modules[prefill.module].cache:
            yield f"'{prefill.module}' is to be cached"


def _wrong_in_scaffold(
    layout: Layout, encodings: Sequence[Encoding], run: Run, scaffold: CheckedScaffold
) -> Iterator[str]:
    state = _state(encodings, run.index, scaffold.name)
    seen = _before(layout, run, scaffold.guaranteed | {""}, everything=True)
    expected = [_state(encodings, index, scaffold.name) for index in seen]
    if state is None or state.context != tuple(each.index for each in expected if each is not None):
        yield f"run {run.index} of '{run.module}' has not seen what it must in scaffold {scaffold.name}"


def _visible(layout: Layout, run: Run) -> tuple[Set[str], bool]:
    """Return the modules whose runs a plain state sees, and whether those of the root are all among them."""
    schema, path = layout.schema, run.module
    context = schema.modules[path].context if path else schema.source.context
    if context is Context.GUARANTEED:
        return schema.guaranteed[path] | {path, ""}, True
    return {path}, not path


def _before(layout: Layout, run: Run, modules: Set[str], everything: bool) -> list[int]:
    """Return the runs of `modules` that stop before `run` starts; BOS is always among them."""
    return [
        other.index
        for other in layout.runs[: run.index]
        if other.stop <= run.start
        and (other.module in modules or (not everything and layout.has_bos and other.index == 0))
    ]


def _state(encodings: Sequence[Encoding], run: int, scaffold: str | None) -> Encoding | None:
    """Return the state of a run in a scaffold, or its plain one: the first."""
    states = [each for each in encodings if each.run == run]
    return next((each for each in states if scaffold in each.scaffolds), states[0] if states else None)


def _scaffolds_taken(schema: CheckedSchema, selected: Set[str]) -> dict[str, str]:
    taken: dict[str, str] = {}
    for scaffold in schema.scaffolds:
        covered = _covered(scaffold, selected)
        if set(scaffold.members) <= selected and not covered & taken.keys():
            taken |= dict.fromkeys(covered, scaffold.name)
    return taken


def _covered(scaffold: CheckedScaffold, modules: Set[str]) -> set[str]:
    """Return the members of a scaffold and what stands in them and is guaranteed with all of them."""
    return {
        path
        for path in modules & scaffold.guaranteed
        for member in scaffold.members
        if path == member or path.startswith(f"{member}/")
    }
