"""Serving: batches of requests that share forward passes, a service that runs them, and scoring."""

from promptcache.runtime.serving.admission import ServiceLimits
from promptcache.runtime.serving.answer import answer, answer_batch
from promptcache.runtime.serving.job import Listener
from promptcache.runtime.serving.metrics import ServiceObserver
from promptcache.runtime.serving.score import Score, logits_batch, score
from promptcache.runtime.serving.service import Service, ServiceCounts, ServiceState, Ticket

__all__ = [
    "Listener",
    "Score",
    "Service",
    "ServiceCounts",
    "ServiceLimits",
    "ServiceObserver",
    "ServiceState",
    "Ticket",
    "answer",
    "answer_batch",
    "logits_batch",
    "score",
]
