"""A service answers each request as an engine answers it alone, whatever else it does."""

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from promptcache.answers import TokenLogprobs
from promptcache.decode import Completion, Service, ServiceLimits, Ticket, decoder
from promptcache.decode.sampling import candidates, penalized, sample
from promptcache.decode.scheduler import Scheduler, num_admitted
from promptcache.decode.service import MAX_FAILED_STEPS, ServiceState
from promptcache.diagnostics import (
    Cancelled,
    ContextLengthExceeded,
    InvalidGeneration,
    InvalidValue,
    PromptError,
    QueueFull,
    QueueTimeout,
    ServiceClosed,
)
from promptcache.encode import encode, executor
from promptcache.encode.encode import Chain
from promptcache.engine import Engine
from promptcache.kv import FileTier, Store
from promptcache.language import DEFAULT_REPAIR
from promptcache.options import Options
from promptcache.rows import tail_size
from promptcache.rows.batch import Batch
from promptcache.rows.history import History
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.engine.asking import engine_of

SCHEMA = """<schema name="s">Root. <module name="a">Text of <parameter name="p" length="8" default="none"/> goes on.</module>
<union name="u"><module name="c">The c.</module><module name="d">Some other d.</module></union></schema>"""
SELECTIONS = ("", "<a/>", '<a p="some"/><c/>', '<a p="word"/><d/>', "<c/>")
PROMPTS = tuple(
    f'<prompt schema="s">{each}{text}</prompt>' for each in SELECTIONS for text in ("Go", "Go on, please. " * 8)
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"do_sample": False},
    {"do_sample": False, "min_new_tokens": 3, "eos_token_id": [32, 1_000_000]},  # the model has no such token
    {"do_sample": False, "repetition_penalty": 1.4},
    {"do_sample": False, "min_new_tokens": 3, "eos_token_id": [32, 101, 110]},
    {"do_sample": False, "no_repeat_ngram_size": 2},  # answered alone
)
MODEL = tiny_model()


def engine(*, history: bool = False, store: Store | None = None) -> Engine:
    return engine_of(MODEL, schema=SCHEMA, store=store, history=history, repair=str(DEFAULT_REPAIR))


ALONE = engine()


class Asked(Future[Completion]):
    """The answer to one request: a listener that is a future, with the tokens that came."""

    def __init__(self) -> None:
        super().__init__()
        self.token_ids: list[int] = []
        self.started = threading.Event()

    def __call__(self, item: int | TokenLogprobs | Completion | BaseException) -> None:
        if isinstance(item, int | TokenLogprobs):
            self.token_ids.append(item if isinstance(item, int) else item.token_id)
            self.started.set()
        elif isinstance(item, BaseException):
            self.set_exception(item)
        else:
            self.set_result(item)


def ask(service: Service, prompt: str, **options: Any) -> tuple[Asked, Ticket]:
    asked = Asked()
    return asked, service.submit(prompt, asked, **options)


@pytest.fixture
def service() -> Any:
    made = engine().service()
    yield made
    made.close()


