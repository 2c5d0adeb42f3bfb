"""A new process finds the KV of an earlier one: nothing is encoded again, and no bit differs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from promptcache import Engine, StoreConfig
from promptcache.kv import Store
from tests.engine.asking import engine_of

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "schemas" / "travel.xml"
PROMPT = '<prompt schema="travel"><trip-plan duration="two days"/><miami/><user>What is the best dish of Miami?</user></prompt>'


def restarted(store: Path) -> dict[str, object]:
    """Return the results of the first request of a process."""
    engine = Engine.from_pretrained("demo", device="cpu", store=store)
    engine.add_schema(SCHEMA)
    answer = engine.generate(PROMPT, do_sample=False, max_new_tokens=12)
    return {
        "text": answer.text,
        "encoded": answer.usage.num_encoded_tokens,
        "sources": sorted({str(each.source) for each in answer.usage.modules}),
        "faults": list(answer.usage.faults),
        "kv": stored(engine.store, engine.keys("travel")),
        "logits": digest(engine.logits(PROMPT)),
    }


def stored(store: Store, keys: list[str]) -> dict[str, str]:
    """Digests of all KV that a store has under keys."""
    found = {key: store.get(key).handle for key in keys}
    return {key: digest(torch.stack([run.keys, run.values])) for key, run in found.items() if run is not None}


def digest(tensor: torch.Tensor) -> str:
    """Return a digest over every bit of a tensor."""
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


@pytest.mark.process
def test_a_new_process_encodes_nothing_and_computes_the_same(tmp_path: Path) -> None:
    """After `warm`, a new process encodes nothing; its KV and logits are the same bit for bit."""
    engine = Engine.from_pretrained("demo", device="cpu", store=tmp_path)
    engine.add_schema(SCHEMA)
    (report,) = engine.warm()
    engine.warm(pairs=True)
    answer = engine.generate(PROMPT, do_sample=False, max_new_tokens=12)
    threads = torch.get_num_threads()  # another number may add in another order
    code = f"import json, sys, pathlib, torch; torch.set_num_threads({threads})\n"
    code += "from tests.engine.test_restart import restarted\nprint(json.dumps(restarted(pathlib.Path(sys.argv[1]))))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    output = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, env=environment
    ).stdout

    keys = engine.keys("travel")
    assert report.num_encoded == report.num_encodings == len(set(keys))
    assert json.loads(output.splitlines()[-1]) == {
        "text": answer.text,
        "encoded": 0,
        "sources": ["load"],
        "faults": [],
        "kv": stored(engine.store, keys),
        "logits": digest(engine.logits(PROMPT)),
    }


TRAVEL = """<schema name="travel">You plan trips.<module name="plan">Stay three days.</module>
<module name="beach">Miami has beaches.</module><module name="soup">Paris has soup.</module></schema>"""
SHORT = '<prompt schema="travel"><plan/><soup/>Where to?</prompt>'


@pytest.mark.parametrize("keep", ["full", "int8", "int4"])
@pytest.mark.parametrize("memory_bytes", [None, 20_000, 0])
def test_restarts_within_one_process_are_the_same_bit_for_bit(
    tmp_path: Path, keep: str, memory_bytes: int | None
) -> None:
    """Each codec gives the same logits again from memory, from a small memory, and from mapped files."""
    config = StoreConfig(folder=tmp_path, memory_bytes=memory_bytes)
    first, second, again = (engine_of(schema=TRAVEL, store=each, keep=keep) for each in (config, config, tmp_path))
    first.warm(pairs=True)

    assert second.generate(SHORT, max_new_tokens=1).usage.num_encoded_tokens == 0
    assert torch.equal(second.logits(SHORT), first.logits(SHORT))
    keys = first.keys("travel")
    assert stored(first.store, keys) == stored(second.store, keys) == stored(again.store, keys)
