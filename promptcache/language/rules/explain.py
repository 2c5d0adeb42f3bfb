"""Explain rules in words: faults of a schema (PC301 to PC305, PC313, PC314, PC318) and of prompts (PC406 to PC419).

A conflict is explained by rules and named modules that cannot hold together, and of which each is needed. Nesting rules
are left out of it: readers know that a module needs its ancestors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from promptcache.diagnostics import Diagnostic, Span, diagnostic
from promptcache.language.checked import CheckedModule, CheckedScaffold
from promptcache.language.limits import MAX_STEPS
from promptcache.language.rules.rules import Check, Default, Implication, Rule, RuleKind, Rules
from promptcache.language.rules.solver import RuleSolver, TooHardError, limited_solver, max_steps
from promptcache.language.syntax.conditions import Cardinality
from promptcache.language.syntax.index import Index
from promptcache.language.syntax.names import MAX_LISTED, ancestors, element, listed
from promptcache.language.syntax.nodes import Context, Parameter, SchemaDocument, place

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
_WORDS = {
    RuleKind.REQUIRED: "{then} is required{where}",
    RuleKind.CHOICE: "{some} must be used{where}",
    RuleKind.EXCLUDES: "'{subject}' excludes '{other}'",
    RuleKind.AFTER: "'{subject}' comes after {then}",
}
_CODES = frozenset({*_MISSING.values(), "PC408", "PC410", "PC411", "PC417", "PC418", "PC419"})


@limited_solver(_MAX_STEPS)
def find_conflict(
    rules: Rules, wanted: Sequence[str], given: Sequence[str] = ()
) -> tuple[list[str], list[Rule]] | None:
    """Return those of the `wanted` modules that cannot be present together, and the rules that forbid it.

    The `given` modules are present too. Each part is needed for the conflict, and mostly there are few, unless the
    search exceeds the limit of work. None if all modules can be present together, or if that takes too much work.
    """
    modules, nesting, others = _cone(rules, (*wanted, *given))
    with RuleSolver(modules) as solver, suppress(TooHardError):
        solver.add(nesting)
        found = solver.conflict((*others, *dict.fromkeys(wanted)), ("", *given))
        if found is not None:
            named = [each for each in found if isinstance(each, str)]
            return named, [each for each in found if not isinstance(each, str)]
    return None


@limited_solver(_MAX_STEPS)
def possible_with(rules: Rules, given: Sequence[str], options: Iterable[str]) -> frozenset[str]:
    """Return each of `options` that can be present together with all of `given`.

    An option is left out if that takes too much work to decide.
    """
    options = list(options)
    modules, nesting, others = _cone(rules, (*given, *options))
    found: set[str] = set()
    with RuleSolver(modules) as solver, suppress(TooHardError):
        solver.add((*nesting, *others))
        found.update(option for option in options if solver.is_possible(("", *given, option)))
    return frozenset(found)


def _cone(rules: Rules, start: Iterable[str]) -> tuple[list[str], list[Rule], list[Rule]]:
    """Return the modules ("" included), nesting rules and other rules that can matter for some modules, in order."""
    reached: set[str] = set()
    numbers = {*rules.standing}
    waiting = ["", *start, *(module for number in numbers for module in rules.members[number])]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += ancestors(module)
            for number in set(rules.touching.get(module, ())) - numbers:
                numbers.add(number)
                rule = rules.rules[number]
                waiting += rule.then if isinstance(rule, Implication) else ()
                waiting += rules.members[number] if isinstance(rule, Check) and rule.kind is not RuleKind.UNION else ()
    nesting = [rule for rule in rules.rules if rule.kind is RuleKind.NESTING and rule.modules <= reached]
    bound = [rules.rules[number] for number in sorted(numbers)]
    return sorted(reached, key=rules.order.__getitem__), nesting, bound


def describe(rule: Rule) -> str:
    """Return the demand of a rule in words."""
    declared = rule.declared if isinstance(rule, Implication) else rule
    if declared is not None:
        return f'{declared.words} ("{declared.message}")' if declared.message else declared.words
    assert isinstance(rule, Implication)
    subject, then = rule.when[0], listed(sorted(rule.then))
    words = _WORDS.get(rule.kind, "'{subject}' requires {then}")
    some = then if len(rule.then) == 1 else f"one of {then}"
    where = f" in '{subject}'" if subject else ""
    return words.format(subject=subject, other=rule.when[-1], then=then, some=some, where=where)


def explain_impossible(
    code: str, message: str, span: Span, fix: str, rules: Rules, given: Sequence[str] | None
) -> Diagnostic:
    """Return the diagnostic for modules that no prompt has together; the reason is a conflict, if they are `given`."""
    conflict = None if given is None else find_conflict(rules, (), given)
    related = () if conflict is None else tuple((rule.span, describe(rule)) for rule in conflict[1])
    reason = "; ".join(words for _, words in related)
    return diagnostic(code, f"{message}: {reason}" if reason else message, span, fix, related)


def explain_unsatisfiable(rules: Rules, schema: SchemaDocument) -> Diagnostic:
    """Return the diagnostic for a schema that no prompt can satisfy."""
    message, fix = "no prompt can satisfy this schema", "remove one of these rules"
    found = explain_impossible("PC301", message, place(schema, "name"), fix, rules, ())
    return replace(found, span=min((span for span, _ in found.related), default=found.span))


def explain_dead(rules: Rules, dead: Set[str], index: Index, reported: Set[str] = frozenset()) -> Iterator[Diagnostic]:
    """Yield a warning for each dead module, except modules inside another dead one and modules in `reported`."""
    outermost = (path for path in index.modules if path in dead - reported and dead.isdisjoint(ancestors(path)))
    for number, path in enumerate(outermost):
        message, span = f"module '{path}' can never be used", place(index.modules[path].module, "name")
        given, fix = (path,) if number < MAX_EXPLAINED else None, "remove one of these rules, or the module"
        yield explain_impossible("PC302", message, span, fix, rules, given)


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
            yield diagnostic("PC313", message, scaffold.span, "remove it")


def explain_open(modules: Sequence[str], rules: Rules, schema: SchemaDocument) -> Iterator[Diagnostic]:
    """Yield a warning if the guarantees of some modules ("" for every prompt) exceed the limit of work."""
    if modules:
        named = [module for module in modules if module]
        where = ["in every prompt"] if "" in modules else []
        where += [f"with {listed(named)}"] if named else []
        yield explain_limit("PC318", f"which modules are always present {' and '.join(where)}", rules, named, schema)


def explain_limit(code: str, question: str, rules: Rules, modules: Iterable[str], schema: SchemaDocument) -> Diagnostic:
    """Return the diagnostic for a question about some modules that exceeds the limit of work."""
    _, _, bound = _cone(rules, modules)
    depend = f"{len(bound)} rules depend on each other"
    message = f"it takes more than {max_steps():,} steps to find out {question}: {depend}"
    fix = "use fewer rules with alternatives, and shorter chains of requires and after"
    related = tuple((rule.span, describe(rule)) for rule in bound[:MAX_LISTED])
    return diagnostic(code, message, place(schema, "name"), fix, related)


def explain_broken(
    rules: Rules,
    parameters: Mapping[str, Mapping[str, Parameter]],
    broken: Sequence[Implication],
    places: Mapping[str, Span],
    present: Mapping[str, Default | None],
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each fault of a selection, which breaks the rules `broken`.

    Args:
        places: The span of the reference that names each module or a module inside it; "" is the prompt itself.
        present: All modules of the selection; the value is the default that added the module, None for a named one.
    """
    named = [module for module in places if module]
    explain = _Explainer(rules, parameters, places, present)
    if clashes := [*filter(None, map(explain.clash, broken))]:
        yield from clashes
        return
    outer = {ancestor for module in named for ancestor in ancestors(module)}
    if conflict := find_conflict(rules, [module for module in named if module not in outer]):
        yield explain.conflict(*conflict)
        return
    open_rules = (rule for rule in broken[:_MAX_BROKEN] if len(rule.then) > 1)
    options = {option for rule in open_rules for option in explain.options(rule)[0]}
    possible = possible_with(rules, named, options) if options else frozenset()
    for number, rule in enumerate(broken):
        default = next((present[module] for module in rule.when if present[module] is not None), None)
        if default is None:
            yield explain.missing(rule, possible)
        else:
            yield explain.default(rule, default, named if number < MAX_EXPLAINED else None)


