"""`promptcache bench small`: from which size on a segment is better read where it rests.

Comes in: a model, a number of cached tokens, and sizes of modules. Goes out: seconds for the first token and some more,
with every module a segment of its own, with all of them copied into one buffer, and with that buffer still there from
an earlier request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from promptcache.bench.alternatives import last_logits
from promptcache.bench.measure import FAST_TURNS, Progress, interleave, silent
from promptcache.bench.report import Report
from promptcache.bench.workload import Sizes, Workload, workload
from promptcache.diagnostics import PromptCacheError
from promptcache.layout import Encoding, KVPart, RequestTokens
from promptcache.runtime import Model, Pool, link


def compare_small(
    model: Model,
    cached_tokens: int,
    module_tokens: Sequence[int],
    new_tokens: int,
    num_decoded: int,
    repeats: int,
    progress: Progress = silent,
) -> Report:
    """Measure link, prefill and `num_decoded` tokens over the same cached tokens in modules of different sizes.

    Raises:
        PromptCacheError: modules of one of these sizes do not fill the cached tokens, or one module alone does.
    """
    for size in module_tokens:
        if cached_tokens % size or cached_tokens == size:
            told = f"--module-tokens {size}: {cached_tokens:,} cached tokens are not two or more modules of this size"
            raise PromptCacheError(f"{told}; --cached {size * max(2, cached_tokens // size)} is")
    cells, rows = [], []
    for size in module_tokens:
        count = cached_tokens // size
        work = workload(model, Sizes(num_modules=count, module_tokens=size, new_tokens=new_tokens))
        shown = partial(progress, work.sizes.title)
        samples = interleave(_ways(model, work, num_decoded, repeats), repeats, model.device, shown)
        medians = [each.median for each in samples.values()]
        times = [f"{1e3 * each:.1f}" for each in medians]
        cells.append((f"{count} x {size}", *times, f"{medians[0] / medians[1]:.2f}"))
        seconds = {name: list(each.seconds) for name, each in samples.items()}
        rows.append({**work.sizes.data, "decoded_tokens": num_decoded, "seconds": seconds})
    return Report(
        name="small",
        title=f"ms to link, for the first token and {num_decoded} more, median of {repeats} rounds",
        columns=("modules", "apart", "coalesced", "coalesced before", "apart / coalesced"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _ways(model: Model, work: Workload, num_decoded: int, repeats: int) -> dict[str, Callable[[], Any]]:
    pool = Pool(model.shape, small_tokens=work.sizes.cached_tokens)

    def answer(tokens: RequestTokens, pool: Pool | None) -> Any:
        linked = link(tokens, runs, model, pool)
        logits = last_logits(model, linked.token_ids, linked.position_ids, linked.cache)
        for step in range(num_decoded):
            logits = last_logits(model, [ord("a")], [linked.position_ids[-1] + 1 + step], linked.cache)
        return logits

    # other encodings with the same KV, made beforehand: the pool has memory for them, and has not met them
    runs = dict(work.runs)
    unmet = []
    for number in range(1 + repeats * FAST_TURNS):
        parts = [_renumbered(part, number) for part in work.tokens.parts]
        runs |= {new.encoding: work.runs[part.encoding] for new, part in zip(parts, work.tokens.parts, strict=True)}
        unmet.append(replace(work.tokens, parts=tuple(parts)))

    return {
        "apart": lambda: answer(work.tokens, None),
        "coalesced": lambda: answer(unmet.pop(), pool),
        "coalesced before": lambda: answer(work.tokens, pool),
    }


def _renumbered(part: KVPart, number: int) -> KVPart:
    """Return the same part of an encoding with other tokens."""
    token_ids = tuple(token_id + (number + 1) * 2**32 for token_id in part.encoding.token_ids)
    return replace(part, encoding=Encoding(token_ids=token_ids, position_ids=part.encoding.position_ids))
