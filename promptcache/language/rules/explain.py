"""Explain rules in words: faults of a schema (PC301 to PC305, PC313, PC314) and of prompts (PC406 to PC419).

A conflict is explained by the smallest set of rules and named modules that cannot hold together. Nesting rules are
left out of it: readers know that a module needs its ancestors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from promptcache.diagnostics import Diagnostic, Severity, Span
from promptcache.language.checked import CheckedModule, CheckedScaffold
from promptcache.language.rules.backbone import OpenQuestions
from promptcache.language.rules.rules import BrokenRule, Default, Exclusive, Implication, Rule, RuleKind, Rules
from promptcache.language.rules.solver import MAX_STEPS, RuleSolver, TooHardError, max_steps, new_budget
from promptcache.language.syntax.conditions import Cardinality
from promptcache.language.syntax.index import Index
from promptcache.language.syntax.names import MAX_LISTED, ancestors, element, listed
from promptcache.language.syntax.nodes import IN_PYTHON, Context, Parameter, SchemaDocument, place
from promptcache.language.syntax.source import diagnostic

MAX_EXPLAINED = 5
"""Number of rule faults that get a reason; each reason costs solver time."""

_MAX_STEPS = MAX_STEPS // 10
_MAX_COMPARED = 1_000_000
_MAX_OPTIONS = 12
_MAX_BROKEN = 20
_MISSING = {
    RuleKind.REQUIRED: "PC406",
    RuleKind.CHOICE: "PC407",
    RuleKind.REQUIRES: "PC409",
    RuleKind.AFTER: "PC414",
}
_DECLARED = {RuleKind.CHOOSE: "PC419"}
_CODES = frozenset({*_MISSING.values(), *_DECLARED.values(), "PC408", "PC410", "PC411", "PC417", "PC418"})


class Conflict(NamedTuple):
    """Modules that cannot be present together under `rules`; removing any one module or rule ends the conflict."""

    modules: tuple[str, ...]
    rules: tuple[Rule, ...]


def smallest_conflict(rules: Rules, wanted: Sequence[str], given: Sequence[str] = ()) -> Conflict | None:
    """Return a smallest conflict.

    Args:
        rules: All rules of the schema.
        wanted: Modules that may be part of the conflict.
        given: Modules that are always present.

    Returns:
        A conflict of which every part is needed. With few candidate rules and modules, no other conflict is smaller. If
        the search exceeds its budget, the smallest conflict found so far. None if all modules can be present together,
        or if the budget is too small to decide that.
    """
    cone = _cone(rules, (*wanted, *given))
    with RuleSolver(cone, new_budget(_MAX_STEPS)) as solver, suppress(TooHardError):
        _nest(solver, cone, given)
        things: list[str | Rule] = [*dict.fromkeys(wanted), *_concerned(rules, cone)]
        soft = {solver.add_soft(thing): thing for thing in things}
        core = solver.core(list(soft))
        if core is not None:
            found = [soft[selector] for selector in core]
            return Conflict(
                tuple(thing for thing in found if isinstance(thing, str)),
                tuple(thing for thing in found if not isinstance(thing, str)),
            )
    return None


def possible_with(rules: Rules, given: Sequence[str], options: Iterable[str]) -> frozenset[str]:
    """Return each of `options` that can be present together with all of `given`.

    An option is left out if the budget is too small to decide it.
    """
    options = list(options)
    cone = _cone(rules, (*given, *options))
    found: set[str] = set()
    with RuleSolver(cone, new_budget(_MAX_STEPS)) as solver, suppress(TooHardError):
        _nest(solver, cone, given)
        solver.add(_concerned(rules, cone))
        found.update(option for option in options if solver.is_possible((option,)))
    return frozenset(found)


def _nest(solver: RuleSolver, cone: list[str], given: Iterable[str]) -> None:
    """Demand the given modules, and the parent of each module."""
    for module in ("", *given):
        solver.demand(module)
    solver.add(
        Implication(kind=RuleKind.NESTING, when=(module,), then=frozenset((module.rpartition("/")[0],)), span=IN_PYTHON)
        for module in cone
        if "/" in module
    )


def _cone(rules: Rules, start: Iterable[str]) -> list[str]:
    """Return all modules that can matter for `start`, "" included, in document order."""
    reached: set[str] = set()
    waiting = ["", *start, *(module for number in rules.standing for module in rules.checks[number].modules)]
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        waiting.extend(ancestors(module))
        for rule in rules.triggers.get(module, ()):
            waiting.extend(rule.then)
        for number in rules.touching.get(module, ()):
            waiting.extend(rules.checks[number].modules)
    return sorted(reached, key=rules.order.__getitem__)


def _concerned(rules: Rules, cone: list[str]) -> Iterator[Rule]:
    """Yield the rules that bind the modules of a cone, except nesting rules."""
    inside = set(cone)
    for module in cone:
        yield from (rule for rule in rules.triggers.get(module, ()) if inside.issuperset(rule.when))
        union = rules.union_of.get(module)
        if union is not None and next(member for member in union.members if member in inside) == module:
            yield union
    touched = {number for module in cone for number in rules.touching.get(module, ())}
    yield from (rules.checks[number] for number in sorted(touched.union(rules.standing)))


def describe(rule: Rule) -> str:
    """Return the demand of a rule in words."""
    if isinstance(rule, Exclusive):
        return f"{listed(rule.members)} are members of one union"
    declared = rule.declared if isinstance(rule, Implication) else rule
    if declared is not None:
        return f"{declared.message} ({declared.words})" if declared.message else declared.words
    assert isinstance(rule, Implication)
    subject, then = rule.when[0], listed(sorted(rule.then))
    where = f" in '{subject}'" if subject else ""
    match rule.kind:
        case RuleKind.REQUIRED:
            return f"{then} is required{where}"
        case RuleKind.CHOICE:
            return f"{then if len(rule.then) == 1 else f'one of {then}'} must be used{where}"
        case RuleKind.EXCLUDES:
            return f"'{subject}' excludes '{rule.when[1]}'"
        case RuleKind.AFTER:
            return f"'{subject}' comes after {then}"
        case RuleKind.NESTING:
            return f"'{subject}' is inside {then}"
        case _:
            return f"'{subject}' requires {then}"


def explain_unsatisfiable(rules: Rules, schema: SchemaDocument) -> Diagnostic:
    """Return the diagnostic for a schema that no prompt can satisfy."""
    message, fix = "no prompt can satisfy this schema", "remove one of these rules"
    found = _impossible("PC301", message, place(schema, "name"), fix, rules, ())
    return replace(found, span=min((span for span, _ in found.related), default=found.span))


def explain_dead(rules: Rules, dead: Set[str], index: Index, reported: Set[str] = frozenset()) -> Iterator[Diagnostic]:
    """Yield a warning for each dead module, except modules inside another dead one and modules in `reported`."""
    outermost = (path for path in index.modules if path in dead - reported and dead.isdisjoint(ancestors(path)))
    for number, path in enumerate(outermost):
        message, span = f"module '{path}' can never be used", place(index.modules[path].module, "name")
        fix = "remove one of these rules, or the module"
        given = (path,) if number < MAX_EXPLAINED else None
        yield replace(_impossible("PC302", message, span, fix, rules, given), severity=Severity.WARNING)


def explain_default(rules: Rules, default: Default, *, with_reason: bool) -> Diagnostic:
    """Return the diagnostic for a union default that can never be used."""
    message, given = f"the default '{default.member}' can never be used", (default.member,) if with_reason else None
    return _impossible("PC303", message, default.span, "choose another default", rules, given)


def explain_scaffold(rules: Rules, members: tuple[str, ...], span: Span, *, with_reason: bool) -> Diagnostic:
    """Return the diagnostic for a scaffold whose members cannot be present together."""
    message, given = "the members of this scaffold cannot be present together", members if with_reason else None
    return _impossible("PC305", message, span, "remove one of the members", rules, given)


def _impossible(
    code: str, message: str, span: Span, fix: str | None, rules: Rules, given: tuple[str, ...] | None
) -> Diagnostic:
    """Return a diagnostic with the smallest set of rules that `given` modules break, unless `given` is None."""
    conflict = None if given is None else smallest_conflict(rules, (), given)  # None too if it exceeds the budget
    related = () if conflict is None else tuple((rule.span, describe(rule)) for rule in conflict.rules)
    reason = "; ".join(words for _, words in related)
    message = f"{message}: {reason}" if reason else message
    return diagnostic(code, message, span, fix, related)


def idle_scaffolds(
    scaffolds: Iterable[CheckedScaffold], modules: Mapping[str, CheckedModule], guaranteed: Mapping[str, Set[str]]
) -> Iterator[Diagnostic]:
    """Yield a warning for each scaffold that does not change the context of any of its modules."""
    order = {path: number for number, path in enumerate(modules)}
    for scaffold in scaffolds:
        together = scaffold.guaranteed
        if not all(modules[path].cache for path in scaffold.members):
            continue
        covered = [path for path in together if not {path, *ancestors(path)}.isdisjoint(scaffold.members)]
        if len(covered) * len(together) <= _MAX_COMPARED and not any(
            modules[path].context is Context.OWN
            or any(order[more] < order[path] or more.startswith(f"{path}/") for more in together - guaranteed[path])
            for path in covered
        ):
            message = "the scaffold has no effect: each of its modules already attends to the others before it"
            yield diagnostic("PC313", message, scaffold.span, "remove it", severity=Severity.WARNING)


def explain_undecided(rules: Sequence[Rule], schema: SchemaDocument) -> Diagnostic:
    """Return the diagnostic for a schema whose satisfiability exceeds the budget."""
    return _too_hard("whether any prompt can satisfy this schema", rules, schema)


def explain_open(found: OpenQuestions, schema: SchemaDocument) -> Iterator[Diagnostic]:
    """Yield a warning if the guarantees of some modules exceed the budget."""
    if found.modules:
        modules = [f"with {listed([each for each in found.modules if each])}"] if any(found.modules) else []
        what = " and ".join([*(["in every prompt"] if "" in found.modules else []), *modules])
        yield replace(
            _too_hard(f"which modules are always present {what}", found.rules, schema), severity=Severity.WARNING
        )


def _too_hard(question: str, rules: Sequence[Rule], schema: SchemaDocument) -> Diagnostic:
    message = (
        f"it takes more than {max_steps():,} steps to find out {question}: {len(rules)} rules depend on each other"
    )
    fix = "use fewer rules with alternatives, and shorter chains of requires and after"
    related = tuple((rule.span, describe(rule)) for rule in rules[:MAX_LISTED])
    return diagnostic("PC314", message, place(schema, "name"), fix, related)


def explain_broken(
    rules: Rules,
    parameters: Mapping[str, Mapping[str, Parameter]],
    broken: Sequence[BrokenRule],
    places: Mapping[str, Span],
    present: Mapping[str, Default | None],
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each fault of a selection.

    Args:
        rules: All rules of the schema.
        parameters: The parameters of each module.
        broken: The rules that the selection breaks.
        places: The span of the reference that names each module or a module inside it; "" is the prompt itself.
        present: All modules of the selection; the value is the default that added the module, None for a named one.
    """
    named = [module for module in places if module]
    write = _References(parameters, places)
    clashes = [rule for rule in broken if _is_clash(rule) and _members(rule, places) <= places.keys()]
    for rule in clashes:
        yield _clash(rule, places)
    if clashes:
        return
    if conflict := smallest_conflict(rules, _innermost(named)):
        yield _conflict(conflict.modules, conflict.rules, places)
        return
    possible = _possible(rules, broken[:_MAX_BROKEN], named, present)
    for number, rule in enumerate(broken):
        default = next((present[module] for module in _subjects(rule, present) if present[module] is not None), None)
        if default is not None:
            yield _default(rules, rule, default, places, write, with_help=number < MAX_EXPLAINED)
        elif isinstance(rule, Implication):
            yield _missing(rules, rule, possible, places, present, write)


