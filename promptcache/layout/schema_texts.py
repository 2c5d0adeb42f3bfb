"""The texts of a schema and of the chat template around them, with their tokens, in document order.

Texts with nothing optional between them are tokenized as one, as the tokenizer would do in the whole prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedSchema,
    CheckedTurn,
    FinalText,
)
from promptcache.layout.turns import TurnTexts
from promptcache.layout.types import TextGroup
from promptcache.tokenizer import Before, Markup, Tokenizer


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A text with its tokens. The last text of a group that is tokenized as one has the group."""

    text: str
    token_ids: tuple[int, ...]
    group: TextGroup | None = None


class SchemaTexts:
    """All texts of a schema, tokenized.

    Attributes:
        beginning: What begins every prompt: BOS, or for schemas with turns what the chat template writes first; nothing
            for the schema of plain chats.
        texts: In document order: headers, texts and footers.
        leads: For each slot in document order, " " or "": the space before it, which belongs to its content.
    """

    def __init__(self, schema: CheckedSchema, tokenizer: Tokenizer, turns: TurnTexts) -> None:
        self.texts: list[WrittenText] = []
        self.leads: list[str] = []
        self._tokenizer = tokenizer
        self._known: dict[tuple[tuple[str, ...], Before], tuple[tuple[int, ...], ...]] = {}
        self._frames = (each.frame for each in turns.turns)
        self._pending: list[str] = []
        self._before = Before.START
        if schema.has_turns:
            self._pending.append(Markup(turns.preamble))
        self._items(schema.children)
        self._flush()
        if schema.is_chat:
            self.beginning = WrittenText("", ())
        elif schema.has_turns:
            self.beginning = self.texts.pop(0)
        else:
            self.beginning = WrittenText(tokenizer.detokenize(tokenizer.bos_ids), tokenizer.bos_ids)

    def _items(self, items: Iterable[CheckedItem]) -> None:
        for item in items:
            if isinstance(item, FinalText):
                self._add(item.text)
            elif isinstance(item, CheckedParameter):
                self._slot(item)
            elif isinstance(item, CheckedTurn):
                frame = next(self._frames)
                self._add(Markup(frame.header))
                self._items(item.children)
                if not item.open:
                    self._add(Markup(frame.footer))
            else:
                self._flush()
                if isinstance(item, CheckedModule):
                    self._items(item.children)
                    self._flush()
                    if item.collection is not None:
                        self._before = Before.TEXT  # as if a member is present
                else:
                    before = behind = self._before
                    for member in item.members:
                        self._before = before
                        self._items([member])
                        behind = behind if self._before is before else self._before
                    self._before = behind  # as if a member with text is present

    def _add(self, text: str) -> None:
        """Add a text. A space at the end of a header before it moves to its front."""
        if self._pending and isinstance(self._pending[-1], Markup) and text and not isinstance(text, Markup):
            self._pending[-1], space = _without_space(self._pending[-1])
            text = space + text
        self._pending.append(text)

    def _slot(self, parameter: CheckedParameter) -> None:
        lead = parameter.lead
        if not lead and self._pending and isinstance(self._pending[-1], Markup):
            self._pending[-1], lead = _without_space(self._pending[-1])
        self._flush()
        self.leads.append(lead)
        self._before = Before.TEXT

    def _flush(self) -> None:
        """Tokenize the texts since the last place where something optional may stand."""
        parts = tuple(self._pending)
        self._pending.clear()
        key = (tuple(f"{isinstance(part, Markup)}{part}" for part in parts), self._before)
        if key not in self._known:
            self._known[key] = self._tokenizer.tokenize_parts(parts, self._before)
        group = TextGroup(texts=parts, before=self._before)
        for index, (part, token_ids) in enumerate(zip(parts, self._known[key], strict=True), 1):
            self.texts.append(WrittenText(part, token_ids, group if index == len(parts) else None))
            if token_ids:
                self._before = Before.CONTROL if token_ids[-1] in self._tokenizer.control_ids else Before.TEXT


def _without_space(text: str) -> tuple[Markup, str]:
    """Return a text without the space at its end, and the space or nothing."""
    return (Markup(text[:-1]), " ") if text.endswith(" ") else (Markup(text), "")
