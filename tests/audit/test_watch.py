"""Every N-th request is compared with plain prefill in idle time; answers stay as they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from promptcache.audit import watch
from promptcache.diagnostics import InvalidValue
from promptcache.engine import Engine
from promptcache.runtime.idle import Interrupted
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = """<schema name="s" sees="stand-ins"><module name="a">The first text.</module>
<module name="b">The second text.</module><module name="c">The third text.</module></schema>"""
BOTH, ONE = '<prompt schema="s"><a/><c/>Go on.</prompt>', '<prompt schema="s"><b/>Go on.</prompt>'
OPTIONS: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}


def engine_with(**options: Any) -> Engine:
    engine = Engine(tiny_model(), ByteTokenizer(), **options)
    engine.add_schema(SCHEMA)
    return engine


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def compared(engine: Engine) -> int:
    return engine.stats().fidelity.num_compared


def test_every_second_request_is_compared() -> None:
    """The figures are those of an audit over as many places, and only requests that reuse KV count."""
    engine = engine_with(watch=2)
    alone = engine_with()

    for number, prompt in enumerate([BOTH, BOTH, ONE, BOTH, BOTH, BOTH], 1):
        assert engine.generate(prompt, **OPTIONS).token_ids == alone.generate(prompt, **OPTIONS).token_ids
        engine.generate([{"role": "user", "content": "Hello"}], **OPTIONS)  # reuses nothing
        wait_for(lambda number=number: compared(engine) == number // 2)  # type: ignore[misc]

    audit = alone.audit(BOTH, max_new_tokens=watch.NUM_PLACES)
    assert audit.divergence > 1e-6
    assert engine.stats().fidelity.divergence == pytest.approx(audit.divergence)
    assert engine.stats().fidelity.agreement == pytest.approx(audit.agreement)


def test_exact_requests_are_at_no_distance() -> None:
    """Requests of services and batches are compared, too; a module alone is exact."""
    engine = engine_with(watch=1)

    engine.generate_batch([ONE], **OPTIONS)
    wait_for(lambda: compared(engine) == 1)

    assert engine.stats().fidelity.divergence == pytest.approx(0, abs=1e-9)
    assert engine.stats().fidelity.agreement == 1


def test_a_warning_is_logged_once_above_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    """It names the mean and the limit; nothing is logged below the limit."""
    quiet, loud = engine_with(watch=1, max_divergence=10.0), engine_with(watch=1, max_divergence=0.0)
    with caplog.at_level(logging.WARNING, "promptcache"):
        quiet.generate(BOTH, **OPTIONS)
        wait_for(lambda: compared(quiet) == 1)
        assert not caplog.records
        for number in (1, 2):
            loud.generate(BOTH, **OPTIONS)
            wait_for(lambda number=number: compared(loud) == number)  # type: ignore[misc]

    (record,) = caplog.records
    assert "the limit is 0.0" in record.getMessage()
    assert "promptcache fidelity" in record.getMessage()


def test_an_interrupted_comparison_is_made_later() -> None:
    """A request that arrives ends the pass at the next layer; the other one waits again."""
    engine = engine_with()
    watcher = watch.Watcher(engine._executor, engine.tokenizer, lambda: engine.end_ids, 1)
    watcher._thread.end()  # the test works in its place
    watcher.note(engine.plan(BOTH))
    calls: list[None] = []

    def interrupt() -> None:
        calls.append(None)
        if len(calls) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        watcher.work(interrupt)
    assert watcher.figures.num_compared == 0
    watcher.work(lambda: None)
    assert watcher.figures.num_compared == 1
    watcher.work(lambda: None)  # nothing waits
    assert watcher.figures.num_compared == 1


@pytest.mark.parametrize("options", [{"watch": -1}, {"watch": 1.5}, {"watch": 1, "max_divergence": -0.1}])
def test_other_values_are_refused(options: dict[str, Any]) -> None:
    """The number of requests is whole, and the limit is a distance."""
    with pytest.raises(InvalidValue):
        engine_with(**options)
