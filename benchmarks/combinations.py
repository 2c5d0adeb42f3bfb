"""The benchmark of combinations that come again: `python -m benchmarks combinations`."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from benchmarks.common import BenchReport, CharacterTokenizer, letters
from promptcache.encode import prepare
from promptcache.engine import Engine
from promptcache.kv import KV, KVMemory
from promptcache.layout import Encoding
from promptcache.model import Model
from promptcache.progress import Progress, silent
from promptcache.rows import Batch, Copies, open_copies, open_graphs
from promptcache.timing import interleave

LENGTHS: Mapping[str, Sequence[int]] = {
    "equal": (512,) * 8,
    "uneven": (50, 900, 137, 613, 288, 842, 95, 471, 700),
}
"""Tokens of each module: 4,096 in all."""

NEW_TOKENS = (1, 16)
_WAYS = ("first use", "prompt cache", "floor")


def compare_combinations(model: Model, repeats: int, progress: Progress = silent) -> BenchReport:
    """Compare the TTFT of a combination that came before with its floor, run by run."""
    cells, rows = [], []
    for (name, lengths), num_new in product(LENGTHS.items(), NEW_TOKENS):
        samples = interleave(_ways(model, lengths, num_new), repeats, model.device, partial(progress, name))
        seconds = {way: samples[way].seconds for way in _WAYS}
        ratios = [own / floor for own, floor in zip(seconds["prompt cache"], seconds["floor"], strict=True)]
        medians = (f"{samples[way].median_ms:.1f}" for way in _WAYS)
        cells.append((name, str(num_new), *medians, f"{statistics.median(ratios):.3f}"))
        rows.append({"modules": name, "new_tokens": num_new, "seconds": {way: [*seconds[way]] for way in _WAYS}})
    return BenchReport(
        name="combinations",
        title=f"TTFT in ms with 4,096 cached tokens, median of {repeats} rounds, and the median ratio to the floor",
        columns=("modules", "new", *_WAYS, "prompt cache / floor"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _ways(model: Model, lengths: Sequence[int], num_new: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Return the ways to compute the first token of a request over modules; an absent module follows each of them.

    The floor has the same new tokens over KV in one contiguous tensor, without linking.
    """
    draw = random.Random(0)
    modules = "".join(
        f'<module name="m{n}">{letters(draw, size)}</module><module name="absent{n}">{letters(draw, size)}</module>'
        for n, size in enumerate(lengths)
    )
    used = "".join(f"<m{n}/>" for n in range(len(lengths)))
    engine = Engine(model, CharacterTokenizer(), history=False)
    engine.add_schema(f'<schema name="bench" separator="">{modules}</schema>')
    plan = engine.plan(f'<prompt schema="bench">{used}{letters(draw, num_new)}</prompt>')
    linked, kv_of = plan.tokens, prepare(plan, engine._executor).fetched.kv_of
    parts = [kv_of[part.encoding] for part in linked.parts]
    whole = KV(
        keys=torch.cat([part.keys for part in parts], dim=2), values=torch.cat([part.values for part in parts], dim=2)
    )
    places = tuple(range(whole.num_tokens))
    one = Encoding(token_ids=places, position_ids=places).whole
    graphs, copies = open_graphs(model), open_copies(model, KVMemory(model.shape))
    joined = Batch(model, graphs=graphs)
    floor = joined.join(replace(linked, parts=(one,)), {one.encoding: whole})

    def row(copies: Copies) -> torch.Tensor:
        batch = Batch(model, copies, graphs)
        return batch.step([(batch.join(linked, kv_of), linked.token_ids)])

    def computed_again() -> torch.Tensor:
        floor.num_own = 0
        return joined.step([(floor, linked.token_ids)])

    row(copies)  # the first use; the second one, which joins the modules, warms up
    return {
        "first use": lambda: row(open_copies(model, KVMemory(model.shape))),
        "prompt cache": lambda: row(copies),
        "floor": computed_again,
    }
