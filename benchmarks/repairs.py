"""`python -m benchmarks repair`: the time that `repair` adds to a request with arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from transformers import DynamicCache

from promptcache.bench.alternatives import last_logits
from promptcache.bench.harness import BenchReport, Progress, Samples, interleave, silent
from promptcache.bench.workload import LetterTokenizer, Sizes, letters
from promptcache.kv import MemoryStore
from promptcache.language import Repair, RepairKind, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Plan
from promptcache.runtime import Executor, Model, choose_placement, open_pool, schema_state, used_tokens

ARGUMENT_TOKENS = 8
"""Tokens of each argument, the space before it included."""


def repair_documents(sizes: Sizes) -> tuple[str, Callable[[int], str]]:
    """Return a schema with a slot in the middle of each module, and a function that returns its prompt.

    The text behind each slot begins with a full stop and a space, so one token of it follows the argument. The argument
    of the function is the number of the prompt's own tokens.
    """
    draw = random.Random(0)
    before = sizes.module_tokens // 2
    modules = "".join(
        f'<module name="m{index}">{letters(draw, before)} <parameter name="p" length="{ARGUMENT_TOKENS + 4}"/>'
        f". {letters(draw, sizes.module_tokens - before - 3)}</module>"
        for index in range(sizes.num_modules)
    )
    used = "".join(f'<m{index} p="{letters(draw, ARGUMENT_TOKENS - 1)}"/>' for index in range(sizes.num_modules))
    own = letters(draw, 2 * sizes.cached_tokens + sizes.new_tokens)
    schema = f'<schema name="bench" separator="">{modules}</schema>'
    return schema, lambda num_own: f'<prompt schema="bench">{used}{own[:num_own]}</prompt>'


def compare_repairs(
    model: Model, sizes: Sizes, repairs: Sequence[Repair], repeats: int, progress: Progress = silent
) -> BenchReport:
    """Compare the time from a planned request to its first logits: each repair, "none", and plain prefill.

    Each repair is also compared with "none" plus as many further own tokens as the repair computes again.
    """
    schema_text, prompt = repair_documents(sizes)
    schema, tokenizer = check_schema(parse_schema(schema_text)), LetterTokenizer()
    state = schema_state(schema, tokenizer, model.context_length, placement=choose_placement(model))
    store = MemoryStore(model.shape)
    executor = Executor(model, store, lambda: "bench", open_pool(model, store))

    def planned(num_own: int, repair: Repair) -> Plan:
        selection = resolve_prompt(parse_prompt(prompt(num_own)), schema)
        return state.plan(selection, tokenizer, repair)

    no_repair = Repair(RepairKind.NONE)
    none = planned(sizes.new_tokens, no_repair)
    plans, longer = {"none": none}, dict[str, Plan]()
    for repair in repairs:
        plan = plans[str(repair)] = planned(sizes.new_tokens, repair)
        num_more = plan.num_new_tokens - none.num_new_tokens
        longer[str(repair)] = planned(sizes.new_tokens + num_more, no_repair)
    alternatives = {repair: partial(_first_logits, executor, plan) for repair, plan in plans.items()}
    alternatives |= {f"{repair} as own": partial(_first_logits, executor, plan) for repair, plan in longer.items()}
    samples = interleave(
        {"plain": partial(_plain_logits, model, none), **alternatives},
        repeats,
        model.device,
        partial(progress, sizes.title),
    )
    rows = [
        {
            "repair": repair,
            **sizes.data,
            "reused_tokens": plan.num_reused_tokens,
            "new_tokens": plan.num_new_tokens,
            "seconds": samples[repair].seconds,
            "as_own_seconds": samples[f"{repair} as own"].seconds if repair in longer else None,
            "plain_seconds": samples["plain"].seconds,
        }
        for repair, plan in plans.items()
    ]
    return BenchReport(
        name="repair",
        title=f"TTFT of {sizes.num_modules} modules with an argument each, median of {repeats} rounds",
        columns=("repair", "reused", "new", "ms", "/ none", "/ as many own tokens", "faster than plain"),
        cells=tuple(_cells(repair, plan, samples) for repair, plan in plans.items()),
        rows=tuple(rows),
    )


def _first_logits(executor: Executor, plan: Plan) -> object:
    linked = executor.link(plan.tokens)
    return last_logits(executor.model, linked.token_ids, linked.position_ids, linked.cache)


def _plain_logits(model: Model, plan: Plan) -> object:
    used = used_tokens(plan.tokens)
    return last_logits(model, [each.token_id for each in used], range(len(used)), DynamicCache())


def _cells(repair: str, plan: Plan, samples: Mapping[str, Samples]) -> tuple[str, ...]:
    median = samples[repair].median
    own = samples.get(f"{repair} as own")
    return (
        repair,
        f"{plan.num_reused_tokens:,}",
        f"{plan.num_new_tokens:,}",
        f"{1e3 * median:.1f}",
        f"{median / samples['none'].median:.3f}",
        "" if own is None else f"{median / own.median:.3f}",
        f"{samples['plain'].median / median:.1f}x",
    )
