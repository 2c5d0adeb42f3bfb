"""Why a prompt's selection breaks the rules of its schema, in words.

Comes in: the broken rules and where the prompt names what. Goes out: diagnostics PC406 to PC417, each with a way to
mend it. The solver is asked whether the named modules can be completed at all: only then is adding something a way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from promptcache.diagnostics import Diagnostic, Span
from promptcache.language.rules.conflict import possible_with, smallest_conflict
from promptcache.language.rules.explain import describe, listed
from promptcache.language.rules.rules import Default, Exclusive, Implication, Rule, RuleKind, Rules
from promptcache.language.syntax.names import ancestors
from promptcache.language.syntax.nodes import Parameter

_MAX_OPTIONS = 12
_MAX_EXPLAINED = 20
_MISSING = {
    RuleKind.REQUIRED: "PC406",
    RuleKind.CHOICE: "PC407",
    RuleKind.REQUIRES: "PC409",
    RuleKind.AFTER: "PC414",
}
_DECLARED = {RuleKind.CHOOSE: "PC419"}
_CODES = frozenset({*_MISSING.values(), *_DECLARED.values(), "PC408", "PC410", "PC411", "PC417", "PC418"})


def explain_broken(
    rules: Rules,
    parameters: Mapping[str, Mapping[str, Parameter]],
    broken: Sequence[Rule],
    places: Mapping[str, Span],
    present: Mapping[str, Default | None],
) -> Iterator[Diagnostic]:
    """Say what is wrong with a selection.

    Args:
        rules: All rules of the schema.
        parameters: Of each module.
        broken: The rules that the selection breaks.
        places: Where the prompt names each module, or one inside it; "" is the prompt itself.
        present: All modules of the selection, with the default that brought each, if it was not named.
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
    possible = _possible(rules, broken[:_MAX_EXPLAINED], named)
    for rule in broken:
        default = next((present[module] for module in _subjects(rule, present) if present[module] is not None), None)
        if default is not None:
            yield _default(rule, default, places, write)
        elif isinstance(rule, Implication):
            yield _missing(rules, rule, possible, places, write)


def broken_rule(diagnostic: Diagnostic) -> Span | None:
    """Return where the rule stands that a prompt breaks, or None for a diagnostic of another kind.

    It is the last of the related places of each diagnostic that is made here.
    """
    return diagnostic.related[-1][0] if diagnostic.code in _CODES else None


def _possible(rules: Rules, broken: Sequence[Rule], named: Sequence[str]) -> frozenset[str]:
    """Return those of the modules that `broken` rules demand, one or another, which go with all that is named."""
    open_rules = (rule for rule in broken if isinstance(rule, Implication) and len(rule.then) > 1)
    options = {option for rule in open_rules for option in _options(rules, rule)}
    return possible_with(rules, named, options) if options else frozenset()


def _options(rules: Rules, rule: Implication) -> list[str]:
    """Return the first modules that would keep a rule, in document order."""
    return sorted(rule.then, key=rules.order.__getitem__)[:_MAX_OPTIONS]


def _is_clash(rule: Rule) -> bool:
    return isinstance(rule, Exclusive) or not rule.then


def _members(rule: Rule, present: Mapping[str, object]) -> frozenset[str]:
    if isinstance(rule, Implication):
        return frozenset(rule.when)
    found = frozenset(member for member in rule.members if member in present)
    return found if len(found) > 1 else frozenset(rule.members)


def _subjects(rule: Rule, present: Mapping[str, object]) -> Sequence[str]:
    return rule.when if isinstance(rule, Implication) else [member for member in rule.members if member in present]


def _innermost(named: Sequence[str]) -> list[str]:
    """Leave out modules that others bring along as their ancestors."""
    outer = {ancestor for module in named for ancestor in ancestors(module)}
    return [module for module in named if module not in outer]


def _clash(rule: Rule, places: Mapping[str, Span]) -> Diagnostic:
    modules = sorted(_members(rule, places), key=lambda module: places[module])
    first, second = modules[0], modules[-1]
    related = ((places[first], f"'{first}' is named here"), (rule.span, describe(rule)))
    if isinstance(rule, Implication) and rule.declared is not None:
        return _declared(rule, places[second], related, _remove(modules))
    if isinstance(rule, Exclusive):
        code, message = "PC408", f"{listed(modules)} are members of one union: at most one of them can be used"
    else:
        code, message = "PC410", f"{listed(modules)} cannot be used together: {describe(rule)}"
    return Diagnostic(code=code, message=message, span=places[second], help=_remove(modules), related=related)