def explain_members(
    rules: Rules,
    broken: Iterable[Implication],
    parameters: Mapping[str, Mapping[str, Parameter]],
    places: Mapping[str, Span],
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each broken rule over members; `places` has the members of the prompt too."""
    explain = _Explainer(rules, parameters, places, {})
    for rule in broken:
        named = [module for module in rule.when if module and module in places]
        options = sorted(rule.then)[:_MAX_OPTIONS]
        added = f"add {' or '.join(map(explain.added, options))}" if options else None
        fix = added or (_remove(named) if named else None)  # without any, defaults of unions break the rule
        yield _declared(rule, places[named[-1] if named else ""], ((rule.span, describe(rule)),), fix)


def broken_rule(diagnostic: Diagnostic) -> Span | None:
    """Return the span of the rule that a prompt breaks, or None for a diagnostic of another kind.

    The span is the last related place of each diagnostic of this module.
    """
    return diagnostic.related[-1][0] if diagnostic.code in _CODES else None


class _Explainer(NamedTuple):
    """Writer of diagnostics for a prompt; the fields are arguments of `explain_broken`."""

    rules: Rules
    parameters: Mapping[str, Mapping[str, Parameter]]
    places: Mapping[str, Span]
    present: Mapping[str, Default | None]

    def clash(self, rule: Implication) -> Diagnostic | None:
        """Return the diagnostic for a rule that named modules break whatever is added, or None for another rule."""
        if rule.then or not self.places.keys() >= {*rule.when}:
            return None
        test = None if rule.declared is None else rule.declared.test
        modules, used = self._by_place(rule.when), self._by_place(test.modules if isinstance(test, Cardinality) else ())
        if rule.kind is RuleKind.UNION:
            modules = used
        span = self.places[modules[-1]]
        related = ((self.places[modules[0]], f"'{modules[0]}' is named here"), (rule.span, describe(rule)))
        if rule.kind is RuleKind.UNION:
            message = f"{listed(modules)} are members of one union: at most one of them can be used"
            return diagnostic("PC408", message, span, _remove(modules, 1), related)
        if rule.declared is None:
            message = f"{listed(modules)} cannot be used together: {describe(rule)}"
            return diagnostic("PC410", message, span, _remove(modules, 1), related)
        fix = _remove(used, test.high) if isinstance(test, Cardinality) else _remove(modules)
        return _declared(rule, span, related, fix)

    def conflict(self, modules: list[str], rules: list[Rule]) -> Diagnostic:
        modules = self._by_place(modules)
        reasons = "; ".join(map(describe, rules))
        what = f"{listed(modules)} cannot be used together" if len(modules) > 1 else f"'{modules[0]}' cannot be used"
        named = ((self.places[module], f"'{module}' is named here") for module in modules[:-1])
        related = (*named, *((rule.span, describe(rule)) for rule in rules))
        return diagnostic("PC417", f"{what}: {reasons}", self.places[modules[-1]], _remove(modules), related)

    def default(self, rule: Implication, default: Default, named: Sequence[str] | None) -> Diagnostic:
        """Return the diagnostic for a default that breaks a rule; with `named`, it lists possible members."""
        ways = []
        if named is not None:
            others = sorted(default.members - {default.member})[:_MAX_OPTIONS]
            possible = possible_with(self.rules, named, others)
            if fitting := [self.added(other) for other in others if other in possible]:
                ways.append(f"name another member: {', '.join(fitting)}")
            if len(rule.then) == 1:
                possible = possible_with(self.rules, (*named, default.member), rule.then)
                ways += [f"add {self.added(each)}" for each in possible]
        message = f"'{default.member}', the default of its union, breaks a rule: {describe(rule)}"
        span = self.places.get(default.parent, self.places[""])
        related = ((default.span, "the default"), (rule.span, describe(rule)))
        return diagnostic("PC411", message, span, ", or ".join(ways) or None, related)

    def missing(self, rule: Implication, possible: Set[str]) -> Diagnostic:
        """Return the diagnostic for a rule with missing modules; its help lists those that are `possible`."""
        options, number = self.options(rule)
        added = [self.added(each) for each in options if len(options) == number or each in possible]
        fix = None
        if number == 1 and added:
            fix = f"add {' or '.join(added)}"
        elif number < len(added):
            fix = f"add {number} of {', '.join(added)}"
        elif number == len(added):
            fix = f"add {', '.join(added[:-1])} and {added[-1]}"
        span, related = self.places.get(rule.when[0], self.places[""]), ((rule.span, describe(rule)),)
        if rule.declared is not None:
            return _declared(rule, span, related, fix)
        verb = "does not name it" if len(options) == 1 else "names none of them"
        return diagnostic(_MISSING[rule.kind], f"{describe(rule)}, but the prompt {verb}", span, fix, related)

    def options(self, rule: Implication) -> tuple[list[str], int]:
        """Return the first modules that would keep a rule, in document order, and the number of them that it needs."""
        options: Collection[str] = rule.then
        number = 1
        if rule.declared is not None and isinstance(rule.declared.test, Cardinality):
            test = rule.declared.test
            absent = [module for module in test.modules if module not in self.present]
            lacking = test.low - (len(test.modules) - len(absent))
            if lacking <= _MAX_OPTIONS:
                options, number = absent, lacking
        return sorted(options, key=self.rules.order.__getitem__)[: number - 1 + _MAX_OPTIONS], number

    def added(self, path: str) -> str:
        """Return a reference to a module, nested in references to its missing ancestors if these need arguments too."""
        if not self.places[""].line:
            return f"'{path}'"  # of a prompt that is no document
        missing = [outer for outer in reversed([*ancestors(path)]) if outer not in self.places]
        if not any(map(self._needed, missing)):
            return element(path, self._needed(path))
        inner = ""
        for outer in (path, *reversed(missing[1:])):
            inner = element(outer.rpartition("/")[2], self._needed(outer), inner)
        return element(missing[0], self._needed(missing[0]), inner)

    def _needed(self, module: str) -> list[str]:
        return [each.name for each in self.parameters.get(module, {}).values() if each.required]

    def _by_place(self, modules: Iterable[str]) -> list[str]:
        """Return those of some modules that the prompt names, in its order."""
        named = dict.fromkeys(module for module in modules if module in self.places)
        return sorted(named, key=self.places.__getitem__)


def _declared(rule: Implication, span: Span, related: tuple[tuple[Span, str], ...], fix: str | None) -> Diagnostic:
    assert rule.declared is not None, "only rules of <rules> come here"
    message = rule.declared.message or f"a rule of the schema is broken: {rule.declared.words}"
    return diagnostic("PC419" if rule.kind is RuleKind.CHOOSE else "PC418", message, span, fix, related)


def _remove(modules: Sequence[str], num_kept: int | None = None) -> str:
    """Return the advice to keep only `num_kept` of the modules, by default all but one."""
    names = ", ".join(f"'{module}'" for module in modules)
    num_kept = len(modules) - 1 if num_kept is None else num_kept
    if num_kept == 0:
        return f"remove {names}"
    if num_kept == len(modules) - 1:
        return f"remove one of {names}"
    return f"keep only {'one' if num_kept == 1 else num_kept} of {names}"
