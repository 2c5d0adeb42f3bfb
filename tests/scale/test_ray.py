"""The Ray Serve application, on real Ray: routing, schemas of clients, metrics, and a replica that is killed under load.

`make test-slow` installs Ray and runs these tests; by hand: `pip install -e .[ray]` and
`pytest tests/scale/test_ray.py -m slow`. They take two minutes, most of which is Ray that starts.
`PROMPTCACHE_RAY_STREAMS` and `PROMPTCACHE_RAY_KILLS` are the numbers of streams and of kills (24 and 1).
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from promptcache import Engine
from promptcache.cli.exits import UsageMistake
from tests.server.conftest import TRAVEL, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of Ray
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'promptcache[ray]'"),
]
NUM_STREAMS = int(os.environ.get("PROMPTCACHE_RAY_STREAMS", "24"))
NUM_KILLS = int(os.environ.get("PROMPTCACHE_RAY_KILLS", "1"))
ROOT = Path(__file__).parents[2]
CITIES = ("miami", "paris", "tokyo")
QUESTION = "Tell me all that you know about this city, and about others like it: {number}"
NOTES = '<schema name="notes"><module name="rome">The river of Rome is Alba.</module></schema>'
ADMIN = {"authorization": "Bearer root"}
TO_TRAVEL = {"x-prompt-cache-schema": "travel"}


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `promptcache serve --ray` with two replicas in a folder, and yield its URL and process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "promptcache", "serve", "--ray", "--replicas", "2", "--port", str(port)]
    command += ["--schema", str(TRAVEL), "--store", "kv", *options]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        seen = []
        for line in running.stderr:
            seen.append(line)
            if "listening on" in line:
                break
        else:
            raise AssertionError("".join(seen))
        threading.Thread(target=running.stderr.read, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{port}", running
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGTERM)
            assert running.wait(90) == 0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of two replicas with a folder of schemas and the key of an administrator."""
    folder = tmp_path_factory.mktemp("replicas")
    (folder / "admins").write_text("root\n", encoding="utf-8")
    options = ("--schema-folder", "schemas", "--admin-key-file", "admins", "--queue-timeout", "300")
    with serving(folder, *options, "--dtype", "float64", "--promote", "auto") as (address, _):
        yield address


def body(number: int, *, tokens: int = 2, stream: bool = False) -> dict[str, Any]:
    """Return a request whose answer has a fixed number of tokens."""
    return {
        "model": "demo@travel",
        "messages": [{"role": "user", "content": QUESTION.format(number=number)}],
        "temperature": 0,
        "prompt_cache": {"use": [CITIES[number % len(CITIES)]], "deterministic": True},
        "min_tokens": tokens,
        "max_tokens": tokens,
        "stream": stream,
    }


