"""A service: a thread that owns a scheduler, and methods that any thread may call."""

from __future__ import annotations

import os
import threading
import weakref
from enum import StrEnum
from typing import Self, Unpack

from promptcache.decode.decoder import ServiceObserver
from promptcache.decode.job import Job, Listener, job_of
from promptcache.decode.request import Request, RequestBuilder
from promptcache.decode.scheduler import Scheduler, ServiceCounts
from promptcache.diagnostics import FLAG, FUNCTION, InvalidValue, QueueFull, ServiceClosed, Unpicklable, number, shown
from promptcache.encode import end_helping_threads
from promptcache.locks import new_rlock
from promptcache.options import OptionKeywords
from promptcache.planning import PromptSource
from promptcache.settings import ServiceLimits

MAX_FAILED_STEPS = 3
"""A service is dead after this number of failed forward passes in a row."""

_TIMEOUT = number(0, threading.TIMEOUT_MAX)


class ServiceState(StrEnum):
    """Whether a service takes requests, refuses new ones because it ends, or has failed."""

    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class Ticket:
    """A request that was submitted.

    Attributes:
        request: The request as planned.
    """

    def __init__(self, job: Job) -> None:
        self.request = job.request
        self._job = job

    def cancel(self) -> None:
        """Stop the request between two steps. Its listener gets `Cancelled`, unless it has ended."""
        self._job.is_cancelled = True


