"""The text that a prompt adds behind the modules, with what the chat template writes around it.

The conversation of a prompt has the schema's turns that are present, and the prompt's own. The chat template renders it
whole. The text around the prompt's own turns is taken from the result. The rest of the result is compared with the
cached text, and each difference is a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from promptcache.diagnostics import (
    ContextLengthExceeded,
    Diagnostic,
    PromptError,
    Span,
    TemplateRefusal,
    TextNotInPlace,
    diagnostic,
)
from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedUnion,
    FinalText,
    Role,
    Selection,
    text_outside_turns,
)
from promptcache.layout.pieces import Origin
from promptcache.layout.seam import Seam, sliced
from promptcache.layout.turns import moved, refused
from promptcache.layout.types import Layout
from promptcache.tokenizer import Before, Conversations, Frame, Markup, Tokenizer, has_more_tokens

_SHOWN = 40  # characters of a difference
_GOES_ON = "TEXT0GOES0ON "  # behind the last text; a template that trims it removes the space


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Tokens that a prompt adds behind its modules, with their origins, and warnings about the text of the prompt.

    The first of them replace the last `num_replaced` reused tokens. `num_asked` of them are before the first answer in
    the conversation; None if there is none.
    """

    parts: tuple[tuple[Origin, tuple[int, ...]], ...]
    num_replaced: int = 0
    num_asked: int | None = None
    warnings: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """A text that a prompt adds; `token_ids` are those that the model generated for it."""

    origin: Origin
    text: str
    token_ids: tuple[int, ...] | None = None
    is_answer: bool = False


