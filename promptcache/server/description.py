"""A schema as data for clients: its modules with parameters, its unions, and their documentation."""

from __future__ import annotations

from typing import Any

from promptcache.language import CheckedCollection, CheckedSchema, CheckedUnion, Parameter, module_docs, walk_checked


def describe(checked: CheckedSchema) -> dict[str, Any]:
    """Return the modules and unions of a schema. The module "" has the parameters outside of modules.

    Members of collections are no part of it, because there can be 100,000.
    """
    docs = dict(module_docs(checked))
    modules = [
        {
            "path": path,
            "required": path != "" and checked.modules[path].required,
            "doc": docs.get(path),
            "parameters": [_parameter(each) for each in checked.parameters[path].values()],
            "collection": None if path == "" else _limits(checked.modules[path].collection),
        }
        for path in ("", *checked.modules)
    ]
    unions = [
        {
            "name": union.name,
            "required": union.required,
            "default": union.default,
            "members": [member.path for member in union.members],
        }
        for union in walk_checked(checked.children)
        if isinstance(union, CheckedUnion)
    ]
    return {"modules": modules, "unions": unions}


def _limits(collection: CheckedCollection | None) -> dict[str, Any] | None:
    return None if collection is None else {"min": collection.minimum, "max": collection.maximum}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "length": parameter.length,
        "type": parameter.type,
        "choices": list(parameter.choices),
        "required": parameter.required,
        "default": parameter.default,
    }
