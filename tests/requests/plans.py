"""Plans of drawn requests, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcache.kv import Codec
from promptcache.language import Prompt, Repair, parse_prompt, resolve_prompt, split_question
from promptcache.layout import Level, Origin, Piece, Plan
from promptcache.planning import ServedSchema, serve_schema
from promptcache.planning.turns import ChatPrompt, ChatTurn, with_turns
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.families import CONTEXT
from tests.laws.position_oracle import SLOTS
from tests.requests.workloads import Ask, Way, Workload

VOCABULARY = ByteTokenizer()


def state_of(workload: Workload) -> ServedSchema:
    """Return the schema of a workload."""
    return serve_schema(workload.schema, VOCABULARY, CONTEXT, Codec(workload.codec))


@dataclass(frozen=True, slots=True)
class Promoted:
    """Tokens that were promoted, with their positions; they belong to a salt if an argument is among them."""

    tokens: tuple[tuple[int, int], ...]
    salt: str | None
    has_argument: bool


def combined(plan: Plan, salt: str | None) -> Promoted | None:
    """Return the tokens of a modular plan up to its last stored one; None if it is exact."""
    if plan.level is Level.EXACT:
        return None
    last = max(index for index, piece in enumerate(plan.pieces) if piece.source or piece.origin is Origin.LAST)
    pieces = plan.pieces[: last + 1]
    return Promoted(_tokens(pieces), salt, any(piece.origin is Origin.ARGUMENT for piece in pieces))


def _tokens(pieces: Sequence[Piece]) -> tuple[tuple[int, int], ...]:
    return tuple(each for piece in pieces for each in zip(piece.position_ids, piece.token_ids, strict=True))


def promoted_tokens(workload: Workload, state: ServedSchema) -> Promoted | None:
    """Return what is promoted of the first request before it; None if nothing is."""
    ask = workload.steps[0].asks[0]
    if not workload.promoted or not workload.has_history:
        return None
    return combined(plan_of(workload, state, replace(ask, reuse=True, repair=None), Way.GENERATE), ask.salt)


def promoted_plan(plan: Plan, promoted: Promoted | None, ask: Ask, way: Way, computed: Sequence[Promoted] = ()) -> Plan:
    """Return the plan that is used for a request: the plain one if all that it combines is in history.

    Args:
        computed: Tokens of earlier requests that computed all of their prompt; history has them as well.
    """
    own = combined(plan, ask.salt)
    if promoted is None or own is None or way is Way.LINK:
        return plan
    known = [each for each in (promoted, *computed) if not each.has_argument or each.salt == ask.salt]
    return plan.plain() if any(each.tokens[: len(own.tokens)] == own.tokens for each in known) else plan


def computed_tokens(plan: Plan, salt: str | None) -> Promoted:
    """Return the tokens of a request that reuses none."""
    return Promoted(_tokens(plan.pieces), salt, has_argument=True)


def plan_of(
    workload: Workload,
    state: ServedSchema,
    ask: Ask,
    way: Way,
    turns: Sequence[ChatTurn] = (),
) -> Plan:
    """Return the modular plan of a request.

    Args:
        turns: Those of its chat before it.
    """
    prompt = parse_prompt(workload.prompts[ask.prompt])
    repair = Repair.parse(ask.repair) if ask.repair else state.schema.repair or SLOTS
    if way is Way.CHAT:
        chat = ChatPrompt(prompt=without_text(prompt), turns=tuple(turns), question=ask.said)
        selection, answers = with_turns(resolve_prompt(chat.prompt, state.schema), state.layout, chat)
        return state.plan(selection, repair, answers)
    plan = state.plan(resolve_prompt(prompt, state.schema), repair)
    return plan if ask.reuse else plan.plain()


def without_text(prompt: Prompt) -> Prompt:
    """Return a prompt without its bare text and the questions at its end, which a chat would answer first."""
    prompt = replace(prompt, messages=tuple(each for each in prompt.messages if each.role is not None))
    question: str | None = ""
    while question is not None:
        prompt, question = split_question(prompt)
    return prompt
