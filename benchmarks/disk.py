"""The benchmark of stores on disk: `python -m benchmarks disk`."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence

from benchmarks.common import BenchReport, CharacterTokenizer, Sizes, documents
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.model import Model
from promptcache.progress import Progress, silent
from promptcache.timing import Samples

_PLAIN, _DISK, _MEMORY = "ordinary prefill", "disk", "memory"


def compare_disk(model: Model, all_sizes: Sequence[Sizes], repeats: int, progress: Progress = silent) -> BenchReport:
    """Compare the first request of a new engine with KV on disk, with KV in memory, and ordinary prefill.

    TTFT counts from the call of `generate`. Engine and store are new for each request from disk, so every file is
    opened, verified and copied. The files are in the page cache of the operating system.
    """
    cells, rows = [], []
    for sizes in all_sizes:
        with tempfile.TemporaryDirectory(prefix="promptcache-bench-") as folder:
            found = _measured(model, sizes, folder, repeats, progress)
        median = {name: each.median for name, each in found.items()}
        reused = (f"{1e3 * median[name]:.1f} ({median[_PLAIN] / median[name]:.1f}x)" for name in (_DISK, _MEMORY))
        ratio = f"{median[_DISK] / median[_MEMORY]:.2f}"
        plain = f"{1e3 * median[_PLAIN]:.1f}"
        cells.append((f"{sizes.cached_tokens:,}", str(sizes.new_tokens), plain, *reused, ratio))
        rows.append({**sizes.data, "seconds": {name: list(each.seconds) for name, each in found.items()}})
    return BenchReport(
        name="disk",
        title=f"TTFT in ms from the call on, median of {repeats} rounds (times faster than {_PLAIN})",
        columns=("cached", "new", _PLAIN, _DISK, _MEMORY, f"{_DISK} / {_MEMORY}"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _measured(model: Model, sizes: Sizes, folder: str, repeats: int, progress: Progress) -> dict[str, Samples]:
    made = documents(sizes)
    store = StoreConfig(folder=folder)

    def engine(store: StoreConfig | None) -> Engine:
        new = Engine(model, CharacterTokenizer(), store=store, history=False)
        new.add_schema(made.schema)
        return new

    def ttft_s(engine: Engine, prompt: str) -> float:
        gc.collect()
        answer = engine.generate(prompt, max_new_tokens=1, do_sample=False)
        assert answer.usage.num_encoded_tokens == 0, "the store has all modules"
        return answer.timing.ttft_s

    in_memory = engine(None)
    plain = f'<prompt schema="plain">{made.modules}{made.new}</prompt>'
    in_memory.add_schema('<schema name="plain"/>')
    for each in (in_memory, engine(store)):
        each.generate(made.prompt, max_new_tokens=1)  # encodes the modules
    taken: dict[str, list[float]] = {_PLAIN: [], _DISK: [], _MEMORY: []}
    for number in range(repeats + 1):
        progress(f"{sizes.cached_tokens:,} cached tokens", number, repeats + 1)
        taken[_PLAIN].append(ttft_s(in_memory, plain))
        taken[_DISK].append(ttft_s(engine(store), made.prompt))
        taken[_MEMORY].append(ttft_s(in_memory, made.prompt))
    return {name: Samples(seconds=tuple(seconds[1:])) for name, seconds in taken.items()}