def _conflict(modules: tuple[str, ...], rules: tuple[Rule, ...], places: Mapping[str, Span]) -> Diagnostic:
    reasons = "; ".join(describe(rule) for rule in rules)
    ordered = sorted(modules, key=lambda module: places[module])
    what = f"{listed(ordered)} cannot be used together" if len(ordered) > 1 else f"'{ordered[0]}' cannot be used"
    related = (
        *((places[module], f"'{module}' is named here") for module in ordered[:-1]),
        *((rule.span, describe(rule)) for rule in rules),
    )
    return Diagnostic(
        code="PC417", message=f"{what}: {reasons}", span=places[ordered[-1]], help=_remove(ordered), related=related
    )


def _default(rule: Rule, default: Default, places: Mapping[str, Span], write: _References) -> Diagnostic:
    others = sorted(default.members - {default.member})[:_MAX_OPTIONS]
    message = f"'{default.member}', the default of its union, breaks a rule: {describe(rule)}"
    ways = [f"name another member: {', '.join(map(write.added, others))}"] if others else []
    if isinstance(rule, Implication) and len(rule.then) == 1:
        ways.append(f"add {write.added(min(rule.then))}")
    related = ((default.span, "the default"), (rule.span, describe(rule)))
    span = places.get(default.parent, places[""])
    return Diagnostic(code="PC411", message=message, span=span, help=", or ".join(ways) or None, related=related)


def _missing(
    rules: Rules, rule: Implication, possible: Set[str], places: Mapping[str, Span], write: _References
) -> Diagnostic:
    """Say what a rule demands, and which of it is `possible`; what is forced always is."""
    options = _options(rules, rule)
    fitting = options if len(options) == 1 else [option for option in options if option in possible]
    span = places.get(rule.when[0], places[""])
    mend = f"add {' or '.join(map(write.added, fitting))}" if fitting else None
    if rule.declared is not None:
        return _declared(rule, span, ((rule.span, describe(rule)),), mend)
    message = f"{describe(rule)}, but {'it is not named' if len(options) == 1 else 'none of them is named'}"
    return Diagnostic(
        code=_MISSING[rule.kind], message=message, span=span, help=mend, related=((rule.span, describe(rule)),)
    )


def _declared(rule: Implication, span: Span, related: tuple[tuple[Span, str], ...], mend: str | None) -> Diagnostic:
    """Say what the author of a rule says about it, or else what it demands."""
    assert rule.declared is not None, "only rules of <rules> come here"
    message = rule.declared.message or f"a rule of the schema is broken: {rule.declared.words}"
    code = _DECLARED.get(rule.kind, "PC418")
    return Diagnostic(code=code, message=message, span=span, help=mend, related=related)


def _remove(modules: Sequence[str]) -> str:
    names = [element(module) for module in modules]
    return f"remove {names[0]}" if len(names) == 1 else f"remove one of {', '.join(names)}"


def element(path: str, arguments: str = "") -> str:
    """Write a reference to a module as it may stand at the top of a prompt."""
    return f'<use module="{path}"{arguments}/>' if "/" in path else f"<{path}{arguments}/>"


class _References(NamedTuple):
    """Writes references to modules that a prompt lacks, with the arguments that they need."""

    parameters: Mapping[str, Mapping[str, Parameter]]
    places: Mapping[str, Span]

    def added(self, path: str) -> str:
        """Write a reference; where modules around it need arguments too, they are written around it."""
        missing = [outer for outer in reversed([*ancestors(path)]) if outer not in self.places]
        if not any(map(self._needed, missing)):
            return element(path, self._needed(path))
        inner = f"<{path.rpartition('/')[2]}{self._needed(path)}/>"
        for outer in reversed(missing[1:]):
            name = outer.rpartition("/")[2]
            inner = f"<{name}{self._needed(outer)}>{inner}</{name}>"
        opening = element(missing[0], self._needed(missing[0])).removesuffix("/>")
        return f"{opening}>{inner}</{'use' if '/' in missing[0] else missing[0]}>"

    def _needed(self, module: str) -> str:
        names = (each.name for each in self.parameters[module].values() if each.required)
        return "".join(f' {name}="…"' for name in names)
