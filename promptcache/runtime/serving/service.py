"""The requests of many threads on one engine: a bounded queue, and a thread that answers them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from promptcache.diagnostics import PromptCacheError, Unpicklable
from promptcache.runtime.answer import Request, answer, streaming
from promptcache.runtime.completion import Completion
from promptcache.runtime.executor import Executor
from promptcache.runtime.stream import TokenQueue

Listener: TypeAlias = Callable[[int | Completion | BaseException], None]


class Cancelled(PromptCacheError):
    """A request was cancelled before it was answered."""


class QueueFull(PromptCacheError):
    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ServiceClosed(PromptCacheError):
    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    max_rows: int = 32
    step_tokens: int = 64
    tail_bytes: int = 2**30
    max_waiting: int = 256
    max_waiting_tokens: int = 65536
    queue_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCounts:
    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    tail_bytes: int


class Ticket:
    def __init__(self, request: Request, listener: Listener, seed: int | None) -> None:
        self.request, self.listener, self.seed = request, listener, seed
        self.queue = _Listened(listener)

    def cancel(self) -> None:
        self.queue.closed.set()


class _Listened(TokenQueue):
    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.items = self  # type: ignore[assignment]
        self.listener = listener
        self._started = False

    def put(self, value: Any) -> None:
        if not self._started:
            self._started = True
            return
        for token_id in value.reshape(-1).tolist():
            self.listener(token_id)


class Service(Unpicklable):
    _instead = "make one in each process"

    def __init__(self, request: Callable[..., Request], executor: Executor, limits: ServiceLimits) -> None:
        self._request, self._executor, self._limits = request, executor, limits
        self._waiting: deque[Ticket] = deque()
        self._running: Ticket | None = None
        self._changed = threading.Condition()
        self.state = "ready"
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def counts(self) -> ServiceCounts:
        return ServiceCounts(
            num_running=int(self._running is not None),
            num_waiting=len(self._waiting),
            num_waiting_tokens=sum(each.request.plan.num_new_tokens for each in self._waiting),
            tail_bytes=0,
        )

    def submit(
        self,
        prompt: Any,
        listener: Listener,
        *,
        max_new_tokens: int | None = None,
        repair: str | None = None,
        salt: str | None = None,
        logprobs: int | None = None,
        seed: int | None = None,
        **generation: Any,
    ) -> Ticket:
        options: Mapping[str, Any] = generation
        request = self._request(prompt, repair, options, max_new_tokens, time.perf_counter(), logprobs, salt)
        ticket = Ticket(request, listener, seed)
        with self._changed:
            if self.state != "ready":
                raise ServiceClosed("the service ends", "draining" if self.state == "draining" else "worker_dead")
            if len(self._waiting) >= self._limits.max_waiting:
                raise QueueFull(f"{len(self._waiting)} requests wait already", "queue_full")
            if self.counts.num_waiting_tokens + request.plan.num_new_tokens > self._limits.max_waiting_tokens:
                raise QueueFull("too many tokens wait already", "queue_tokens_full")
            self._waiting.append(ticket)
            self._changed.notify_all()
        return ticket

    def drain(self, timeout_s: float) -> bool:
        with self._changed:
            self.state = "draining"
            return self._changed.wait_for(lambda: not self._waiting and self._running is None, timeout_s)

    def close(self) -> None:
        with self._changed:
            self.state = "dead"
            for each in (*self._waiting, *([self._running] if self._running else [])):
                each.cancel()
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self.state == "dead")
                if not self._waiting:
                    return
                ticket = self._running = self._waiting.popleft()
            ticket.listener(self._answer(ticket))
            with self._changed:
                self._running = None
                self._changed.notify_all()

    def _answer(self, ticket: Ticket) -> Completion | BaseException:
        if ticket.queue.closed.is_set():
            return Cancelled("cancelled")
        if ticket.seed is not None:
            torch.manual_seed(ticket.seed)
        try:
            done = answer(streaming(ticket.request, ticket.queue), self._executor)
        except Exception as error:  # noqa: BLE001
            return error
        return Cancelled("cancelled") if ticket.queue.closed.is_set() else done
