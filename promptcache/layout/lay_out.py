"""Checked schema to layout: a walk in document order that gives every run and slot its positions.

Comes in: a checked schema, whose text is final, and a tokenizer. Goes out: a `Layout`. This file does not know what a
run may see while it is encoded, nor what any prompt selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from promptcache.diagnostics import Diagnostic, SchemaError, Severity, Span
from promptcache.language.checked import (
    CheckedItem,
    CheckedModule,
    CheckedSchema,
    CheckedTurn,
    CheckedUnion,
    FinalText,
)
from promptcache.language.schema import Parameter, Role, place
from promptcache.layout.displayed import DisplayedLayout
from promptcache.layout.types import Extent, Layout, Piece, Run, Slot, Stretch
from promptcache.tokenizer import Tokenizer


def lay_out(schema: CheckedSchema, tokenizer: Tokenizer) -> Layout:
    """Give every run and slot of a schema its position IDs.

    Args:
        schema: Its texts are tokenized as they are, each apart from its neighbours.
        tokenizer: Gives text its token IDs, turns their headers and footers, and the prompt its BOS.

    Returns:
        The same layout for the same schema and tokenizer, always.

    Raises:
        SchemaError: a placeholder or default has more tokens than its slot (PC502); every such fault is named. A
            placeholder in the paper's dialect is cut instead, with a warning (PC511).
    """
    walk = _Walk(tokenizer)
    walk.add_bos(schema.source.span)
    walk.items(schema.children, _ROOT)
    walk.end_run(_ROOT)
    if walk.faults:
        raise SchemaError(dict.fromkeys(walk.faults))  # a file that is included twice has them twice
    return DisplayedLayout(
        schema=schema,
        runs=tuple(walk.runs),
        runs_of=_runs_of(schema, walk.runs),
        extents=walk.extents,
        stop=max((run.stop for run in walk.runs), default=0),
        tokenizer=tokenizer.fingerprint,
        has_bos=bool(tokenizer.bos_ids),
        has_open_turn=any(isinstance(item, CheckedTurn) and item.open for item in schema.children),
        warnings=tuple(dict.fromkeys(walk.warnings)),
    )


@dataclass(frozen=True, slots=True)
class _Owner:
    """The module whose own text is being laid out."""

    path: str
    cached: bool


_ROOT = _Owner("", cached=True)


class _Walk:
    """The state of one walk: where it stands, and the pieces of the run that is growing there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.runs: list[Run] = []
        self.extents: dict[str, Extent] = {}
        self.faults: list[Diagnostic] = []
        self.warnings: list[Diagnostic] = []
        self._tokenizer = tokenizer
        self._token_ids: dict[str, tuple[int, ...]] = {}
        self._pieces: list[Piece] = []
        self._position = 0

    def add_bos(self, span: Span) -> None:
        """Lay BOS out as a run of its own, where the tokenizer has one."""
        token_ids = self._tokenizer.bos_ids
        if token_ids:
            self._add_stretch(token_ids, self._tokenizer.detokenize(token_ids), span)
            self.end_run(_ROOT)

    def items(self, items: Sequence[CheckedItem], owner: _Owner) -> None:
        """Lay out what stands in `owner`, in document order."""
        for item in items:
            if isinstance(item, FinalText):
                self._add_stretch(self._tokenize(item.text), item.text, item.span)
            elif isinstance(item, Parameter):
                self._add_slot(item, owner)
            elif isinstance(item, CheckedTurn):
                self._turn(item, owner)
            elif isinstance(item, CheckedModule):
                self.end_run(owner)
                self._module(item)
            else:
                self.end_run(owner)
                self._union(item)

    def end_run(self, owner: _Owner) -> None:
        """Close the growing run, if there is one."""
        if self._pieces:
            run = Run(index=len(self.runs), module=owner.path, pieces=tuple(self._pieces), cached=owner.cached)
            self.runs.append(run)
            self._pieces.clear()

    def _turn(self, turn: CheckedTurn, owner: _Owner) -> None:
        """Lay out a turn: its header starts a run, its footer ends one; an open turn has no footer."""
        self.end_run(owner)
        frame = self._tokenizer.frame(turn.role)
        if turn.role is Role.SYSTEM and frame == self._tokenizer.frame(Role.USER):
            self.warnings.append(_no_system_role(turn.span))
        self._add_stretch(frame.header_ids, frame.header, turn.span)
        self.items(turn.children, owner)
        if not turn.open:
            self._add_stretch(frame.footer_ids, frame.footer, turn.span)
        self.end_run(owner)

    def _module(self, module: CheckedModule) -> None:
        """Lay out a module and pad it to its reserve."""
        start = self._position
        owner = _Owner(module.path, module.cache)
        self.items(module.children, owner)
        self.end_run(owner)
        if module.reserve is not None:
            if self._position > start + module.reserve:
                self.warnings.append(_over_reserve(module, self._position - start))
            self._position = max(self._position, start + module.reserve)
        self.extents[module.path] = Extent(start=start, stop=self._position)

    def _union(self, union: CheckedUnion) -> None:
        """Lay out every member from the same start; the longest decides where the union stops."""
        start = stop = self._position
        for member in union.members:
            self._position = start
            self._module(member)
            stop = max(stop, self._position)
        self._position = stop

    def _add_stretch(self, token_ids: tuple[int, ...], text: str, span: Span) -> None:
        if token_ids:
            self._pieces.append(Stretch(start=self._position, token_ids=token_ids, text=text, span=span))
            self._position += len(token_ids)

    def _add_slot(self, parameter: Parameter, owner: _Owner) -> None:
        default_ids = self._content(parameter, "default", parameter.default)
        placeholder_ids = self._content(parameter, "placeholder", parameter.placeholder)
        slot = Slot(
            module=owner.path,
            parameter=parameter.name,
            start=self._position,
            stop=self._position + parameter.length,
            filler_ids=default_ids if parameter.placeholder is None else placeholder_ids,
            default_ids=default_ids,
            required=parameter.required,
            span=parameter.span,
        )
        self._pieces.append(slot)
        self._position = slot.stop

    def _content(self, parameter: Parameter, kind: str, text: str | None) -> tuple[int, ...]:
        """Tokenize a default or placeholder, noting a fault when the slot cannot hold it; one of the dialect is cut."""
        token_ids = () if text is None else self._tokenize(text)
        if len(token_ids) > parameter.length and kind == "placeholder" and parameter.cut_placeholder:
            self.warnings.append(_cut(parameter, len(token_ids)))
            return token_ids[: parameter.length]
        if len(token_ids) > parameter.length:
            self.faults.append(_over_slot(parameter, kind, len(token_ids)))
        return token_ids

    def _tokenize(self, text: str) -> tuple[int, ...]:
        token_ids = self._token_ids.get(text)
        if token_ids is None:
            token_ids = self._token_ids[text] = self._tokenizer.tokenize(text)
        return token_ids


