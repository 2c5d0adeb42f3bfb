"""Check a declared schema: `Schema` to `CheckedSchema`.

The checks are in other modules. This module runs them in order and raises their diagnostics as one error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from itertools import islice

from promptcache.diagnostics import MAX_FAULTS, Diagnostic, FaultList, SchemaError, diagnostic, did_you_mean, in_order
from promptcache.language.check_values import value_faults
from promptcache.language.checked import (
    CHAT_SCHEMA,
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedScaffold,
    CheckedSchema,
    CheckedTurn,
    walk_checked,
)
from promptcache.language.examples import check_examples
from promptcache.language.lint import lint_schema, text_outside_turns, texts_outside_turns
from promptcache.language.normalize import normalize_schema
from promptcache.language.rules.backbone import find_backbone
from promptcache.language.rules.compile import compile_rules, scaffold_members
from promptcache.language.rules.explain import (
    MAX_EXPLAINED,
    explain_dead,
    explain_impossible,
    explain_open,
    explain_undecided,
    explain_unsatisfiable,
    idle_scaffolds,
)
from promptcache.language.rules.rules import Default, Rules
from promptcache.language.rules.solver import TooHardError
from promptcache.language.schema import Schema
from promptcache.language.syntax.index import Index, index_schema, scaffold_name
from promptcache.language.syntax.nodes import Scaffold, place
from promptcache.language.syntax.repair import Repair


def chat_schema() -> CheckedSchema:
    """Return the empty schema of prompts without one."""
    return replace(check_schema(Schema("empty")), name=CHAT_SCHEMA)


def check_schema(schema: Schema) -> CheckedSchema:
    """Check the names, paths and rules of a schema, and compute its final text.

    Raises:
        SchemaError: all faults of values that were given in Python. If there are none, all faults of names and paths.
            If there are none either, all faults of the rules. The warnings found so far are included.
    """
    _refuse(_collected(value_faults(schema)))
    index = index_schema(schema)
    faults = index.faults
    names_are_right = not faults
    rules = compile_rules(index)
    members = [scaffold_members(parent, scaffold, index) for parent, scaffold in index.scaffolds]
    if faults:
        _refuse(faults, _follows(rules, schema, index) if names_are_right else ())
    children, open_separator = normalize_schema(schema)
    modules = {item.path: item for item in walk_checked(children) if isinstance(item, CheckedModule)}
    warnings = [*islice(lint_schema(schema, index, rules), MAX_FAULTS)]
    warnings += (*_without_members(index), *_unknown_members(rules, modules))
    outside = texts_outside_turns(children)
    if index.turns:
        warnings += text_outside_turns(outside, [*modules])
    try:
        backbone = find_backbone(rules, members)
    except TooHardError:
        raise SchemaError([explain_undecided(rules, schema)]) from None
    if backbone is None:
        _refuse([explain_unsatisfiable(rules, schema)], warnings)
    assert backbone is not None, "such a schema is refused"
    dead_defaults = tuple(_dead_defaults(rules, backbone.dead))
    warnings += explain_open(backbone.open, rules, schema)
    warnings += explain_dead(rules, backbone.dead, index, {default.member for default in dead_defaults})
    declared = [scaffold for _, scaffold in index.scaffolds]
    scaffolds: list[CheckedScaffold] = []
    for scaffold, paths, together in zip(declared, members, backbone.together, strict=True):
        faults += _uncached(scaffold, paths, modules)
        if together is None:
            message, fix = "the members of this scaffold cannot be present together", "remove one of the members"
            given = paths if len(faults) < MAX_EXPLAINED else None
            faults.append(explain_impossible("PC305", message, scaffold.span, fix, rules, given))
        else:
            scaffolds.append(_scaffold(scaffold, paths, together))
    warnings += idle_scaffolds(scaffolds, modules, backbone.guaranteed)
    for number, default in enumerate(dead_defaults):
        message, fix = f"the default '{default.member}' can never be used", "choose another default"
        given = (default.member,) if number < MAX_EXPLAINED else None
        faults.append(explain_impossible("PC303", message, default.span, fix, rules, given))
    _refuse(faults, warnings)
    checked = CheckedSchema(
        name=schema.name,
        version=schema.version,
        children=children,
        modules=modules,
        parameters=_parameters(children, modules),
        guaranteed=backbone.guaranteed,
        scaffolds=tuple(scaffolds),
        has_turns=bool(index.turns),
        outside_turns=outside,
        open_separator=open_separator,
        rules=rules,
        repair=None if schema.repair is None else Repair.parse(schema.repair),
        positions=schema.positions,
        answer_format=index.answers[0] if index.answers else None,
        warnings=in_order(warnings),
        source=schema,
    )
    _refuse(_collected(check_examples(checked)), warnings)
    return checked


def _dead_defaults(rules: Rules, dead: Set[str]) -> Iterator[Default]:
    defaults = (default for found in rules.defaults.values() for default in found)
    return (default for default in defaults if default.member in dead)


def _scaffold(scaffold: Scaffold, paths: tuple[str, ...], together: frozenset[str]) -> CheckedScaffold:
    return CheckedScaffold(name=scaffold_name(scaffold), members=paths, guaranteed=together, span=scaffold.span)


def _without_members(index: Index) -> Iterator[Diagnostic]:
    for collection in index.collections.values():
        if collection.src is not None and not collection.listed:
            message = f"src={collection.src!r} has no members: the file is empty or does not exist"
            fix = "`promptcache collect` writes it, or correct the path"
            yield diagnostic("PC225", message, place(collection, "src"), fix)


def _unknown_members(rules: Rules, modules: Mapping[str, CheckedModule]) -> Iterator[Diagnostic]:
    for rule in rules.of_members:
        for path in sorted(rule.modules - modules.keys()):
            parent, _, name = path.rpartition("/")
            collection = modules[parent].collection
            if collection is not None and name not in collection.members:
                message = f"a rule names '{name}', which collection '{parent}' does not have yet"
                fix = did_you_mean(name, collection.members) or "add it, also while an engine runs, or correct the name"
                yield diagnostic("PC226", message, rule.span, fix)


def _collected(found: Iterator[Diagnostic]) -> FaultList:
    faults = FaultList(SchemaError)
    faults.extend(found)
    return faults


def _refuse(faults: list[Diagnostic], warnings: Iterable[Diagnostic] = ()) -> None:
    """Raise an error if there are faults; include the warnings, because the caller sees only the error."""
    if faults:
        raise SchemaError((*in_order(faults), *in_order(warnings)))


def _follows(rules: Rules, schema: Schema, index: Index) -> Iterator[Diagnostic]:
    """Yield the diagnostics implied by the rules without faults; the faulty rules could only forbid more."""
    try:
        backbone = find_backbone(rules)
    except TooHardError:
        return
    if backbone is None:
        yield explain_unsatisfiable(rules, schema)
    else:
        yield from explain_dead(rules, backbone.dead, index)


def _parameters(
    children: tuple[CheckedItem, ...], modules: Mapping[str, CheckedModule]
) -> dict[str, dict[str, CheckedParameter]]:
    """Return the parameters of the schema ("") and of each module, by name."""
    contents = {"": children, **{path: module.children for path, module in modules.items()}}
    return {path: {each.name: each for each in _own_parameters(items)} for path, items in contents.items()}


def _own_parameters(items: tuple[CheckedItem, ...]) -> Iterator[CheckedParameter]:
    for item in items:
        if isinstance(item, CheckedParameter):
            yield item
        elif isinstance(item, CheckedTurn):
            yield from _own_parameters(item.children)


def _uncached(scaffold: Scaffold, paths: tuple[str, ...], modules: dict[str, CheckedModule]) -> Iterator[Diagnostic]:
    for path in paths:
        if not modules[path].cache:
            message = f"'{path}' is not cached, so it cannot be encoded together with others"
            fix = 'remove it from the scaffold, or remove cache="false"'
            yield diagnostic("PC306", message, place(scaffold, "modules"), fix)
