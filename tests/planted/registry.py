"""Definition and registry of the planted faults."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """Planted fault: `plant` patches it into the library, `law` is the name of the law that must detect it.

    `quick` faults are planted in `make test`, and every second other one of each law in `make test-thorough`. `rare` ones,
    which few examples show, and the rest are planted in `make test-slow`. Examples are the same in each run, so that no
    fault needs two. The law of a template's fault is checked with one chat template and one kind of tokenizer, which
    show the fault.
    """

    name: str
    law: str
    plant: Plant
    quick: bool = False
    rare: bool = False
    template: str = "chatml"
    kind: str = "byte level"


FAULTS: list[PlantedFault] = []
TEMPLATE_FAULTS: list[PlantedFault] = []


def fault(name: str, *, law: str, among: list[PlantedFault] = FAULTS, **about: Any) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        among.append(PlantedFault(name=name, law=law, plant=plant, **about))
        return plant

    return register


def replaced(name: str, target: Any, attribute: str, value: object, **how: Any) -> None:
    """Register a fault that is another value of an attribute."""
    fault(name, **how)(lambda patch: patch.setattr(target, attribute, value))


def edited(name: str, function: Any, *edits: tuple[str, str], **how: Any) -> None:
    """Register a fault: a function whose source has other texts in some places, `(old, new)` each.

    Its code is replaced, so that every module that imported the function has the fault.
    """

    def plant(patch: pytest.MonkeyPatch) -> None:
        source = dedent(inspect.getsource(function))
        for old, new in edits:
            assert source.count(old) == 1, f"{old!r} is not once in {function.__qualname__}"
            source = source.replace(old, new)
        made: dict[str, Any] = {}
        exec(source, function.__globals__, made)
        patch.setattr(function, "__code__", made[function.__name__].__code__)

    fault(name, **how)(plant)


def wrapped(name: str, target: Any, attribute: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a fault: a function in place of another one, or of a property's, which is its first argument."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def plant(patch: pytest.MonkeyPatch) -> None:
            original = getattr(target, attribute)
            if isinstance(original, property):
                patch.setattr(target, attribute, property(partial(function, original.fget)))
            else:
                patch.setattr(target, attribute, lambda *args, **named: function(original, *args, **named))

        fault(name, **how)(plant)
        return function

    return decorate


def module_of(name: str) -> ModuleType:
    """Return a module by its full name, even if its package exports something else under this name."""
    import_module(name)
    return sys.modules[name]
