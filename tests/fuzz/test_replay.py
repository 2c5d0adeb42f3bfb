"""Every input of the corpus, and every input that fuzzing found earlier, takes less than a second."""

import time
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
MAX_SECONDS = 1.0
"""Of processor time: what other processes do is nothing to us."""


def replay(target: str, path: Path) -> None:
    """Run one input; our own errors are answers, and anything else is raised."""
    start = time.process_time()
    TARGETS[target](path.read_bytes())
    took = time.process_time() - start
    assert took < MAX_SECONDS, f"{path.name} took {took:.1f} s of processor time"


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_corpus_is_answered(path: Path) -> None:
    """An input of the corpus is read, or refused with our own error, in less than a second."""
    replay(path.parent.name, path)


def test_every_target_has_a_corpus() -> None:
    """Each target begins with inputs of its own, and all of them are small: the corpus stays in the repository."""
    assert {path.parent.name for path in INPUTS} == set(TARGETS)
    assert max(path.stat().st_size for path in INPUTS) <= 4096
    assert len(INPUTS) <= 100