def test_a_service_that_is_interrupted_before_its_thread_starts_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before the start of the thread is raised as it is, and the end of the service raises nothing."""
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    made = engine()

    def interrupt(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            made.service()
    gc.collect()

    assert raised == []


@pytest.mark.law
@settings(max_examples=law_examples(0.05), deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.sampled_from(PROMPTS), st.sampled_from(OPTIONS), st.integers(3, 9)), min_size=1, max_size=8
    ),
    limits=st.builds(
        ServiceLimits,
        max_rows=st.integers(1, 5),
        step_tokens=st.integers(1, 40),
        tail_bytes=st.integers(1, 400).map(lambda number: number * MODEL.shape.token_bytes),
    ),
    history=st.booleans(),
    far_tokens=st.none() | st.integers(0, 200),
)
def test_greedy_answers_do_not_depend_on_neighbors(
    requests: list[tuple[str, dict[str, Any], int]], limits: ServiceLimits, history: bool, far_tokens: int | None
) -> None:
    """Each answer is that of `generate`, under any limits, in any company, and with memory for `far_tokens` only."""
    store = None
    if far_tokens is not None:
        budget_bytes = far_tokens * MODEL.shape.token_bytes
        store = Store(MODEL.shape, [FileTier("memory://far")], budget_bytes=budget_bytes)
    with engine(history=history, store=store).service(limits) as made:
        asked = [ask(made, prompt, max_new_tokens=number, **options)[0] for prompt, options, number in requests]
        for each, (prompt, options, number) in zip(asked, requests, strict=True):
            found, expected = each.result(60), ALONE.generate(prompt, max_new_tokens=number, **options)
            assert found.token_ids == expected.token_ids == tuple(each.token_ids)
            assert (found.text, found.finish_reason, found.level) == (
                expected.text,
                expected.finish_reason,
                expected.level,
            )
            usage = found.usage
            assert usage.num_reused_tokens == expected.usage.num_reused_tokens
            assert usage.num_history_tokens + usage.num_new_tokens == expected.usage.num_new_tokens
        counts = made.counts
        assert (counts.num_running, counts.num_waiting, counts.tail_bytes) == (0, 0, 0)


@pytest.mark.law
@settings(max_examples=law_examples(0.5), deadline=None)
@given(
    seed=st.integers(0, 2**20),
    size=st.sampled_from((5, 40, 1500)),
    temperature=st.floats(0.1, 3.0),
    top_k=st.sampled_from((0, 1, 3, 50)),
    top_p=st.sampled_from((0.05, 0.5, 0.9, 0.999, 1.0)),
    penalty=st.sampled_from((1.0, 1.3, 0.7)),
    min_new_tokens=st.integers(0, 3),
)
def test_sampling_has_the_distribution_of_transformers(
    seed: int, size: int, temperature: float, top_k: int, top_p: float, penalty: float, min_new_tokens: int
) -> None:
    """Probabilities are those of transformers, but all tokens that are as probable as the last of top-p are kept."""
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * 64 * torch.randn((2, size), generator=generator, dtype=torch.float64)).round() / 64
    seen = torch.randint(size, (2, 6), generator=generator)
    ends = (1, 3)
    row = Options(
        do_sample=True,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=penalty,
        min_new_tokens=min_new_tokens,
        eos_token_id=ends,
    )
    rows: list[Any] = [SimpleNamespace(seen=each[None], token_ids=[0]) for each in seen]

    expected = RepetitionPenaltyLogitsProcessor(penalty)(seen, logits.clone())
    expected = MinNewTokensLengthLogitsProcessor(5, min_new_tokens, list(ends), device="cpu")(seen, expected)
    expected = TemperatureLogitsWarper(temperature)(seen, expected)
    if top_k:
        expected = TopKLogitsWarper(top_k)(seen, expected)
    if top_p < 1.0:
        kept = TopPLogitsWarper(top_p)(seen, expected)
        least = kept.masked_fill(kept.isneginf(), torch.inf).amin(-1, keepdim=True)
        expected = expected.masked_fill(expected < least, -torch.inf)
    tokens, weights = candidates(penalized(logits, row, rows) / temperature, row)
    found = torch.zeros_like(logits).scatter_add_(1, tokens, weights)
    found /= found.sum(-1, keepdim=True)

    assert (found - expected.softmax(-1)).abs().max() < 1e-9


def test_tokens_are_drawn_with_their_probabilities() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64).expand(4000, -1)
    generator = torch.Generator().manual_seed(0)
    row: Any = SimpleNamespace(sampling=Options(do_sample=True), generator=generator, token_ids=[])

    drawn = torch.bincount(torch.tensor(sample(logits, [row] * 4000)), minlength=4) / 4000

    expected = logits[0].softmax(-1)
    assert ((drawn - expected).abs() < 4 * (expected * (1 - expected) / 4000).sqrt()).all()


@pytest.mark.law
@settings(max_examples=law_examples())
@given(
    sizes=st.lists(st.integers(1, 20), max_size=30),
    max_rows=st.integers(1, 6),
    limit=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_admission_keeps_the_order_and_the_budget(sizes: list[int], max_rows: int, limit: int, seed: int) -> None:
    """Requests join in order of arrival, never exceed the limits together, and all of them join."""
    leaves = random.Random(seed)
    waiting, running, joined = list(enumerate(sizes)), list[tuple[int, int]](), []
    for _ in range(10 * len(sizes) + 10):
        reserved = sum(size for _, size in running)
        count = num_admitted([size for _, size in waiting], len(running), reserved, max_rows, limit)
        running += waiting[:count]
        joined += waiting[:count]
        del waiting[:count]
        assert len(running) <= max_rows
        assert len(running) <= 1 or sum(size for _, size in running) <= limit
        if running and leaves.random() < 0.7:
            running.pop(leaves.randrange(len(running)))

    assert joined == list(enumerate(sizes))


@given(num_own=st.integers(1, 3000), max_new_tokens=st.integers(1, 3000))
def test_reserved_room_holds_the_whole_request(num_own: int, max_new_tokens: int) -> None:
    reserved = tail_size(num_own + max_new_tokens)
    assert reserved >= num_own + max_new_tokens
    assert reserved & (reserved - 1) == 0


@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram_size": 3}], ids=["plain", "with processors"])
def test_a_cancelled_request_ends_between_two_steps(options: dict[str, Any], service: Service) -> None:
    """A request that is cancelled while it runs or waits ends with `Cancelled`, and its neighbor is answered."""
    asked, ticket = ask(service, PROMPTS[2], max_new_tokens=2000, do_sample=False, eos_token_id=[], **options)
    other = ask(service, PROMPTS[4], max_new_tokens=20, do_sample=False)[0]
    assert asked.started.wait(30)
    late, late_ticket = ask(service, PROMPTS[2], max_new_tokens=2000, do_sample=False, eos_token_id=[], **options)
    late_ticket.cancel()
    ticket.cancel()

    for each in (asked, late):
        with pytest.raises(Cancelled):
            each.result(30)
    assert len(asked.token_ids) < 2000
    assert other.result(30).token_ids == ALONE.generate(PROMPTS[4], max_new_tokens=20, do_sample=False).token_ids


class HeldWork:
    """Forward passes that encode, claims of keys, or reads of a tier, which are noted and wait until `is_open`."""

    def __init__(self) -> None:
        self.is_open, self.has_begun = threading.Event(), threading.Event()
        self.started: list[object] = []

    def wait(self, *started: object) -> None:
        self.started += started
        self.has_begun.set()
        assert self.is_open.wait(60)

    def compute(self, model: Any, batch: Sequence[Chain], held: Any) -> Iterator[Any]:
        self.wait(*(link for chain in batch for link in chain))
        return encode.compute(model, batch, held)

    @contextmanager
    def claim(
        self, chains: Sequence[Sequence[str]], timeout_s: float, on_wait: object = None
    ) -> Iterator[frozenset[str]]:
        """Wait, as for another process that has the claims."""
        self.wait()
        yield frozenset(key for each in chains for key in each)


@pytest.fixture
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Service, HeldWork]]:
    """A service that has the root and the module `c`. All other KV waits, by default in a network."""
    kind, held, store = getattr(request, "param", "read"), HeldWork(), None
    ALONE.warm(pairs=True)
    if kind == "read":
        tier = FileTier(f"memory://{request.node.nodeid}")
        engine(store=Store(MODEL.shape, [tier])).warm(pairs=True)
        store = Store(MODEL.shape, [tier])
    made = engine(store=store)
    made.generate(PROMPTS[8], max_new_tokens=1)
    if store is not None:
        read = tier.read
        monkeypatch.setattr(tier, "read", lambda key: (held.wait(key), read(key))[1])
    else:
        monkeypatch.setattr(executor if kind == "compute" else made.store, kind, getattr(held, kind))
    with made.service() as service:
        yield service, held
        held.is_open.set()


@pytest.mark.parametrize("held", ["read", "compute", "claim"], indirect=True)
def test_rows_go_on_while_others_wait_for_kv(held: tuple[Service, HeldWork]) -> None:
    """A running request and later ones end while others wait for KV. No encoding is read or computed twice."""
    (service, work), options = held, {"max_new_tokens": 20, "do_sample": False}
    prompts = [PROMPTS[4], PROMPTS[4], PROMPTS[2], PROMPTS[4]]
    late = [ask(service, prompt, **options)[0] for prompt in prompts]
    assert work.has_begun.wait(30)

    quick = ask(service, PROMPTS[8], **options)[0]
    assert quick.result(30).token_ids == ALONE.generate(PROMPTS[8], **options).token_ids
    assert not any(each.done() for each in late)
    work.is_open.set()

    for each, prompt in zip(late, prompts, strict=True):
        assert each.result(30).token_ids == ALONE.generate(prompt, **options).token_ids
    assert len(set(work.started)) == len(work.started)


def test_a_request_is_cancelled_while_it_waits_for_kv(held: tuple[Service, HeldWork]) -> None:
    """It ends at once, and one that waits for the same KV gets it."""
    service, work = held
    asked, ticket = ask(service, PROMPTS[2], max_new_tokens=4, do_sample=False)
    other = ask(service, PROMPTS[2], max_new_tokens=4, do_sample=False)[0]
    assert work.has_begun.wait(30)
    ticket.cancel()

    with pytest.raises(Cancelled):
        asked.result(30)
    work.is_open.set()
    assert other.result(30).token_ids == ALONE.generate(PROMPTS[2], max_new_tokens=4, do_sample=False).token_ids


def test_an_error_in_another_thread_ends_its_request_only(
    held: tuple[Service, HeldWork], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, work = held
    with monkeypatch.context() as patched:
        patched.setattr(Store, "_from_tiers", Mock(side_effect=MemoryError("no room")))
        with pytest.raises(MemoryError, match="no room"):
            ask(service, PROMPTS[2], max_new_tokens=4, do_sample=False)[0].result(30)
    work.is_open.set()
    assert ask(service, PROMPTS[2], max_new_tokens=4, do_sample=False)[0].result(30).token_ids


def test_a_service_is_closed_while_requests_wait_for_kv(held: tuple[Service, HeldWork]) -> None:
    service, work = held
    asked = ask(service, PROMPTS[2], max_new_tokens=4, do_sample=False)[0]
    assert work.has_begun.wait(30)
    service.close()

    with pytest.raises(ServiceClosed):
        asked.result(0)


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
def test_nothing_more_is_encoded_for_a_request_that_has_ended(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends after the forward pass that runs."""
    made, work = engine(), HeldWork()
    modules = '<module name="x">One.</module><module name="y">Two.</module>'
    made.add_schema(f'<schema name="apart" context="guaranteed">{modules}</schema>')
    monkeypatch.setattr(encode, "CHUNK_TOKENS", 4)  # each module is a forward pass
    monkeypatch.setattr(executor, "compute", work.compute)
    service = made.service()
    asked, ticket = ask(service, '<prompt schema="apart"><x/><y/>?</prompt>', max_new_tokens=4)
    assert work.has_begun.wait(30)
    first = tuple(work.started)
    if ends == "cancelled":
        ticket.cancel()
        with pytest.raises(Cancelled):
            asked.result(30)
    service.close()
    work.is_open.set()
    for thread in threading.enumerate():
        if thread.name.startswith("promptcache-fetch"):
            thread.join(30)

    assert asked.done()
    assert tuple(work.started) == first


