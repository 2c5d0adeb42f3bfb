"""Check a declared schema, `Schema` to `CheckedSchema`, and the claims of its examples.

Most checks are in other modules. This module runs them in order and raises their diagnostics as one error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from promptcache.diagnostics import (
    MAX_FAULTS,
    Diagnostic,
    FaultList,
    PromptError,
    SchemaError,
    Span,
    diagnostic,
    did_you_mean,
    in_order,
)
from promptcache.language.check_values import value_faults
from promptcache.language.checked import (
    CHAT_SCHEMA,
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedScaffold,
    CheckedSchema,
    CheckedTurn,
    Selection,
    text_of,
    walk_checked,
)
from promptcache.language.limits import MAX_EXAMPLES
from promptcache.language.lint import lint_schema, text_outside_turns, texts_outside_turns
from promptcache.language.normalize import normalize_schema
from promptcache.language.prompt import example_prompt
from promptcache.language.resolve import resolve_prompt
from promptcache.language.rules.backbone import find_backbone
from promptcache.language.rules.compile import compile_rules, scaffold_members
from promptcache.language.rules.explain import (
    MAX_EXPLAINED,
    broken_rule,
    explain_dead,
    explain_impossible,
    explain_limit,
    explain_open,
    explain_unsatisfiable,
    idle_scaffolds,
)
from promptcache.language.rules.rules import Rules
from promptcache.language.rules.solver import TooHardError
from promptcache.language.schema import Schema
from promptcache.language.syntax.index import Index, index_schema, scaffold_name
from promptcache.language.syntax.names import quoted
from promptcache.language.syntax.nodes import Example, place
from promptcache.language.syntax.repair import Repair
from promptcache.language.syntax.values import answer_refusal

_MAX_REFUSED = 20
"""Number of refused examples whose broken rules are explained."""


def chat_schema() -> CheckedSchema:
    """Return the empty schema of prompts without one."""
    return replace(check_schema(Schema("empty")), name=CHAT_SCHEMA)


def check_schema(schema: Schema) -> CheckedSchema:
    """Check the names, paths and rules of a schema, and compute its final text.

    Raises:
        SchemaError: all faults of values that were given in Python. If there are none, all faults of names and paths.
            If there are none either, all faults of the rules. The warnings found so far are included.
    """
    _refuse(value_faults(schema))
    index = index_schema(schema)
    faults = index.faults
    names_are_right = not faults
    rules = compile_rules(index)
    members = [scaffold_members(parent, scaffold, index) for parent, scaffold in index.scaffolds]
    if faults:
        _refuse(faults, _follows(rules, schema, index) if names_are_right else ())
    children, open_separator = normalize_schema(schema)
    modules = {item.path: item for item in walk_checked(children) if isinstance(item, CheckedModule)}
    warnings = [*islice(lint_schema(schema, index, rules), MAX_FAULTS), *_absent_members(index, rules, modules)]
    outside: dict[str, Span] = {}
    for path, span in texts_outside_turns(children):
        outside.setdefault(path, span)
    if index.turns:
        warnings += text_outside_turns(outside, [*modules])
    try:
        backbone = find_backbone(rules, members)
    except TooHardError:
        question = "whether any prompt can satisfy this schema"
        raise SchemaError([explain_limit("PC314", question, rules, (), schema)]) from None
    if backbone is None:
        _refuse([explain_unsatisfiable(rules, schema)], warnings)
    assert backbone is not None, "such a schema is refused"
    dead_defaults = [each for found in rules.defaults.values() for each in found if each.member in backbone.dead]
    warnings += explain_open(backbone.open, rules, schema)
    warnings += explain_dead(rules, backbone.dead, index, {default.member for default in dead_defaults})
    scaffolds: list[CheckedScaffold] = []
    for (_, scaffold), paths, together in zip(index.scaffolds, members, backbone.together, strict=True):
        for path in paths:
            if not modules[path].cache:
                message = f"'{path}' is not cached, so it cannot be encoded together with others"
                fix = 'remove it from the scaffold, or remove cache="false"'
                faults.add("PC306", message, place(scaffold, "modules"), fix)
        if together is None:
            message, fix = "the members of this scaffold cannot be present together", "remove one of the members"
            given = paths if len(faults) < MAX_EXPLAINED else None
            faults.append(explain_impossible("PC305", message, scaffold.span, fix, rules, given))
        else:
            name = scaffold_name(scaffold)
            scaffolds.append(CheckedScaffold(name=name, members=paths, guaranteed=together, span=scaffold.span))
    warnings += idle_scaffolds(scaffolds, modules, backbone.guaranteed)
    for number, default in enumerate(dead_defaults):
        message, fix = f"the default '{default.member}' can never be used", "choose another default"
        given = (default.member,) if number < MAX_EXPLAINED else None
        faults.append(explain_impossible("PC303", message, default.span, fix, rules, given))
    _refuse(faults, warnings)
    contents = {"": children, **{path: module.children for path, module in modules.items()}}
    checked = CheckedSchema(
        name=schema.name,
        version=schema.version,
        children=children,
        modules=modules,
        parameters={path: {each.name: each for each in _own_parameters(items)} for path, items in contents.items()},
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
    _refuse(_example_faults(checked), warnings)
    return checked


def _refuse(found: Iterable[Diagnostic], warnings: Iterable[Diagnostic] = ()) -> None:
    """Raise an error if there are faults; include the warnings, because the caller sees only the error."""
    faults = FaultList(SchemaError)
    faults += found
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


def _absent_members(index: Index, rules: Rules, modules: Mapping[str, CheckedModule]) -> Iterator[Diagnostic]:
    """Yield a warning for each file without members, and for each member that only a rule names."""
    for collection in index.collections.values():
        if collection.src is not None and not collection.listed:
            message = f"src={collection.src!r} has no members: the file is empty or does not exist"
            fix = "`promptcache collect` writes it, or correct the path"
            yield diagnostic("PC225", message, place(collection, "src"), fix)
    for rule in rules.of_members:
        for path in sorted(rule.modules - modules.keys()):
            parent, _, name = path.rpartition("/")
            known = modules[parent].collection
            if known is not None and name not in known.members:
                message = f"a rule names '{name}', which collection '{parent}' does not have yet"
                fix = did_you_mean(name, known.members) or "add it, also while an engine runs, or correct the name"
                yield diagnostic("PC226", message, rule.span, fix)


def _own_parameters(items: tuple[CheckedItem, ...]) -> Iterator[CheckedParameter]:
    for item in items:
        if isinstance(item, CheckedParameter):
            yield item
        elif isinstance(item, CheckedTurn):
            yield from _own_parameters(item.children)


def _example_faults(schema: CheckedSchema) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each example that contradicts its claims."""
    if len(schema.examples) > MAX_EXAMPLES:
        message, fix = f"the schema has more than {MAX_EXAMPLES} examples", "move the other examples to separate files"
        yield diagnostic("PC009", message, schema.examples[MAX_EXAMPLES].span, fix)
    num_refused = 0
    for example in schema.examples[:MAX_EXAMPLES]:
        if not example.has_expectation:
            continue
        of_valid = [name for name in ("contains", "answer", "expect") if getattr(example, name) is not None]
        if example.valid is False and of_valid:
            message = f'{_called(example)} has valid="false", and only a valid prompt can have "{of_valid[0]}"'
            fix = f'remove {of_valid[0]}, or write valid="true"'
            yield diagnostic("PC105", message, place(example, of_valid[0]), fix)
            continue
        try:
            explain = example.valid is not False and num_refused < _MAX_REFUSED
            selection = resolve_prompt(example_prompt(example), schema, explain=explain)
        except PromptError as error:
            if example.valid is not False:
                num_refused += 1
                yield _refused(example, error)
            continue
        if example.valid is False:
            message = f'{_called(example)} has valid="false", but its prompt is valid'
            yield diagnostic("PC311", message, place(example, "valid"), 'write valid="true"')
        else:
            yield from _wrong_claims(example, selection)


