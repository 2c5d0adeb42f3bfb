"""Metrics of the server for Prometheus. Names begin with `promptcache_`; units are as in vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from promptcache.decode import Completion, ServiceCounts, ServiceObserver
from promptcache.kv import Store
from promptcache.session import EngineStats

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics(ServiceObserver):
    """Counters and histograms of one server. Each server has a registry of its own.

    Requests with `n` answers count as `n` requests, because each answer is one row of the batch. A refused request
    counts once.
    """

    def __init__(self, counts: Callable[[], ServiceCounts], store: Store, stats: Callable[[], EngineStats]) -> None:
        """Create metrics of what the service has to do, of the engine's store, and of its work in idle time."""
        self._registry = registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"promptcache_{name}", words, labels, registry=registry)

        def histogram(name: str, words: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
            return Histogram(f"promptcache_{name}", words, buckets=buckets, registry=registry)

        def gauge(name: str, words: str) -> Gauge:
            return Gauge(f"promptcache_{name}", words, registry=registry)

        gauge("requests_running", "Requests in the batch.").set_function(lambda: counts().num_running)
        gauge("requests_waiting", "Requests in the queue.").set_function(lambda: counts().num_waiting)
        gauge("tail_bytes_used", "KV of running requests.").set_function(lambda: counts().tail_bytes)
        gauge("promoted_combinations", "Combinations that were promoted.").set_function(
            lambda: stats().promotions.num_combinations
        )
        registry.register(_StoreBytes(store))
        self._requests = counter("requests", "Answered requests.", "finish", "endpoint")
        self._rejected = counter("rejected", "Refused requests.", "reason")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts, by the origin of their KV.", "source")
        self._generated = counter("generation_tokens", "Generated tokens.")
        self._module_tokens = counter("module_tokens", "Reused tokens of modules.", "schema", "source")
        self._promoted = counter("promoted_requests", "Answered requests that were exact because of a promotion.")
        self._faults = counter("store_faults", "Faults of the store that cost no answer.")
        self._step_errors = counter("step_errors", "Steps that failed.")
        self._queued = histogram("request_queue_time_seconds", "Time until a request was admitted.")
        self._step = histogram("step_seconds", "Time of one step of the batch.")
        self._step_rows = histogram("step_rows", "Requests in one step of the batch.", _ROWS)
        self._first = histogram("time_to_first_token_seconds", "Time to the first token.")
        self._between = histogram("inter_token_latency_seconds", "Time between two tokens of an answer.")
        self._whole = histogram("e2e_request_latency_seconds", "Time to the whole answer.")

    def admitted(self, waited_s: float) -> None:
        self._queued.observe(waited_s)

    def stepped(self, step_s: float, num_rows: int) -> None:
        self._step.observe(step_s)
        self._step_rows.observe(num_rows)

    def step_failed(self) -> None:
        self._step_errors.inc()

    def rejected(self, reason: str) -> None:
        """Count a request that was refused."""
        self._rejected.labels(reason).inc()

    def token(self, since_last_s: float, *, first: bool) -> None:
        """Count the time of one token."""
        (self._first if first else self._between).observe(since_last_s)

    def answered(
        self, completion: Completion, *, schema: str | None, finish: str, endpoint: str, seconds: float
    ) -> None:
        """Count an answer."""
        usage = completion.usage
        self._requests.labels(finish, endpoint).inc()
        self._whole.observe(seconds)
        self._prompt_tokens.labels("reused").inc(usage.num_reused_tokens + usage.num_history_tokens)
        self._prompt_tokens.labels("prefilled").inc(usage.num_new_tokens)
        self._prompt_tokens.labels("encoded").inc(usage.num_encoded_tokens)
        self._generated.inc(usage.num_generated_tokens)
        self._promoted.inc(usage.promoted)
        self._faults.inc(len(usage.faults))
        for each in usage.modules:
            self._module_tokens.labels(schema or "", each.source).inc(each.num_tokens)

    def store_fault(self) -> None:
        """Count a fault of the store while schemas were encoded."""
        self._faults.inc()

    def ended(self, finish: str, endpoint: str, num_rows: int, num_tokens: int) -> None:
        """Count a request that ended without a whole answer, and its tokens: cancelled, timed out or failed."""
        self._requests.labels(finish, endpoint).inc(num_rows)
        self._generated.inc(num_tokens)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _StoreBytes(Collector):
    """The size of the store by tier. A remote tier is left out: each scrape would list its files."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily("promptcache_store_bytes", "Stored KV by tier.", labels=["tier"])
        for tier, nbytes in self._store.local_bytes().items():
            gauge.add_metric([str(tier)], nbytes)
        yield gauge
