"""Headers and footers of chat turns by role, cut from conversations that a chat template renders.

A marker text in each turn shows where the text of the turn starts and ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from promptcache.diagnostics import UnsupportedModel
from promptcache.language import Role
from promptcache.tokenizer.chat_template import ChatTemplate

_S, _U, _A = Role.SYSTEM, Role.USER, Role.ASSISTANT


@dataclass(frozen=True, slots=True)
class Frame:
    """The text before and the text after the content of a turn."""

    header: str
    footer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The frames of all roles.

    Attributes:
        ending: What closes the assistant turn that ends a conversation: the model writes it when it has finished.
        starts_with_bos: Whether the template itself begins a conversation with BOS, which is in no frame.
        warnings: What a user should know.
    """

    system: Frame
    user: Frame
    assistant: Frame
    ending: str = ""
    starts_with_bos: bool = False
    warnings: tuple[str, ...] = ()


# For models without a chat template. A header ends with a newline: a space at its end would be tokenized alone, which
# models rarely see before a word.
PLAIN_FRAMES = Frames(
    system=Frame("System:\n", "\n\n"),
    user=Frame("User:\n", "\n\n"),
    assistant=Frame("Assistant:\n", "\n\n"),
)


def cut_frames(template: ChatTemplate, bos: str, eos: str) -> Frames:
    """Cut the frame of every role from rendered conversations.

    Args:
        template: May refuse a conversation; one with alternating user and assistant turns it has to render.
        bos: Written form of BOS ("" where the model has none); cut away from headers.
        eos: Written form of the end-of-text token.

    Raises:
        UnsupportedModel: no conversation that the template renders shows where its turns start and end.
    """
    return _Cutter(template, bos, eos).cut()


