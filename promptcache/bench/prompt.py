"""`promptcache bench prompt`: one prompt of the user's own, cached against plain prefill of the same tokens.

Comes in: an engine and a prompt. Goes out: seconds from the call to the first token, both ways, parsing and planning
included.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from transformers import DynamicCache

from promptcache.bench.measure import Progress, interleave, silent
from promptcache.bench.report import Report
from promptcache.engine import Engine
from promptcache.runtime import reference_tokens, token_tensor


def compare_prompt(engine: Engine, prompt: str | Path, repeats: int, progress: Progress = silent) -> Report:
    """Measure `generate` of one token on a warm schema against `generate` of one token over the whole text.

    Args:
        engine: With the prompt's schema added; it is warmed here.
        prompt: XML text or a path; read anew in every run.
        repeats: Rounds that count.
    """
    plan = engine.plan(prompt)
    engine.warm(plan.selection.schema.name)
    used = sorted((token for token in reference_tokens(plan.tokens) if token.in_use), key=lambda token: token.position)
    token_ids = token_tensor([token.token_id for token in used], engine.model.device)

    def plain() -> Any:
        return engine.model.hf.generate(
            token_ids,
            attention_mask=token_ids.new_ones(token_ids.shape),
            past_key_values=DynamicCache(),
            max_new_tokens=1,
            do_sample=False,
            pad_token_id=0,
        )

    def cached() -> Any:
        return engine.generate(prompt, max_new_tokens=1, do_sample=False)

    ways = {"cached": cached, "plain": plain}
    samples = interleave(ways, repeats, engine.model.device, partial(progress, "rounds"))
    medians = {name: each.median for name, each in samples.items()}
    return Report(
        name="prompt",
        title=f"TTFT from the call on, median of {repeats} rounds",
        columns=("reused", "new", "cached ms", "plain ms", "ratio"),
        cells=(
            (
                f"{plan.num_reused_tokens:,}",
                str(plan.num_new_tokens),
                f"{1e3 * medians['cached']:.1f}",
                f"{1e3 * medians['plain']:.1f}",
                f"{medians['plain'] / medians['cached']:.1f}x",
            ),
        ),
        rows=(
            {
                "reused_tokens": plan.num_reused_tokens,
                "new_tokens": plan.num_new_tokens,
                "seconds": {name: list(each.seconds) for name, each in samples.items()},
            },
        ),
    )