def _wrong_claims(example: Example, selection: Selection) -> Iterator[Diagnostic]:
    """Check the claims of a valid example. Its text excludes the parts that a chat template adds."""
    if example.contains is not None and example.contains not in text_of(selection):
        message = f"the prompt of {_called(example)} does not contain {quoted(example.contains)}"
        yield diagnostic("PC312", message, place(example, "contains"), f"its text is {quoted(text_of(selection))}")
    if example.answer is None:
        return
    if selection.answer_format is None:
        message = f"{_called(example)} has an answer, but neither its prompt nor the schema has an <answer>"
        yield diagnostic("PC316", message, place(example, "answer"), "add <answer …/>, or remove the attribute")
    elif found := answer_refusal(selection.answer_format, example.answer):
        message = f"the answer {quoted(example.answer)} of {_called(example)} does not have its format: {found[0]}"
        related = ((selection.answer_format.span, "the format"),)
        yield diagnostic("PC316", message, place(example, "answer"), found[1], related)


def _refused(example: Example, error: PromptError) -> Diagnostic:
    claim, span = f"{_called(example)} is not valid", example.span
    if not error.diagnostics:
        return diagnostic("PC310", claim, span)
    first = error.diagnostics[0]
    related = tuple((fault.span, f"{fault.code} {fault.message}") for fault in error.diagnostics)
    if (rule := broken_rule(first)) is not None:
        claim, span = f"a rule makes {_called(example)} invalid", rule
        related = ((example.span, _called(example)), *related)
    return diagnostic("PC310", f"{claim}: {first.code} {first.message}", span, first.help, related)


def _called(example: Example) -> str:
    return f"example {quoted(example.name)}" if example.name else "the example"
