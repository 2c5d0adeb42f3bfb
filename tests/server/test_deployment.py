"""The files for containers, systemd and Kubernetes fit the command, each other, and the tools that read them."""

import configparser
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from promptcache.cli.app import app
from promptcache.cli.serve import command
from promptcache.server.run import _LAST_BYTES_S
from tests.server.conftest import Served

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "serving"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OPTIONS = {option: each.name for each in command.params for option in each.opts}
CONFIG = tomllib.loads((FOLDER / "serve.toml").read_text(encoding="utf-8"))
UNIT = configparser.ConfigParser(interpolation=None, strict=False)
UNIT.optionxform = str
UNIT.read(FOLDER / "promptcache.service", encoding="utf-8")
SERVICE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]["promptcache"]
KUBERNETES = yaml.safe_load_all((ROOT / "examples" / "scaling" / "kubernetes.yaml").read_text(encoding="utf-8"))
POD = next(each["spec"]["template"]["spec"] for each in KUBERNETES if each["kind"] == "Deployment")
(CONTAINER,) = POD["containers"]


def instructions(name: str) -> list[str]:
    """Return the arguments of each instruction of a kind in the Dockerfile."""
    lines = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def test_stops_wait_for_running_requests() -> None:
    """What stops the server waits longer than it drains, and sends the signal that it drains on."""
    stop_s = CONFIG["drain"] + _LAST_BYTES_S
    assert int(UNIT["Service"]["TimeoutStopSec"]) > stop_s
    assert UNIT["Service"]["KillSignal"] == "SIGTERM"
    assert int(SERVICE["stop_grace_period"].removesuffix("s")) > stop_s
    before = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > before + pod_options()["drain"] + _LAST_BYTES_S
    assert before > CONTAINER["readinessProbe"]["periodSeconds"]


def test_files_of_the_container_exist() -> None:
    """What compose.yaml mounts is in the repository or a volume, and the schema of serve.toml is among it."""
    mounts = dict(each.split(":")[:2] for each in SERVICE["volumes"])
    places = {target: FOLDER / source for source, target in mounts.items() if source.startswith(".")}
    assert all(place.exists() for place in places.values())
    (schema,) = CONFIG["schema"]
    assert (places["/etc/promptcache/schemas"] / Path(schema).name).is_file()
    assert CONFIG["store"].startswith("/var/lib/promptcache")
    assert mounts["kv"] in instructions("VOLUME")


def test_health_check_of_the_image(served: Served) -> None:
    """The command of the image succeeds on a server that is ready, and fails where none listens."""
    (health,) = instructions("HEALTHCHECK")
    _python, *words = json.loads(health.partition("CMD ")[2])
    found = []
    for place in (urlsplit(served.url).netloc, "127.0.0.1:9"):
        made = [word.replace("127.0.0.1:8000", place) for word in words]
        found.append(subprocess.run([sys.executable, *made], capture_output=True, check=False).returncode)

    assert found == [0, 1]


def test_command_lines_and_configuration_are_those_of_the_command() -> None:
    """Flags and names in serve.toml are options with valid values; they name serve.toml where it is put, and keys."""
    assert {name.replace("-", "_") for name in CONFIG} <= set(OPTIONS.values())
    words = [word for name, value in CONFIG.items() if name != "schema" for word in (f"--{name}", str(value))]
    with app.make_context("promptcache", ["serve", *words]) as parent:  # a command keeps the help options of its parent
        assert command.make_context("serve", words, parent=parent).params["drain"] == CONFIG["drain"]
    program, *started = UNIT["Service"]["ExecStart"].split()
    (entry,) = instructions("ENTRYPOINT")
    assert (program.rpartition("/")[2], *started[:1]) == tuple(json.loads(entry)) == ("promptcache", "serve")
    for words in (started[1:], SERVICE["command"]):
        assert {word for word in words if word.startswith("-")} <= OPTIONS.keys()
        assert "--api-key-file" in words
        assert words[words.index("--config") + 1] == "/etc/promptcache/serve.toml"
    assert "PROMPTCACHE_HOST=0.0.0.0" in instructions("ENV")[-1]


def test_pods_of_kubernetes_fit_the_command() -> None:
    """Pods take arguments of `promptcache serve`, listen for the probes, and read what the volumes have."""
    mounts = {each["mountPath"]: each["name"] for each in CONTAINER["volumeMounts"]}
    given = pod_options()
    assert (given["host"], given["port"]) == ("0.0.0.0", CONTAINER["ports"][0]["containerPort"])
    assert mounts[given["store"]] == "store"
    assert {str(Path(path).parent) for path in (*given["schema"], given["api_key_file"])} <= set(mounts)
    assert set(mounts.values()) == {each["name"] for each in POD["volumes"]}


def pod_options() -> dict[str, Any]:
    """Return the values that `promptcache serve` takes from the arguments of a pod."""
    assert [*CONTAINER["command"], CONTAINER["args"][0]] == ["promptcache", "serve"]
    with command.make_context("serve", CONTAINER["args"][1:]) as context:
        return context.params
