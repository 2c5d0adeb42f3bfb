"""What a schema's own words allow: which sets of modules are prompts, read off the declaration.

Comes in: a schema as it was declared, and named modules. Goes out: the modules present, and the words that they break.
Neither the compiled rules nor a solver is used: this is what those are compared with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set

from promptcache.language.schema import Doc, Module, Parameter, Scaffold, Schema, Text, Turn, Union, join_path, walk

_KNOWN = (Doc, Module, Parameter, Scaffold, Text, Turn, Union)


def is_understood(schema: Schema) -> bool:
    """Whether everything that the schema declares is judged here: else `violations` may know too few."""
    return all(type(item) in _KNOWN for _, item in walk(schema.children))


def completed(schema: Schema, named: Collection[str]) -> frozenset[str]:
    """Return named modules with the defaults of unions of which no member is named."""
    present = set(named)
    for parent, item in walk(schema.children):  # a union stands behind its parent
        if isinstance(item, Union) and item.default is not None and (not parent or parent in present):
            members = {join_path(parent, member.name) for member in item.members}
            if present.isdisjoint(members):
                present.add(join_path(parent, item.default))
    return frozenset(present)


def violations(schema: Schema, present: Set[str]) -> Iterator[str]:
    """Yield the words of the schema that a complete set of modules breaks."""
    for parent, item in walk(schema.children):
        here = not parent or parent in present
        if isinstance(item, Union):
            members = [join_path(parent, member.name) for member in item.members]
            used = [member for member in members if member in present]
            if len(used) > 1:
                yield f"{' and '.join(used)} are members of one union"
            if here and not used and (item.required or item.default is not None):
                yield f"none of {', '.join(members)}"
        elif isinstance(item, Module):
            yield from _module_violations(item, parent, here, present)


def _module_violations(module: Module, parent: str, here: bool, present: Set[str]) -> Iterator[str]:
    path = join_path(parent, module.name)
    if path not in present:
        if here and module.required:
            yield f"{path} is required"
        return
    if not here:
        yield f"{path} without {parent}"
    for other in (*module.requires, *module.after):
        if _absolute(other, parent) not in present:
            yield f"{path} without {other}"
    for other in module.excludes:
        if _absolute(other, parent) in present:
            yield f"{path} with {other}"


def _absolute(path: str, parent: str) -> str:
    return path[1:] if path.startswith("/") else join_path(parent, path)
