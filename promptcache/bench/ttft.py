"""`promptcache bench ttft` and `linking`: time to first token against every alternative, and linking by itself.

Comes in: a model and sizes. Goes out: rows of a table. All alternatives run in one process, interleaved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import psutil
import torch

from promptcache.bench.alternatives import ALTERNATIVES
from promptcache.bench.measure import Samples, interleave
from promptcache.bench.workload import Sizes, workload
from promptcache.runtime.hf.model import Model
from promptcache.runtime.link import link


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every alternative at one size."""

    sizes: Sizes
    samples: Mapping[str, Samples]

    def ratio(self, name: str, to: str = "plain prefill") -> float:
        """How many times as long `to` takes as `name`."""
        return self.samples[to].median / self.samples[name].median


def compare_ttft(
    model: Model, all_sizes: Sequence[Sizes], repeats: int, names: Iterable[str]
) -> tuple[Comparison, ...]:
    """Measure the time from a planned request to the logits of its first token.

    Args:
        model: In the dtype and on the device to be measured.
        all_sizes: One comparison each.
        repeats: Rounds that count; the first, uncounted one warms up.
        names: Of `ALTERNATIVES`.
    """
    chosen = list(names)
    comparisons = []
    for sizes in all_sizes:
        work = workload(model, sizes)
        alternatives = {name: ALTERNATIVES[name](model, work) for name in chosen}
        comparisons.append(Comparison(sizes=sizes, samples=interleave(alternatives, repeats, model.device)))
    return tuple(comparisons)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """What linking by itself costs: seconds, and bytes of resident memory that it adds."""

    sizes: Sizes
    num_segments: int
    samples: Samples
    resident_bytes: int


def measure_linking(model: Model, all_sizes: Sequence[Sizes], repeats: int) -> tuple[LinkCost, ...]:
    """Measure linking without any forward pass, at each size."""
    process = psutil.Process()
    costs = []
    for sizes in all_sizes:
        work = workload(model, sizes)
        samples = interleave({"link": partial(link, work.plan, work.runs, model)}, repeats, model.device)
        before = process.memory_info().rss
        held = [link(work.plan, work.runs, model) for _ in range(20)]
        resident = (process.memory_info().rss - before) // len(held)
        costs.append(
            LinkCost(
                sizes=sizes,
                num_segments=len(held[0].timeline.segments),
                samples=samples["link"],
                resident_bytes=resident,
            )
        )
    return tuple(costs)


def hardware() -> dict[str, object]:
    """Return what a reader of figures has to know: processor, threads, torch, and the GPU where there is one."""
    return {
        "processor": _processor_name(),
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - not a file of the user's
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"