class Service(Unpicklable):
    """Answers many requests together, in a thread of its own. All methods are thread-safe."""

    _instead = "make one in each process"

    def __init__(
        self, requests: RequestBuilder, limits: ServiceLimits | None = None, observer: ServiceObserver | None = None
    ) -> None:
        """Start a service.

        Args:
            requests: Builds requests from prompts.
            limits: Its limits.
            observer: Receives figures of its work. It is called in the service's thread.
        """
        self.limits = ServiceLimits() if limits is None else limits
        if not isinstance(self.limits, ServiceLimits):
            raise InvalidValue(f"limits={shown(limits)} is not allowed: ServiceLimits(max_rows=…, …) is expected")
        if not isinstance(observer, ServiceObserver | None):
            raise InvalidValue("observer is not a ServiceObserver")
        self._requests = requests
        names = ("max_rows", "step_tokens", "tail_bytes", "queue_timeout_s")
        own = {name: getattr(self.limits, name) for name in names}
        self._loop = _Loop(Scheduler(requests.executor, **own, observer=observer, fetches_apart=True))
        # The thread has no reference to the service, so a service that is dropped ends. At exit, the interpreter aborts
        # if a thread is inside torch.
        self._end = weakref.finalize(self, self._loop.close)
        end_helping_threads()  # of the thread that made the engine, most often
        self._loop.thread.start()

    @property
    def state(self) -> ServiceState:
        """Whether it takes requests. In a forked process, which does not have its thread, it is dead."""
        return ServiceState.DEAD if self._loop.is_of_parent else self._loop.state

    @property
    def counts(self) -> ServiceCounts:
        """Its numbers of running and waiting requests now."""
        return self._loop.scheduler.counts

    def submit(
        self, prompt: PromptSource, listener: Listener, *, reuse: bool = True, **options: Unpack[OptionKeywords]
    ) -> Ticket:
        """Submit a request. It is planned and checked in the calling thread, before anything is queued.

        Args:
            prompt: As for `Engine.generate`.
            listener: Called in the service's thread: with each token ID, or its `TokenLogprobs` if `logprobs` is
                given, then with the `Completion` or an error. It must not block.
            reuse: False prefills all tokens at their positions, without KV of modules or history, and keeps none. This
                is for comparisons.
            options: As for `Engine.generate`.

        Raises:
            QueueFull: Too many requests or tokens wait.
            ServiceClosed: The service does not take requests, or was made before this process was forked.
            PromptCacheError: As `Engine.generate`, for requests that are not valid.
        """
        FUNCTION.check("listener", listener, InvalidValue)
        return self.submit_request(self.request(prompt, reuse=reuse, **options), listener)

    def request(self, prompt: PromptSource, *, reuse: bool = True, **options: Unpack[OptionKeywords]) -> Request:
        """Return the planned request of a prompt, for `submit_request`. Arguments and errors are those of `submit`."""
        FLAG.check("reuse", reuse, InvalidValue)
        self._loop.check_open()
        request = self._requests.build(prompt, self._requests.read(options))
        return request if reuse else request.without_reuse()

    def submit_request(self, request: Request, listener: Listener) -> Ticket:
        """Submit a request that is planned. As `submit`."""
        return self.submit_job(job_of(request, listener, self._requests.executor))

    def submit_job(self, job: Job) -> Ticket:
        """Submit a request with its listener. As `submit`."""
        self._loop.add(job, self.limits)
        return Ticket(job)

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the others. Return whether all of them have ended.

        In a forked process, False is returned at once: the requests of the parent do not end here.

        Args:
            timeout_s: Seconds to wait at most, up to `threading.TIMEOUT_MAX`.
        """
        _TIMEOUT.check("timeout_s", timeout_s, InvalidValue)
        return self._loop.drain(timeout_s)

    def close(self) -> None:
        """End the service. Requests that have not ended get `ServiceClosed`."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Loop:
    """The work of the service's thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = ServiceState.READY
        self._is_closed = False
        self._process_id = os.getpid()
        self._changed = threading.Condition(new_rlock())
        self._is_idle = True
        self.thread = threading.Thread(target=self.run, name="promptcache-service", daemon=True)

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked from the one with the thread."""
        return os.getpid() != self._process_id

    def check_open(self) -> None:
        """Raise `ServiceClosed` if no request is taken."""
        if self.is_of_parent:
            raise ServiceClosed(
                f"the service belongs to process {self._process_id}, from which this one was forked without the thread "
                "that answers: make a service in each process, engine.service()",
                "worker_dead",
            )
        if self.state is not ServiceState.READY:
            reason = "worker_dead" if self.state is ServiceState.DEAD else "draining"
            raise ServiceClosed(f"the service takes no requests: {reason}", reason)

    def add(self, job: Job, limits: ServiceLimits) -> None:
        """Queue a job, if there is room."""
        with self._changed:
            self.check_open()
            counts = self.scheduler.counts
            num, tokens = counts.num_waiting, counts.num_waiting_tokens
            if num >= limits.max_waiting:
                raise QueueFull(f"{num} requests wait, and the limit is {limits.max_waiting}: try later", "queue_full")
            if num and tokens + job.num_tokens > limits.max_waiting_tokens:
                raise QueueFull(
                    f"waiting requests have {tokens} tokens, and this one {job.num_tokens}: the limit is "
                    f"{limits.max_waiting_tokens}; try later",
                    "queue_tokens_full",
                )
            self.scheduler.add(job)
            self._is_idle = False
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Refuse new jobs and wait until there are none."""
        with self._changed:
            if self.state is ServiceState.READY:
                self.state = ServiceState.DRAINING
            if self.is_of_parent:
                return False
            return self._changed.wait_for(lambda: self._is_idle or self._is_closed, timeout_s)

    def close(self) -> None:
        """End the thread, and wait for it."""
        with self._changed:
            self._is_closed = True
            if self.state is ServiceState.READY:
                self.state = ServiceState.DRAINING
            self._changed.notify_all()
        if self.thread.is_alive() and threading.current_thread() is not self.thread:  # it may not have started
            self.thread.join()

    def run(self) -> None:
        """Run steps until the service is closed or too many of them fail. All jobs get a result in any case."""
        state = ServiceState.DEAD
        try:
            self.scheduler.warm_up()
            while self.scheduler.decoder.num_failed < MAX_FAILED_STEPS:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or not self._is_idle)
                    if self._is_closed:
                        state = ServiceState.DRAINING
                        break
                if not self.scheduler.step():
                    with self._changed:
                        self._is_idle = not self.scheduler.counts.num_waiting
                        self._changed.notify_all()
        finally:
            with self._changed:
                self.state = state  # no job is added from now on
            reason = "worker_dead" if state is ServiceState.DEAD else "draining"
            # Without the lock: listeners may take one of the caller, who may hold it and submit.
            self.scheduler.fail_all(ServiceClosed(f"the service has ended: {reason}", reason))
            with self._changed:
                self._is_idle = True
                self._changed.notify_all()
