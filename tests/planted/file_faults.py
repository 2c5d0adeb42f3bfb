"""Faults of what files bring: options, paths, rules and texts of a schema that stands in several files."""

from __future__ import annotations

from typing import Any

import pytest

from promptcache.language.syntax.read_items import SchemaReader
from tests.planted.registry import fault
from tests.planted.targets import module_of

read_items, read_schema, include = (
    module_of(f"promptcache.language.{name}") for name in ("syntax.read_items", "read_schema", "syntax.include")
)
Patch = pytest.MonkeyPatch
FILES = "files are one schema"


@fault("included modules take the options of their new place", law=FILES)
def _options_forgotten(patch: Patch) -> None:
    patch.setattr(include, "_with_options", lambda item, document, around: item)


@fault("a prefix is left out of paths", law=FILES)
def _paths_without_prefix(patch: Patch) -> None:
    patch.setattr(include._Scope, "_path", lambda self, path, owner: path)


@fault("rules of an included file stay behind", law=FILES)
def _rules_stay_behind(patch: Patch) -> None:
    patch.setattr(include._Scope, "rules", lambda self, rules: ())


@fault("an include takes what select= leaves out", law=FILES)
def _everything_taken(patch: Patch) -> None:
    original = read_schema.take
    patch.setattr(
        read_schema, "take", lambda document, wanted, *rest: original(document, wanted._replace(select=None), *rest)
    )


@fault("what is included stands at the end of the schema", law=FILES)
def _included_last(patch: Patch) -> None:
    original = SchemaReader._included

    def included(self: Any, element: Any) -> tuple[Any, ...]:
        self._top += original(self, element)
        return ()

    patch.setattr(SchemaReader, "_included", included)


@fault("texts from files lose their last newline", law=FILES)
def _text_stripped(patch: Patch) -> None:
    original = read_items.read_src

    def read_src(*args: Any, **more: Any) -> Any:
        found = original(*args, **more)
        return found.removesuffix("\n") if isinstance(found, str) else found

    patch.setattr(read_items, "read_src", read_src)
