"""Selection to plan: which stored tokens one request reuses, what it prefills, and where.

Comes in: a checked prompt with the layout and encodings of its schema. Goes out: a `Plan`. The work grows with the
selection, not with the schema. This file knows no tensors and no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from promptcache.diagnostics import Diagnostic, PromptError
from promptcache.language.checked import FilledSlot, Selection
from promptcache.layout.displayed import DisplayedPlan
from promptcache.layout.encodings import find_encoding
from promptcache.layout.level import level_of
from promptcache.layout.scaffolds import scaffolds_in_use
from promptcache.layout.tokenizer import Tokenizer
from promptcache.layout.turns import added_tokens
from promptcache.layout.types import Encoding, Layout, Origin, Plan, Prefill, Reuse, Run, Slot, Stretch


def make_plan(selection: Selection, layout: Layout, encodings: tuple[Encoding, ...], tokenizer: Tokenizer) -> Plan:
    """Decide for every token of a prompt whether it is reused or prefilled, and at which position.

    Args:
        selection: A valid prompt of the layout's schema.
        layout: The schema's positions under `tokenizer`.
        encodings: What `encodings(layout)` returned.
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
            _reuse_run(run, find_encoding(encodings, run.index, scaffolds.get(run.module)), contents, reuse, prefill)
        else:
            prefill.extend(_new_run(run, contents))
    if contents.faults:
        raise PromptError(contents.faults)
    for origin, token_ids in added_tokens(selection, layout, tokenizer):
        if token_ids:
            prefill.append(Prefill(start=position, token_ids=token_ids, origin=origin))
            position += len(token_ids)
    _refuse_empty(selection, layout, reuse, prefill)
    _refeed_last(layout, encodings, reuse, prefill)
    return DisplayedPlan(
        selection=selection,
        layout=layout,
        encodings=encodings,
        reuse=tuple(reuse),
        prefill=tuple(prefill),
        level=level_of(reuse, prefill, encodings),
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
    run: Run, encoding: Encoding | None, contents: _Contents, reuse: list[Reuse], prefill: list[Prefill]
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
        _add_range(encoding, start, stop, reuse)  # no range reaches across new tokens
        start = stop = stop + len(piece.filler_ids)
    _add_range(encoding, start, stop, reuse)


def _add_range(encoding: Encoding | None, start: int, stop: int, reuse: list[Reuse]) -> None:
    if start < stop:
        assert encoding is not None, "a run with tokens has an encoding"
        reuse.append(Reuse(encoding=encoding.index, start=start, stop=stop))


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


def _refeed_last(layout: Layout, encodings: Sequence[Encoding], reuse: list[Reuse], prefill: list[Prefill]) -> None:
    """Where the highest token is a reused one, make it a new token: only a new token says what comes next."""
    if not reuse:
        return
    last = reuse[-1]
    encoding = encodings[last.encoding]
    position = encoding.position_ids[last.stop - 1]
    if prefill and prefill[-1].start > position:
        return
    reuse[-1] = replace(last, stop=last.stop - 1)
    if reuse[-1].start == reuse[-1].stop:
        reuse.pop()
    token_id = encoding.token_ids[last.stop - 1]
    module = layout.runs[encoding.run].module
    prefill.append(Prefill(start=position, token_ids=(token_id,), origin=Origin.LAST, module=module))


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
