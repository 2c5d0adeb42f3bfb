"""The tokens of a prompt at their positions, put together straight from the checked schema: slow, short, no runs, no encodings."""

from __future__ import annotations

from collections.abc import Iterable

from promptcache.language.checked import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion, FinalText, Selection
from promptcache.language.schema import Parameter, Role
from tests.fakes import ByteTokenizer


def reference_tokens(selection: Selection) -> list[tuple[int, int]]:
    """Return position and ID of every token that the byte tokenizer gives to a prompt."""
    writer = _Writer(selection)
    writer.write([256], present=True)
    writer.items(selection.schema.children, owner="", present=True)
    writer.added()
    return writer.tokens


class _Writer:
    def __init__(self, selection: Selection) -> None:
        self.tokens: list[tuple[int, int]] = []
        self.position = 0
        self.stop = 0
        self.tokenizer = ByteTokenizer()
        self.selection = selection
        self.arguments = {(given.module, given.parameter): given.text for given in selection.arguments}

    def write(self, token_ids: Iterable[int], *, present: bool) -> None:
        for token_id in token_ids:
            if present:
                self.tokens.append((self.position, token_id))
                self.stop = max(self.stop, self.position + 1)
            self.position += 1

    def items(self, items: Iterable[CheckedItem], *, owner: str, present: bool) -> None:
        for item in items:
            match item:
                case FinalText():
                    self.write(item.text.encode(), present=present)
                case Parameter():
                    start = self.position
                    self.write(self.arguments.get((owner, item.name), item.default or "").encode(), present=present)
                    self.position = start + item.length
                    self.stop = max(self.stop, self.position) if present else self.stop
                case CheckedTurn():
                    self.write(self.tokenizer.frame(item.role).header_ids, present=present)
                    self.items(item.children, owner=owner, present=present)
                    if not item.open:
                        self.write(self.tokenizer.frame(item.role).footer_ids, present=present)
                case CheckedModule():
                    start = self.position
                    self.items(item.children, owner=item.path, present=item.path in self.selection.modules)
                    self.position = max(self.position, start + (item.reserve or 0))
                case CheckedUnion():
                    self.union(item)

    def union(self, union: CheckedUnion) -> None:
        start, stops = self.position, [self.position]
        for member in union.members:
            self.position = start
            self.items([member], owner="", present=False)
            stops.append(self.position)
        self.position = max(stops)

    def added(self) -> None:
        """Write the prompt's own text after everything that is present, as DESIGN.md "Turns" has it."""
        self.position = self.stop
        schema, messages = self.selection.schema, self.selection.messages
        turns = [(message.role, message.text) for message in messages]
        is_open = any(isinstance(item, CheckedTurn) and item.open for item in schema.children)
        if not schema.has_turns and all(role is None for role, _ in turns):
            self.write("".join(text for _, text in turns).encode(), present=True)
            return
        if is_open:
            if turns and turns[0][0] is None:
                self.write((schema.open_separator + turns.pop(0)[1]).encode(), present=True)
            self.write(self.tokenizer.frame(Role.USER).footer_ids, present=True)
        for number, (role, text) in enumerate(turns, 1):
            frame = self.tokenizer.frame(role or Role.USER)
            self.write([*frame.header_ids, *text.encode()], present=True)
            if role is Role.ASSISTANT and number == len(turns):
                return
            self.write(frame.footer_ids, present=True)
        self.write(self.tokenizer.frame(Role.ASSISTANT).header_ids, present=True)
