"""Metrics of the server for Prometheus. Names begin with `promptcache_`; units are as in vLLM's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from promptcache.kv import Store
from promptcache.runtime import Completion, Service

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """Counters and histograms of one server. Each server has a registry of its own."""

    def __init__(self, service: Service, store: Store) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"promptcache_{name}", words, labels, registry=registry)

        def histogram(name: str, words: str) -> Histogram:
            return Histogram(f"promptcache_{name}", words, buckets=_SECONDS, registry=registry)

        def gauge(name: str, words: str) -> Gauge:
            return Gauge(f"promptcache_{name}", words, registry=registry)

        gauge("requests_running", "Requests in the batch.").set_function(lambda: service.counts.num_running)
        gauge("requests_waiting", "Requests in the queue.").set_function(lambda: service.counts.num_waiting)
        gauge("tail_bytes_used", "KV of running requests.").set_function(lambda: service.counts.tail_bytes)
        gauge("store_bytes", "KV in the memory of the store.").set_function(store.nbytes)
        self._requests = counter("requests", "Answered requests.", "finish", "door")
        self._rejected = counter("rejected", "Refused requests.", "reason")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts, by the origin of their KV.", "source")
        self._generated = counter("generation_tokens", "Generated tokens.")
        self._module_tokens = counter("module_tokens", "Reused tokens of modules.", "schema", "source")
        self._faults = counter("store_faults", "Faults of the store that cost no answer.")
        self._first = histogram("time_to_first_token_seconds", "Time to the first token.")
        self._between = histogram("inter_token_latency_seconds", "Time between two tokens of an answer.")
        self._whole = histogram("e2e_request_latency_seconds", "Time to the whole answer.")

    def rejected(self, reason: str) -> None:
        """Count a request that was refused."""
        self._rejected.labels(reason).inc()

    def token(self, since_last_s: float, *, first: bool) -> None:
        """Count the time of one token."""
        (self._first if first else self._between).observe(since_last_s)

    def answered(self, completion: Completion, *, schema: str | None, finish: str, door: str, seconds: float) -> None:
        """Count an answer."""
        usage = completion.usage
        self._requests.labels(finish, door).inc()
        self._whole.observe(seconds)
        self._prompt_tokens.labels("reused").inc(usage.num_reused_tokens + usage.num_history_tokens)
        self._prompt_tokens.labels("prefilled").inc(usage.num_new_tokens)
        self._prompt_tokens.labels("encoded").inc(usage.num_encoded_tokens)
        self._generated.inc(usage.num_generated_tokens)
        self._faults.inc(len(usage.faults))
        for each in usage.modules:
            self._module_tokens.labels(schema or "", each.source).inc(each.num_tokens)

    def ended(self, finish: str, door: str) -> None:
        """Count a request that ended without an answer: cancelled, timed out or failed."""
        self._requests.labels(finish, door).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