def test_bad_requests_are_refused_before_they_wait(service: Service) -> None:
    for error, prompt, options in (
        (PromptError, '<prompt schema="s"><nothing/></prompt>', {}),
        (InvalidGeneration, PROMPTS[0], {"max_tokens": 3}),
        *((InvalidGeneration, PROMPTS[0], {"temperature": value}) for value in (1e-40, 1e-320)),
        *((InvalidGeneration, PROMPTS[0], {"repetition_penalty": value}) for value in (1e-40, 1e300)),
        (InvalidGeneration, PROMPTS[0], {"eos_token_id": 10**20}),
        (ContextLengthExceeded, PROMPTS[0], {"max_new_tokens": 10**6}),
        (InvalidValue, PROMPTS[0], {"seed": -1}),
    ):
        with pytest.raises(error):
            ask(service, prompt, **options)
    with pytest.raises(InvalidValue):
        service.submit(PROMPTS[0], None)
    assert service.counts.num_waiting == 0


def test_a_full_queue_refuses() -> None:
    """The number and the tokens of waiting requests are limited; a refusal says which, and nothing is lost."""
    with engine().service(ServiceLimits(max_rows=1, max_waiting=2, max_waiting_tokens=600)) as made:
        running, ticket = ask(made, PROMPTS[0], max_new_tokens=3000, do_sample=False)
        assert running.started.wait(30)
        waiting = ask(made, PROMPTS[0], max_new_tokens=3, do_sample=False)[0]
        with pytest.raises(QueueFull) as by_tokens:
            ask(made, PROMPTS[0], max_new_tokens=900)
        ask(made, PROMPTS[0], max_new_tokens=3, do_sample=False)
        with pytest.raises(QueueFull) as by_count:
            ask(made, PROMPTS[0], max_new_tokens=3)
        ticket.cancel()
        assert len(waiting.result(30).token_ids) == 3
        assert (by_tokens.value.reason, by_count.value.reason) == ("queue_tokens_full", "queue_full")


