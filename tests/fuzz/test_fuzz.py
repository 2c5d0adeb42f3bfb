"""Coverage-guided fuzzing, for as long as PROMPTCACHE_FUZZ_SECONDS says: half an hour by default, all targets together."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS
from tests.fuzz.test_replay import CORPUS, replay
from tests.language.faults import documents

SECONDS = int(os.environ.get("PROMPTCACHE_FUZZ_SECONDS", "1800")) // len(TARGETS)
PROJECT = Path(__file__).parents[2]
SEEDS = [PROJECT / "schemas", PROJECT / "examples" / "travel"]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this system")
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzing_finds_nothing(target: str, tmp_path: Path) -> None:
    """No fuzzed input raises an error other than ours, breaks a law, or takes a second."""
    found, faulty, findings = tmp_path / "found", tmp_path / "faulty", tmp_path / "findings"
    found.mkdir()
    faulty.mkdir()
    for number, (_, document) in enumerate(documents()):
        (faulty / str(number)).write_text(document, encoding="utf-8")
    folders = [found, CORPUS / target, faulty, *SEEDS]
    words = [sys.executable, "-m", "tests.fuzz.fuzz", target, findings, f"-max_total_time={SECONDS}", "-timeout=60"]

    done = subprocess.run([*map(str, [*words, *folders])], cwd=PROJECT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-4000:]
    assert any(found.iterdir()), "nothing was fuzzed: no input reached anything new"
    for path in sorted(findings.glob(f"{target}-*")):
        replay(target, path)
