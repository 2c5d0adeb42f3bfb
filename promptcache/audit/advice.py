"""Advice of an audit: changes that reduce the distance of a request from plain prefill. Each one is tried first.

Trials use a store of their own, so an audit leaves no KV in the engine's store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter

from promptcache.audit.ladder import Ladder, TokenPiece
from promptcache.audit.report import Advice, AdviceKind, Audit, ModuleGain, equal_gain, largest_first
from promptcache.diagnostics import LEAST_NATS, LanguageError, counted
from promptcache.kv import MemoryStore, stored_bytes
from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedTurn,
    CheckedUnion,
    Context,
    Repair,
)
from promptcache.layout import (
    Plan,
    Slot,
    StateKind,
    combination,
    exact_plan,
    has_combination,
    in_full_context,
    lay_out,
    run_states,
)
from promptcache.runtime import Executor, SchemaState
from promptcache.tokenizer import Tokenizer

MIN_GAIN_SHARE = 0.25
"""Least gain of a change that is advised, as a share of the request's distance. On a real model, smaller gains on one
question say little about others. A change that gained 19 % in one audit kept half of that on 11 of 20 other questions.
Changes that gained 84 % and 94 % did so on 16 and 19 of 20.
"""

REPAIRS = ("slots", "first-4", "first-16")
"""Settings of `repair` that are tried."""

MAX_TRIALS = 8
"""Number of changes of each kind that are tried, the most promising first."""

_SHOWN_CHARS = 12


def audit(
    plan: Plan,
    state: SchemaState,
    executor: Executor,
    tokenizer: Tokenizer,
    eos_ids: Sequence[int],
    max_new_tokens: int,
) -> Audit:
    """Audit a planned request.

    Args:
        state: The state that `plan` was made with.
        eos_ids: Tokens that end an answer.
        max_new_tokens: Limit of compared places.
    """
    ladder = Ladder(plan, executor, tokenizer, eos_ids, max_new_tokens)
    rungs = ladder.rungs()
    distance = rungs[-1].divergence
    modules = largest_first(ladder.modules(distance), lambda each: each.gain, distance)
    least = max(LEAST_NATS, MIN_GAIN_SHARE * distance)
    trials = _Trials(ladder, state, executor, tokenizer)
    tried = (*trials.of_texts(rungs[0].divergence), *trials.of_plans(distance, modules))
    return Audit(
        schema=state.schema.name,
        level=plan.level,
        divergence=distance,
        agreement=rungs[-1].agreement,
        num_places=ladder.num_places,
        answer=tokenizer.decode(ladder.answer_ids),
        rungs=rungs,
        modules=modules,
        advice=largest_first((each for each in tried if each.gain >= least), lambda each: each.gain, distance),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Change to try: the state or plan with it, and the advice to give."""

    kind: AdviceKind
    plan: Plan
    words: str
    price: str


