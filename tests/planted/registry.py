"""Definition and registry of the planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """Planted fault: `plant` patches it into the library, `law` is the name of the law that must detect it.

    `quick` faults are planted in `make test`, and every second other one of each law in `make test-thorough`. `rare` ones,
    which few examples show, and the rest are planted in `make test-slow`. Examples are the same in each run, so that no
    fault needs two.
    """

    name: str
    law: str
    plant: Plant
    quick: bool
    rare: bool


FAULTS: list[PlantedFault] = []


def fault(name: str, *, law: str, quick: bool = False, rare: bool = False) -> Callable[[Plant], Plant]:
    """Register a function that plants a fault."""

    def register(plant: Plant) -> Plant:
        FAULTS.append(PlantedFault(name=name, law=law, plant=plant, quick=quick, rare=rare))
        return plant

    return register
