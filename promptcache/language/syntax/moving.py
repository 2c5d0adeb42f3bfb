"""Modules and rules of one schema, with their names and paths as they are in another.

Comes in: items of a schema whose paths have been checked. Goes out: the same items with new names and paths; spans stay
where they are. A module that is left out counts as never present: `excludes`, scaffolds and rules do without it, and a
rule that can then not be kept is a fault (PC220), as is a module that needs it. What speaks only of modules that are
left out is left out with them. Inside a module, rules hold where that module is present.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, compress
from math import comb

from promptcache.diagnostics import Diagnostic, Span
from promptcache.language.syntax.conditions import (
    KEYWORDS,
    TOKEN,
    Not,
    Or,
    Test,
    read_condition,
    without,
    write_condition,
)
from promptcache.language.syntax.names import absolute
from promptcache.language.syntax.nodes import (
    Assert,
    Choose,
    Combination,
    Exclude,
    Item,
    Module,
    Places,
    Require,
    RuleList,
    Scaffold,
    Turn,
    Union,
    join_path,
    place,
)

_PARENTHESES = ("(", ")")
_MAX_PATHS = 400
"""How many paths a condition may have that is written for a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move.

    Attributes:
        prefix: What stands before the names of the top level.
        parent: The path of the module into which everything moves; "" is the root.
        tops: The names of the modules of the top level that move, without the prefix.
        faults: Grows by what cannot move.
    """

    prefix: str
    parent: str
    tops: frozenset[str]
    faults: list[Diagnostic]

    def top(self, item: Module | Union) -> Module | Union:
        """Return a module or union of the top level."""
        if isinstance(item, Module):
            return self._top_module(item)
        return replace(
            item,
            children=tuple(self._top_module(child) if isinstance(child, Module) else child for child in item.children),
            name=None if item.name is None else self.prefix + item.name,
            default=None if item.default is None else self.prefix + item.default,
        )

    def scaffold(self, scaffold: Scaffold, owner: str, *, from_root: bool = False) -> tuple[Scaffold, ...]:
        """Return a scaffold, or nothing where a module of it is left out.

        Args:
            owner: The path that the module around it had.
            from_root: Whether its paths are to start at the root, wherever it stands.
        """
        if not all(self._is_taken(path, owner) for path in scaffold.modules):
            return ()
        if scaffold.name is None and (self.parent or (self.prefix and owner)):
            from_root = True  # it is called after its paths, and names of scaffolds differ throughout a schema
        change = self._from_root if from_root else self._path
        paths = tuple(change(path, owner) for path in scaffold.modules)
        return (replace(scaffold, modules=paths, name=self.prefix + scaffold.name if scaffold.name else None),)

    def rules(self, rules: RuleList) -> tuple[RuleList, ...]:
        """Return the rules that speak of modules that move, for the top level of the schema."""
        kept = tuple(rule for each in rules.combinations for rule in self._rule(each))
        return (replace(rules, children=kept),) if kept else ()

    def _top_module(self, module: Module) -> Module:
        return replace(self._module(module, ""), name=self.prefix + module.name)

    def _module(self, module: Module, owner: str) -> Module:
        self._refuse(module, "requires", module.requires, owner)
        self._refuse(module, "after", module.after, owner)
        excludes, places = self._kept(module.excludes, module.places, "excludes", owner)
        return replace(
            module,
            children=self._items(module.children, join_path(owner, module.name)),
            requires=tuple(self._path(path, owner) for path in module.requires),
            after=tuple(self._path(path, owner) for path in module.after),
            excludes=tuple(self._path(path, owner) for path in excludes),
            places=places,
        )

    def _items(self, items: tuple[Item, ...], owner: str) -> tuple[Item, ...]:
        found: list[Item] = []
        for item in items:
            match item:
                case Module():
                    found.append(self._module(item, owner))
                case Union():
                    members = (
                        self._module(each, owner) if isinstance(each, Module) else each for each in item.children
                    )
                    found.append(replace(item, children=tuple(members)))
                case Turn():
                    found.append(replace(item, children=self._items(item.children, owner)))
                case Scaffold():
                    found += self.scaffold(item, owner)
                case _:
                    found.append(item)
        return tuple(found)

    def _rule(self, rule: Combination) -> tuple[Combination, ...]:
        taken = [self._is_taken(path, "") for path in _paths(rule)]
        if not any(taken):
            return ()
        if isinstance(rule, Exclude | Choose):
            kept, places = self._kept(rule.modules, rule.places, "modules", "")
            if isinstance(rule, Choose):
                return self._choose(replace(rule, modules=kept, places=places))
            return (replace(rule, modules=self._of_rule(kept), places=places),) if len(kept) > 1 else ()
        if not all(taken):
            return self._what_is_left(rule)
        match rule:
            case Require():
                condition, consequence = self._condition(rule.condition), self._condition(rule.consequence)
                if self.parent:
                    condition = f"/{self.parent} and ({condition})"
                return (replace(rule, condition=condition, consequence=consequence),)
            case Assert():
                return (replace(rule, test=self._here(self._condition(rule.test))),)

    def _what_is_left(self, rule: Require | Assert) -> tuple[Assert, ...]:
        """Return what a rule still demands without the modules that are left out."""

        def read(text: str) -> Test:
            return read_condition(text, lambda path, _: absolute(path, ""))

        test = Or((Not(read(rule.condition)), read(rule.consequence))) if isinstance(rule, Require) else read(rule.test)
        rest = without(test, lambda path: not self._is_taken(path, ""))
        if rest is False:
            message = "this rule cannot be kept without the modules that select= leaves out"
            self._fault("PC220", message, rule.span, "select what it speaks of, too")
        if isinstance(rest, bool):
            return ()
        condition = write_condition(rest, lambda path: self._of_rule((path,))[0])
        return (Assert(test=self._here(condition), span=rule.span, message=rule.message),)

    def _choose(self, rule: Choose) -> tuple[Combination, ...]:
        """Return a choice; inside a module, the least number of it counts only where that module is present."""
        paths = self._of_rule(rule.modules)
        if rule.minimum and rule.minimum > len(paths):
            message = f"at least {rule.minimum} modules are to be chosen, and select= leaves {len(paths)} of them"
            self._fault("PC220", message, place(rule, "min"), "select what it speaks of, too")
            return ()
        if not (self.parent and rule.minimum):
            return (replace(rule, modules=paths),)
        size = len(paths) - rule.minimum + 1
        if comb(len(paths), size) * size > _MAX_PATHS:
            message = f"to choose at least {rule.minimum} of {len(paths)} modules is too much inside '{self.parent}'"
            self._fault("PC308", message, place(rule, "min"), "include the file at the top level of the schema")
            return ()
        enough = " and ".join(f"({' or '.join(some)})" for some in combinations(paths, size))
        least = Assert(test=self._here(enough), span=rule.span, message=rule.message)
        return (least, replace(rule, modules=paths, minimum=None)) if rule.maximum is not None else (least,)

    def _here(self, condition: str) -> str:
        """Return a condition that holds where the module around it is absent, too."""
        return f"/{self.parent} implies ({condition})" if self.parent else condition

    def _condition(self, text: str) -> str:
        return TOKEN.sub(lambda match: match[0] if _is_sign(match[0]) else self._of_rule((match[0],))[0], text)

    def _of_rule(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return paths of a rule; with a slash in front, since a prefix can turn a name into a keyword."""
        return tuple(self._from_root(path, "") for path in paths) if self.prefix or self.parent else paths

    def _path(self, path: str, owner: str) -> str:
        """Return a path; relative ones below the top level stay as they are."""
        if path.startswith("/"):
            return self._from_root(path, owner)
        return path if owner else self.prefix + path

    def _from_root(self, path: str, owner: str) -> str:
        return "/" + join_path(self.parent, self.prefix + absolute(path, owner))

    def _is_taken(self, path: str, owner: str) -> bool:
        return absolute(path, owner).partition("/")[0] in self.tops

    def _kept(
        self, paths: tuple[str, ...], places: Places, attribute: str, owner: str
    ) -> tuple[tuple[str, ...], Places]:
        """Leave out the paths of modules that are left out, and their places."""
        taken = [self._is_taken(path, owner) for path in paths]
        if all(taken):
            return paths, places
        kept = tuple(
            (name, tuple(compress(spans, taken)) if name == attribute and len(spans) > 1 else spans)
            for name, spans in places
        )
        return tuple(compress(paths, taken)), kept

    def _refuse(self, module: Module, attribute: str, paths: tuple[str, ...], owner: str) -> None:
        for number, path in enumerate(paths):
            if not self._is_taken(path, owner):
                name = absolute(path, owner).partition("/")[0]
                message = f"'{module.name}' needs '{name}', which select= leaves out"
                mend = f"select what holds '{name}' too, or leave '{module.name}' out"
                self._fault("PC220", message, place(module, attribute, number), mend)

    def _fault(self, code: str, message: str, span: Span, mend: str) -> None:
        self.faults.append(Diagnostic(code=code, message=message, span=span, help=mend))


def _paths(rule: Combination) -> Iterator[str]:
    match rule:
        case Exclude() | Choose():
            yield from rule.modules
        case Require():
            yield from _words(f"{rule.condition} {rule.consequence}")
        case Assert():
            yield from _words(rule.test)


def _words(condition: str) -> Iterator[str]:
    yield from (word for word in TOKEN.findall(condition) if not _is_sign(word))


def _is_sign(token: str) -> bool:
    return token in KEYWORDS or token in _PARENTHESES
