"""The texts that a chat template writes around turns. They are cut at markers that stand for the contents of the turns.

The text between two contents belongs to two turns. Where something may stand between them, it is split into the footer
of the first turn and the header of the second one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property
from os.path import commonprefix
from typing import Any

from promptcache.diagnostics import TemplateRefusal, TextNotInPlace
from promptcache.language import Role
from promptcache.tokenizer.types import FROZEN_DATE, NO_OPTIONS, Tokenizer

_S, _U, _A = Role.SYSTEM, Role.USER, Role.ASSISTANT
_PROBE = "PROBE0TEXT"


@dataclass(frozen=True, slots=True)
class Frame:
    """The text before and the text after the content of a turn."""

    header: str
    footer: str


class Conversations:
    """The texts that the chat template of a tokenizer writes around turns."""

    def __init__(
        self, tokenizer: Tokenizer, options: Mapping[str, Any] = NO_OPTIONS, date: datetime = FROZEN_DATE
    ) -> None:
        """Create the texts for one set of options and one date; see `Tokenizer.render_chat`."""
        self._tokenizer = tokenizer
        self._options = options
        self._date = date
        self._known: dict[tuple[tuple[Role, ...], bool], tuple[str, ...]] = {}
        self._tail, self._opening = cache(self._find_tail), cache(self._find_opening)

    @property
    def has_date(self) -> bool:
        """Whether the template writes the date into a conversation."""
        later = Conversations(self._tokenizer, self._options, self._date + timedelta(days=400))
        try:
            return self.gaps((Role.USER,), generation_prompt=True) != later.gaps((Role.USER,), generation_prompt=True)
        except TemplateRefusal:
            return False

    def render(
        self,
        turns: Sequence[tuple[Role, str]],
        *,
        generation_prompt: bool,
        fields: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return a conversation as the template renders it.

        Args:
            fields: Further fields of each message, in the order of `turns`.

        Raises:
            TemplateRefusal: It does not.
        """
        messages: list[dict[str, Any]] = [
            {"role": str(role), "content": [{"type": "text", "text": text}] if self._takes_parts else text}
            for role, text in turns
        ]
        for message, others in zip(messages, fields, strict=False):
            message.update(others)
        return self._tokenizer.render_chat(
            messages, generation_prompt=generation_prompt, options=self._options, date=self._date
        )

    def gaps(self, roles: Sequence[Role], *, generation_prompt: bool) -> tuple[str, ...]:
        """Return the text before, between and after the contents of a conversation.

        Raises:
            TemplateRefusal: The template does not render the conversation.
            TextNotInPlace: It leaves out one of the contents, or writes it elsewhere.
        """
        key = (tuple(roles), generation_prompt)
        if key in self._known:
            return self._known[key]
        markers = [f"TEXT{index}OF{role.upper()}" for index, role in enumerate(roles)]
        rendered = self.render([*zip(roles, markers, strict=True)], generation_prompt=generation_prompt)
        lost = [index for index, marker in enumerate(markers) if rendered.count(marker) != 1]
        places = [rendered.find(marker) for marker in markers]
        if lost or places != sorted(places):
            where = f"turn {lost[0] + 1} ({roles[lost[0]]})" if lost else "a turn"
            raise TextNotInPlace(f"the chat template does not write the text of {where} once and in its place")
        found = list[str]()
        for marker in markers:
            gap, _, rendered = rendered.partition(marker)
            found.append(gap)
        self._known[key] = (*found, rendered)
        return self._known[key]

    def preamble(self, gap: str, role: Role) -> tuple[str, str]:
        """Split the text before the first content into what begins every conversation, and the header of the turn."""
        opening = self._opening(role)
        if opening and gap.endswith(opening):
            return gap.removesuffix(opening), opening
        bos = self.bos
        return (bos, gap.removeprefix(bos)) if gap.startswith(bos) else ("", gap)

    def split(self, gap: str, before: Role, after: Role) -> tuple[str, str]:
        """Split the text between two contents into the footer of a turn and the header of the next one.

        If it begins with the text that closes such a turn at the end of a conversation, this text is the footer. Else,
        if it ends with the text that opens such a turn, this text is the header. Else all of it is footer.
        """
        tail, opening = self._tail(before), self._opening(after)
        if tail is not None and gap.startswith(tail):
            return tail, gap.removeprefix(tail)
        if opening and gap.endswith(opening):
            return gap.removesuffix(opening), opening
        return gap, ""

    def frame(self, role: Role) -> Frame:
        """Return the frame of a turn in the middle of a conversation, for conversations that the template refuses.

        A system turn is like a user turn if the template renders none.
        """
        opening, tail = self._opening(role), self._tail(role)
        if role is _S and opening is None:
            return self.frame(_U)
        return Frame(opening or "", tail or "")

    @cached_property
    def bos(self) -> str:
        """BOS as the template writes it at the start of a conversation, unless it opens every turn; or ""."""
        starts = [gaps[0] for roles in ((_U,), (_S, _U)) if (gaps := self._tried(roles))]
        form = self._tokenizer.bos_form
        later = self._tried((_U, _A, _U, _A, _U))
        is_opener = bool(later) and form in later[2] and form in later[1]
        return form if form and not is_opener and any(start.startswith(form) for start in starts) else ""

    def _find_tail(self, role: Role) -> str | None:
        """Return what follows the content of a turn at the end of a conversation; None if it cannot be seen."""
        roles = {_S: (_S,), _U: (_U,), _A: (_U, _A)}[role]
        gaps = self._tried(roles) or (() if role is _S else self._tried((_S, *roles)))
        return gaps[-1] if gaps else None

    def _find_opening(self, role: Role) -> str | None:
        """Return the header of a turn, without what begins a conversation; None if it cannot be seen."""
        if role is _S:
            gaps = self._tried((_S, _U))
            return gaps[0].removeprefix(self.bos) if gaps else None
        gaps = self._tried((_U, _A, _U)) or self._tried((_S, _U, _A, _U))
        if not gaps:
            return None
        gap, previous = (gaps[-2], _A) if role is _U else (gaps[-3], _U)
        for tail in (self._tail(previous), self._tail(_U)):
            if tail is not None and gap.startswith(tail):
                return gap.removeprefix(tail)
        alone = self._tried((_U,))
        return commonprefix([gap[::-1], alone[0][::-1]])[::-1] if role is _U and alone else None

    def _tried(self, roles: tuple[Role, ...]) -> tuple[str, ...]:
        try:
            return self.gaps(roles, generation_prompt=False)
        except TemplateRefusal:
            return ()

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template takes contents in parts only."""
        for content in (_PROBE, [{"type": "text", "text": _PROBE}]):
            for roles in ((_U,), (_S, _U)):
                messages = [{"role": str(role), "content": content} for role in roles]
                with suppress(TemplateRefusal):
                    if _PROBE in self._tokenizer.render_chat(
                        messages, generation_prompt=False, options=self._options, date=self._date
                    ):
                        return content != _PROBE
        return False
