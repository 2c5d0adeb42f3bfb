"""The tokens of a prompt at their positions, from a walk over the checked schema: no runs, no encodings.

It shares no code with the layout and the planner that it checks.
"""

from __future__ import annotations

from collections.abc import Iterable

from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Parameter,
    Role,
    Selection,
)
from promptcache.layout import Plan
from promptcache.tokenizer import Tokenizer

Placed = tuple[int, int]
"""A position and the token ID at it."""


def expected_tokens(selection: Selection, tokenizer: Tokenizer) -> list[Placed]:
    """Return every token of a prompt at its position, in the order of the document."""
    writer = _PositionWriter(selection, tokenizer)
    writer.write(tokenizer.bos_ids, present=True)
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

    def __init__(self, selection: Selection, tokenizer: Tokenizer) -> None:
        self.tokens: list[Placed] = []
        self._position = 0
        self._stop = 0
        self._tokenizer = tokenizer
        self._selection = selection
        self._arguments = {(given.module, given.parameter): given.text for given in selection.arguments}

    def write(self, token_ids: Iterable[int], *, present: bool) -> None:
        for token_id in token_ids:
            if present:
                self.tokens.append((self._position, token_id))
                self._stop = max(self._stop, self._position + 1)
            self._position += 1

    def items(self, items: Iterable[CheckedItem], *, owner: str, present: bool) -> None:
        for item in items:
            match item:
                case FinalText():
                    self.write(self._tokenizer.tokenize(item.text), present=present)
                case Parameter():
                    self._slot(item, owner, present=present)
                case CheckedTurn():
                    frame = self._tokenizer.frame(item.role)
                    self.write(frame.header_ids, present=present)
                    self.items(item.children, owner=owner, present=present)
                    self.write(() if item.open else frame.footer_ids, present=present)
                case CheckedModule():
                    start = self._position
                    self.items(item.children, owner=item.path, present=item.path in self._selection.modules)
                    self._position = max(self._position, start + (item.reserve or 0))
                case CheckedUnion():
                    self._union(item)

    def added(self) -> None:
        """Write the prompt's own messages after all present tokens (docs/language.md, "Turns")."""
        self._position = self._stop
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

    def _slot(self, parameter: Parameter, owner: str, *, present: bool) -> None:
        start = self._position
        text = self._arguments.get((owner, parameter.name), parameter.default or "")
        self.write(self._tokenizer.tokenize(text), present=present)
        self._position = start + parameter.length
        self._stop = max(self._stop, self._position) if present else self._stop

    def _union(self, union: CheckedUnion) -> None:
        start, stops = self._position, [self._position]
        for member in union.members:
            self._position = start
            self.items([member], owner="", present=False)
            stops.append(self._position)
        self._position = max(stops)
