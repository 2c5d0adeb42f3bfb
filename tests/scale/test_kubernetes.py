"""examples/scaling/kubernetes.yaml agrees with itself and with `promptcache serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from promptcache.cli.serve import command as serve
from promptcache.server.run import _LAST_BYTES_S

FILE = Path(__file__).parents[2] / "examples" / "scaling" / "kubernetes.yaml"


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of the file by kind and name."""
    return {
        (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(FILE.read_text(encoding="utf-8"))
    }


@pytest.fixture(scope="module")
def pod(objects: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """The specification of the pods."""
    spec: dict[str, Any] = objects["Deployment", "promptcache"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def options(pod: dict[str, Any]) -> dict[str, Any]:
    """The values that `promptcache serve` takes from the arguments."""
    (container,) = pod["containers"]
    assert container["command"] == ["promptcache"]
    assert container["args"][0] == "serve"
    with serve.make_context("serve", container["args"][1:]) as context:
        assert isinstance(context, click.Context)
        return context.params


def test_the_command_line_is_one_of_promptcache_serve(pod: dict[str, Any], options: dict[str, Any]) -> None:
    """`promptcache serve` takes the arguments: it listens for the probes, and reads what the volumes have."""
    (container,) = pod["containers"]
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}

    assert options["port"] == container["ports"][0]["containerPort"]
    assert options["host"] == "0.0.0.0"
    assert mounts[options["store"]] == "store"
    assert {str(Path(path).parent) for path in (*options["schema"], options["api_key_file"])} <= set(mounts)
    assert set(mounts.values()) == {each["name"] for each in pod["volumes"]}


def test_a_pod_has_time_to_drain(pod: dict[str, Any], options: dict[str, Any]) -> None:
    """Kubernetes kills a pod only after its last answer may have ended."""
    (container,) = pod["containers"]
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])

    assert pod["terminationGracePeriodSeconds"] > before + options["drain"] + _LAST_BYTES_S
    assert before > container["readinessProbe"]["periodSeconds"]