class AddedText:
    """Computes the added text of prompts of one schema."""

    def __init__(
        self,
        layout: Layout,
        tokenizer: Tokenizer,
        conversations: Conversations,
        answers: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        """Create it for one request.

        Args:
            conversations: The chat template of `tokenizer`, with the options of the request.
            answers: Token IDs that a model generated for assistant turns, by index in the messages of the selection.
        """
        self._layout = layout
        self._tokenizer = tokenizer
        self._conversations = conversations
        self._answers = answers

    def of(self, selection: Selection, seam: Seam) -> Added:
        """Return what a prompt adds behind `seam`."""
        schema, messages = selection.schema, selection.messages
        if not schema.has_turns and (not messages or messages[0].role is None):
            parts = [_Part(Origin.TEXT, message.text) for message in messages]
            return self._tokenized(parts, seam)
        if seam.before is Before.START and self._layout.has_bos:
            seam = Seam(before=Before.CONTROL)  # the template writes BOS, and text behind it is not at a start
        own = _OwnTurns(selection, self._layout, self._tokenizer, self._conversations, self._answers)
        warnings = (*own.warnings, *text_outside_turns(schema.outside_turns, selection.modules))
        return replace(self._tokenized(own.parts, seam), warnings=warnings)

    def _tokenized(self, parts: Sequence[_Part], seam: Seam) -> Added:
        """Return the tokens of texts. Those between two generated answers are tokenized as one text.

        Raises:
            ContextLengthExceeded: The texts are so long that they cannot fit; nothing is tokenized.
        """
        self._check_length("".join(each.text for each in parts if each.token_ids is None))
        control = self._tokenizer.control_ids
        added = list[tuple[Origin, tuple[int, ...]]]()
        num_replaced, pending, first_answer = 0, list[_Part](), None
        for part in (*parts, _Part(Origin.TEXT, "", ())):
            if part.token_ids is None:
                pending.append(part)
                continue
            if pending:
                num_tokens, found = seam.join([each.text for each in pending], self._tokenizer)
                num_replaced += num_tokens
                if first_answer is None:
                    before = (len(added) + index for index, each in enumerate(pending) if each.is_answer)
                    first_answer = next(before, None)
                added += zip((each.origin for each in pending), found, strict=True)
                pending.clear()
            if part.token_ids:
                if first_answer is None and part.is_answer:
                    first_answer = len(added)
                added.append((part.origin, part.token_ids))
                seam = Seam(before=Before.CONTROL if part.token_ids[-1] in control else Before.TEXT)
        num_asked = None if first_answer is None else sum(len(token_ids) for _, token_ids in added[:first_answer])
        return Added(parts=tuple(added), num_replaced=num_replaced, num_asked=num_asked)

    def _check_length(self, text: str) -> None:
        most = self._layout.max_positions
        if most is not None and has_more_tokens(self._tokenizer, text, most):
            raise ContextLengthExceeded(
                f"the prompt adds {len(text)} characters, which are more than {most} tokens; "
                f"the model has {most} positions"
            )


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of a conversation; `frame` is that of the cached text around a turn of the schema."""

    role: Role
    text: str
    span: Span
    frame: Frame | None = None
    answer_ids: tuple[int, ...] | None = None
    reasoning: str = ""
    tool_fields: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the message beside role and content."""
        fields = json.loads(self.tool_fields) if self.tool_fields else {}
        if self.reasoning:
            fields |= {"reasoning_content": self.reasoning, "thinking": self.reasoning}  # templates read one of these
        return fields


class _OwnTurns:
    """The turns that a prompt adds, within the conversation of the whole prompt.

    Attributes:
        parts: The texts that are added.
        warnings: Where the text differs from that of the chat template.
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
        self._layout = layout
        self._tokenizer = tokenizer
        self._conversations = conversations
        self._selection = selection
        cached = [*_schema_turns(selection, layout)]
        messages = [*enumerate(selection.messages)]
        self._open_text: str | None = None
        if layout.has_open_turn:
            self._open_text = ""
            if messages and messages[0][1].role is None:
                self._open_text = selection.schema.open_separator + messages.pop(0)[1].text
            cached[-1] = replace(cached[-1], text=cached[-1].text + self._open_text)
        own = [
            _Turn(
                role=message.role or Role.USER,
                text=message.text,
                span=message.span,
                answer_ids=answers.get(index),
                reasoning=message.reasoning,
                tool_fields=message.tool_fields,
            )
            for index, message in messages
        ]
        self._num_cached = len(cached)
        self._turns = [*cached, *own]
        self._continues = bool(own) and own[-1].role is Role.ASSISTANT
        if layout.turns and not selection.messages and not (cached and cached[-1].role is Role.USER):
            self.warnings.append(_asks_nothing(selection.span))
        self.parts = self._written()

    def _written(self) -> list[_Part]:
        if any(turn.tool_fields for turn in self._turns):
            return self._with_tools()
        roles = [turn.role for turn in self._turns]
        try:
            rendered = self._rendered(self._turns)
            gaps = self._conversations.gaps(roles, generation_prompt=not self._continues)
        except TemplateRefusal as refusal:
            if self._is_own and (whole := self._whole()) is not None:
                return whole
            if not isinstance(refusal, TextNotInPlace):
                raise PromptError([refused(refusal, self._selection.span, roles)]) from None
            self.warnings.append(moved(refusal, self._selection.span))
            return self._parts(self._framed_gaps(), self._turns)
        parts = self._parts(gaps, self._turns)
        if self._text_of(parts) == rendered:
            return parts
        changed = self._as_rendered(gaps, rendered)
        if changed is not None:
            parts = self._parts(gaps, changed)
        elif self._is_own and (whole := self._whole()) is not None:
            return whole
        if (text := self._text_of(parts)) != rendered:
            self.warnings.append(_difference(text, rendered, self._selection.span))
        return parts

    def _with_tools(self) -> list[_Part]:
        """Return the rendered conversation with messages of tools, behind the cached text.

        Raises:
            TemplateRefusal: The template writes no messages of tools, or other text where text is cached.
        """
        open_text = [] if self._open_text is None else [_Part(Origin.TEXT, self._open_text)]
        parts = self._whole(len(self._text_of(open_text)))
        if parts is None:
            raise TemplateRefusal("the chat template of this model does not write these messages of tools")
        parts = [*open_text, *parts]
        if self._text_of(parts) != self._rendered(self._turns):
            raise TemplateRefusal(
                "the chat template writes messages of tools with another text than the one that is cached of the schema"
            )
        return parts

    def _whole(self, start: int = 0) -> list[_Part] | None:
        """Return the rendered conversation, for a template that does not write each text once and in its place.

        Control tokens are found behind signs that stand for their written forms in the texts.

        Args:
            start: Number of characters in front of the part that is returned.

        Returns:
            None, if the template refuses the conversation or changes the signs.
        """
        said = "".join(turn.text + turn.reasoning + turn.tool_fields for turn in self._turns)
        unused = (sign for sign in map(chr, range(0xE000, 0xF900)) if sign not in said)
        signs = dict(zip(self._control_forms(), unused, strict=False))
        forms = {sign: form for form, sign in signs.items()}
        try:
            rendered = self._rendered(self._turns)
            signed = self._rendered([_signed(turn, signs) for turn in self._turns])
        except TemplateRefusal:
            return None
        pieces = re.split(f"([{''.join(forms)}])", signed) if forms else [signed]
        texts = [forms.get(piece) or Markup(piece) for piece in pieces]
        return [*self._with_answers(texts, rendered, start)] if "".join(texts) == rendered else None

    def _with_answers(self, texts: Sequence[str], rendered: str, at: int) -> Iterator[_Part]:
        """Yield the texts of a rendered conversation from `at` on. Unchanged generated answers keep their tokens."""
        for index, turn in enumerate(self._turns):
            start, token_ids = self._found_answer(index, turn.answer_ids or (), rendered)
            if token_ids and start >= at:
                yield from (_Part(Origin.TEXT, text) for text in sliced(texts, at, start))
                answer = self._tokenizer.detokenize(token_ids)
                yield _Part(Origin.TEXT, answer, token_ids, is_answer=True)
                at = start + len(answer)
        yield from (_Part(Origin.TEXT, text) for text in sliced(texts, at, len(rendered)))

    def _found_answer(self, index: int, answer_ids: tuple[int, ...], rendered: str) -> tuple[int, tuple[int, ...]]:
        """Return where a generated answer begins, and its tokens; none if it is not behind its generation prompt."""
        if not answer_ids:
            return 0, ()
        try:
            asked = self._render(self._turns[:index], generation_prompt=True)
        except TemplateRefusal:
            return 0, ()
        has_end = answer_ids[-1] in self._tokenizer.control_ids
        for token_ids in (answer_ids, answer_ids[:-1]) if has_end else (answer_ids,):
            if rendered.startswith(asked + self._tokenizer.detokenize(token_ids)):
                return len(asked), token_ids
        return 0, ()

    def _rendered(self, conversation: Sequence[_Turn]) -> str:
        """Return a conversation as the template renders it, up to the answer.

        Raises:
            TemplateRefusal: The template does not render it, or changes the text of an answer that goes on.
        """
        if not self._continues:
            return self._render(conversation, generation_prompt=True)
        *before, last = conversation
        said, last = last.text, replace(last, text=last.text + _GOES_ON)
        rendered = self._render([*before, last], generation_prompt=False)
        end = rendered.rfind(_GOES_ON.strip())
        if end < 0 or said.strip() not in rendered:
            raise TemplateRefusal("the chat template does not write the text of the last turn as it is")
        return rendered[:end] if rendered.startswith(_GOES_ON, end) else rendered[:end].rstrip()

    def _render(self, conversation: Sequence[_Turn], *, generation_prompt: bool) -> str:
        turns = [(turn.role, turn.text) for turn in conversation]
        fields = {index: turn.fields for index, turn in enumerate(conversation) if turn.fields}
        return self._conversations.render(turns, generation_prompt=generation_prompt, fields=fields)

    def _parts(self, gaps: Sequence[str], turns: Sequence[_Turn]) -> list[_Part]:
        """Return the texts behind the cached ones: of the prompt's turns, and what is around them."""
        first, parts = self._num_cached, list[_Part]()
        before = turns[first - 1].role if first else None
        gap = gaps[first]
        if self._open_text is not None:
            parts.append(_Part(Origin.TEXT, self._open_text))
        elif first:
            last, after = turns[first - 1], turns[first].role if first < len(turns) else Role.ASSISTANT
            footer = "" if last.frame is None else last.frame.footer
            is_cached = gap.startswith(footer)
            gap = gap.removeprefix(footer) if is_cached else self._conversations.split(gap, last.role, after)[1]
            before = None
        else:
            gap = gap.removeprefix(self._beginning)
        for index, following in enumerate(gaps[first + 1 :], first):
            turn = turns[index]
            part, asked = _Part(Origin.TEXT, turn.text), gap
            if turn.answer_ids is not None:
                part, asked, following = self._generated(turns[: index + 1], gap, following)
            part = replace(part, is_answer=turn.role is Role.ASSISTANT)
            parts += (*self._around(asked, before, turn.role), part)
            before, gap = turn.role, following
        return parts if self._continues else [*parts, *self._around(gap, before, Role.ASSISTANT)]

    @property
    def _is_own(self) -> bool:
        """Whether the whole conversation is the prompt's own, and nothing of it is cached."""
        return not self._num_cached and not self._layout.has_bos

    @property
    def _beginning(self) -> str:
        """The part of the text before the first turn that is cached."""
        if self._layout.turns:
            return self._layout.preamble
        return self._tokenizer.detokenize(self._tokenizer.bos_ids) if self._layout.has_bos else ""

    def _around(self, gap: str, before: Role | None, after: Role) -> Iterator[_Part]:
        footer, header = ("", gap) if before is None else self._conversations.split(gap, before, after)
        yield _Part(Origin.FOOTER, Markup(footer))
        yield _Part(Origin.HEADER, Markup(header))

    def _generated(self, turns: Sequence[_Turn], gap: str, following: str) -> tuple[_Part, str, str]:
        """Return the part of a generated answer, and what comes before and behind it.

        It keeps its tokens if the template renders its text, and the same prompt before it. Its end token may be
        the first one of what follows; another end token is left out.
        """
        text, answer_ids = turns[-1].text, turns[-1].answer_ids or ()
        has_end = bool(answer_ids) and answer_ids[-1] in self._tokenizer.control_ids
        ids, end_ids = (answer_ids[:-1], answer_ids[-1:]) if has_end else (answer_ids, ())
        written, end = self._tokenizer.detokenize(ids), self._tokenizer.detokenize(end_ids)
        try:
            asked = self._conversations.gaps([turn.role for turn in turns[:-1]], generation_prompt=True)[-1]
        except TemplateRefusal:
            asked = gap
        if len(turns) - 1 == self._num_cached and asked.endswith(gap):
            asked = gap  # what comes before is cached
        if asked + written != gap + text:
            return _Part(Origin.TEXT, text), gap, following
        if end and following.startswith(end):
            return _Part(Origin.TEXT, written + end, answer_ids), asked, following.removeprefix(end)
        return _Part(Origin.TEXT, written, ids), asked, following

    def _text_of(self, parts: Sequence[_Part]) -> str:
        """Return the text of the conversation, cached texts included."""
        cached = self._turns[: self._num_cached]
        texts = [self._layout.preamble if self._layout.turns else self._beginning]
        for index, turn in enumerate(cached):
            frame = turn.frame or Frame("", "")
            is_open = self._open_text is not None and index == len(cached) - 1
            texts += [frame.header, turn.text, "" if is_open else frame.footer]
        own = list(parts)
        if self._open_text is not None:
            own = own[1:]
        for part in own:
            texts.append(part.text)
        return "".join(texts)

    def _framed_gaps(self) -> list[str]:
        """Return the texts around the turns of a conversation that the template refuses."""
        frames = [turn.frame or self._conversations.frame(turn.role) for turn in self._turns]
        gaps = [self._beginning]
        for frame in frames:
            gaps[-1] += frame.header
            gaps.append(frame.footer)
        gaps[-1] += self._conversations.frame(Role.ASSISTANT).header
        return gaps

    def _as_rendered(self, gaps: Sequence[str], rendered: str) -> list[_Turn] | None:
        """Return the turns with the texts that the template makes of them; None if they cannot be found."""
        if not rendered.startswith(gaps[0]):
            return None
        at, found = len(gaps[0]), list[_Turn]()
        for index, turn in enumerate(self._turns):
            is_last = index == len(self._turns) - 1
            behind = "" if self._continues and is_last else gaps[index + 1]
            texts = (each for each in _changed(turn.text, self._tokenizer) if rendered.startswith(each + behind, at))
            text = next(texts, None)
            if text is None:
                return None
            ids = turn.answer_ids if text == turn.text else None
            found.append(replace(turn, text=text, answer_ids=ids) if index >= self._num_cached else turn)
            at += len(text + behind)
        return found if at == len(rendered) else None

    def _control_forms(self) -> list[str]:
        """Return the written forms of control tokens that are in a text, the longest first."""
        texts = (text for turn in self._turns for text in (turn.text, turn.reasoning, turn.tool_fields))
        found = (self._tokenizer.tokenize_parts([Markup(text)], Before.TEXT) for text in texts)
        ids = {token_id for (token_ids,) in found for token_id in token_ids} & self._tokenizer.control_ids
        return sorted((self._tokenizer.detokenize((token_id,)) for token_id in ids), key=len, reverse=True)


def _asks_nothing(span: Span) -> Diagnostic:
    """Return the warning for a prompt without a question behind the turns of its schema."""
    message = "the prompt asks nothing: it has no text, and its last turn is not one of the user"
    return diagnostic("PC517", message, span, "write a question into the prompt")


def _signed(turn: _Turn, signs: Mapping[str, str]) -> _Turn:
    """Return a turn with signs in place of texts."""
    texts = [turn.text, turn.reasoning, turn.tool_fields]
    for form, sign in signs.items():
        texts = [each.replace(form, sign) for each in texts]
    text, reasoning, tool_fields = texts
    return replace(turn, text=text, reasoning=reasoning, tool_fields=tool_fields)


def _changed(text: str, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the forms that chat templates give a text: unchanged, without spaces around it, and without reasoning."""
    _, closing = tokenizer.reasoning_tags or ("", "")
    for each in (text, text.rpartition(closing)[2]) if closing and closing in text else (text,):
        yield from (each, each.strip(), each.lstrip(), each.rstrip(), each.lstrip("\n"), each.strip("\n"))


def _difference(text: str, rendered: str, span: Span) -> Diagnostic:
    """Return the warning for text that is not as the template renders it."""
    at = next((index for index, (a, b) in enumerate(zip(text, rendered, strict=False)) if a != b), None)
    at = min(len(text), len(rendered)) if at is None else at
    ours, theirs = (each[at : at + _SHOWN] + ("…" if len(each) > at + _SHOWN else "") for each in (text, rendered))
    where = f"where the prompt has {ours!r}, behind {text[max(0, at - _SHOWN) : at]!r}"
    message = f"the chat template writes {theirs!r} for this conversation, {where}"
    fix = "write the schema so that the template writes its turns the same way in every prompt"
    return diagnostic("PC514", message, span, fix)


def _schema_turns(selection: Selection, layout: Layout) -> Iterator[_Turn]:
    """Yield the turns of the schema that are present, with their text in this prompt."""
    present = {"", *selection.modules}
    arguments = {(each.module, each.parameter): each.text for each in selection.arguments}
    for each in layout.turns:
        if each.owner in present:
            text = "".join(_texts(selection, each.turn.children, each.owner, present, arguments))
            yield _Turn(each.turn.role, text, each.turn.span, each.frame)


def _texts(
    selection: Selection,
    items: Sequence[CheckedItem],
    owner: str,
    present: set[str],
    arguments: Mapping[tuple[str, str], str],
) -> Iterator[str]:
    """Yield the texts of the items that are present, in document order."""
    for item in items:
        if isinstance(item, FinalText):
            yield item.text
        elif isinstance(item, CheckedParameter):
            yield item.lead + arguments.get((owner, item.name), item.default or "")
        elif isinstance(item, CheckedModule):
            if item.path in present:
                yield from _texts(selection, selection.children(item), item.path, present, arguments)
        elif isinstance(item, CheckedUnion):
            yield from _texts(selection, item.members, owner, present, arguments)
