"""The benchmark of structured output: `python -m benchmarks structured`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from promptcache.bench.harness import Benchmark, BenchReport, Progress, Samples, compare, silent
from promptcache.engine import Engine
from promptcache.runtime import Completion, Service, TokenLogprobs

_MESSAGES = [{"role": "user", "content": "Write numbers."}]
_ENDLESS = 1_000_000


def compare_structured(
    engine: Engine, num_rows: int, num_tokens: int, repeats: int, progress: Progress = silent
) -> BenchReport:
    """Compare rows that each have a JSON schema of their own with rows without a format.

    Returns:
        A row for a whole batch, and one for the first token of a single request with a known schema.
    """
    formats = [_schema(index) for index in range(num_rows)]
    with engine.service() as service:
        benchmarks = [
            Benchmark(
                title=f"{count} rows, {tokens} tokens",
                data={"rows": count, "tokens": tokens},
                alternatives={
                    "free": partial(_answer, service, [None] * count, tokens),
                    "formats": partial(_answer, service, formats[:count], tokens),
                },
            )
            for count, tokens in ((num_rows, num_tokens), (1, 1))
        ]
        return compare(
            "structured",
            f"milliseconds for each token of a row, or for a first token; median of {repeats} rounds",
            ("rows", "tokens", "free, ms", "formats, ms", "ratio"),
            benchmarks,
            _cells,
            repeats=repeats,
            device=engine.model.device,
            progress=progress,
        )


def _schema(index: int) -> dict[str, Any]:
    """Return a schema whose answers do not end, different for each index."""
    item = {"type": "object", "properties": {f"n{index}": {"type": "integer"}, "word": {"type": "string"}}}
    return {"type": "array", "items": {**item, "required": [f"n{index}", "word"]}, "minItems": _ENDLESS}


def _answer(service: Service, formats: Sequence[dict[str, Any] | None], num_tokens: int) -> None:
    """Let a service answer a request for each format together."""
    ended = [Future[Completion]() for _ in formats]
    for each, output in zip(ended, formats, strict=True):
        end: dict[str, Any] = {"eos_token_id": []} if output is None else {}
        service.submit(
            _MESSAGES, partial(_take, each), output=output, max_new_tokens=num_tokens, do_sample=False, **end
        )
    for each in ended:
        assert each.result().usage.num_generated_tokens == num_tokens


def _take(ended: Future[Completion], item: int | TokenLogprobs | Completion | BaseException) -> None:
    if isinstance(item, Completion):
        ended.set_result(item)
    elif isinstance(item, BaseException):
        ended.set_exception(item)


def _cells(benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
    free, formats = (1e3 * each.median / benchmark.data["tokens"] for each in samples.values())
    return (
        str(benchmark.data["rows"]),
        str(benchmark.data["tokens"]),
        f"{free:.2f}",
        f"{formats:.2f}",
        f"{formats / free:.3f}",
    )