def test_a_request_that_waits_too_long_ends() -> None:
    with engine().service(ServiceLimits(max_rows=1, queue_timeout_s=0.05)) as made:
        running, ticket = ask(made, PROMPTS[0], max_new_tokens=3000, do_sample=False)
        assert running.started.wait(30)
        with pytest.raises(QueueTimeout):
            ask(made, PROMPTS[0], max_new_tokens=3)[0].result(30)
        ticket.cancel()


def test_a_drained_service_ends_what_runs_and_refuses_the_rest(service: Service) -> None:
    asked = ask(service, PROMPTS[2], max_new_tokens=30, do_sample=False)[0]

    assert service.drain(30)
    assert asked.done()
    assert service.state is ServiceState.DRAINING
    with pytest.raises(ServiceClosed) as refused:
        ask(service, PROMPTS[2])
    assert refused.value.reason == "draining"


FORKING = """
import os, signal, torch
from promptcache.diagnostics import ServiceClosed
from tests.decode.test_service import PROMPTS, ask, engine

made = engine()
service = made.service()
assert ask(service, PROMPTS[0], max_new_tokens=3)[0].result(60)
child = os.fork()
if child == 0:
    signal.alarm(60)  # a request that nothing answers ends here
    torch.set_num_threads(1)
    assert service.state == "dead" and not service.drain(30)
    try:
        ask(service, PROMPTS[0])
    except ServiceClosed as error:
        assert "in each process" in str(error)
    else:
        os._exit(1)
    service.close()
    again = made.service()
    os._exit(0 if ask(again, PROMPTS[0], max_new_tokens=3)[0].result(60) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.process
def test_what_a_thread_of_the_parent_answers_is_refused_in_a_forked_process() -> None:
    """A service that was made before a fork says so in the child, and another one answers there."""
    assert subprocess.run([sys.executable, "-c", FORKING], timeout=240, check=False).returncode == 0


HELPED = """
import os, torch
from promptcache.encode import end_helping_threads
from tests.decode.test_service import engine

