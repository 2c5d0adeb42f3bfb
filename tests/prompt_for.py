"""Build a prompt that names a given combination of modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import islice
from typing import TypeAlias

from promptcache.language.checked import CheckedSchema
from promptcache.language.prompt import Prompt
from promptcache.language.syntax.nodes import IN_PYTHON, Argument, Reference

SlotArguments: TypeAlias = Mapping[tuple[str, str], str]
"""Texts for parameters by module path ("" for the schema) and name."""


def prompt_for(schema: CheckedSchema, modules: Set[str], arguments: SlotArguments) -> Prompt:
    """Return a prompt that names all `modules`, nested as in the schema, with their part of `arguments`.

    It has as few members of each collection as that allows, the first declared ones. The combination is not checked.
    """
    inside: dict[str, list[str]] = {}
    for path in schema.modules:
        if path in modules:
            inside.setdefault(schema.modules[path].parent, []).append(path)

    def given(owner: str) -> tuple[Argument, ...]:
        texts = {name: arguments.get((owner, name)) for name in schema.parameters[owner]}
        return tuple(Argument(name=name, text=text, span=IN_PYTHON) for name, text in texts.items() if text is not None)

    def references(parent: str) -> tuple[Reference, ...]:
        return tuple(
            Reference(
                path=path.rpartition("/")[2],
                span=IN_PYTHON,
                arguments=given(path),
                children=(*references(path), *members(path)),
            )
            for path in inside.get(parent, ())
        )

    def members(path: str) -> Iterator[Reference]:
        collection = schema.modules[path].collection
        if collection is not None:
            for name in islice(collection.members, collection.minimum):
                yield Reference(path=name, span=IN_PYTHON)

    return Prompt(schema.name, references=references(""), arguments=given(""))
