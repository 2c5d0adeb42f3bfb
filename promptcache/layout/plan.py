"""Plan a prompt: choose the stored tokens to reuse and the tokens to prefill, with their positions.

The work grows with the selection, not with the schema. This module also checks that a model has enough positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptcache.diagnostics import ContextLengthExceeded, Diagnostic, PromptError, SchemaError, shown
from promptcache.language import FilledSlot, Message, Role, Selection
from promptcache.layout.encoding import KVPart
from promptcache.layout.run_states import find_state
from promptcache.layout.scaffolds import scaffolds_in_use
from promptcache.layout.types import Layout, Level, Origin, Plan, Prefill, Reuse, Run, RunState, Slot, Stretch
from promptcache.tokenizer import Tokenizer

Added: TypeAlias = tuple[Origin, tuple[int, ...]]


def make_plan(selection: Selection, layout: Layout, states: Sequence[RunState], tokenizer: Tokenizer) -> Plan:
    """Return the plan of a prompt: each token is reused or prefilled at a position.

    Args:
        selection: A valid prompt of the layout's schema.
        layout: The schema's positions under `tokenizer`.
        states: The result of `run_states(layout)`.
        tokenizer: Provides the token IDs of arguments and added text.

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
    """Content of a slot in one request."""

    token_ids: tuple[int, ...]
    origin: Origin

    def prefill(self, slot: Slot) -> Prefill:
        """Return the prefill of the content, from the first position of its slot."""
        return Prefill(
            start=slot.start,
            token_ids=self.token_ids,
            origin=self.origin,
            module=slot.module,
            parameter=slot.parameter,
        )


class _Contents:
    """Contents of the slots in one request: the argument, else the default, else no tokens."""

    def __init__(self, selection: Selection, tokenizer: Tokenizer) -> None:
        self.faults: list[Diagnostic] = []
        self._tokenizer = tokenizer
        self._arguments: Mapping[tuple[str, str], FilledSlot] = {
            (argument.module, argument.parameter): argument for argument in selection.arguments
        }

    def of(self, slot: Slot) -> _Content:
        """Return the content of `slot`; record a fault if its argument is too long."""
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
    """Add the stored tokens of a cached run, without fillers, to `reuse`; add its slot contents to `prefill`."""
    start = stop = 0  # range of encoding tokens to reuse next
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
        _add_range(state, start, stop, reuse)  # a range never extends across new tokens
        start = stop = stop + len(piece.filler_ids)
    _add_range(state, start, stop, reuse)


def _add_range(state: RunState | None, start: int, stop: int, reuse: list[Reuse]) -> None:
    if start < stop:
        assert state is not None, "a run with tokens has a state"
        whole = state.encoding.whole
        part = whole if stop - start == whole.num_tokens else KVPart(state.encoding, start, stop)
        reuse.append(Reuse(part=part, run=state.run))


def _new_run(run: Run, contents: _Contents) -> list[Prefill]:
    """Return the tokens of an uncached run; every request prefills them."""
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
    """Refuse a prompt that has no tokens except BOS."""
    if not prefill and len(reuse) == layout.has_bos:
        raise PromptError([_empty(selection)])


def _refeed_last(layout: Layout, reuse: list[Reuse], prefill: list[Prefill]) -> None:
    """Prefill the highest token again if it is reused, because only new tokens have logits."""
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


def added_tokens(selection: Selection, layout: Layout, tokenizer: Tokenizer) -> Iterator[Added]:
    """Yield the tokens after the selected modules, up to the start of generation; some items may be empty.

    See the table in docs/layout.md, "A prompt".
    """
    schema, messages = selection.schema, selection.messages
    bare = messages[0] if messages and messages[0].role is None else None
    if not schema.has_turns and (bare or not messages):
        if bare:
            yield Origin.TEXT, tokenizer.tokenize(bare.text)
        return
    if layout.has_open_turn:
        if bare:
            yield Origin.TEXT, tokenizer.tokenize(schema.open_separator + bare.text)
            messages = messages[1:]
        yield Origin.FOOTER, tokenizer.frame(Role.USER).footer_ids
    for message in messages:
        yield from _turn(message, tokenizer, is_last=message is messages[-1])
    if not messages or messages[-1].role is not Role.ASSISTANT:
        yield Origin.HEADER, tokenizer.frame(Role.ASSISTANT).header_ids


def _turn(message: Message, tokenizer: Tokenizer, *, is_last: bool) -> Iterator[Added]:
    """Yield a turn; bare text becomes a user turn, and a final assistant turn stays open."""
    role = message.role or Role.USER
    frame = tokenizer.frame(role)
    yield Origin.HEADER, frame.header_ids
    yield Origin.TEXT, tokenizer.tokenize(message.text)
    if not (is_last and role is Role.ASSISTANT):
        yield Origin.FOOTER, frame.footer_ids


def level_of(parts: Sequence[KVPart], prefill: Sequence[Prefill]) -> Level:
    """Return `exact` if and only if every reused token attended to exactly the used tokens at lower positions.

    Args:
        parts: In position order; the range of an encoding is split only at a hidden filler or at new tokens.
        prefill: In position order.

    The tokens of an encoding attended to its whole context and to all lower tokens of the encoding. The level is
    therefore `exact` under three conditions:

    - No new token is below a reused one.
    - A reused part begins its encoding.
    - The context of the part is the list of used parts before it.

    Otherwise the encoding attended to tokens that are not in use (a superseded state, a filler), or did not attend
    to tokens that are.
    """
    if parts and prefill and prefill[0].start < parts[-1].last:
        return Level.MODULAR
    for index, part in enumerate(parts):
        context = part.encoding.context
        if part.start != 0 or len(context) != index or context != tuple(parts[:index]):
            return Level.MODULAR
    return Level.EXACT


def check_length(layout: Layout, max_positions: int, model: str = "the model") -> None:
    """Refuse a schema that needs more positions than the model has.

    Args:
        layout: Its `stop` is the length of the longest prompt without text of its own.
        max_positions: Number of positions of the model.
        model: Name of the model for the message.

    Raises:
        SchemaError: PC503, with both numbers.
    """
    if layout.stop > max_positions:
        message = f"schema '{layout.schema.name}' needs {layout.stop} positions, {model} has {max_positions}"
        raise SchemaError([Diagnostic(code="PC503", message=message, span=layout.schema.source.span)])


def check_positions(plan: Plan, max_positions: int, max_new_tokens: int) -> None:
    """Refuse a request whose prompt and generated tokens together need more positions than the model has.

    Raises:
        ContextLengthExceeded: With the positions of the prompt, the requested tokens, and the positions of the model.
    """
    if plan.stop + max_new_tokens > max_positions:
        raise ContextLengthExceeded(
            f"the prompt takes {plan.stop} positions and {shown(max_new_tokens)} new tokens were asked for, "
            f"the model has {max_positions}"
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