def num_threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
made = engine()
end_helping_threads()
alone = num_threads()
torch.ones(1 << 22).add(1)
assert num_threads() == alone + 1, "PyTorch has another OpenMP"
with made.service():
    assert num_threads() == alone + 1
"""


@pytest.mark.skipif(not [*Path(torch.__file__).parent.glob("lib/libgomp*")], reason="needs GNU's OpenMP")
@pytest.mark.process
def test_a_service_has_the_only_team_of_threads() -> None:
    """The helping thread of the thread that makes a service ends, and that of the service begins."""
    assert subprocess.run([sys.executable, "-c", HELPED], timeout=240, check=False).returncode == 0


@pytest.mark.parametrize("by_block", [False, True], ids=["close", "block"])
def test_a_closed_service_ends_everything(by_block: bool, service: Service) -> None:
    """Closing, also by the end of a block that fails, ends running and waiting requests with an error."""
    asked = [ask(service, PROMPTS[2], max_new_tokens=3000, do_sample=False)[0] for _ in range(3)]
    assert asked[0].started.wait(30)
    if by_block:
        with pytest.raises(RuntimeError, match="mine"), service:
            raise RuntimeError("mine")
    else:
        service.close()

    for each in asked:
        with pytest.raises(ServiceClosed):
            each.result(10)
    assert service.counts.tail_bytes == 0


def test_a_listener_waits_for_a_thread_that_submits(service: Service) -> None:
    """Also at the end, no lock of the service is held while listeners are called."""
    ended: list[bool] = []
    request = service.request(PROMPTS[2], max_new_tokens=3000, do_sample=False)

    def submit() -> None:
        with pytest.raises(ServiceClosed):
            service.submit_request(request, listen)

    def listen(item: object) -> None:
        if isinstance(item, ServiceClosed):
            other = threading.Thread(target=submit)
            other.start()
            other.join(10)
            ended.append(not other.is_alive())

    service.submit_request(request, listen)
    service.close()

    assert ended == [True]


def test_a_forward_pass_that_fails_ends_its_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed step fails the requests in it. Three in a row end the service."""
    step, failures = Batch.step, [1]

    def failing(self: Batch, *args: Any, **kwargs: Any) -> torch.Tensor:
        if failures[0]:
            failures[0] -= 1
            raise RuntimeError("on purpose")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(Batch, "step", failing)
    with engine().service() as made:
        with pytest.raises(RuntimeError, match="on purpose"):
            ask(made, PROMPTS[0], max_new_tokens=3)[0].result(30)
        assert ask(made, PROMPTS[0], max_new_tokens=3, do_sample=False)[0].result(30).token_ids
        failures[0] = 3
        for _ in range(3):
            with pytest.raises((RuntimeError, ServiceClosed)):
                ask(made, PROMPTS[0], max_new_tokens=3)[0].result(30)
        made._loop.thread.join(30)
        assert made.state is ServiceState.DEAD
        with pytest.raises(ServiceClosed) as refused:
            ask(made, PROMPTS[0])
        assert refused.value.reason == "worker_dead"