def answered(url: str) -> Counter[str]:
    """Return the number of requests that each replica has answered, from the metrics of all."""
    text = httpx.get(f"{url}/metrics", headers=ADMIN).text
    found: Counter[str] = Counter()
    for labels, value in re.findall(r"^promptcache_requests_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        found[re.findall(r'replica="(\w+)"', labels)[0]] += int(float(value))
    return found


def test_requests_of_a_schema_meet_a_replica_that_has_it(url: str) -> None:
    """With the header all requests go to the replica that answered the first; without it both answer."""

    def ask(count: int, **headers: str) -> Counter[str]:
        before = answered(url)
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            codes = {client.post("/v1/chat/completions", json=body(number)).status_code for number in range(count)}
        assert codes == {200}
        return answered(url) - before

    assert len(ask(40)) == 2
    ask(1, **TO_TRAVEL)
    time.sleep(2)  # Ray tells its proxy which replica has the schema
    assert [*ask(30, **TO_TRAVEL).values()] == [30]


def test_a_schema_of_a_client_reaches_all_replicas(url: str) -> None:
    """What one replica adds or removes, the others serve or forget about a second later."""

    def states() -> set[int]:
        return {httpx.get(f"{url}/v1/schemas/notes").status_code for _ in range(20)}

    headers = {**ADMIN, "content-type": "application/xml"}
    assert httpx.put(f"{url}/v1/schemas/notes", content=NOTES, headers=headers).status_code == 201
    wait_until(lambda: states() == {200}, 10)
    assert httpx.delete(f"{url}/v1/schemas/notes", headers=ADMIN).status_code == 200
    wait_until(lambda: states() == {404}, 10)


def expected(numbers: range, tokens: int) -> list[str]:
    """Return the answers of an engine without replicas."""
    engine = Engine.from_pretrained("demo", dtype="float64")
    engine.add_schema(TRAVEL)
    return [
        engine.generate(
            f'<prompt schema="travel"><{CITIES[number % 3]}/><user>{QUESTION.format(number=number)}</user></prompt>',
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        ).text
        for number in numbers
    ]


async def stream(client: httpx.AsyncClient, data: dict[str, Any]) -> tuple[str, str | None]:
    """Return the text of a stream, and the code of its error."""
    text = ""
    async with client.stream("POST", "/v1/chat/completions", json=data) as answer:
        if answer.status_code != 200:
            return "", f"{answer.status_code} {(await answer.aread()).decode()}"
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return text, event["error"]["code"]
                text += "".join(each["delta"].get("content", "") for each in event["choices"])
            elif line == "data: [DONE]":
                return text, None
    return text, "broken"


def replicas() -> list[psutil.Process]:
    """Return the processes of the replicas."""
    return [each for each in psutil.process_iter() if "ServeReplica:default:Replica" in name_of(each)]


def name_of(process: psutil.Process) -> str:
    """Return the command of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def test_a_killed_replica_costs_its_streams_only(url: str) -> None:
    """Streams that the killed replica had begun end with an error behind right text; all else is answered."""
    tokens = 96
    whole = expected(range(NUM_STREAMS), tokens)

    async def work() -> tuple[list[tuple[str, str | None]], list[httpx.Response]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
            streams = [
                asyncio.create_task(stream(client, body(number, tokens=tokens, stream=True)))
                for number in range(NUM_STREAMS)
            ]
            answers = [
                asyncio.create_task(client.post("/v1/chat/completions", json=body(number, tokens=tokens)))
                for number in range(NUM_STREAMS)
            ]
            await asyncio.wait(streams, timeout=2)
            os.kill(replicas()[0].pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
            later = [asyncio.create_task(client.post("/v1/chat/completions", json=body(number))) for number in range(8)]
            return await asyncio.gather(*streams), await asyncio.gather(*answers, *later)

    for kill in range(NUM_KILLS):
        wait_until(lambda: len(replicas()) == 2, 180)
        found, answers = asyncio.run(work())
        codes = Counter(code for _, code in found)
        sys.stderr.write(
            f"kill {kill}: streams {dict(codes)}, others {Counter(each.status_code for each in answers)}\n"
        )
        assert codes.keys() <= {None, "replica_lost"}
        assert {each.status_code for each in answers} == {200}
        for number, (text, code) in enumerate(found):
            assert text == whole[number] if code is None else whole[number].startswith(text)


def test_the_example_is_a_configuration_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and the application take all that examples/scaling/ray.yaml has."""
    from ray.serve.schema import ServeDeploySchema

    from promptcache.cli.serve import ray_application

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("promptcache.server.SchemaFolder", lambda folder: None)
    text = (ROOT / "examples" / "scaling" / "ray.yaml").read_text(encoding="utf-8")
    (made,) = ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
    assert made.import_path == "promptcache.cli.serve:ray_application"
    application = ray_application(made.args)
    assert {each.name for each in made.deployments} == {application._bound_deployment.name}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"max_row": 2}, "args: there is no option 'max_row'"),
        ({"max_rows": 0}, "args: Invalid value for '--max-rows': '0' is not allowed"),
        ({"max_rows": [2]}, "args: Invalid value for '--max-rows': '[2]' is not allowed"),
        ({"replicas": 2}, "args.replicas: Ray's own configuration has this"),
        ({"admin_key_file": "keys"}, "needs --schema-folder"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, Any], message: str) -> None:
    """An argument that is not an option of `promptcache serve`, or has a wrong value, is an error with its name."""
    from promptcache.cli.serve import ray_application

    with pytest.raises(UsageMistake) as caught:
        ray_application(args)
    assert message in str(caught.value)


@pytest.mark.parametrize("num_signals", [1, 2])
def test_the_command_serves_and_ends(tmp_path: Path, num_signals: int) -> None:
    """At SIGTERM it refuses new requests and finishes a running one, which a second signal ends; its store has KV."""
    with serving(tmp_path) as (url, running):
        data = body(0, tokens=400, stream=True)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=data, timeout=60) as answer:
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
        running.wait(60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert any((tmp_path / "kv" / "encodings").iterdir())
