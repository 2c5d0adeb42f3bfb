"""Plans of drawn requests, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from promptcache.kv import Codec
from promptcache.language import DEFAULT_REPAIR, Prompt, Repair, parse_prompt, resolve_prompt, split_question
from promptcache.layout import CombinationParts, Plan, combination, exact_plan, has_combination, in_full_context
from promptcache.runtime import SchemaState, schema_state
from promptcache.runtime.turns import ChatTurn, with_turns
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.families import CONTEXT
from tests.requests.workloads import Ask, Way, Workload

VOCABULARY = ByteTokenizer()


def state_of(workload: Workload) -> SchemaState:
    """Return the schema of a workload."""
    return schema_state(workload.schema, VOCABULARY, CONTEXT, Codec(workload.codec))


def promoted_combination(workload: Workload, state: SchemaState) -> CombinationParts | None:
    """Return the combination of the first request if it is promoted before; None if there is none."""
    ask = workload.steps[0].asks[0]
    plan = plan_of(workload, state, replace(ask, reuse=True), Way.GENERATE)
    return combination(plan, ask.salt) if workload.promoted and has_combination(plan) else None


def promoted_plan(plan: Plan, promoted: CombinationParts | None, ask: Ask, way: Way) -> Plan:
    """Return the plan that is used for a request: its exact plan if its combination is promoted."""
    if promoted is None or way is Way.LINK or not has_combination(plan) or combination(plan, ask.salt) != promoted:
        return plan
    return exact_plan(plan, in_full_context(promoted))


def plan_of(
    workload: Workload,
    state: SchemaState,
    ask: Ask,
    way: Way,
    turns: Sequence[ChatTurn] = (),
) -> Plan:
    """Return the modular plan of a request.

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
    return plan if ask.reuse else plan.plain()


def without_text(prompt: Prompt) -> Prompt:
    """Return a prompt without its bare text and the questions at its end, which a chat would answer first."""
    prompt = replace(prompt, messages=tuple(each for each in prompt.messages if each.role is not None))
    question: str | None = ""
    while question is not None:
        prompt, question = split_question(prompt)
    return prompt
