"""A schema's declarations to rules.

Comes in: the index of a schema. Goes out: its rules with all paths from the root, and a diagnostic for every path that
leads nowhere or says something that cannot be. This file solves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from promptcache.diagnostics import Diagnostic, Span, did_you_mean
from promptcache.language.rules.combine import combine
from promptcache.language.rules.rules import Default, Exclusive, Implication, Rule, RuleKind, Rules, index_rules
from promptcache.language.syntax.index import Index, ModuleEntry, UnionEntry
from promptcache.language.syntax.names import MAX_SUGGESTIONS, absolute, is_path, nowhere, path_help, quoted
from promptcache.language.syntax.nodes import Module, Scaffold, join_path, place


def compile_rules(index: Index, faults: list[Diagnostic]) -> Rules:
    """Return the rules of a schema; what is wrong with their paths goes to `faults`."""
    compiler = _Compiler(index, faults)
    rules: list[Rule] = []
    for entry in index.modules.values():
        rules += compiler.of_module(entry)
    defaults = []
    for union in index.unions:
        rules += compiler.of_union(union)
        if default := compiler.default(union):
            defaults.append(default)
    checks = combine(index.rules, index.modules, faults)
    return index_rules(tuple(index.modules), tuple(rules), tuple(defaults), checks)


def scaffold_members(parent: str, scaffold: Scaffold, index: Index, faults: list[Diagnostic]) -> tuple[str, ...]:
    """Return the paths of a scaffold's members from the root, as declared; those that lead nowhere become faults."""
    found = _Compiler(index, faults).paths(parent, scaffold, "modules", scaffold.modules)
    return tuple(dict.fromkeys(path for path, _ in found))


class _Compiler:
    """Turns entries into rules; `faults` grows as it goes."""

    def __init__(self, index: Index, faults: list[Diagnostic]) -> None:
        self._modules = index.modules
        self._faults = faults

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
        yield Exclusive(kind=RuleKind.UNION, parent=entry.parent, members=entry.members, span=union.span)
        if union.required or union.default is not None:
            span = place(union, "required" if union.required else "default")
            yield _implication(RuleKind.CHOICE, (entry.parent,), entry.members, span)

    def default(self, entry: UnionEntry) -> Default | None:
        union = entry.union
        if union.default is None:
            return None
        member = join_path(entry.parent, union.default)
        if member not in entry.members:
            names = [module.name for module in union.members]
            mend = did_you_mean(union.default, names) or f"members: {', '.join(names)}"
            message = f"the default '{union.default}' is no member of this union"
            self._fault("PC209", message, place(union, "default"), mend)
        span = place(union, "default")
        return Default(parent=entry.parent, members=frozenset(entry.members), member=member, span=span)

    def paths(
        self, parent: str, item: Module | Scaffold, attribute: str, written: tuple[str, ...]
    ) -> Iterator[tuple[str, Span]]:
        """Yield the absolute paths that an attribute names and where each stands."""
        for number, path in enumerate(written):
            span = place(item, attribute, number)
            if not is_path(path):
                self._fault("PC207", f"{quoted(path)} is not a path of module names", span, path_help(path))
                continue
            target = absolute(path, parent)
            if target in self._modules:
                yield target, span
            elif len(self._faults) < MAX_SUGGESTIONS:
                message, mend = nowhere(target, self._modules)
                self._fault("PC208", f"{attribute}={quoted(path)}: {message}", span, mend)
            else:
                self._fault("PC208", f"{attribute}={quoted(path)} leads to no module", span, None)

    def _is_earlier(self, entry: ModuleEntry, other: ModuleEntry, span: Span) -> bool:
        mine, theirs = dict(entry.choices), dict(other.choices)
        if any(mine[union] != theirs[union] for union in mine.keys() & theirs.keys()):
            reason = f"'{entry.path}' and '{other.path}' stand in different members of a union and share their start"
        elif other.stop <= entry.start:
            return True
        elif other.start <= entry.start:
            reason = f"'{entry.path}' stands inside '{other.path}', not after it"
        else:
            reason = f"'{other.path}' is written after '{entry.path}'"
        self._fault("PC304", reason, span, "move the modules in the schema, or use requires")
        return False

    def _fault(self, code: str, message: str, span: Span, mend: str | None) -> None:
        self._faults.append(Diagnostic(code=code, message=message, span=span, help=mend))


def _implication(kind: RuleKind, when: tuple[str, ...], then: tuple[str, ...], span: Span) -> Implication:
    return Implication(kind=kind, when=when, then=frozenset(then), span=span)
