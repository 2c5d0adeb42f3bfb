"""The turns of a schema, with what the chat template writes around each of them.

What a template writes for a turn depends on the conversation. For a turn of a schema, the conversation has all turns
that are present whenever this turn is, and a question behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from promptcache.diagnostics import Diagnostic, SchemaError, Span, TemplateRefusal, TextNotInPlace, diagnostic
from promptcache.language import CheckedItem, CheckedModule, CheckedSchema, CheckedTurn, CheckedUnion, Role
from promptcache.layout.types import SchemaTurn
from promptcache.tokenizer import FROZEN_DATE, Conversations, Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTexts:
    """Texts that a chat template writes into a schema; none for a schema without turns.

    Attributes:
        preamble: What begins every conversation: BOS, and for some models a system text of the template's own.
        turns: The schema's turns in document order, those of absent modules included.
        warnings: Conversations whose texts the template moves.
    """

    preamble: str = ""
    turns: tuple[SchemaTurn, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()


def turn_texts(schema: CheckedSchema, conversations: Conversations) -> TurnTexts:
    """Return what the chat template writes before and around the turns of a schema.

    Raises:
        SchemaError: The template refuses turns that are present together (PC512).
    """
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
            warnings += (moved(refusal, turn.span) for turn in own)
        except TemplateRefusal as refusal:
            faults += (refused(refusal, turn.span, [each.role for _, each in there]) for turn in own)
            continue
        of_owner = zip(there, around, strict=True)
        frames |= {index: frame for (index, _), frame in of_owner if found[index][1] == owner}
        preamble = preamble if owner else before
    if faults:
        raise SchemaError(faults)
    if found and conversations.has_date:
        warnings.append(_frozen_date(schema))
    turns = tuple(SchemaTurn(turn=turn, owner=owner, frame=frames[index]) for index, (turn, owner) in enumerate(found))
    return TurnTexts(preamble=preamble, turns=turns, warnings=tuple(warnings))


def refused(refusal: TemplateRefusal, span: Span, roles: Sequence[Role]) -> Diagnostic:
    """Return the error for a conversation of turns with these roles that the template does not render."""
    if any(role is following for role, following in pairwise(roles)):
        advice = "write the texts of adjacent turns of one role as one turn"
    elif Role.SYSTEM in roles:
        advice = "write the text of the system turn at the beginning of the first user turn"
    else:
        advice = "begin with a user turn, and let user and assistant turns alternate"
    return diagnostic("PC512", str(refusal), span, advice)


def moved(refusal: TextNotInPlace, span: Span) -> Diagnostic:
    """Return the warning for a conversation whose texts the template does not write in their places."""
    message = f"{refusal}; each turn is written as the template writes one of its role elsewhere"
    return diagnostic("PC513", message, span, "use the turns that the model's template allows")


def _frozen_date(schema: CheckedSchema) -> Diagnostic:
    message = f"the chat template writes the date, and the turns of a schema always have {FROZEN_DATE:%-d %B %Y}"
    fix = "if answers need the date, state it in the prompt, such as in a parameter"
    return diagnostic("PC519", message, schema.source.span, fix)


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
