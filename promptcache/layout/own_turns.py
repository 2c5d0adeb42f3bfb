"""The turns that a prompt adds, as the chat template writes them.

The conversation of a prompt has the schema's turns that are present, and the prompt's own. The chat template renders it
whole, and what follows the cached text is added. If the result does not begin with the cached text, the prompt's own
turns get the text that the template writes around turns of their roles, and the difference is a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeAlias

from promptcache.diagnostics import Diagnostic, PromptError, Span, TemplateRefusal, diagnostic
from promptcache.language import Role, Selection, text_within
from promptcache.layout.encoding import num_shared
from promptcache.layout.pieces import Origin
from promptcache.layout.schema_texts import refused
from promptcache.layout.types import Layout
from promptcache.tokenizer import Conversations, Frame, Markup, Tokenizer

_SHOWN = 40  # characters of a difference
_NO_TOOLS = "the chat template of this model does not write these messages of tools"
_GOES_ON = "TEXT0GOES0ON "  # behind the last text; a template that trims it removes the space


@dataclass(frozen=True, slots=True)
class AddedText:
    """A text that a prompt adds; `token_ids` are those that the model generated for it."""

    origin: Origin
    text: str
    token_ids: tuple[int, ...] | None = None
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of a conversation.

    Attributes:
        cached: The beginning of the text, if it is cached.
        own: The text that the prompt adds.
        answer_ids: Token IDs that a model generated for it.
        tool_fields: Fields of the message for calls of tools and their results, as JSON.
    """

    role: Role
    cached: str = ""
    own: str = ""
    answer_ids: tuple[int, ...] = ()
    reasoning: str = ""
    tool_fields: str = ""


_Cut: TypeAlias = tuple[_Turn, str, str]
"""A turn, its text that the prompt adds, and the text of the template behind it. Uncut texts are "", with "" behind."""


