"""Mutation test of the engine: every planted fault is detected by its law."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import tests.planted.file_faults
import tests.planted.language_faults
import tests.planted.layout_faults
import tests.planted.runtime_faults  # noqa: F401 # registered where they are defined
from promptcache.diagnostics import PromptCacheError
from tests.planted.probes import make_models, probe
from tests.planted.registry import FAULTS, PlantedFault

pytestmark = pytest.mark.long

REDUCED = 1_000
DEFAULT = 2_000
CAUGHT = (AssertionError, LookupError, ValueError, RuntimeError, PromptCacheError, BaseExceptionGroup)
"""Errors of a broken law, or of the broken library on a valid case."""

LAWS = sorted({fault.law for fault in FAULTS})
IS_QUICK = os.environ.get("PROMPTCACHE_EXAMPLES", "default") in ("quick", "default")
IS_SLOW = os.environ.get("PROMPTCACHE_EXAMPLES") == "slow"
EXAMPLES = DEFAULT if IS_SLOW else REDUCED
QUICK = [fault for fault in FAULTS if fault.quick]
COMMON = [fault for fault in FAULTS if not (fault.quick or fault.rare)]
THOROUGH = [fault for law in LAWS for fault in [each for each in COMMON if each.law == law][::2]]
PLANTED = FAULTS if IS_SLOW else QUICK if IS_QUICK else THOROUGH


@pytest.fixture(autouse=True, scope="module")
def _models() -> None:
    """Make the models before a fault is planted."""
    make_models()


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Yield a monkeypatch that is undone before the next test."""
    with pytest.MonkeyPatch.context() as patches:
        yield patches


@pytest.mark.law
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_planted_faults_are_caught(fault: PlantedFault, patch: pytest.MonkeyPatch) -> None:
    """A planted fault breaks the law that is registered for it."""
    fault.plant(patch)

    with pytest.raises(CAUGHT):
        probe(fault.law, EXAMPLES)


@pytest.mark.law
@pytest.mark.parametrize("law", LAWS if IS_SLOW else ["schemas print", "generation is the reference"])
def test_laws_hold_where_nothing_is_planted(law: str) -> None:
    """The laws hold in the unchanged library; the probes use fewer examples than the tests of the laws."""
    probe(law, EXAMPLES // 2 if IS_SLOW else EXAMPLES // 100)


def test_there_are_enough() -> None:
    """At least forty faults are planted, each once, at least five of them in every run, and one for each law in CI."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert len(QUICK) >= 5
    assert {fault.law for fault in (*QUICK, *THOROUGH)} == {*LAWS}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_can_be_planted(fault: PlantedFault, patch: pytest.MonkeyPatch) -> None:
    """What each fault replaces exists in the library, also for faults that few runs plant."""
    fault.plant(patch)
