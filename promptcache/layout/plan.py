"""Selection to plan: which stored tokens one request reuses, what it prefills, and where.

Comes in: a checked prompt with the layout of its schema and the states of its runs. Goes out: a `Plan`. The work grows
with the selection, not with the schema. This file knows no tensors and no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from promptcache.diagnostics import Diagnostic, PromptError
from promptcache.language.checked import FilledSlot, Selection
from promptcache.layout.encoding import KVPart
from promptcache.layout.level import level_of
from promptcache.layout.run_states import find_state
from promptcache.layout.scaffolds import scaffolds_in_use
from promptcache.layout.turns import added_tokens
from promptcache.layout.types import Layout, Origin, Plan, Prefill, Reuse, Run, RunState, Slot, Stretch
from promptcache.tokenizer import Tokenizer


def make_plan(selection: Selection, layout: Layout, states: Sequence[RunState], tokenizer: Tokenizer) -> Plan:
    """Decide for every token of a prompt whether it is reused or prefilled, and at which position.

    Args:
        selection: A valid prompt of the layout's schema.
        layout: The schema's positions under `tokenizer`.
        states: What `run_states(layout)` returned.
        tokenizer: Gives arguments and added text their token IDs.

    Raises:
        PromptError: an argument has more tokens than its slot (PC501), or the prompt is empty (PC506).
    """
    reuse: list[Reuse] = []
    prefill: list[Prefill] = []
    contents = _Contents(selection, tokenizer)
    scaffolds = scaffolds_in_use(selection.schema.scaffolds, selection.modules)
    position = 0
    for run in _runs_in_use(selection, layout):
        position = run.stop
        if run.cached:
            _reuse_run(run, find_state(states, run.index, scaffolds.get(run.module)), contents, reuse, prefill)
        else:
            prefill.extend(_new_run(run, contents))
    if contents.faults:
        raise PromptError(contents.faults)
    for origin, token_ids in added_tokens(selection, layout, tokenizer):
        if token_ids:
            prefill.append(Prefill(start=position, token_ids=token_ids, origin=origin))
            position += len(token_ids)
    _refuse_empty(selection, layout, reuse, prefill)
    _refeed_last(layout, reuse, prefill)
    return Plan(
        selection=selection,
        layout=layout,
        reuse=tuple(reuse),
        prefill=tuple(prefill),
        level=level_of([each.part for each in reuse], prefill),
    )


@dataclass(frozen=True, slots=True)
class _Content:
    """What a request puts into a slot."""

    token_ids: tuple[int, ...]
    origin: Origin

    def prefill(self, slot: Slot) -> Prefill:
        """Place the content at the first positions of its slot."""
        return Prefill(
            start=slot.start,
            token_ids=self.token_ids,
            origin=self.origin,
            module=slot.module,
            parameter=slot.parameter,
        )


class _Contents:
    """Says what stands in a slot in this request: the argument, else the default, else nothing."""

    def __init__(self, selection: Selection, tokenizer: Tokenizer) -> None:
        self.faults: list[Diagnostic] = []
        self._tokenizer = tokenizer
        self._arguments: Mapping[tuple[str, str], FilledSlot] = {
            (argument.module, argument.parameter): argument for argument in selection.arguments
        }

    def of(self, slot: Slot) -> _Content:
        """Return the content of `slot`, noting a fault when an argument is too long for it."""
        argument = self._arguments.get((slot.module, slot.parameter))
        if argument is None:
            return _Content(slot.default_ids, Origin.DEFAULT)
        token_ids = self._tokenizer.tokenize(argument.text)
        if len(token_ids) > slot.stop - slot.start:
            self.faults.append(_over_slot(argument, slot, len(token_ids)))
        return _Content(token_ids, Origin.ARGUMENT)


def _runs_in_use(selection: Selection, layout: Layout) -> list[Run]:
    """Return the runs of the root and of the selected modules, in document order."""
    indices = list(layout.runs_of[""])
    for path in selection.modules:
        indices.extend(layout.runs_of[path])
    return [layout.runs[index] for index in sorted(indices)]


def _reuse_run(
    run: Run, state: RunState | None, contents: _Contents, reuse: list[Reuse], prefill: list[Prefill]
) -> None:
    """Add what a cached run gives to `reuse`, its fillers cut out, and what fills its slots to `prefill`."""
    start = stop = 0  # the range of the encoding's tokens that is growing
    for piece in run.pieces:
        if isinstance(piece, Stretch):
            stop += len(piece.token_ids)
            continue
        content = contents.of(piece)
        if content.token_ids == piece.filler_ids:
            stop += len(piece.filler_ids)
            continue
        if content.token_ids:
            prefill.append(content.prefill(piece))
        _add_range(state, start, stop, reuse)  # no range reaches across new tokens
        start = stop = stop + len(piece.filler_ids)
    _add_range(state, start, stop, reuse)


def _add_range(state: RunState | None, start: int, stop: int, reuse: list[Reuse]) -> None:
    if start < stop:
        assert state is not None, "a run with tokens has a state"
        whole = state.encoding.whole
        part = whole if stop - start == whole.num_tokens else KVPart(state.encoding, start, stop)
        reuse.append(Reuse(part=part, run=state.run))


def _new_run(run: Run, contents: _Contents) -> list[Prefill]:
    """Return the tokens of a run that is computed anew in every request."""
    prefill: list[Prefill] = []
    for piece in run.pieces:
        if isinstance(piece, Slot):
            content = contents.of(piece)
            if content.token_ids:
                prefill.append(content.prefill(piece))
        else:
            prefill.append(
                Prefill(start=piece.start, token_ids=piece.token_ids, origin=Origin.UNCACHED, module=run.module)
            )
    return prefill


def _refuse_empty(selection: Selection, layout: Layout, reuse: Sequence[Reuse], prefill: Sequence[Prefill]) -> None:
    """Refuse a prompt in which nothing stands but BOS."""
    if not prefill and len(reuse) == layout.has_bos:
        raise PromptError([_empty(selection)])


def _refeed_last(layout: Layout, reuse: list[Reuse], prefill: list[Prefill]) -> None:
    """Where the highest token is a reused one, make it a new token: only a new token says what comes next."""
    if not reuse:
        return
    part, run = reuse[-1].part, reuse[-1].run
    if prefill and prefill[-1].start > part.last:
        return
    if part.num_tokens > 1:
        reuse[-1] = Reuse(part=replace(part, stop=part.stop - 1), run=run)
    else:
        reuse.pop()
    prefill.append(
        Prefill(start=part.last, token_ids=part.token_ids[-1:], origin=Origin.LAST, module=layout.runs[run].module)
    )


def _over_slot(argument: FilledSlot, slot: Slot, num_tokens: int) -> Diagnostic:
    where = f" of module '{slot.module}'" if slot.module else ""
    return Diagnostic(
        code="PC501",
        message=f"argument '{slot.parameter}'{where} is {num_tokens} tokens, its slot holds {slot.stop - slot.start}",
        span=argument.span,
        related=((slot.span, "the slot is declared here"),),
    )


def _empty(selection: Selection) -> Diagnostic:
    return Diagnostic(
        code="PC506",
        message="the prompt is empty: no module it uses has text, and it adds none",
        span=selection.span,
        help="name a module that has text, or write text after the modules",
    )