def _runs_of(schema: CheckedSchema, runs: Sequence[Run]) -> dict[str, tuple[int, ...]]:
    """Return the indices of every module's own runs; a module without text has none."""
    indices: dict[str, list[int]] = {path: [] for path in ("", *schema.modules)}
    for run in runs:
        indices[run.module].append(run.index)
    return {path: tuple(own) for path, own in indices.items()}


def _over_slot(parameter: Parameter, kind: str, num_tokens: int) -> Diagnostic:
    return Diagnostic(
        code="PC502",
        message=f"the {kind} of parameter '{parameter.name}' is {num_tokens} tokens, its slot holds {parameter.length}",
        span=parameter.span,
        help=f'write length="{num_tokens}" or shorten the {kind}',
    )


def _cut(parameter: Parameter, num_tokens: int) -> Diagnostic:
    what = f"the placeholder of parameter '{parameter.name}'"
    return Diagnostic(
        code="PC511",
        message=f"{what} is {num_tokens} tokens, its slot holds {parameter.length}: it is cut to the slot",
        span=place(parameter, "scaffold"),
        help=f'write length="{num_tokens}" or shorten the placeholder',
        severity=Severity.WARNING,
    )


def _over_reserve(module: CheckedModule, num_positions: int) -> Diagnostic:
    return Diagnostic(
        code="PC505",
        message=f"module '{module.path}' takes {num_positions} positions, it reserves {module.reserve}",
        span=module.span,
        help=f'write reserve="{num_positions}" or more, or leave reserve out',
        severity=Severity.WARNING,
    )


def _no_system_role(span: Span) -> Diagnostic:
    return Diagnostic(
        code="PC507",
        message="the model's chat template has no system role: this turn is rendered as a user turn",
        span=span,
        severity=Severity.WARNING,
    )
