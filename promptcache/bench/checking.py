"""`promptcache bench check`: the whole command, from the start of its process to the end.

Comes in: documents. Goes out: a report. What is measured is what a shell would wait for: Python, imports, reading and
checking. Nothing here or there loads a model, or torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from promptcache.bench.measure import Progress, Samples, silent
from promptcache.bench.report import Report
from promptcache.diagnostics import PromptCacheError

# The peak of a process begins with the memory of the one that started it: so that is a small one.
_STOPWATCH = """
import json, os, sys, time
started = time.perf_counter()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
seconds = time.perf_counter() - started
peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([seconds, peak, os.waitstatus_to_exitcode(status)]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What is checked: a schema's text, and what machines are told of it."""

    name: str
    text: str = field(repr=False)
    data: Mapping[str, int] = field(default_factory=dict)


def measure_checking(documents: Sequence[Document], repeats: int, progress: Progress = silent) -> Report:
    """Measure `promptcache check` on each document in turn, `repeats` times after a first round that does not count.

    Raises:
        PromptCacheError: a document has errors.
    """
    with TemporaryDirectory(prefix="promptcache-bench-") as folder:
        files = [Path(folder, f"schema-{number}.xml") for number in range(len(documents))]
        for file, document in zip(files, documents, strict=True):
            file.write_text(document.text, encoding="utf-8")
        rounds = []
        for number in range(repeats + 1):
            progress("rounds", number, repeats + 1)
            rounds.append([_check(file) for file in files])
    measured = [_measured(*each) for each in zip(documents, zip(*rounds[1:], strict=True), strict=True)]
    return Report(
        name="check",
        title=f"Seconds for the whole command `promptcache check`, median of {repeats}",
        columns=("schema", "bytes", "seconds", "quartiles", "peak MiB"),
        cells=tuple(cells for cells, _ in measured),
        rows=tuple(row for _, row in measured),
    )


def _measured(document: Document, runs: Sequence[tuple[float, int]]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Return a row for people and one for machines."""
    samples = Samples(seconds=tuple(seconds for seconds, _ in runs))
    peaks = [peak for _, peak in runs]
    nbytes = len(document.text.encode())
    low, high = samples.spread
    times = f"{samples.median:.3f}", f"{low:.3f} to {high:.3f}"
    row = {"document": document.name, **document.data, "bytes": nbytes}
    return (
        (document.name, f"{nbytes:,}", *times, f"{median(peaks) / 2**20:.1f}"),
        {**row, "seconds": list(samples.seconds), "peak_bytes": peaks},
    )


def _check(file: Path) -> tuple[float, int]:
    """Return the seconds that one run takes, and its peak memory in bytes."""
    check = [sys.executable, "-m", "promptcache", "check", str(file)]
    words = [sys.executable, "-I", "-S", "-c", _STOPWATCH, *check]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", check=False)
    *told, measured = done.stdout.splitlines() or [""]
    if done.returncode:
        raise PromptCacheError(f"nothing was measured: {done.stderr.strip() or f'exit code {done.returncode}'}")
    seconds, peak, exit_code = json.loads(measured)
    if exit_code:
        raise PromptCacheError(f"promptcache check ended with {exit_code}: {' '.join(told)[:300]}")
    return seconds, peak
