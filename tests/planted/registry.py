"""What a planted fault is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """A fault: `plant` patches it into the library, `law` names the law that must catch it.

    `quick` ones are planted in `make test` too.
    """

    name: str
    law: str
    plant: Plant
    quick: bool


FAULTS: list[PlantedFault] = []


def fault(name: str, *, law: str, quick: bool = False) -> Callable[[Plant], Plant]:
    """Register a function that plants a fault."""

    def register(plant: Plant) -> Plant:
        FAULTS.append(PlantedFault(name=name, law=law, plant=plant, quick=quick))
        return plant

    return register