class _Cutter:
    """Renderer of conversations that cuts them at their markers."""

    def __init__(self, template: ChatTemplate, bos: str, eos: str) -> None:
        self._template = template
        self._bos = bos
        self._eos = eos
        self._in_parts = False
        self._warnings: list[str] = []

    def cut(self) -> Frames:
        lead, talk = self._talk()
        between_user_and_assistant, between_assistant_and_user, tail = talk[-3:]
        first_header = "" if lead else talk[0].removeprefix(self._bos)
        ended = self._gaps((*lead, _U, _A, _U, _A))
        ending = ended[-1] if ended else ""
        user_footer, rendered_header = _split_after(between_user_and_assistant, tail)
        assistant_footer, user_header = self._between_turns(
            between_assistant_and_user, first_header, (ending, user_footer)
        )
        prompt = self._generation_prompt(lead, tail, user_footer)
        user = Frame(user_header, user_footer)
        assistant = Frame(self._assistant_header(rendered_header, prompt), assistant_footer)
        return Frames(
            system=self._system(first_header, user, assistant),
            user=user,
            assistant=assistant,
            ending=ending,
            starts_with_bos=bool(self._bos) and talk[0].startswith(self._bos),
            warnings=tuple(self._warnings),
        )

    def _talk(self) -> tuple[tuple[Role, ...], tuple[str, ...]]:
        """Return the text between turns of a long conversation, and the turns that had to come first."""
        for self._in_parts in (False, True):
            for lead in ((), (_S,)):
                gaps = self._gaps((*lead, _U, _A, _U, _A, _U))
                if gaps:
                    return lead, gaps
        raise UnsupportedModel(
            "the chat template renders no conversation of alternating user and assistant turns with all of their texts"
        )

    def _between_turns(self, gap: str, first_header: str, footers: Sequence[str]) -> tuple[str, str]:
        """Split the text between an assistant's and a user's content into footer and header.

        The header starts where the header that opens the conversation occurs again. If it does not, the footer is the
        first of `footers` with which the gap begins: the end of a conversation, then the end of a user turn.
        """
        if first_header and gap.endswith(first_header):
            footer, header = gap.removesuffix(first_header), first_header
        else:
            footer = next((footer for footer in footers if footer and gap.startswith(footer)), "")
            header = gap.removeprefix(footer)
        return self._without_bos(footer), header.removeprefix(self._bos)

    def _generation_prompt(self, lead: tuple[Role, ...], tail: str, user_footer: str) -> str:
        """Return the generation prompt that the template adds after the last user turn."""
        gaps = self._gaps((*lead, _U, _A, _U, _A, _U), generation_prompt=True)
        if not gaps or gaps[-1] == tail:
            return ""
        return gaps[-1].removeprefix(user_footer)

    def _assistant_header(self, rendered: str, prompt: str) -> str:
        """Choose the assistant's header: the text before its content in a conversation, or the generation prompt.

        Where one begins with the other it is the shorter: what a thinking model's template adds to either is left to
        the model.
        """
        if not prompt:
            return rendered.rstrip(" ")
        header = rendered if prompt.startswith(rendered) and rendered.strip() else prompt
        if rendered.removeprefix(header).strip() or prompt.removeprefix(header).strip():
            self._warnings.append(
                f"the chat template opens an assistant turn with {rendered!r} in a conversation and with {prompt!r} "
                f"for generation; {header!r} is used for both"
            )
        return header

    def _system(self, first_header: str, user: Frame, assistant: Frame) -> Frame:
        """Return the frame of a system turn in the middle, or of the first turn if the template renders no other."""
        middle = self._middle_system(user, assistant)
        leading = self._leading_system(first_header, user)
        for frame in (middle, leading):
            if frame is not None and frame.header.strip() and frame != user:
                return frame
        if leading is not None and leading != user:
            return leading
        self._warnings.append("the chat template has no system role: a system turn is rendered as a user turn")
        return user

    def _middle_system(self, user: Frame, assistant: Frame) -> Frame | None:
        gaps = self._gaps((_U, _A, _S, _U, _A, _U))
        if not gaps or not gaps[2].startswith(assistant.footer) or not gaps[3].endswith(user.header):
            return None
        header = gaps[2].removeprefix(assistant.footer).removeprefix(self._bos)
        return Frame(header, self._without_bos(gaps[3].removesuffix(user.header)))

    def _leading_system(self, first_header: str, user: Frame) -> Frame | None:
        """Cut the frame of a first system turn, without the text that starts every conversation."""
        gaps = self._gaps((_S, _U, _A, _U))
        if not gaps:
            return None
        header, footer = gaps[0].removeprefix(self._bos), gaps[1]
        if first_header.endswith(user.header):
            header = header.removeprefix(first_header.removesuffix(user.header))
        if not footer.endswith(user.header):
            return None
        return Frame(header, self._without_bos(footer.removesuffix(user.header)))

    def _without_bos(self, footer: str) -> str:
        """Remove the BOS of the next turn. If BOS and end of text are one token, it counts as end of text."""
        return footer if self._bos == self._eos else footer.removesuffix(self._bos)

    def _gaps(self, roles: Sequence[Role], *, generation_prompt: bool = False) -> tuple[str, ...]:
        """Return the text before, between and after the contents of a conversation; nothing if one is missing."""
        markers = tuple(f"TEXT{index}OF{role.upper()}" for index, role in enumerate(roles))
        contents = ([{"type": "text", "text": marker}] if self._in_parts else marker for marker in markers)
        messages = [{"role": str(role), "content": content} for role, content in zip(roles, contents, strict=True)]
        rendered = self._template.render(messages, generation_prompt=generation_prompt)
        return () if rendered is None else tuple(_cut_at(rendered, markers))


def _cut_at(rendered: str, markers: Sequence[str]) -> Iterator[str]:
    """Yield the pieces between `markers`, or nothing unless each marker occurs once and in order."""
    if any(rendered.count(marker) != 1 for marker in markers):
        return
    starts = [rendered.index(marker) for marker in markers]
    if starts != sorted(starts):
        return
    for marker in markers:
        gap, _, rendered = rendered.partition(marker)
        yield gap
    yield rendered


def _split_after(gap: str, ended: str) -> tuple[str, str]:
    """Split `gap` after `ended` if it starts with `ended`, else at its start."""
    return (ended, gap[len(ended) :]) if gap.startswith(ended) else ("", gap)
