"""The tokens of a prompt at their positions, from a walk over the checked schema: no runs, no encodings.

It shares no code with the layout and the planner that it checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from promptcache.language import (
    DEFAULT_REPAIR,
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Repair,
    RepairKind,
    Role,
    Selection,
)
from promptcache.layout import Plan
from promptcache.tokenizer import Tokenizer

Placed = tuple[int, int]
"""A position and the token ID at it."""


def expected_tokens(selection: Selection, tokenizer: Tokenizer, repair: Repair | None = None) -> list[Placed]:
    """Return every token of a prompt at its position, in the order of the document.

    Args:
        repair: All but "none" move tokens behind changed slots to their content; None means that of the schema.
    """
    moves = (repair or selection.schema.repair or DEFAULT_REPAIR).kind is not RepairKind.NONE
    writer = _PositionWriter(selection, tokenizer, moves=moves)
    writer.write(tokenizer.bos_ids, present=True)
    writer.boundary()
    writer.items(selection.schema.children, owner="", present=True)
    writer.added()
    return writer.tokens


def planned_tokens(plan: Plan) -> list[Placed]:
    """Return every token that a plan reuses or prefills, at its position."""
    reused = (
        (reuse.part.encoding.position_ids[index], reuse.part.encoding.token_ids[index])
        for reuse in plan.reuse
        for index in range(reuse.part.start, reuse.part.stop)
    )
    new = ((part.start + index, token_id) for part in plan.prefill for index, token_id in enumerate(part.token_ids))
    return [*reused, *new]


class _PositionWriter:
    """Writes the tokens of present items, and counts the positions of the others."""

    def __init__(self, selection: Selection, tokenizer: Tokenizer, *, moves: bool) -> None:
        self.tokens: list[Placed] = []
        self._position = 0
        self._moves = moves
        self._run = 0
        self._changed: tuple[int, int] | None = None  # the run of a changed slot, and the position behind its content
        self._moves_text = False  # whether text moves there
        self._tokenizer = tokenizer
        self._selection = selection
        self._arguments = {(given.module, given.parameter): given.text for given in selection.arguments}

    def write(self, token_ids: Sequence[int], *, present: bool, text: str = "") -> None:
        """Write a text; with a changed slot before it, its first tokens are written behind the content."""
        start = behind = self._position
        num_moved = 0
        if present and token_ids and self._changed is not None:
            if self._moves_text:
                num_moved, behind = self._num_moved(token_ids, text), self._changed[1]
            self._changed = (self._run, behind + num_moved) if num_moved == len(token_ids) else None
            self._moves_text = False  # only a slot follows a text that moved as a whole
        if present:
            for number, token_id in enumerate(token_ids):
                self.tokens.append(((behind if number < num_moved else start) + number, token_id))
        self._position += len(token_ids)

    def _num_moved(self, token_ids: Sequence[int], text: str) -> int:
        """Count the first tokens up to one that begins with whitespace, four at most."""
        for number in range(1, min(4, len(token_ids))):
            before = self._tokenizer.detokenize(token_ids[:number])
            if text.startswith(tuple(before + space for space in text if space.isspace())):
                return number
        return min(4, len(token_ids))

    def boundary(self) -> None:
        """End a run."""
        self._run += 1

    def items(self, items: Iterable[CheckedItem], *, owner: str, present: bool) -> None:
        for item in items:
            match item:
                case FinalText():
                    self.write(self._tokenizer.tokenize(item.text), present=present, text=item.text)
                case CheckedParameter():
                    self._slot(item, owner, present=present)
                case CheckedTurn():
                    frame = self._tokenizer.frame(item.role)
                    self.boundary()
                    self.write(frame.header_ids, present=present, text=frame.header)
                    self.items(item.children, owner=owner, present=present)
                    if not item.open:
                        self.write(frame.footer_ids, present=present, text=frame.footer)
                    self.boundary()
                case CheckedModule():
                    start = self._position
                    self.boundary()
                    self.items(item.children, owner=item.path, present=item.path in self._selection.modules)
                    self.boundary()
                    self._position = max(self._position, start + (item.reserve or 0))
                case CheckedUnion():
                    self.boundary()
                    self._union(item)

    def added(self) -> None:
        """Write the prompt's own messages after all present tokens (docs/language.md, "Turns")."""
        self._position = max((position + 1 for position, _ in self.tokens), default=0)
        self._changed = None
        schema, messages = self._selection.schema, self._selection.messages
        turns = [(message.role, message.text) for message in messages]
        is_open = any(isinstance(item, CheckedTurn) and item.open for item in schema.children)
        if not schema.has_turns and all(role is None for role, _ in turns):
            self._say("".join(text for _, text in turns))
            return
        if is_open:
            if turns and turns[0][0] is None:
                self._say(schema.open_separator + turns.pop(0)[1])
            self.write(self._tokenizer.frame(Role.USER).footer_ids, present=True)
        for number, (role, text) in enumerate(turns, 1):
            frame = self._tokenizer.frame(role or Role.USER)
            self.write(frame.header_ids, present=True)
            self._say(text)
            if role is Role.ASSISTANT and number == len(turns):
                return
            self.write(frame.footer_ids, present=True)
        self.write(self._tokenizer.frame(Role.ASSISTANT).header_ids, present=True)

    def _say(self, text: str) -> None:
        self.write(self._tokenizer.tokenize(text), present=True)

    def _slot(self, parameter: CheckedParameter, owner: str, *, present: bool) -> None:
        start = self._position
        if present:
            self._content(parameter, owner, start)
        self._position = start + parameter.length + len(parameter.lead)

    def _content(self, parameter: CheckedParameter, owner: str, start: int) -> None:
        default = parameter.default or ""
        filler = default if parameter.placeholder is None else parameter.placeholder
        token_ids = self._tokenizer.tokenize(parameter.lead + self._arguments.get((owner, parameter.name), default))
        filler_ids = self._tokenizer.tokenize(parameter.lead + filler)[: parameter.length + len(parameter.lead)]
        cached = not owner or self._selection.schema.modules[owner].cache
        if self._changed is not None and self._changed[0] == self._run:
            start = self._changed[1]
        elif cached and token_ids == filler_ids:
            self._changed = None
            self.tokens += [(start + number, token_id) for number, token_id in enumerate(token_ids)]
            return
        self.tokens += [(start + number, token_id) for number, token_id in enumerate(token_ids)]
        self._changed = (self._run, start + len(token_ids)) if self._moves else None
        self._moves_text = True

    def _union(self, union: CheckedUnion) -> None:
        start, stops = self._position, [self._position]
        for member in union.members:
            self._position = start
            self.items([member], owner="", present=False)
            stops.append(self._position)
        self._position = max(stops)