def explain_members(
    broken: Iterable[Implication], parameters: Mapping[str, Mapping[str, Parameter]], places: Mapping[str, Span]
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each broken rule over members; `places` has the members of the prompt too."""
    write = _References(parameters, places)
    for rule in broken:
        named = [module for module in rule.when if module and module in places]
        options = sorted(rule.then)[:_MAX_OPTIONS]
        added = f"add {' or '.join(map(write.added, options))}" if options else None
        fix = added or (_remove(named) if named else None)  # without any, defaults of unions break the rule
        yield _declared(rule, places[named[-1] if named else ""], ((rule.span, describe(rule)),), fix)


def broken_rule(diagnostic: Diagnostic) -> Span | None:
    """Return the span of the rule that a prompt breaks, or None for a diagnostic of another kind.

    The span is the last related place of each diagnostic of this module.
    """
    return diagnostic.related[-1][0] if diagnostic.code in _CODES else None


def _possible(
    rules: Rules, broken: Sequence[BrokenRule], named: Sequence[str], present: Collection[str]
) -> frozenset[str]:
    """Return the modules that could satisfy a `broken` rule and are possible with all named modules."""
    open_rules = (rule for rule in broken if isinstance(rule, Implication) and len(rule.then) > 1)
    options = {option for rule in open_rules for option in _options(rules, rule, present)[0]}
    return possible_with(rules, named, options) if options else frozenset()


def _options(rules: Rules, rule: Implication, present: Collection[str]) -> tuple[list[str], int]:
    """Return the first modules that would keep a rule, in document order, and the number of them that it needs."""
    test = rule.declared.test if rule.declared is not None else None
    options: Collection[str] = rule.then
    number = 1
    if isinstance(test, Cardinality):
        absent = [module for module in test.modules if module not in present]
        lacking = test.low - (len(test.modules) - len(absent))
        if lacking <= _MAX_OPTIONS:
            options, number = absent, lacking
    return sorted(options, key=rules.order.__getitem__)[: number - 1 + _MAX_OPTIONS], number


def _is_clash(rule: BrokenRule) -> bool:
    return isinstance(rule, Exclusive) or not rule.then


def _members(rule: BrokenRule, present: Mapping[str, object]) -> frozenset[str]:
    if isinstance(rule, Implication):
        return frozenset(rule.when)
    found = frozenset(member for member in rule.members if member in present)
    return found if len(found) > 1 else frozenset(rule.members)


def _subjects(rule: BrokenRule, present: Mapping[str, object]) -> Sequence[str]:
    return rule.when if isinstance(rule, Implication) else [member for member in rule.members if member in present]


def _innermost(named: Sequence[str]) -> list[str]:
    """Return the named modules without ancestors of other named modules."""
    outer = {ancestor for module in named for ancestor in ancestors(module)}
    return [module for module in named if module not in outer]


def _clash(rule: BrokenRule, places: Mapping[str, Span]) -> Diagnostic:
    modules = sorted(_members(rule, places), key=lambda module: places[module])
    first, second = modules[0], modules[-1]
    related = ((places[first], f"'{first}' is named here"), (rule.span, describe(rule)))
    if isinstance(rule, Implication) and rule.declared is not None:
        test = rule.declared.test
        if isinstance(test, Cardinality) and test.high is not None:
            used = [module for module in test.modules if module in places]
            fix = _remove(sorted(used, key=lambda module: places[module]), test.high)
        else:
            fix = _remove(modules)
        return _declared(rule, places[second], related, fix)
    if isinstance(rule, Exclusive):
        code, message = "PC408", f"{listed(modules)} are members of one union: at most one of them can be used"
    else:
        code, message = "PC410", f"{listed(modules)} cannot be used together: {describe(rule)}"
    return diagnostic(code, message, places[second], _remove(modules, 1), related)


def _conflict(modules: tuple[str, ...], rules: tuple[Rule, ...], places: Mapping[str, Span]) -> Diagnostic:
    reasons = "; ".join(describe(rule) for rule in rules)
    ordered = sorted(modules, key=lambda module: places[module])
    what = f"{listed(ordered)} cannot be used together" if len(ordered) > 1 else f"'{ordered[0]}' cannot be used"
    related = (
        *((places[module], f"'{module}' is named here") for module in ordered[:-1]),
        *((rule.span, describe(rule)) for rule in rules),
    )
    return diagnostic("PC417", f"{what}: {reasons}", places[ordered[-1]], _remove(ordered), related)


def _default(
    rules: Rules, rule: BrokenRule, default: Default, places: Mapping[str, Span], write: _References, *, with_help: bool
) -> Diagnostic:
    """Return the diagnostic for a default that breaks a rule; the help lists modules that are possible."""
    message = f"'{default.member}', the default of its union, breaks a rule: {describe(rule)}"
    ways = []
    if with_help:
        named = [module for module in places if module]
        others = sorted(default.members - {default.member})[:_MAX_OPTIONS]
        possible = possible_with(rules, named, others)
        if fitting := [write.added(other) for other in others if other in possible]:
            ways.append(f"name another member: {', '.join(fitting)}")
        if isinstance(rule, Implication) and len(rule.then) == 1:
            ways += [f"add {write.added(each)}" for each in possible_with(rules, (*named, default.member), rule.then)]
    related = ((default.span, "the default"), (rule.span, describe(rule)))
    span = places.get(default.parent, places[""])
    return diagnostic("PC411", message, span, ", or ".join(ways) or None, related)


def _missing(
    rules: Rules,
    rule: Implication,
    possible: Set[str],
    places: Mapping[str, Span],
    present: Collection[str],
    write: _References,
) -> Diagnostic:
    """Return the diagnostic for a rule with missing modules; the help lists those that are `possible`."""
    options, number = _options(rules, rule, present)
    fitting = options if len(options) == number else [option for option in options if option in possible]
    span = places.get(rule.when[0], places[""])
    added = [*map(write.added, fitting)]
    if number == 1:
        fix = f"add {' or '.join(added)}" if added else None
    elif number < len(added):
        fix = f"add {number} of {', '.join(added)}"
    else:
        fix = f"add {', '.join(added[:-1])} and {added[-1]}" if number == len(added) else None
    if rule.declared is not None:
        return _declared(rule, span, ((rule.span, describe(rule)),), fix)
    message = f"{describe(rule)}, but the prompt {'does not name it' if len(options) == 1 else 'names none of them'}"
    return diagnostic(_MISSING[rule.kind], message, span, fix, ((rule.span, describe(rule)),))


def _declared(rule: Implication, span: Span, related: tuple[tuple[Span, str], ...], fix: str | None) -> Diagnostic:
    """Return the diagnostic for a declared rule, with the author's message if there is one."""
    assert rule.declared is not None, "only rules of <rules> come here"
    message = rule.declared.message or f"a rule of the schema is broken: {rule.declared.words}"
    code = _DECLARED.get(rule.kind, "PC418")
    return diagnostic(code, message, span, fix, related)


def _remove(modules: Sequence[str], num_kept: int | None = None) -> str:
    """Return the advice to keep only `num_kept` of the modules, by default all but one."""
    names = ", ".join(f"'{module}'" if "/" in module else element(module) for module in modules)
    num_kept = len(modules) - 1 if num_kept is None else num_kept
    if num_kept == 0:
        return f"remove {names}"
    if num_kept == len(modules) - 1:
        return f"remove one of {names}"
    return f"keep only {'one' if num_kept == 1 else num_kept} of {names}"


class _References(NamedTuple):
    """Writer of references to missing modules, with the arguments that they need."""

    parameters: Mapping[str, Mapping[str, Parameter]]
    places: Mapping[str, Span]

    def added(self, path: str) -> str:
        """Return a reference, nested in references to its missing ancestors if these need arguments too."""
        missing = [outer for outer in reversed([*ancestors(path)]) if outer not in self.places]
        if not any(map(self._needed, missing)):
            return element(path, self._needed(path))
        inner = ""
        for outer in (path, *reversed(missing[1:])):
            inner = element(outer.rpartition("/")[2], self._needed(outer), inner)
        return element(missing[0], self._needed(missing[0]), inner)

    def _needed(self, module: str) -> list[str]:
        return [each.name for each in self.parameters.get(module, {}).values() if each.required]
