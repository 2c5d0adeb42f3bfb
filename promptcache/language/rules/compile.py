"""Compile the declared rules of a schema to rules over paths from the root.

Unknown paths, unreadable conditions and impossible bounds become diagnostics. This module does not compute the
implications of the rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from promptcache.diagnostics import Span, did_you_mean
from promptcache.language.rules.rules import Check, Default, Implication, Rule, RuleKind, Rules, index_rules
from promptcache.language.syntax import nodes
from promptcache.language.syntax.conditions import Cardinality, ConditionError, Not, Or, Test, read_condition
from promptcache.language.syntax.index import Index, ModuleEntry, UnionEntry
from promptcache.language.syntax.names import MAX_SUGGESTIONS, absolute, is_path, listed, nowhere, path_help, quoted
from promptcache.language.syntax.nodes import join_path, place


def compile_rules(index: Index) -> Rules:
    """Return the rules of a schema, and append their diagnostics to the faults of its index."""
    compiler = _Compiler(index)
    rules: list[Rule] = []
    for entry in index.modules.values():
        rules += compiler.of_module(entry)
    defaults = []
    for union in index.unions:
        rules += compiler.of_union(union)
        if default := compiler.default(union):
            defaults.append(default)
    of_members: list[Check] = []
    for declared in (rule for each in index.rules for rule in each.combinations):
        if check := compiler.check(declared):
            (rules if check.modules <= index.modules.keys() else of_members).append(check)
    return index_rules(tuple(index.modules), tuple(rules), tuple(defaults), tuple(of_members))


def scaffold_members(parent: str, scaffold: nodes.Scaffold, index: Index) -> tuple[str, ...]:
    """Return the declared members of a scaffold as paths from the root; append a diagnostic for each unknown path."""
    found = _Compiler(index).paths(parent, scaffold, "modules", scaffold.modules)
    return tuple(dict.fromkeys(path for path, _ in found))


class _Compiler:
    """Compiler from index entries to rules; appends diagnostics to the faults of the index."""

    def __init__(self, index: Index) -> None:
        self._modules, self._collections = index.modules, index.collections
        self._unions = {
            join_path(each.parent, each.union.name): each.members for each in index.unions if each.union.name
        }
        self._faults = index.faults

    def of_module(self, entry: ModuleEntry) -> Iterator[Rule]:
        module, path = entry.module, entry.path
        yield _implication(RuleKind.NESTING, (path,), (entry.parent,), module.span)
        if module.required:
            yield _implication(RuleKind.REQUIRED, (entry.parent,), (path,), place(module, "required"))
        for other, span in self.paths(entry.parent, module, "requires", module.requires):
            yield _implication(RuleKind.REQUIRES, (path,), (other,), span)
        for other, span in self.paths(entry.parent, module, "excludes", module.excludes):
            yield _implication(RuleKind.EXCLUDES, (path, other), (), span)
        for other, span in self.paths(entry.parent, module, "after", module.after):
            if self._is_earlier(entry, self._modules[other], span):
                yield _implication(RuleKind.AFTER, (path,), (other,), span)

    def of_union(self, entry: UnionEntry) -> Iterator[Rule]:
        union = entry.union
        test, words = Cardinality(entry.members, 0, 1), f"{listed(entry.members)} are members of one union"
        yield Check(kind=RuleKind.UNION, test=test, words=words, message=None, span=union.span)
        if union.required or union.default is not None:
            span = place(union, "required" if union.required else "default")
            yield _implication(RuleKind.CHOICE, (entry.parent,), entry.members, span)

    def default(self, entry: UnionEntry) -> Default | None:
        union = entry.union
        if union.default is None:
            return None
        member, span = join_path(entry.parent, union.default), place(union, "default")
        if member not in entry.members:
            names = [module.name for module in union.members]
            fix = did_you_mean(union.default, names) or f"members: {', '.join(names)}"
            self._faults.add("PC209", f"the default '{union.default}' is not a member of this union", span, fix)
        return Default(parent=entry.parent, members=frozenset(entry.members), member=member, span=span)

    def check(self, rule: nodes.Combination) -> Check | None:
        """Return the compiled rule of a `rules` element, or None if it has a fault."""
        before = len(self._faults)
        test: Test | Cardinality | None
        match rule:
            case nodes.Require():
                condition = self._condition(rule, "if", rule.condition)
                consequence = self._condition(rule, "then", rule.consequence)
                test = Or((Not(condition), consequence)) if condition and consequence else None
                words = f"if {_plain(rule.condition)} then {_plain(rule.consequence)}"
            case nodes.Assert():
                test, words = self._condition(rule, "test", rule.test), f"{_plain(rule.test)} must hold"
            case nodes.Exclude():
                modules = self._counted(rule)
                test, words = Cardinality(modules, 0, 1), f"at most one of {listed(modules)} can be used"
                if len(modules) == 2:
                    words = "'{}' and '{}' exclude each other".format(*modules)
            case nodes.Choose():
                modules = self._counted(rule)
                low, size = rule.minimum or 0, len(modules)
                high = size if rule.maximum is None else rule.maximum
                if low > min(high, size):
                    is_max = rule.maximum is not None and low > high
                    limit = f"max is {high}" if is_max else f"there are {size} modules"
                    self._faults.add("PC309", f"min is {low}, but {limit}", place(rule, "min"), "lower min")
                test = Cardinality(modules, low, rule.maximum)
                words = f"{_bounds(rule)} of {listed(modules)} must be used"
        if len(self._faults) > before or test is None:
            return None
        kind = RuleKind(type(rule).__name__.lower())
        return Check(kind=kind, test=test, words=words, message=rule.message, span=rule.span)

    def paths(
        self, parent: str, item: nodes.Module | nodes.Scaffold, attribute: str, written: tuple[str, ...]
    ) -> Iterator[tuple[str, Span]]:
        """Yield the path from the root and the span of every module in an attribute."""
        for number, path in enumerate(written):
            span = place(item, attribute, number)
            if (target := self._follow(path, parent, attribute, span)) is not None:
                yield target, span

    def _condition(self, rule: nodes.Require | nodes.Assert, attribute: str, text: str) -> Test | None:
        def follow(path: str, token: int) -> str:
            return self._follow(path, "", attribute, place(rule, attribute, token), members=True) or ""

        try:
            return read_condition(text, follow)
        except ConditionError as fault:
            message = f"{attribute}={quoted(text)}: {fault.message}"
            self._faults.add(fault.code, message, place(rule, attribute, fault.token), fault.fix)
            return None

    def _counted(self, rule: nodes.Exclude | nodes.Choose) -> tuple[str, ...]:
        found = (
            self._follow(path, "", "modules", place(rule, "modules", number), members=True)
            for number, path in enumerate(rule.modules)
        )
        return tuple(dict.fromkeys(path for path in found if path is not None))

    def _follow(self, path: str, parent: str, attribute: str, span: Span, *, members: bool = False) -> str | None:
        """Return the path from the root, or None if no module has this path.

        With `members`, it can also be that of a member of a collection, which the schema need not have yet.
        """
        target = absolute(path, parent)
        is_member = target.rpartition("/")[0] in self._collections
        if not is_path(path):
            self._faults.add("PC207", f"{quoted(path)} is not a valid module path", span, path_help(path))
        elif target in self._modules or (is_member and members):
            return target
        elif is_member:
            message = f"{attribute}: {quoted(path)} is a member of a collection"
            self._faults.add("PC208", message, span, "write the rule into <rules>")
        elif len(self._faults) < MAX_SUGGESTIONS:
            message, fix = nowhere(target, self._modules, self._unions)
            self._faults.add("PC208", f"{attribute}: {message}", span, fix)
        else:
            self._faults.add("PC208", f"{attribute}: no module has the path {quoted(path)}", span, None)
        return None

    def _is_earlier(self, entry: ModuleEntry, other: ModuleEntry, span: Span) -> bool:
        mine, theirs = dict(entry.choices), dict(other.choices)
        if entry.path == other.path:
            reason = f"'{entry.path}' cannot come after itself"
        elif any(mine[union] != theirs[union] for union in mine.keys() & theirs.keys()):
            both = f"'{entry.path}' and '{other.path}'"
            reason = f"{both} are in different members of a union, so they have the same start"
        elif other.stop <= entry.start:
            return True
        elif other.start <= entry.start:
            reason = f"'{entry.path}' is inside '{other.path}', not after it"
        else:
            reason = f"'{other.path}' comes after '{entry.path}' in the schema"
        self._faults.add("PC304", reason, span, "change the order of the modules, or use requires")
        return False


def _implication(kind: RuleKind, when: tuple[str, ...], then: tuple[str, ...], span: Span) -> Implication:
    return Implication(kind=kind, when=when, then=frozenset(then), span=span)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _bounds(rule: nodes.Choose) -> str:
    if rule.minimum == rule.maximum:
        return f"exactly {rule.maximum}"
    least = [f"at least {rule.minimum}"] if rule.minimum else []
    return " and ".join(least if rule.maximum is None else [*least, f"at most {rule.maximum}"])
