"""Load is the same for the same seed, and clients keep to their loop."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from promptcache.bench import load
from promptcache.bench.load import (
    AnswerTimes,
    LoadRequest,
    LoadSizes,
    closed_loop,
    draw_requests,
    draw_text,
    open_loop,
    poisson_arrivals,
)

SIZES = LoadSizes(num_modules=4, module_tokens=8, new_tokens=3, answer_tokens=2)
REQUESTS = draw_requests("0", 12, SIZES, str.split)


def test_a_seed_gives_the_same_load() -> None:
    """Requests and arrivals are a function of their seed, and another seed gives others."""
    first, again, other = (draw_requests(seed, 20, SIZES, str.split) for seed in ("1", "1", "2"))
    assert first == again
    assert {each.text for each in first}.isdisjoint(each.text for each in other)
    assert poisson_arrivals("1", 5, 2.0) == poisson_arrivals("1", 5, 2.0) != poisson_arrivals("2", 5, 2.0)


def test_requests_use_any_modules_in_order() -> None:
    """Selections are sorted, not empty, and of every size; every module is used."""
    selections = [each.modules for each in draw_requests("0", 200, SIZES, str.split)]

    assert {len(each) for each in selections} == {1, 2, 3, 4}
    assert all(list(each) == sorted(set(each)) for each in selections)
    assert {index for each in selections for index in each} == set(range(SIZES.num_modules))


@pytest.mark.parametrize("num_used", [1, 3, 4])
def test_a_number_of_modules_can_be_given(num_used: int) -> None:
    """Each request then uses as many, in order."""
    requests = draw_requests("0", 50, replace(SIZES, num_used=num_used), str.split)

    assert {len(each.modules) for each in requests} == {num_used}
    assert all(list(each.modules) == sorted(set(each.modules)) for each in requests)


@pytest.mark.parametrize("tokenize", [str.split, list])
def test_texts_are_as_short_as_their_tokens_allow(tokenize: load.Tokenize) -> None:
    """A text has the tokens that were asked for, and without its last word it has fewer."""
    text = draw_text(load.random.Random(0), 40, tokenize)

    assert len(tokenize(text)) >= 40 > len(tokenize(text.rpartition(" ")[0]))


def test_arrivals_are_a_poisson_process() -> None:
    """Gaps have the mean 1 / rate and a standard deviation of the same size; at twice the rate all come twice as early."""
    arrivals = poisson_arrivals("0", 20_000, 4.0)
    gaps = [after - before for before, after in zip((0.0, *arrivals), arrivals, strict=False)]

    assert min(gaps) > 0
    assert statistics.mean(gaps) == pytest.approx(1 / 4, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 4, rel=0.05)
    assert poisson_arrivals("0", 20_000, 8.0) == pytest.approx([each / 2 for each in arrivals])


@pytest.mark.parametrize("num_clients", [1, 3])
def test_closed_loops_have_one_request_of_each_client(num_clients: int) -> None:
    """Never more requests than clients are under way, and as many at the start; each request is sent once."""
    under_way, most, sent = 0, 0, []
    lock, all_busy = threading.Lock(), threading.Barrier(num_clients)

    def ask(request: LoadRequest) -> AnswerTimes:
        nonlocal under_way, most
        with lock:
            under_way, most = under_way + 1, max(most, under_way + 1)
            sent.append(request)
        all_busy.wait(10)  # 12 requests are full rounds of 1 and of 3 clients
        time.sleep(0.02)  # one client more would send a request now
        with lock:
            under_way -= 1
        return AnswerTimes(0.0, 2)

    served = closed_loop(ask, REQUESTS, num_clients)

    assert (most, len(served)) == (num_clients, len(REQUESTS))
    assert sorted(each.seed for each in sent) == sorted(each.seed for each in REQUESTS)


def test_open_loops_do_not_wait_for_answers() -> None:
    """All requests are sent although none is answered before the last one has arrived."""
    all_sent = threading.Barrier(len(REQUESTS))

    def ask(_request: LoadRequest) -> AnswerTimes:
        all_sent.wait(10)
        return AnswerTimes(None, 0)

    assert len(open_loop(ask, REQUESTS, [0.0] * len(REQUESTS))) == len(REQUESTS)


def test_latency_in_open_loops_counts_from_the_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are due at their arrival times; a clock that sleeps too long makes them late, and this counts."""
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + 5.0

    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: now, sleep=sleep))
    first, second = open_loop(lambda _: AnswerTimes(now, 2), REQUESTS[:2], [2.0, 3.0])

    assert (first.due_at, second.due_at) == (102.0, 103.0)
    assert first.ttft_s >= 5.0
    assert second.ttft_s >= 9.0  # it was due one second later, and the clock had slept twice


def test_a_request_that_fails_keeps_its_error() -> None:
    """An error is that of its own request; without a token, the time to the first one is that of the failure."""
    served = closed_loop(lambda each: AnswerTimes(None, 0, f"no {each.seed}"), REQUESTS, 2)

    assert [each.error for each in served] == [f"no {each.seed}" for each in REQUESTS]
    assert all(each.first_token_at == each.ended_at for each in served)
