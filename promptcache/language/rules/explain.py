"""What is wrong with the rules of a schema, in words.

Comes in: rules and what they turned out to imply. Goes out: diagnostics PC301 to PC305, each with the smallest set of
rules that explains it and the place of each. This file decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from promptcache.diagnostics import Diagnostic, Severity, Span
from promptcache.language.checked import CheckedModule, CheckedScaffold
from promptcache.language.rules.conflict import smallest_conflict
from promptcache.language.rules.rules import Default, Exclusive, Rule, RuleKind, Rules
from promptcache.language.schema import Context, Schema, place
from promptcache.language.syntax.index import Index
from promptcache.language.syntax.names import ancestors

MAX_EXPLAINED = 5
"""Explanations are asked of the solver: of more faults of the rules, the first ones get a reason."""

_MAX_LISTED = 6
_MAX_COMPARED = 1_000_000


def describe(rule: Rule) -> str:
    """Say what a rule demands."""
    if isinstance(rule, Exclusive):
        return f"{listed(rule.members)} are members of one union"
    if rule.declared is not None:
        words, message = rule.declared.words, rule.declared.message
        return f"{message} ({words})" if message else words
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
            return f"'{subject}' stands inside {then}"
        case _:
            return f"'{subject}' requires {then}"


def listed(modules: tuple[str, ...] | list[str]) -> str:
    """Write modules one after another, the first few by name."""
    names = ", ".join(f"'{module}'" for module in modules[:_MAX_LISTED])
    return names if len(modules) <= _MAX_LISTED else f"{names} and {len(modules) - _MAX_LISTED} more"


def explain_unsatisfiable(rules: Rules, schema: Schema) -> Diagnostic:
    """Say why no prompt can satisfy a schema."""
    reason, related = _reason(rules, ())
    span = min(span for span, _ in related) if related else place(schema, "name")
    message = "no prompt can satisfy this schema" + (f": {reason}" if reason else "")
    return Diagnostic(code="PC301", message=message, span=span, help="take back one of these rules", related=related)


def explain_dead(rules: Rules, dead: Set[str], index: Index, said: Set[str] = frozenset()) -> Iterator[Diagnostic]:
    """Yield a warning for each module that can never be used, but for those inside another one and those of `said`."""
    outermost = [
        module
        for module in index.modules
        if module in dead and module not in said and dead.isdisjoint(ancestors(module))
    ]
    for position, path in enumerate(outermost):
        reason, related = _reason(rules, (path,)) if position < MAX_EXPLAINED else ("", ())
        message = f"module '{path}' can never be used" + (f": {reason}" if reason else "")
        span = place(index.modules[path].module, "name")
        yield Diagnostic(code="PC302", message=message, span=span, severity=Severity.WARNING, related=related)


def explain_default(rules: Rules, default: Default, *, with_reason: bool) -> Diagnostic:
    """Say that the default of a union can never be used, and why."""
    reason, related = _reason(rules, (default.member,)) if with_reason else ("", ())
    message = f"the default '{default.member}' can never be used" + (f": {reason}" if reason else "")
    return Diagnostic(code="PC303", message=message, span=default.span, help="choose another default", related=related)


def explain_scaffold(rules: Rules, members: tuple[str, ...], span: Span, *, with_reason: bool) -> Diagnostic:
    """Say that the members of a scaffold cannot be present together, and why."""
    reason, related = _reason(rules, members) if with_reason else ("", ())
    message = "the members of this scaffold cannot be present together" + (f": {reason}" if reason else "")
    return Diagnostic(code="PC305", message=message, span=span, help="leave one of them out", related=related)


def idle_scaffolds(
    scaffolds: Iterable[CheckedScaffold], modules: Mapping[str, CheckedModule], guaranteed: Mapping[str, Set[str]]
) -> Iterator[Diagnostic]:
    """Yield a warning for each scaffold whose modules see in it what they see without it."""
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
            message = "the scaffold adds nothing: without it, each of its modules already sees the others before it"
            yield Diagnostic(
                code="PC313", message=message, span=scaffold.span, help="remove it", severity=Severity.WARNING
            )


def _reason(rules: Rules, given: tuple[str, ...]) -> tuple[str, tuple[tuple[Span, str], ...]]:
    conflict = smallest_conflict(rules, (), given)
    if conflict is None:  # what cannot be is explained, but explaining it takes too many steps
        return "", ()
    related = tuple((rule.span, describe(rule)) for rule in conflict.rules)
    return "; ".join(words for _, words in related), related
