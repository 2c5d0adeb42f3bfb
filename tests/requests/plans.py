"""Plans of drawn requests, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from promptcache.kv import Codec
from promptcache.language import DEFAULT_REPAIR, Prompt, Repair, parse_prompt, resolve_prompt, split_question
from promptcache.layout import Plan
from promptcache.runtime import SchemaState, prefilled, promoted, schema_state
from promptcache.runtime.turns import ChatTurn, with_turns
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.families import CONTEXT
from tests.requests.workloads import Ask, Way, Workload

VOCABULARY = ByteTokenizer()


def state_of(workload: Workload) -> SchemaState:
    """Return the schema of a workload, with its promotion."""
    state = schema_state(workload.schema, VOCABULARY, CONTEXT, Codec(workload.codec))
    if workload.promoted is None:
        return state
    return promoted(state, resolve_prompt(parse_prompt(workload.promoted), state.schema))


def plan_of(
    workload: Workload,
    state: SchemaState,
    ask: Ask,
    way: Way,
    turns: Sequence[ChatTurn] = (),
) -> Plan:
    """Return the plan of a request.

    Args:
        turns: Those of its chat before it.
    """
    prompt = parse_prompt(workload.prompts[ask.prompt])
    repair = Repair.parse(ask.repair) if ask.repair else state.schema.repair or DEFAULT_REPAIR
    if way is Way.CHAT:
        selection = resolve_prompt(without_text(prompt), state.schema)
        selection, answers = with_turns(selection, state.layout, turns, ask.said)
        return state.plan(selection, VOCABULARY, repair, answers)
    plan = state.plan(resolve_prompt(prompt, state.schema), VOCABULARY, repair)
    return plan if ask.reuse else prefilled(plan)


def without_text(prompt: Prompt) -> Prompt:
    """Return a prompt without its bare text and the questions at its end, which a chat would answer first."""
    prompt = replace(prompt, messages=tuple(each for each in prompt.messages if each.role is not None))
    question: str | None = ""
    while question is not None:
        prompt, question = split_question(prompt)
    return prompt
