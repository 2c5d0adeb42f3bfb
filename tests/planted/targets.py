"""The modules that faults are planted in; some share their name with a function of their package."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


def module_of(name: str) -> ModuleType:
    """Return a module by its full name, whatever its package exports under that name."""
    import_module(name)
    return sys.modules[name]
