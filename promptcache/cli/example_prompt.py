"""A prompt that selects a given combination of modules, nested as the schema nests.

Comes in: a schema, module paths, and arguments. Goes out: a `Prompt`. Whether the combination is valid is not asked
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from promptcache.language import CheckedSchema, Prompt
from promptcache.language.prompt import IN_PYTHON, Argument, Reference

Arguments = Mapping[tuple[str, str], str]
"""Texts for parameters, by module path ("" for the schema's own) and name."""


def example_prompt(schema: CheckedSchema, modules: Set[str], arguments: Arguments) -> Prompt:
    """Return a prompt that names every one of `modules`, in document order, and fills what `arguments` has of them."""
    inside: dict[str, list[str]] = {}
    for path in schema.modules:
        if path in modules:
            inside.setdefault(schema.modules[path].parent, []).append(path)

    def given(owner: str) -> tuple[Argument, ...]:
        texts = {name: arguments.get((owner, name)) for name in schema.parameters[owner]}
        return tuple(Argument(name=name, text=text, span=IN_PYTHON) for name, text in texts.items() if text is not None)

    def references(parent: str) -> tuple[Reference, ...]:
        return tuple(
            Reference(path=path.rpartition("/")[2], span=IN_PYTHON, arguments=given(path), children=references(path))
            for path in inside.get(parent, ())
        )

    return Prompt(schema.name, references=references(""), arguments=given(""))