def test_sampling_that_fails_ends_the_requests_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """If sampling fails after a forward pass, the requests of this step end with the error. The service answers others,
    however often this happens."""
    with engine().service() as made:
        with monkeypatch.context() as patched:
            patched.setattr(decoder, "sample", _fail)
            for _ in range(MAX_FAILED_STEPS + 1):
                with pytest.raises(ArithmeticError):
                    ask(made, PROMPTS[0], max_new_tokens=3, do_sample=False)[0].result(30)
        assert ask(made, PROMPTS[0], max_new_tokens=3, do_sample=False)[0].result(30).token_ids
        assert made.state is ServiceState.READY


def test_a_request_without_a_probable_token_ends_alone(service: Service) -> None:
    """If options leave no token to sample, their request ends with an error, and its neighbor is answered."""
    every = list(range(MODEL.num_known_tokens))
    options: dict[str, Any] = {"do_sample": True, "eos_token_id": every, "min_new_tokens": 3, "max_new_tokens": 5}
    for _ in range(MAX_FAILED_STEPS + 1):
        bad = ask(service, PROMPTS[2], **options)[0]
        good = ask(service, PROMPTS[4], max_new_tokens=20, do_sample=False)[0]
        with pytest.raises(InvalidGeneration, match="no token has a probability"):
            bad.result(30)
        assert good.result(30).token_ids == ALONE.generate(PROMPTS[4], max_new_tokens=20, do_sample=False).token_ids


@pytest.mark.parametrize("timeout_s", [None, "x", True, -1, float("nan"), float("inf"), 1e20])
def test_a_wrong_timeout_drains_nothing(timeout_s: Any, service: Service) -> None:
    """It is refused before the service refuses requests."""
    with pytest.raises(InvalidValue):
        service.drain(timeout_s)
    assert service.state is ServiceState.READY


def test_history_that_fails_costs_no_answer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with engine(history=True).service() as made:
        monkeypatch.setattr(History, "keep", _fail)
        found = ask(made, PROMPTS[0], max_new_tokens=3, do_sample=False)[0].result(30)
        assert found.token_ids == ALONE.generate(PROMPTS[0], max_new_tokens=3, do_sample=False).token_ids
    assert "could not be kept" in caplog.text


def _fail(*_: Any, **__: Any) -> Any:
    raise ArithmeticError("on purpose")


@pytest.mark.parametrize("kind", [int, Completion, Cancelled])
def test_a_listener_that_raises_disturbs_nobody(kind: type, service: Service) -> None:
    """An error of a listener ends its request; other requests, and later ones, are answered."""

    class Raising(Asked):
        def __call__(self, item: int | TokenLogprobs | Completion | BaseException) -> None:
            super().__call__(item)
            if isinstance(item, kind):
                raise ArithmeticError("on purpose")

    bad = Raising()
    ticket = service.submit(PROMPTS[0], bad, max_new_tokens=60 if kind is Cancelled else 5, do_sample=False)
    good = ask(service, PROMPTS[0], max_new_tokens=5, do_sample=False)[0]
    if kind is Cancelled:
        ticket.cancel()

    assert len(good.result(30).token_ids) == 5
    later = ask(service, PROMPTS[0], max_new_tokens=5, do_sample=False)[0]
    assert len(later.result(30).token_ids) == 5
    assert service.state is ServiceState.READY


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_ends_the_thread_all_requests_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error in the thread fails every request and leaves a service that says that it is dead."""
    made = engine().service()

    def broken(*_: object) -> None:
        raise ArithmeticError("on purpose")

    monkeypatch.setattr(Scheduler, "step", broken)
    asked = ask(made, PROMPTS[0], max_new_tokens=5, do_sample=False)[0]

    with pytest.raises(ServiceClosed, match="worker_dead"):
        asked.result(30)
    assert made.state is ServiceState.DEAD
    with pytest.raises(ServiceClosed):
        ask(made, PROMPTS[0])
    made.close()
