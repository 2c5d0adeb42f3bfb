"""The texts of a schema and of the chat template around them, with their tokens, in document order.

Texts with nothing optional between them are tokenized as one, as the tokenizer would do in the whole prompt. What a
template writes for a turn depends on the conversation: that of a turn of a schema has all turns that are present
whenever this turn is, and a question behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from promptcache.diagnostics import Diagnostic, SchemaError, Span, TemplateRefusal, TextNotInPlace, diagnostic
from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedSchema,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Role,
)
from promptcache.layout.types import SchemaTurn, TextGroup
from promptcache.tokenizer import FROZEN_DATE, Before, Conversations, Frame, Markup, Tokenizer


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

    def __init__(self, schema: CheckedSchema, tokenizer: Tokenizer, preamble: str, turns: Iterable[SchemaTurn]) -> None:
        self.texts: list[WrittenText] = []
        self.leads: list[str] = []
        self._tokenizer = tokenizer
        self._known: dict[tuple[tuple[str, ...], Before], tuple[tuple[int, ...], ...]] = {}
        self._frames = (each.frame for each in turns)
        self._pending: list[str] = []
        self._before = Before.START
        if schema.has_turns:
            self._pending.append(Markup(preamble))
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


def turn_texts(
    schema: CheckedSchema, conversations: Conversations
) -> tuple[str, tuple[SchemaTurn, ...], tuple[Diagnostic, ...]]:
    """Return what the chat template writes before and around the turns of a schema.

    Returns:
        What begins every conversation: BOS, and for some models a system text of the template's own; "" for a schema
        without turns. The schema's turns in document order, those of absent modules included. Warnings for
        conversations whose texts the template moves.

    Raises:
        SchemaError: The template refuses turns that are present together (PC512).
    """
    if not schema.has_turns:
        return "", (), ()
    found = tuple(_turns(schema.children, ""))
    frames: dict[int, Frame] = {}
    warnings: list[Diagnostic] = []
    faults: list[Diagnostic] = []
    preamble = conversations.bos
    for owner in dict.fromkeys(("", *(owner for _, owner in found))):
        present = schema.guaranteed[owner] | {""}
        there = [(index, turn) for index, (turn, of) in enumerate(found) if of in present]
        own = islice((turn for turn, of in found if of == owner), 1)
        try:
            before, around = _framed([turn for _, turn in there], conversations)
        except TextNotInPlace as refusal:
            before, around = conversations.bos, [conversations.frame(turn.role) for _, turn in there]
            message = f"{refusal}; each turn is written as the template writes one of its role elsewhere"
            fix = "use the turns that the model's template allows"
            warnings += (diagnostic("PC513", message, turn.span, fix) for turn in own)
        except TemplateRefusal as refusal:
            faults += (refused(refusal, turn.span, [each.role for _, each in there]) for turn in own)
            continue
        of_owner = zip(there, around, strict=True)
        frames |= {index: frame for (index, _), frame in of_owner if found[index][1] == owner}
        preamble = preamble if owner else before
    if faults:
        raise SchemaError(faults)
    if found and conversations.has_date:
        message = f"the chat template writes the date, and the turns of a schema always have {FROZEN_DATE:%-d %B %Y}"
        fix = "if answers need the date, state it in the prompt, such as in a parameter"
        warnings.append(diagnostic("PC519", message, schema.source.span, fix))
    turns = tuple(SchemaTurn(turn=turn, owner=owner, frame=frames[index]) for index, (turn, owner) in enumerate(found))
    return preamble, turns, tuple(warnings)


def refused(refusal: TemplateRefusal, span: Span, roles: Sequence[Role]) -> Diagnostic:
    """Return the error for a conversation of turns with these roles that the template does not render."""
    if any(role is following for role, following in pairwise(roles)):
        advice = "write the texts of adjacent turns of one role as one turn"
    elif Role.SYSTEM in roles:
        advice = "write the text of the system turn at the beginning of the first user turn"
    else:
        advice = "begin with a user turn, and let user and assistant turns alternate"
    return diagnostic("PC512", str(refusal), span, advice)


def _framed(turns: Sequence[CheckedTurn], conversations: Conversations) -> tuple[str, list[Frame]]:
    """Return what comes before a conversation of these turns and a question, and the frames of the turns."""
    roles = [turn.role for turn in turns]
    if not roles or roles[-1] is not Role.USER:
        roles.append(Role.USER)
    gaps = conversations.gaps(roles, generation_prompt=True)
    preamble, header = conversations.preamble(gaps[0], roles[0])
    frames = []
    for role, after, gap in zip(roles, [*roles[1:], Role.ASSISTANT], gaps[1:], strict=True):
        footer, following = conversations.split(gap, role, after)
        frames.append(Frame(header, footer))
        header = following
    return preamble, frames[: len(turns)]


def _turns(items: Iterable[CheckedItem], owner: str) -> Iterator[tuple[CheckedTurn, str]]:
    """Yield the turns in document order, each with the path of its module."""
    for item in items:
        if isinstance(item, CheckedTurn):
            yield item, owner
        elif isinstance(item, CheckedModule):
            yield from _turns(item.children, item.path)
        elif isinstance(item, CheckedUnion):
            yield from _turns(item.members, owner)
