"""`promptcache warm` and `promptcache cache`, with the model that ships in the package."""

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from promptcache.cli.settings import Value
from promptcache.diagnostics import BYTES
from promptcache.kv import FileTier
from tests.cli.conftest import Command, data
from tests.kv.stored import read, write

pytestmark = pytest.mark.usefixtures("folder")

ON_CPU = ("--device", "cpu", "--store", "kept")


def only(result: Result) -> Any:
    """Return the report of `warm` for its only schema."""
    (schema,) = data(result)["schemas"]
    return schema


def change(tier: FileTier, key: str, changes: Callable[[Any], dict[str, Any]]) -> None:
    """Write a stored encoding again with other fields."""
    stored = read(tier, key)
    tier.delete(key)
    write(tier, replace(stored, **changes(stored)))


def test_warming_makes_everything_once(command: Command) -> None:
    """The first `warm` encodes all, and the second finds all. Then `run` encodes nothing, with and without --no-warm."""
    first = only(command("warm", "travel.xml", *ON_CPU, "--json"))
    second = only(command("warm", "travel.xml", *ON_CPU, "--json"))
    told = command("warm", "travel.xml", *ON_CPU).stdout
    new = command("warm", "travel.xml", "--device", "cpu", "--store", "new").stdout
    ran = command("run", "prompts/miami.xml", *ON_CPU, "--max-new-tokens", "2")
    lossy = command("run", "prompts/miami.xml", *ON_CPU, "--keep", "int4", "--max-new-tokens", "2")
    cold = data(command("run", "prompts/miami.xml", *ON_CPU, "--max-new-tokens", "2", "--no-warm", "--json"))

    assert first["num_encoded"] == first["num_encodings"] > 0
    assert (second["num_encoded"], second["found"]) == (0, {"disk": first["num_encodings"]})
    assert " as full in new; encoded " in new
    assert told.endswith("in kept; all were there\n")
    assert re.search(r"\d modules? from disk", ran.stderr)
    assert "encoded" not in ran.stderr
    assert ("lossy" in ran.stderr, "modular, lossy" in lossy.stderr) == (False, True)
    assert cold["usage"]["num_encoded_tokens"] == 0
    assert {each["tier"] for each in cold["usage"]["modules"]} == {"disk"}


def test_models_have_names_in_a_store(command: Command, folder: Path) -> None:
    """Each encoding names the model: the end of the path of its folder. Files without a name have a question mark."""
    only(command("warm", "travel.xml", *ON_CPU, "--json"))
    (key, *others) = sorted((tier := FileTier(folder / "kept")).keys())
    change(tier, key, lambda stored: {"facts": {name: each for name, each in stored.facts.items() if name != "model"}})

    entries = data(command("cache", "ls", "--store", "kept", "--json"))
    assert {each["key"]: each["model"] for each in entries} == {key: None, **dict.fromkeys(others, "demo/model")}
    table = command("cache", "ls", "--store", "kept").stdout.splitlines()
    assert sum(" demo/model " in line for line in table) == len(others)


