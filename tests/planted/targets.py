"""Modules in which faults are planted; some have the same name as a function of their package."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


def module_of(name: str) -> ModuleType:
    """Return a module by its full name, even if its package exports something else under this name."""
    import_module(name)
    return sys.modules[name]
