"""The Ray Serve application, on real Ray: routing, a replica that is killed under streams, and new schemas under load.

`make test-slow` installs Ray and runs these tests; by hand: `pip install -e .[ray]` and
`pytest tests/scale/test_ray.py -m slow`. They take some minutes, most of which is Ray that starts.
`PROMPTCACHE_RAY_STREAMS` and `PROMPTCACHE_RAY_KILLS` are the numbers of streams and of kills (40 and 2).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest
import yaml

from promptcache import Engine
from promptcache.diagnostics import InvalidValue
from promptcache.language import parse_schema
from tests.server.conftest import TRAVEL, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore"),  # those of Ray
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'promptcache[ray]'"),
]
NUM_STREAMS = int(os.environ.get("PROMPTCACHE_RAY_STREAMS", "40"))
NUM_KILLS = int(os.environ.get("PROMPTCACHE_RAY_KILLS", "2"))
ROOT = Path(__file__).parents[2]
CITIES = ("miami", "paris", "tokyo")
QUESTION = "Tell me all that you know about this city, and about others like it: {number}"
_Made = TypeVar("_Made")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a front with two replicas on Ray in this process."""
    import ray
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deploy(TRAVEL.read_text(encoding="utf-8"))
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def deploy(document: str) -> None:
    """Deploy the application with a schema, and wait until it runs."""
    from ray import serve

    from promptcache.runtime import ServiceLimits
    from promptcache.scale.ray_app import RayOptions, application
    from promptcache.server import ServerSettings

    settings = ServerSettings(model="demo", limits=ServiceLimits(max_rows=128, queue_timeout_s=300))
    chosen = RayOptions(num_replicas=2, dtype="float64", settings=settings)
    serve.run(application(chosen, [parse_schema(document)]))


