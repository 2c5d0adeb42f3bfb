"""The benchmark of one prompt: `python -m benchmarks prompt`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from transformers import DynamicCache

from promptcache.bench.harness import Benchmark, BenchReport, Progress, Samples, compare, silent
from promptcache.engine import Engine
from promptcache.runtime import token_tensor, used_tokens


def compare_prompt(engine: Engine, prompt: str | Path, repeats: int, progress: Progress = silent) -> BenchReport:
    """Compare `generate` of one token on a warm schema with plain prefill of the same tokens.

    Args:
        engine: The prompt's schema is added to it; this function warms it.
        prompt: XML text or a path; parsed again in every run.
    """
    plan = engine.plan(prompt)
    engine.warm(plan.selection.schema.name)
    token_ids = token_tensor([token.token_id for token in used_tokens(plan.tokens)], engine.model.device)

    def plain() -> Any:
        return engine.model.hf.generate(
            token_ids,
            attention_mask=token_ids.new_ones(token_ids.shape),
            past_key_values=DynamicCache(),
            max_new_tokens=1,
            do_sample=False,
            pad_token_id=0,
        )

    def cells(benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
        cached, plain = (each.median_ms for each in samples.values())
        reused, new = benchmark.data.values()
        return f"{reused:,}", str(new), f"{cached:.1f}", f"{plain:.1f}", f"{plain / cached:.1f}x"

    benchmark = Benchmark(
        title="rounds",
        data={"reused_tokens": plan.num_reused_tokens, "new_tokens": plan.num_new_tokens},
        alternatives={
            "cached": partial(engine.generate, prompt, max_new_tokens=1, do_sample=False),
            "plain": plain,
        },
    )
    return compare(
        "prompt",
        f"TTFT from the call on, median of {repeats} rounds",
        ("reused", "new", "cached ms", "plain ms", "ratio"),
        [benchmark],
        cells,
        repeats=repeats,
        device=engine.model.device,
        progress=progress,
    )