class OwnTurns:
    """The turns that a prompt adds, within the conversation of the whole prompt.

    Attributes:
        warnings: Where the text differs from that of the chat template, once `texts` was called.
    """

    def __init__(
        self,
        selection: Selection,
        layout: Layout,
        tokenizer: Tokenizer,
        conversations: Conversations,
        answers: Mapping[int, tuple[int, ...]],
    ) -> None:
        self.warnings: list[Diagnostic] = []
        self._tokenizer = tokenizer
        self._conversations = conversations
        self._span = selection.span
        turns, written = list[_Turn](), [layout.preamble]
        if not layout.turns and layout.has_bos:
            written = [tokenizer.detokenize(tokenizer.bos_ids)]
        present = {"", *selection.modules}
        for each in layout.turns:
            if each.owner in present:
                text = text_within(selection, each.turn.children, each.owner)
                turns.append(_Turn(each.turn.role, text))
                written += [each.frame.header, text, each.frame.footer]
        messages = [*enumerate(selection.messages)]
        self._num_cached = len(turns)
        self._open_footer: str | None = None  # of the turn that the schema leaves open
        if layout.schema.has_open_turn:
            self._open_footer = written.pop()
            self._num_cached -= 1
            if messages and messages[0][1].role is None:
                turns[-1] = replace(turns[-1], own=layout.schema.open_separator + messages.pop(0)[1].text)
        turns += (
            _Turn(
                role=message.role or Role.USER,
                own=message.text,
                answer_ids=answers.get(index, ()),
                reasoning=message.reasoning,
                tool_fields=message.tool_fields,
            )
            for index, message in messages
        )
        self._cached_text = "".join(written)
        self._turns = turns
        self._continues = bool(messages) and turns[-1].role is Role.ASSISTANT
        if layout.turns and not selection.messages and not (turns and turns[-1].role is Role.USER):
            message = "the prompt asks nothing: it has no text, and its last turn is not one of the user"
            self.warnings.append(diagnostic("PC517", message, self._span, "write a question into the prompt"))

    def texts(self) -> list[AddedText]:
        """Return the texts that the prompt adds.

        Raises:
            PromptError: The template refuses the conversation (PC512).
            TemplateRefusal: It does not write the messages of tools.
        """
        has_tools = any(turn.tool_fields for turn in self._turns)
        try:
            rendered = self._rendered(self._turns)
        except TemplateRefusal as refusal:
            if has_tools:
                raise TemplateRefusal(_NO_TOOLS) from None
            raise PromptError([refused(refusal, self._span, [turn.role for turn in self._turns])]) from None
        said = [index for index, turn in enumerate(self._turns) if turn.own]
        answered = [index for index in said if self._turns[index].answer_ids]
        for marked, is_complete in ((said, True), (answered, False)):
            if (parts := self._cut(rendered, marked, is_complete=is_complete)) is not None:
                return parts
        unchanged = [each for each in answered if self._cut(rendered, [each], is_complete=False) is not None]
        if (parts := self._cut(rendered, unchanged, is_complete=False)) is not None:
            return parts
        if has_tools:
            raise TemplateRefusal(_NO_TOOLS)
        parts = self._apart()
        if (text := self._cached_text + "".join(part.text for part in parts)) != rendered:
            self.warnings.append(_difference(text, rendered, self._span))
        return parts

    def _cut(self, rendered: str, marked: Sequence[int], *, is_complete: bool) -> list[AddedText] | None:
        """Return the parts of a rendered conversation behind the cached text, cut at texts of turns.

        The template renders it again, with marks around these texts, and with signs in place of the written forms of
        control tokens in all texts.

        Args:
            marked: Indices of the turns.
            is_complete: Whether these are all turns that have a text.

        Returns:
            None, if the template does not write the cached text as it is, and these texts once, in their order, and
            unchanged but for spaces around them.
        """
        said = "".join(turn.cached + turn.own + turn.reasoning + turn.tool_fields for turn in self._turns)
        unused = (sign for sign in map(chr, range(0xE000, 0xF900)) if sign not in said)
        mark, pattern = next(unused), _control_forms(self._tokenizer)
        signs = dict(zip(dict.fromkeys(pattern.findall(said)) if pattern else (), unused, strict=False))

        def signed(text: str) -> str:
            return pattern.sub(lambda found: signs[found[0]], text) if pattern else text

        turns = list[_Turn]()
        for index, turn in enumerate(self._turns):
            own = turn.own
            if index in marked:
                own = own.replace(own.strip(), f"{mark}{own.strip()}{mark}", 1)  # spaces around it are outside
            turns.append(
                replace(turn, own=signed(own), reasoning=signed(turn.reasoning), tool_fields=signed(turn.tool_fields))
            )
        try:
            found = self._rendered(turns)
        except TemplateRefusal:
            return None
        forms = {sign: form for form, sign in signs.items()}
        plain = str.maketrans({**forms, mark: ""})
        frames, texts = found.split(mark)[::2], [text.translate(plain) for text in found.split(mark)[1::2]]
        is_same = texts == [self._turns[index].own.strip() for index in marked] and found.translate(plain) == rendered
        if not is_same or not frames[0].startswith(self._cached_text):
            return None
        frames[0] = frames[0].removeprefix(self._cached_text)
        for place, index in enumerate(marked):
            own, said = self._turns[index].own, texts[place]
            start, stop = own.find(said), own.find(said) + len(said)
            if frames[place].endswith(own[:start]):
                frames[place], texts[place] = frames[place].removesuffix(own[:start]), own[:start] + said
            if frames[place + 1].startswith(own[stop:]):
                frames[place + 1], texts[place] = frames[place + 1].removeprefix(own[stop:]), texts[place] + own[stop:]
        placed = dict(zip(marked, zip(texts, frames[1:], strict=True), strict=True))
        cut = range(self._num_cached, len(self._turns)) if is_complete else marked
        cuts = [(self._turns[index], *placed.get(index, ("", ""))) for index in cut]
        return self._parts(frames[0], cuts, forms, has_texts=not is_complete)

    def _apart(self) -> list[AddedText]:
        """Return the parts with what the template writes around turns of their roles in other conversations."""
        own = self._turns[self._num_cached :]
        frames = [self._conversations.frame(role) for role in (*(turn.role for turn in own), Role.ASSISTANT)]
        if self._open_footer is not None:
            frames[0] = Frame("", self._open_footer)
        behind = [each.footer + after.header for each, after in pairwise(frames)]
        if self._continues:
            behind[-1] = ""
        return self._parts(frames[0].header, [(turn, turn.own, text) for turn, text in zip(own, behind, strict=True)])

    def _parts(
        self,
        frame: str,
        cuts: Sequence[_Cut],
        forms: Mapping[str, str] = MappingProxyType({}),
        *,
        has_texts: bool = False,
    ) -> list[AddedText]:
        """Return the parts of a text that is cut at texts of turns. Unchanged generated answers keep their tokens.

        Args:
            frame: What is before the first of these texts.
            forms: What signs in the texts between them stand for.
            has_texts: Whether texts of other turns are between them.
        """
        parts, before = list[AddedText](), None
        for turn, text, behind in cuts:
            around = frame + text + behind
            at, answer_ids = len(frame), tuple[int, ...]()
            if turn.answer_ids:
                at, answer_ids = self._found_answer(turn.answer_ids, at, text, around)
            if answer_ids:
                text = self._tokenizer.detokenize(answer_ids)
            elif not text and not behind:
                continue
            parts += self._around(around[:at], before, turn.role, forms, has_texts)
            parts.append(AddedText(Origin.TEXT, text, answer_ids or None, is_answer=turn.role is Role.ASSISTANT))
            before, frame = turn.role, around[at + len(text) :]
        return [*parts, *self._around(frame, before, Role.ASSISTANT, forms, has_texts)]

    def _around(
        self, text: str, before: Role | None, after: Role, forms: Mapping[str, str], has_texts: bool
    ) -> Iterator[AddedText]:
        footer, header = ("", text) if before is None else self._conversations.split(text, before, after)
        for origin, text in ((Origin.FOOTER, footer), (Origin.HEADER, header)):
            for piece in re.split(f"([{''.join(forms)}])", text) if forms else [text]:
                yield AddedText(Origin.TEXT if has_texts else origin, forms.get(piece) or Markup(piece))

    def _found_answer(
        self, answer_ids: tuple[int, ...], start: int, text: str, around: str
    ) -> tuple[int, tuple[int, ...]]:
        """Return where a generated answer begins, and its tokens: with its end token, or without it.

        Args:
            start: Where the text of its turn begins in `around`. The answer has it, and may have reasoning before it,
                or calls of tools. Without a text, it is anywhere.
            text: The text of its turn, or "".

        Returns:
            `start`, and no tokens, if the template writes another text.
        """
        has_end = answer_ids[-1] in self._tokenizer.control_ids
        for token_ids in (answer_ids, answer_ids[:-1]) if has_end else (answer_ids,):
            written = self._tokenizer.detokenize(token_ids)
            first, stop = (start + len(text) - len(written), start + len(written)) if text else (0, len(around))
            at = around.find(written, max(0, first), stop)
            if token_ids and at >= 0:
                return at, token_ids
        return start, ()

    def _rendered(self, conversation: Sequence[_Turn]) -> str:
        """Return a conversation as the template renders it, up to the answer.

        Raises:
            TemplateRefusal: The template does not render it, or changes the text of an answer that goes on.
        """
        turns, fields = [*conversation], list[dict[str, Any]]()
        if self._continues:
            turns[-1] = replace(turns[-1], own=turns[-1].own + _GOES_ON)
        for turn in turns:
            fields.append(json.loads(turn.tool_fields) if turn.tool_fields else {})
            if turn.reasoning:
                fields[-1] |= {"reasoning_content": turn.reasoning, "thinking": turn.reasoning}  # templates read one
        said = [(turn.role, turn.cached + turn.own) for turn in turns]
        rendered = self._conversations.render(said, generation_prompt=not self._continues, fields=fields)
        if not self._continues:
            return rendered
        end = rendered.rfind(_GOES_ON.strip())
        if end < 0 or conversation[-1].own.strip() not in rendered:
            raise TemplateRefusal("the chat template does not write the text of the last turn as it is")
        return rendered[:end] if rendered.startswith(_GOES_ON, end) else rendered[:end].rstrip()


@lru_cache(maxsize=16)
def _control_forms(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return the pattern of the written forms of control tokens, the longest first; None if there are none."""
    forms = sorted((tokenizer.detokenize((token_id,)) for token_id in tokenizer.control_ids), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, forms))) if forms else None


def _difference(text: str, rendered: str, span: Span) -> Diagnostic:
    """Return the warning for text that is not as the template renders it."""
    at = num_shared(text, rendered)
    ours, theirs = (each[at : at + _SHOWN] + ("…" if len(each) > at + _SHOWN else "") for each in (text, rendered))
    where = f"where the prompt has {ours!r}, behind {text[max(0, at - _SHOWN) : at]!r}"
    message = f"the chat template writes {theirs!r} for this conversation, {where}"
    fix = "write the schema so that the template writes its turns the same way in every prompt"
    return diagnostic("PC514", message, span, fix)