def body(number: int, *, tokens: int = 96) -> dict[str, Any]:
    """Return a request whose answer has a fixed number of tokens."""
    return {
        "model": "demo@travel",
        "messages": [{"role": "user", "content": QUESTION.format(number=number)}],
        "temperature": 0,
        "prompt_cache": {"use": [CITIES[number % len(CITIES)]]},
        "min_tokens": tokens,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def stream(client: httpx.AsyncClient, data: dict[str, Any]) -> tuple[str, dict[str, Any] | None, str | None]:
    """Return the text of a stream, its usage, and its error."""
    text, usage = "", None
    async with client.stream("POST", "/v1/chat/completions", json=data) as answer:
        if answer.status_code != 200:
            return "", None, (await answer.aread()).decode()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return text, usage, str(event["error"])
            text += "".join(each["delta"].get("content", "") for each in event["choices"])
            usage = event.get("usage") or usage
    return text, usage, None


def asked(url: str, work: Callable[[httpx.AsyncClient], Awaitable[_Made]]) -> _Made:
    """Run something with a client."""

    async def run() -> _Made:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
            return await work(client)

    return asyncio.run(run())


def replicas() -> list[psutil.Process]:
    """Return the processes of the replicas."""
    return [each for each in psutil.process_iter() if "ServeReplica:default:Replica" in name_of(each)]


def spent() -> dict[int, float]:
    """Return the CPU seconds of each replica by its process."""
    return {each.pid: sum(each.cpu_times()[:2]) for each in replicas()}


def wait_until_both_run() -> None:
    """Wait until Ray says that two replicas take requests."""
    from ray import serve

    def count() -> int:
        states = serve.status().applications["default"].deployments["Replica"].replica_states
        return states.get("RUNNING", 0) if list(states) == ["RUNNING"] else 0

    wait_until(lambda: count() == 2 and len(replicas()) == 2, 180)


def name_of(process: psutil.Process) -> str:
    """Return the command of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def expected(document: str, numbers: range) -> list[str]:
    """Return the answers of an engine without replicas."""
    engine = Engine.from_pretrained("demo", dtype="float64")
    engine.add_schema(document)
    answers = []
    for number in numbers:
        data = body(number)
        (module,) = data["prompt_cache"]["use"]
        made = engine.generate(
            f'<prompt schema="travel"><{module}/><user>{data["messages"][0]["content"]}</user></prompt>',
            do_sample=False,
            min_new_tokens=data["min_tokens"],
            max_new_tokens=data["max_tokens"],
        )
        answers.append(made.text)
    return answers


def test_streams_of_a_killed_replica_go_on_at_the_other(url: str) -> None:
    """Each stream has the text of an undisturbed run, though the replica that answers most of them is killed."""
    whole = expected(TRAVEL.read_text(encoding="utf-8"), range(NUM_STREAMS))

    async def work(client: httpx.AsyncClient) -> list[tuple[str, Any, str | None]]:
        before = spent()
        streams = [asyncio.create_task(stream(client, body(number))) for number in range(NUM_STREAMS)]
        await asyncio.sleep(1 + kill % 5)
        now = spent()
        os.kill(max(before, key=lambda pid: now[pid] - before[pid]), signal.SIGKILL)
        return await asyncio.gather(*streams)

    for kill in range(NUM_KILLS):
        wait_until_both_run()
        started = time.monotonic()
        answers = asked(url, work)
        wrong = [number for number, (text, _, _) in enumerate(answers) if text != whole[number]]
        errors = Counter(error for _, _, error in answers if error)
        sys.stderr.write(f"kill {kill}: {time.monotonic() - started:.1f} s, errors {errors}, wrong {wrong}\n")
        assert not errors
        assert not wrong
        assert {usage["completion_tokens"] for _, usage, _ in answers if usage} == {96}


def test_requests_of_a_schema_meet_one_replica(url: str) -> None:
    """At a balanced load only one replica computes."""
    wait_until_both_run()
    before = spent()

    async def work(client: httpx.AsyncClient) -> None:
        for number in range(30):
            await stream(client, body(number, tokens=20))

    asked(url, work)
    least, most = sorted(now - before[pid] for pid, now in spent().items())
    assert least < 0.2 * most


def test_each_of_several_answers_is_a_request_of_its_own(url: str) -> None:
    """Bodies with `n`, several at the same time, are answered: Ray's router gives a replica to each row."""
    data = {**body(0, tokens=2), "stream": False, "n": 8}
    del data["stream_options"]

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        asking = (client.post("/v1/chat/completions", json=data, timeout=60) for _ in range(8))
        return await asyncio.gather(*asking)

    assert [len(each.json()["choices"]) for each in asked(url, work)] == [8] * 8


def test_schemas_and_replicas_are_replaced_under_load(url: str) -> None:
    """No request fails, and each answer is that of the old schema or that of the new one."""
    old = TRAVEL.read_text(encoding="utf-8")
    new = old.replace("stone crab", "key lime pie")
    assert new != old
    numbers = range(24)
    answers = {document: expected(document, numbers) for document in (old, new)}
    pids = spent().keys()

    async def work(client: httpx.AsyncClient) -> list[tuple[str, Any, str | None]]:
        deploying = asyncio.create_task(asyncio.to_thread(deploy, new))
        found = []
        while not deploying.done():
            found += await asyncio.gather(*(stream(client, body(number)) for number in numbers))
        await deploying
        return found + await asyncio.gather(*(stream(client, body(number)) for number in numbers))

    found = asked(url, work)
    assert not [error for _, _, error in found if error]
    for index, (text, _, _) in enumerate(found):
        assert text in (answers[old][index % 24], answers[new][index % 24])
    assert [text for text, _, _ in found[-24:]] == answers[new]
    assert not pids & spent().keys()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"num_replica": 2}, r"args\.num_replica is not known; there are model, schemas"),
        ({"settings": {"model": "demo", "limits": {"max_row": 2}}}, r"args\.settings\.limits\.max_row is not known"),
        ({"settings": {"model": "demo", "max_body_bytes": 0}}, r"args\.settings: .*max_body_bytes=0 is not allowed"),
        ({"num_replicas": "two"}, r"args\.num_replicas: .* integer"),
        ({"store": {"folder": "kv", "timeout_s": "soon"}}, r"args\.store\.timeout_s"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, Any], message: str) -> None:
    """An argument that is not known, at any depth, or of a wrong type is an error with its place."""
    from promptcache.scale.ray_app import build

    with pytest.raises(InvalidValue, match=message):
        build(args)


def test_the_example_is_a_configuration_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and the application take all that examples/scaling/ray.yaml has."""
    from ray.serve.schema import ServeDeploySchema

    from promptcache.scale.ray_app import build

    monkeypatch.chdir(ROOT)
    text = (ROOT / "examples" / "scaling" / "ray.yaml").read_text(encoding="utf-8")
    (made,) = ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
    assert made.import_path == "promptcache.scale.ray_app:build"
    build(made.args)


@pytest.mark.parametrize("num_signals", [1, 2])
def test_the_command_serves_and_ends(tmp_path: Path, num_signals: int) -> None:
    """At SIGTERM `promptcache serve --ray` refuses new requests and finishes a running one, which a second one ends.

    Its store has KV then.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "promptcache", "serve", "--ray", "--schema", str(TRAVEL), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([*command, "--store", "kv"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert any("listening on" in line for line in running.stderr)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body(0, tokens=400), timeout=60) as answer:
            lines = answer.iter_lines()
            assert any('"content":' in each for each in lines)
            running.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(f"{url}/health").status_code == 503)
            refused = httpx.post(f"{url}/v1/chat/completions", json=body(1))
            if num_signals > 1:
                running.send_signal(signal.SIGTERM)
                with suppress(httpx.RemoteProtocolError):
                    assert "data: [DONE]" not in list(lines)
            else:
                assert "data: [DONE]" in list(lines)
        assert running.wait(60) == 0
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert list((tmp_path / "kv").rglob("*.safetensors")) or list((tmp_path / "kv" / "encodings").iterdir())
