"""The text that a prompt adds behind the modules, with what the chat template writes around it.

The conversation of a prompt has the schema's turns that are present, and the prompt's own. The chat template renders it
whole, and what follows the cached text is added. If the result does not begin with the cached text, the prompt's own
turns get the text that the template writes around turns of their roles, and the difference is a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from promptcache.diagnostics import (
    ContextLengthExceeded,
    Diagnostic,
    PromptError,
    Span,
    TemplateRefusal,
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
from promptcache.layout.seam import Seam
from promptcache.layout.turns import refused
from promptcache.layout.types import Layout
from promptcache.tokenizer import Before, Conversations, Frame, Markup, Tokenizer, has_more_tokens

_SHOWN = 40  # characters of a difference
_NO_FRAME = Frame("", "")
_NO_TOOLS = "the chat template of this model does not write these messages of tools"
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


def added_text(
    selection: Selection,
    layout: Layout,
    seam: Seam,
    tokenizer: Tokenizer,
    conversations: Conversations,
    answers: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> Added:
    """Return what a prompt adds behind `seam`.

    Args:
        conversations: The chat template of `tokenizer`, with the options of the request.
        answers: Token IDs that a model generated for assistant turns, by index in the messages of the selection.

    Raises:
        PromptError: The template refuses the conversation (PC512).
        ContextLengthExceeded: The texts are so long that they cannot fit; nothing is tokenized.
    """
    schema, messages = selection.schema, selection.messages
    warnings: tuple[Diagnostic, ...] = ()
    if not schema.has_turns and (not messages or messages[0].role is None):
        parts = [_Part(Origin.TEXT, schema.open_separator + message.text) for message in messages]
    else:
        if seam.before is Before.START and layout.has_bos:
            seam = Seam(before=Before.CONTROL)  # the template writes BOS, and text behind it is not at a start
        own = _OwnTurns(selection, layout, tokenizer, conversations, answers)
        parts = own.parts
        warnings = (*own.warnings, *text_outside_turns(schema.outside_turns, selection.modules))
    text, most = "".join(part.text for part in parts if part.token_ids is None), layout.max_positions
    if most is not None and has_more_tokens(tokenizer, text, most):
        raise ContextLengthExceeded(
            f"the prompt adds {len(text)} characters, which are more than {most} tokens; the model has {most} positions"
        )
    return replace(_tokenized(parts, seam, tokenizer), warnings=warnings)


def _tokenized(parts: Sequence[_Part], seam: Seam, tokenizer: Tokenizer) -> Added:
    """Return the tokens of texts. Those between two generated answers are tokenized as one text."""
    added = list[tuple[Origin, tuple[int, ...]]]()
    num_replaced, num_asked = 0, None
    for is_text, group in groupby(parts, key=lambda part: part.token_ids is None):
        together = [*group]
        found = [part.token_ids or () for part in together]
        if is_text:
            num_tokens, texts = seam.join([part.text for part in together], tokenizer)
            num_replaced, found = num_replaced + num_tokens, [*texts]
        else:
            seam = Seam(before=Before.CONTROL if found[-1][-1] in tokenizer.control_ids else Before.TEXT)
        for part, token_ids in zip(together, found, strict=True):
            if part.is_answer and num_asked is None:
                num_asked = sum(len(before) for _, before in added)
            added.append((part.origin, token_ids))
    return Added(parts=tuple(added), num_replaced=num_replaced, num_asked=num_asked)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of a conversation.

    Attributes:
        cached: The beginning of the text, if it is cached.
        own: The text that the prompt adds.
        frame: What is cached around a turn of the schema.
        answer_ids: Token IDs that a model generated for it.
    """

    role: Role
    cached: str = ""
    own: str = ""
    frame: Frame = _NO_FRAME
    answer_ids: tuple[int, ...] = ()
    reasoning: str = ""
    tool_fields: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the message beside role and content."""
        fields = json.loads(self.tool_fields) if self.tool_fields else {}
        if self.reasoning:
            fields |= {"reasoning_content": self.reasoning, "thinking": self.reasoning}  # templates read one of these
        return fields


class _Cut(NamedTuple):
    """A text of a turn that the prompt adds, within a conversation: the texts before and behind it are of the template.

    A text that is cut at no place is "", with nothing behind it.
    """

    turn: _Turn
    text: str
    behind: str


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
        self._tokenizer = tokenizer
        self._conversations = conversations
        self._span = selection.span
        cached = [*_schema_turns(selection, layout)]
        messages = [*enumerate(selection.messages)]
        own = list[_Turn]()
        written = [layout.preamble]
        if not layout.turns and layout.has_bos:
            written = [tokenizer.detokenize(tokenizer.bos_ids)]
        for turn in cached:
            written += [turn.frame.header, turn.cached, turn.frame.footer]
        self._is_open = layout.schema.has_open_turn
        if self._is_open:
            written.pop()
            has_text = bool(messages) and messages[0][1].role is None
            said = selection.schema.open_separator + messages.pop(0)[1].text if has_text else ""
            own.append(replace(cached.pop(), own=said))
        self._cached_text = "".join(written)
        own += (
            _Turn(
                role=message.role or Role.USER,
                own=message.text,
                answer_ids=answers.get(index, ()),
                reasoning=message.reasoning,
                tool_fields=message.tool_fields,
            )
            for index, message in messages
        )
        self._num_cached = len(cached)
        self._turns = [*cached, *own]
        self._continues = bool(messages) and own[-1].role is Role.ASSISTANT
        if layout.turns and not selection.messages and not (self._turns and self._turns[-1].role is Role.USER):
            self.warnings.append(_asks_nothing(selection.span))
        self.parts = self._written()

    def _written(self) -> list[_Part]:
        has_tools = any(turn.tool_fields for turn in self._turns)
        try:
            rendered = self._rendered(self._turns)
        except TemplateRefusal as refusal:
            raise (TemplateRefusal(_NO_TOOLS) if has_tools else self._refused(refusal)) from None
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

    def _cut(self, rendered: str, marked: Sequence[int], *, is_complete: bool) -> list[_Part] | None:
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
        mark, pattern = next(unused), _control_forms(cast("Hashable", self._tokenizer))
        signs = dict(zip(dict.fromkeys(pattern.findall(said)) if pattern else (), unused, strict=False))

        def signed(text: str) -> str:
            return pattern.sub(lambda found: signs[found[0]], text) if pattern else text

        turns = [
            replace(
                turn,
                own=signed(_marked(turn.own, mark) if index in marked else turn.own),
                reasoning=signed(turn.reasoning),
                tool_fields=signed(turn.tool_fields),
            )
            for index, turn in enumerate(self._turns)
        ]
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
        cuts = [_Cut(self._turns[index], *placed.get(index, ("", ""))) for index in cut]
        return self._parts(frames[0], cuts, forms, has_texts=not is_complete)

    def _apart(self) -> list[_Part]:
        """Return the parts with what the template writes around turns of their roles in other conversations."""
        own = self._turns[self._num_cached :]
        frames = [self._conversations.frame(role) for role in (*(turn.role for turn in own), Role.ASSISTANT)]
        if self._is_open:
            frames[0] = Frame("", own[0].frame.footer)
        behind = [each.footer + after.header for each, after in pairwise(frames)]
        if self._continues:
            behind[-1] = ""
        return self._parts(frames[0].header, [*map(_Cut, own, (turn.own for turn in own), behind)])

    def _parts(
        self,
        frame: str,
        cuts: Sequence[_Cut],
        forms: Mapping[str, str] = MappingProxyType({}),
        *,
        has_texts: bool = False,
    ) -> list[_Part]:
        """Return the parts of a text that is cut at texts of turns. Unchanged generated answers keep their tokens.

        Args:
            frame: What is before the first of these texts.
            forms: What signs in the texts between them stand for.
            has_texts: Whether texts of other turns are between them.
        """
        parts, before = list[_Part](), None
        for turn, text, behind in cuts:
            around = frame + text + behind
            at, answer_ids = self._found_answer(turn.answer_ids, len(frame), text, around)
            if answer_ids:
                text = self._tokenizer.detokenize(answer_ids)
            elif not text and not behind:
                continue
            parts += self._around(around[:at], before, turn.role, forms, has_texts)
            parts.append(_Part(Origin.TEXT, text, answer_ids or None, is_answer=turn.role is Role.ASSISTANT))
            before, frame = turn.role, around[at + len(text) :]
        return [*parts, *self._around(frame, before, Role.ASSISTANT, forms, has_texts)]

    def _around(
        self, text: str, before: Role | None, after: Role, forms: Mapping[str, str], has_texts: bool
    ) -> Iterator[_Part]:
        footer, header = ("", text) if before is None else self._conversations.split(text, before, after)
        for origin, text in ((Origin.FOOTER, footer), (Origin.HEADER, header)):
            for piece in re.split(f"([{''.join(forms)}])", text) if forms else [text]:
                yield _Part(Origin.TEXT if has_texts else origin, forms.get(piece) or Markup(piece))

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
        has_end = bool(answer_ids) and answer_ids[-1] in self._tokenizer.control_ids
        for token_ids in (answer_ids, answer_ids[:-1]) if has_end else (answer_ids,):
            written = self._tokenizer.detokenize(token_ids)
            first, stop = (start + len(text) - len(written), start + len(written)) if text else (0, len(around))
            at = around.find(written, max(0, first), stop)
            if token_ids and at >= 0:
                return at, token_ids
        return start, ()

    def _refused(self, refusal: TemplateRefusal) -> PromptError:
        return PromptError([refused(refusal, self._span, [turn.role for turn in self._turns])])

    def _rendered(self, conversation: Sequence[_Turn]) -> str:
        """Return a conversation as the template renders it, up to the answer.

        Raises:
            TemplateRefusal: The template does not render it, or changes the text of an answer that goes on.
        """
        if not self._continues:
            return self._render(conversation)
        *before, last = conversation
        rendered = self._render([*before, replace(last, own=last.own + _GOES_ON)])
        end = rendered.rfind(_GOES_ON.strip())
        if end < 0 or last.own.strip() not in rendered:
            raise TemplateRefusal("the chat template does not write the text of the last turn as it is")
        return rendered[:end] if rendered.startswith(_GOES_ON, end) else rendered[:end].rstrip()

    def _render(self, conversation: Sequence[_Turn]) -> str:
        turns = [(turn.role, turn.cached + turn.own) for turn in conversation]
        fields = {index: turn.fields for index, turn in enumerate(conversation) if turn.fields}
        return self._conversations.render(turns, generation_prompt=not self._continues, fields=fields)


@lru_cache(maxsize=16)
def _control_forms(tokenizer: Any) -> re.Pattern[str] | None:
    """Return the pattern of the written forms of control tokens, the longest first; None if there are none."""
    forms = sorted((tokenizer.detokenize((token_id,)) for token_id in tokenizer.control_ids), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, forms))) if forms else None


def _marked(text: str, mark: str) -> str:
    """Return a text with marks around it, within the spaces around it."""
    said = text.strip()
    return text.replace(said, f"{mark}{said}{mark}", 1)


def _asks_nothing(span: Span) -> Diagnostic:
    """Return the warning for a prompt without a question behind the turns of its schema."""
    message = "the prompt asks nothing: it has no text, and its last turn is not one of the user"
    return diagnostic("PC517", message, span, "write a question into the prompt")


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
            yield _Turn(each.turn.role, text, frame=each.frame)


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
