"""Metrics agree with what clients asked and got, and Prometheus' own parser reads them."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from promptcache import Engine
from promptcache.kv import StoreConfig
from promptcache.server import ServerSettings, create_app
from tests.conftest import law_examples
from tests.server.conftest import CHAT, CHATS, ScriptedService, answers, engine_with, events, in_process, scripted

TYPES = {
    "counter": "requests rejected prompt_tokens generation_tokens module_tokens store_faults step_errors promoted_requests",
    "gauge": "requests_running requests_waiting tail_bytes_used store_bytes promoted_combinations",
    "histogram": "request_queue_time_seconds step_seconds step_rows time_to_first_token_seconds "
    "inter_token_latency_seconds e2e_request_latency_seconds",
}


def values(text: str) -> dict[str, float]:
    """Return the sums over all labels of each sample."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            if not each.name.endswith("_bucket"):
                name = each.name.removeprefix("promptcache_")
                found[name] = found.get(name, 0) + each.value
    return found


BODIES = st.fixed_dictionaries(
    {
        "stream": st.booleans(),
        "max_tokens": st.integers(1, 9),
        "n": st.integers(1, 3),
        "temperature": st.sampled_from((0, 1.5)),
        "model": st.sampled_from(("demo@travel", "demo@travel", "demo@travel", "nothing")),
        "stop": st.sampled_from((None, ["best"])),
    }
)


@pytest.mark.law
@settings(max_examples=law_examples(0.06), deadline=None)
@given(bodies=st.lists(BODIES, min_size=1, max_size=8), limit=st.sampled_from((2, 256)))
def test_counters_agree_with_what_was_asked(engine: Engine, bodies: list[dict[str, Any]], limit: int) -> None:
    """Each request that was taken is counted once for each of its answers, and each refusal once; tokens add up."""
    app = create_app(engine, ServerSettings(max_rows=2, max_waiting=limit))
    engine.clear_history()

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        usage = {"stream_options": {"include_usage": True}}
        asked = ({**CHAT, **(usage if body["stream"] else {}), **body} for body in bodies)
        return await asyncio.gather(*(client.post(CHATS, json=each) for each in asked))

    found_answers = in_process(app, ask)
    found = values(app.state.server.metrics.text().decode())
    taken = [(body, each) for body, each in zip(bodies, found_answers, strict=True) if each.status_code == 200]
    usages = [_usage(each) for _, each in taken]
    rows = sum(body["n"] for body, _ in taken)

    assert found.get("requests_total", 0) == rows
    assert found["e2e_request_latency_seconds_count"] == found["time_to_first_token_seconds_count"] == rows
    assert found.get("rejected_total", 0) == sum(each.status_code == 429 for each in found_answers)
    assert found["generation_tokens_total"] == sum(each["completion_tokens"] for each in usages)
    assert found["inter_token_latency_seconds_count"] == found["generation_tokens_total"] - rows
    assert found["request_queue_time_seconds_count"] >= rows  # rows of a refused request may have joined
    assert found["step_rows_sum"] >= found["generation_tokens_total"]
    assert found["step_rows_count"] == found["step_seconds_count"]
    assert found["step_errors_total"] == found["requests_running"] == found["requests_waiting"] == 0
    assert found["store_bytes"] == engine.store.nbytes() > 0


def _usage(answer: httpx.Response) -> dict[str, int]:
    is_stream = "event-stream" in answer.headers["content-type"]
    return dict((events(answer.text)[-1] if is_stream else answer.json())["usage"])


def test_tokens_have_their_origin(engine: Engine) -> None:
    """Tokens of prompts are counted as reused or prefilled, as the usage has them; an answer has its finish."""
    app = create_app(engine)
    usage = answers(app, CHAT)[0].json()["usage"]
    text = app.state.server.metrics.text().decode()
    cached = usage["prompt_tokens_details"]["cached_tokens"]

    assert 'promptcache_requests_total{endpoint="chat",finish="stop"} 1.0' in text
    assert f'promptcache_prompt_tokens_total{{source="reused"}} {float(cached)}' in text
    assert f'source="prefilled"}} {float(usage["prompt_tokens"] - cached)}' in text


def test_tokens_of_answers_that_end_early_are_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens before an error are generated tokens: as many as the latencies have."""
    app = scripted(engine, ScriptedService(265, 2757, 265, RuntimeError("on purpose")), monkeypatch)
    answers(app, CHAT, {**CHAT, "stream": True})
    found = values(app.state.server.metrics.text().decode())

    assert found["generation_tokens_total"] == 6
    assert found["time_to_first_token_seconds_count"] + found["inter_token_latency_seconds_count"] == 6


def test_names_and_types_and_bytes_of_the_store(tmp_path: Path) -> None:
    """Metrics have these names and types for Prometheus' parser; a store with a folder reports its memory and folder."""
    engine = engine_with(store=StoreConfig(folder=tmp_path))

    async def ask(client: httpx.AsyncClient) -> str:
        return (await client.get("/metrics")).text

    families = [*text_string_to_metric_families(in_process(create_app(engine), ask))]
    types = {each.name: each.type for each in families if not each.name.endswith("_created")}
    samples = [sample for each in families for sample in each.samples if sample.name == "promptcache_store_bytes"]
    found = {each.labels["tier"]: each.value for each in samples}

    assert types == {f"promptcache_{name}": kind for kind, names in TYPES.items() for name in names.split()}
    assert found["memory"] > 0
    assert found["disk"] == sum(each.stat().st_size for each in tmp_path.glob("encodings/*"))