class _Trials:
    """Changes of the schema, the engine or the request, each tried on one prompt."""

    def __init__(self, ladder: Ladder, state: SchemaState, executor: Executor, tokenizer: Tokenizer) -> None:
        self._ladder = ladder
        self._plan = ladder.plan
        self._state = state
        self._tokenizer = tokenizer
        self._executor = Executor(executor.model, MemoryStore(executor.model.shape), lambda: executor.fingerprint)

    def of_plans(self, distance: float, modules: Sequence[ModuleGain]) -> Iterator[Advice]:
        """Yield the gain of every change that leads to another plan, for a request with this distance.

        If one module could require several modules, only the best one is advised; of equal ones, the nearest.
        """
        if distance < LEAST_NATS:
            return
        for change in (*self._promotion(), *self._repairs(), *self._slots()):
            yield self._tried(change, distance)
        for _, group in groupby(self._requirements(modules, distance), key=itemgetter(0)):
            requirements = [self._tried(change, distance) for _, change in group]
            yield largest_first(requirements, lambda each: each.gain, distance)[0]

    def of_texts(self, distance: float) -> Iterator[Advice]:
        """Yield the gain of joining two texts that the schema cuts inside a token, for a rung with this distance."""
        if distance < LEAST_NATS:
            return
        for index, joined in list(self._cuts())[:MAX_TRIALS]:
            pieces = self._ladder.pieces
            before, after = pieces[index], pieces[index + 1]
            token_ids = [
                *(token_id for piece in pieces[:index] for token_id in piece.token_ids),
                *joined,
                *(token_id for piece in pieces[index + 2 :] for token_id in piece.token_ids),
            ]
            yield Advice(
                kind=AdviceKind.TEXT,
                words=f"keep {self._end(before)} and {self._beginning(after)} in one text: "
                "the tokenizer joins them, and the schema cuts between them",
                price="none",
                gain=distance - self._ladder.of_tokens(token_ids),
            )

    def _tried(self, change: _Change, distance: float) -> Advice:
        gain = 0.0
        if change.plan.tokens != self._plan.tokens:
            gain = distance - self._ladder.of_plan(change.plan, self._executor).divergence
        return Advice(kind=change.kind, words=change.words, price=change.price, gain=gain)

    def _planned(self, state: SchemaState) -> Plan:
        return state.plan(self._plan.selection.of_schema(state.schema), self._tokenizer, self._plan.repair)

    def _promotion(self) -> Iterator[_Change]:
        if not has_combination(self._plan):
            return
        own = combination(self._plan)
        parts = in_full_context(own)
        added = [part.encoding for part, before in zip(parts, own, strict=True) if part != before]
        shape, codec = self._executor.model.shape, self._state.codec
        nbytes = sum(stored_bytes(codec, shape, each.num_tokens) for each in added)
        num_tokens = counted(sum(each.num_tokens for each in added), "token")
        modules = [path for path in self._plan.selection.modules if self._state.schema.modules[path].cache]
        yield _Change(
            kind=AdviceKind.PROMOTE,
            plan=exact_plan(self._plan, parts),
            words=f'promote this prompt, or add <scaffold modules="{" ".join(modules)}"/>',
            price=f"{num_tokens} more in the store, {nbytes:,} bytes, encoded once",
        )

    def _repairs(self) -> Iterator[_Change]:
        """Yield settings of `repair`, those that compute the fewest tokens first."""
        plans = {name: self._state.plan(self._plan.selection, self._tokenizer, Repair.parse(name)) for name in REPAIRS}
        for name, plan in sorted(plans.items(), key=lambda each: each[1].num_new_tokens):
            num_tokens = plan.num_new_tokens - self._plan.num_new_tokens
            yield _Change(
                kind=AdviceKind.REPAIR,
                plan=plan,
                words=f'ask with repair="{name}"',
                price=f"each request computes {counted(num_tokens, 'token')} more",
            )

    def _slots(self) -> Iterator[_Change]:
        """Yield a shorter length for each slot that the content of this prompt does not fill, the largest gap first."""
        free = sorted(
            ((each.stop - each.start - used, each) for each, used in self._contents()), key=lambda each: -each[0]
        )
        for num_free, slot in free[:MAX_TRIALS]:
            parameter = self._state.schema.parameters[slot.module][slot.parameter]
            length = max(1, parameter.length - num_free)
            if length == parameter.length:
                continue
            shorter = replace(parameter, length=length)
            schema = replace(
                self._state.schema, children=_with_parameter(self._state.schema.children, slot.module, shorter)
            )
            try:
                old = self._state.layout
                layout = lay_out(schema, self._tokenizer, placement=old.placement, max_positions=old.max_positions)
            except LanguageError:
                continue  # the default does not fit
            state = replace(self._state, schema=schema, layout=layout, states=run_states(layout, self._state.codec))
            where = f" of module '{slot.module}'" if slot.module else ""
            yield _Change(
                kind=AdviceKind.SLOT,
                plan=self._planned(state),
                words=f"shorten the slot '{slot.parameter}'{where} from length {parameter.length} to {length}",
                price=f"an argument has at most {counted(shorter.num_positions, 'token')}"
                + ", the space before it included" * bool(shorter.lead),
            )

    def _contents(self) -> Iterator[tuple[Slot, int]]:
        """Yield the slots in use, with the number of tokens that their content or filler takes."""
        layout = self._plan.layout
        given = {(each.module, each.parameter): len(each.token_ids) for each in self._plan.prefill if each.parameter}
        for path in ("", *self._plan.selection.modules):
            for index in layout.runs_of[path]:
                for slot in layout.runs[index].slots:
                    used = given.get((slot.module, slot.parameter), len(slot.default_ids))
                    yield slot, max(used, len(slot.filler_ids), len(slot.default_ids))

    def _requirements(self, modules: Sequence[ModuleGain], distance: float) -> Iterator[tuple[str, _Change]]:
        """Yield modules with an earlier module that they could require: those that gain most, with the nearest."""
        schema, layout, number = self._state.schema, self._state.layout, 0
        used = (path for path in self._plan.selection.modules if path in schema.modules)
        starts = {path: layout.modules[path].start for path in used}
        for module in (each.module for each in modules if each.module in starts and each.gain > equal_gain(distance)):
            earlier = [path for path in starts if schema.modules[path].cache and starts[path] < starts[module]]
            for other in sorted(earlier, key=lambda path: -starts[path]):
                if other in schema.guaranteed[module] or number == MAX_TRIALS:
                    continue
                number += 1
                yield (
                    module,
                    _Change(
                        kind=AdviceKind.REQUIRES,
                        plan=self._planned(_requiring(self._state, module, other)),
                        words=f"write requires=\"{other}\" at module '{module}', so that it attends to "
                        + (f"the module before '{other}', too" if self._attends(module, other) else f"'{other}'"),
                        price=f"prompts with '{module}' must have '{other}', too",
                    ),
                )

    def _attends(self, module: str, other: str) -> bool:
        """Whether a module of this prompt attends to another one, as it is the module before it in the prompt."""
        runs, states = self._plan.layout.runs, self._state.states
        if self._state.schema.modules[module].context is not Context.PREVIOUS:
            return False
        plain = {each.encoding for each in states if each.kind is StateKind.PLAIN and runs[each.run].module == other}
        used = (each.part.encoding for each in self._plan.reuse if runs[each.run].module == module)
        return any(part.encoding in plain for encoding in used for part in encoding.context)

    def _cuts(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the index of each piece that the tokenizer would join with the next one, with the joined tokens."""
        for index, (piece, after) in enumerate(pairwise(self._ladder.pieces)):
            if not piece.is_frame and not after.is_frame:
                cut = (*piece.token_ids, *after.token_ids)
                joined = self._tokenizer.tokenize(self._tokenizer.detokenize(cut))
                if joined != cut:
                    yield index, joined

    def _end(self, piece: TokenPiece) -> str:
        text = self._tokenizer.detokenize(piece.token_ids)
        return f"{'…' * (len(text) > _SHOWN_CHARS) + text[-_SHOWN_CHARS:]!r}{_owner(piece)}"

    def _beginning(self, piece: TokenPiece) -> str:
        text = self._tokenizer.detokenize(piece.token_ids)
        return f"{text[:_SHOWN_CHARS] + '…' * (len(text) > _SHOWN_CHARS)!r}{_owner(piece)}"


def _owner(piece: TokenPiece) -> str:
    return f" of '{piece.module}'" if piece.module else ""


def _requiring(state: SchemaState, module: str, other: str) -> SchemaState:
    """Return the state of the schema in which `module` requires `other`."""
    schema = state.schema
    added = schema.guaranteed[other] | {other}
    guaranteed = {path: own | added if module in own else own for path, own in schema.guaranteed.items()}
    scaffolds = tuple(
        replace(each, guaranteed=each.guaranteed | added) if module in each.guaranteed else each
        for each in schema.scaffolds
    )
    schema = replace(schema, guaranteed=guaranteed, scaffolds=scaffolds)
    layout = replace(state.layout, schema=schema)
    return replace(state, schema=schema, layout=layout, states=run_states(layout, state.codec))


def _with_parameter(
    items: tuple[CheckedItem, ...], owner: str, parameter: CheckedParameter, inside: str = ""
) -> tuple[CheckedItem, ...]:
    """Return items with another declaration of a parameter of the module `owner`."""
    changed: list[CheckedItem] = []
    for item in items:
        match item:
            case CheckedParameter() if inside == owner and item.name == parameter.name:
                changed.append(parameter)
            case CheckedModule():
                changed.append(replace(item, children=_with_parameter(item.children, owner, parameter, item.path)))
            case CheckedTurn():
                changed.append(replace(item, children=_with_parameter(item.children, owner, parameter, inside)))
            case CheckedUnion():
                members = _with_parameter(item.members, owner, parameter, inside)
                changed.append(
                    replace(item, members=tuple(each for each in members if isinstance(each, CheckedModule)))
                )
            case _:
                changed.append(item)
    return tuple(changed)