def test_an_estimate_needs_no_model_and_is_right(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--estimate` says tokens and bytes as `warm` then makes them, and loads nothing that could load weights."""
    made = {keep: only(command("warm", "travel.xml", *ON_CPU, "--keep", keep, "--json")) for keep in ("full", "int8")}
    monkeypatch.setitem(sys.modules, "promptcache.engine", None)
    for keep, report in made.items():
        estimate = only(command("warm", "travel.xml", *ON_CPU, "--keep", keep, "--estimate", "--json"))
        assert estimate["num_tokens"] == report["num_encoded_tokens"]
        assert (estimate["num_encodings"], estimate["nbytes"]) == (report["num_encodings"], report["nbytes"])


def test_warm_says_why_it_encodes(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With -v, each module that is encoded has a reason: it is new, or codec, dtype, text, weights or model differ."""
    schema = (folder / "travel.xml").read_text(encoding="utf-8")

    def reasons(*options: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = only(command("warm", "travel.xml", *ON_CPU, "-v", *options, "--json"))["reasons"]
        return found

    every = reasons()["new"]
    assert every == ["", "plan", "miami", "paris"]
    assert reasons() == {}
    assert reasons("--keep", "int8") == {"kept as full before": every}
    assert reasons("--dtype", "float64") == {"computed in float32 before": every}
    (folder / "travel.xml").write_text(schema.replace("The beach", "A beach"), encoding="utf-8")
    told = command("warm", "travel.xml", *ON_CPU, "-v").stdout
    assert told.splitlines()[1:] == ["  other text, or other text before it: miami"]
    new = schema.replace('<module name="paris">', '<module name="oslo">Oslo.</module><module name="paris">')
    (folder / "travel.xml").write_text(new, encoding="utf-8")
    assert reasons() == {"new": ["oslo"]}
    monkeypatch.setattr("promptcache.model.model.Model.fingerprint", "other")
    assert [*reasons()] == ["other weights, adapters or tokenizer"]
    monkeypatch.setattr("promptcache.model.model.Model.fingerprint", "mine")
    monkeypatch.setattr("promptcache.model.model.Model.name", "my/model")
    assert [*reasons()] == ["encoded by the model demo/model before"]


def test_what_is_no_longer_used_is_pruned(command: Command, folder: Path) -> None:
    """`prune` removes what an earlier text needed, in each codec, and nothing that is used or of another schema."""
    other = '<schema name="other"><module name="a">One text.</module></schema>'
    (folder / "other.xml").write_text(other, encoding="utf-8")
    prune = ("cache", "prune", "--schema", "travel.xml", "--model", "demo", "--store", "kept", "--json")
    every = ((), ("--keep", "int8"), ("--positions", "fixed"))
    for options in every:
        command("warm", "travel.xml", "other.xml", *ON_CPU, *options)
    kept = data(command(*prune))
    schema = (folder / "travel.xml").read_text(encoding="utf-8")
    (folder / "travel.xml").write_text(schema.replace("The beach", "A beach"), encoding="utf-8")
    removed = data(command(*prune))["removed"]
    again = [only(command("warm", "travel.xml", *ON_CPU, *options, "--json")) for options in every]

    assert kept == {"removed": [], "nbytes": 0}
    assert len(removed) == sum(each["num_encoded"] for each in again) > 0
    assert data(command(*prune))["removed"] == []
    assert only(command("warm", "other.xml", *ON_CPU, "--json"))["num_encoded"] == 0


def test_names_in_files_stay_in_their_line(command: Command, folder: Path) -> None:
    """The name of a schema in a stored file is shown escaped and shortened if it is long or has control characters."""
    only(command("warm", "travel.xml", *ON_CPU, "--json"))
    tier = FileTier(folder / "kept")
    for key, name in zip(sorted(tier.keys()), ("s" * 100_000, "a\x1b[2J\nb"), strict=False):
        change(tier, key, lambda stored, name=name: {"facts": {**stored.facts, "schema": name}})

    told = command("cache", "ls", "--store", "kept").stdout
    assert max(map(len, told.splitlines())) < 300
    assert told.replace("\n", "").isprintable()
    assert r"'a\x1b[2J\nb" in told


def test_a_store_can_be_looked_into(command: Command, folder: Path) -> None:
    """`ls` and `verify` say what each file is, and change nothing."""
    made = only(command("warm", "travel.xml", *ON_CPU, "--json"))
    before = {path: path.read_bytes() for path in (folder / "kept" / "encodings").iterdir()}
    listed = data(command("cache", "ls", "--store", "kept", "--json"))
    cities = data(command("cache", "ls", "travel/miami", listed[0]["key"][:8], "--store", "kept", "--json"))
    verdicts = data(command("cache", "verify", "--store", "kept", "--json"))

    assert len(listed) == len(verdicts) == made["num_encodings"]
    assert {each["schema"] for each in listed} == {"travel"}
    assert {"miami", ""} <= {each["module"] for each in cities}
    assert sum(each["nbytes"] for each in listed) == sum(map(len, before.values()))
    assert {path: path.read_bytes() for path in (folder / "kept" / "encodings").iterdir()} == before
    for word in ("ls", "verify"):
        assert command("cache", word, "--store", "kept").exit_code == 0


def test_what_cannot_be_repaired_is_an_error(command: Command, folder: Path) -> None:
    """A folder that cannot be written, or has no room, is an error of `warm`: it ends with 3."""
    command("warm", "travel.xml", *ON_CPU)
    damaged = max((folder / "kept" / "encodings").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
    shutil.rmtree(folder / "kept" / "incoming")
    (folder / "kept" / "incoming").write_text("in the way")
    warmed = command("warm", "travel.xml", *ON_CPU)
    full = command("warm", "travel.xml", "--device", "cpu", "--store", "x", "--limit", "1B")

    assert (warmed.exit_code, warmed.stdout, full.exit_code, full.stdout) == (3, "", 3, "")
    assert "error: kept: cannot write: " in warmed.stderr  # before anything is encoded
    assert "are not kept in x" in full.stderr


def test_kv_of_another_shape_is_encoded_again(command: Command, folder: Path) -> None:
    """A file with the right key and another dtype is no damage that `verify` could know, and `warm` makes it again."""
    command("warm", "travel.xml", *ON_CPU)
    tier = FileTier(folder / "kept")
    change(
        tier,
        max(tier.keys()),
        lambda stored: {
            "shape": replace(stored.shape, dtype=torch.float64),
            "tensors": {name: tensor.double() for name, tensor in stored.tensors.items()},
        },
    )

    assert only(command("warm", "travel.xml", *ON_CPU, "--json"))["num_encoded"] == 1
    assert command("cache", "verify", "--store", "kept").exit_code == 0


def test_a_limit_evicts_and_removal_does_not_ask(command: Command) -> None:
    """`rm` removes what is named; `gc --limit` evicts down to the limit."""
    command("warm", "travel.xml", *ON_CPU)
    named = [each["key"] for each in data(command("cache", "ls", "travel/miami", "--store", "kept", "--json"))]
    removed = data(command("cache", "rm", *(key[:10] for key in named), "--store", "kept", "--json"))["removed"]
    left = {each["key"] for each in data(command("cache", "ls", "--store", "kept", "--json"))}
    command("cache", "gc", "--limit", "1B", "--store", "kept")

    assert len(named) == 2  # plain, and behind the other module
    assert removed == named
    assert left.isdisjoint(named)
    assert data(command("cache", "ls", "--store", "kept", "--json")) == []
    typo = command("cache", "rm", "travel", "--store", "kept")
    assert (typo.exit_code, typo.stdout) == (2, "")


@pytest.mark.parametrize(
    ("text", "nbytes"), [("8 GB", 8 * 10**9), ("512MiB", 512 * 2**20), ("1.5kb", 1500), ("77", 77), (" 2 TiB ", 2**41)]
)
def test_sizes_are_read_as_people_write_them(text: str, nbytes: int) -> None:
    """Decimal and binary units, in any case, with or without a space."""
    assert Value(BYTES, "limit").convert(text, None, None) == nbytes


def test_damage_is_found_told_and_healed(command: Command, folder: Path) -> None:
    """`verify` names a bad file and ends with 1, and ignores others; `run` answers, warns, and writes it again."""
    run = ("run", "prompts/miami.xml", *ON_CPU, "--max-new-tokens", "3")
    command("warm", "travel.xml", *ON_CPU)
    good, place = command(*run).stdout, folder / "kept" / "encodings"
    for path in place.iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    bad = command("cache", "verify", "--store", "kept")
    healed, again = command(*run), command(*run)
    command("warm", "travel.xml", *ON_CPU)
    for name in ("README", "mine.safetensors"):
        (place / name).write_text("not an encoding")
    foreign = command("cache", "verify", "--store", "kept")

    assert (bad.exit_code, "does not match its checksum" in bad.stdout) == (1, True)
    assert (healed.stdout, again.stdout) == (good, good)
    assert ["warning: disk:" in each.stderr for each in (healed, again)] == [True, False]
    assert (foreign.exit_code, foreign.stdout.endswith("0 bad\n")) == (0, True)
    assert {"README", "mine.safetensors"} < {path.name for path in place.iterdir()}
