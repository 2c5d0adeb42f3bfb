"""Include modules, unions, scaffolds and rules of another schema, renamed for the including schema.

The names and paths of the other schema are already checked, and spans still refer to its file. A module that `select`
leaves out counts as absent. `excludes` and rules drop it, a scaffold that names it is dropped, and a module or rule
that needs it is a fault (PC220). If the `include` is inside a module, the included rules apply only if that module is
present.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, compress
from math import comb
from typing import NamedTuple, TypeAlias, TypeVar

from promptcache.diagnostics import Diagnostic, Span, did_you_mean
from promptcache.language.syntax.conditions import (
    KEYWORDS,
    And,
    Not,
    Or,
    Present,
    Test,
    modules_of,
    read_condition,
    simplify,
    write_condition,
)
from promptcache.language.syntax.names import absolute, few
from promptcache.language.syntax.nodes import (
    Assert,
    Choose,
    Collection,
    Combination,
    Context,
    Exclude,
    Item,
    Module,
    Parameter,
    Places,
    Require,
    RuleList,
    Scaffold,
    SchemaDocument,
    Text,
    Turn,
    Union,
    Whitespace,
    join_path,
    place,
)
from promptcache.language.syntax.source import diagnostic
from promptcache.language.syntax.whitespace import is_blank

_TopItem: TypeAlias = Module | Union | Collection
"""What an `include` takes from the top level of a document."""

_Heir = TypeVar("_Heir", Module, Collection)

_MAX_PATHS = 400
"""Maximum number of paths in a condition that replaces a `choose` rule."""


class InheritedOptions(NamedTuple):
    """The options that modules inherit."""

    whitespace: Whitespace
    separator: str
    context: Context


class Place(NamedTuple):
    """Place of an `include`: the path of the module around it ("" is the root), and the options inherited there.

    `in_turn` is true directly inside a turn, where scaffolds are not allowed. `in_collection` is true directly inside a
    collection, where modules inherit only the whitespace mode.
    """

    parent: str
    in_turn: bool
    options: InheritedOptions
    in_collection: bool = False


class IncludeOptions(NamedTuple):
    """Attributes of an `include`. `select` is a list of names with their spans; None selects everything."""

    select: tuple[tuple[str, Span], ...] | None
    prefix: str
    span: Span


class IncludedItems(NamedTuple):
    """Items that an `include` adds: `here` at its place, `top` at the top level of the schema."""

    here: tuple[Item, ...]
    top: tuple[RuleList | Scaffold, ...]


def include_items(
    document: SchemaDocument, wanted: IncludeOptions, place: Place, faults: list[Diagnostic]
) -> IncludedItems:
    """Return the items that an `include` adds from a document. Diagnostics are added to `faults`."""
    before = len(faults)
    chosen = _chosen(document, wanted, faults)
    if len(faults) > before:
        return IncludedItems((), ())
    tops = frozenset(module.name for item in chosen.values() for module in _modules(item))
    scope = _Scope(prefix=wanted.prefix, parent=place.parent, tops=tops, faults=faults)
    here: list[Item] = []
    top: list[RuleList | Scaffold] = []
    for number, child in enumerate(document.children):
        match child:
            case Module() | Union() | Collection() if number in chosen:
                here.append(_with_options(scope.top(child), document, place))
            case Scaffold() if place.in_turn:
                top += scope.scaffold(child, "", from_root=True)
            case Scaffold():
                here += scope.scaffold(child, "")
            case RuleList():
                top += scope.rules(child)
    return IncludedItems(tuple(here), tuple(top))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """Mapping from the names and paths of an included schema to those of the including schema.

    Attributes:
        prefix: Prefix for the names of the included top level.
        parent: Path of the module around the `include`; "" is the root.
        tops: Names of the included top-level modules, without the prefix.
        faults: List that receives the diagnostics.
    """

    prefix: str
    parent: str
    tops: frozenset[str]
    faults: list[Diagnostic]

    def top(self, item: _TopItem) -> _TopItem:
        """Return a renamed module, union or collection of the top level."""
        if isinstance(item, Module):
            return self._top_module(item)
        if isinstance(item, Collection):
            return replace(item, name=self.prefix + item.name)
        return replace(
            item,
            children=tuple(self._top_module(child) if isinstance(child, Module) else child for child in item.children),
            name=None if item.name is None else self.prefix + item.name,
            default=None if item.default is None else self.prefix + item.default,
        )

    def scaffold(self, scaffold: Scaffold, owner: str, *, from_root: bool = False) -> tuple[Scaffold, ...]:
        """Return a renamed scaffold, or an empty tuple if one of its modules is left out.

        Args:
            scaffold: A scaffold of the included schema.
            owner: Path of the module around the scaffold in the included schema.
            from_root: Whether to write the paths from the root.
        """
        if not all(self._is_selected(path, owner) for path in scaffold.modules):
            return ()
        if scaffold.name is None and (self.parent or (self.prefix and owner)):
            from_root = True  # the paths are its name, and scaffold names are unique in a schema
        paths = tuple(
            self._from_root(absolute(path, owner)) if from_root else self._path(path, owner)
            for path in scaffold.modules
        )
        return (replace(scaffold, modules=paths, name=self.prefix + scaffold.name if scaffold.name else None),)

    def rules(self, rules: RuleList) -> tuple[RuleList, ...]:
        """Return the rules over included modules, rewritten for the top level of the schema."""
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
        if isinstance(rule, Exclude | Choose):
            kept, places = self._kept(rule.modules, rule.places, "modules", "")
            paths = tuple(self._named(absolute(path, "")) for path in kept)
            if isinstance(rule, Choose):
                return self._choose(replace(rule, modules=paths, places=places)) if kept else ()
            return (replace(rule, modules=paths, places=places),) if len(kept) > 1 else ()
        if isinstance(rule, Require):
            condition, consequence = _read(rule.condition), _read(rule.consequence)
            whole: Test = Or((Not(condition), consequence))
        else:
            whole = _read(rule.test)
        taken = {module for module in modules_of(whole) if self._is_selected(module, "")}
        if not taken:
            return ()
        if isinstance(rule, Require) and taken == modules_of(whole):
            here = And((Present(""), condition)) if self.parent else condition
            return (replace(rule, condition=self._written(here), consequence=self._written(consequence)),)
        rest = simplify(whole, lambda module: None if module in taken else False)
        if rest is False:
            message = "this rule cannot be satisfied without the modules that select= leaves out"
            self._fault("PC220", message, rule.span, "also select the other modules of the rule")
        return () if isinstance(rest, bool) else (self._demand(rest, rule),)

    def _choose(self, rule: Choose) -> tuple[Combination, ...]:
        """Return a `choose` rule. Inside a module, its minimum applies only if that module is present."""
        paths = rule.modules
        if rule.minimum and rule.minimum > len(paths):
            message = f"the rule needs at least {rule.minimum} modules, but select= includes only {len(paths)} of them"
            self._fault("PC220", message, place(rule, "min"), "also select the other modules of the rule")
            return ()
        if not (self.parent and rule.minimum):
            return (rule,)
        size = len(paths) - rule.minimum + 1
        if comb(len(paths), size) * size > _MAX_PATHS:
            choice = f"at least {rule.minimum} of {len(paths)} modules"
            message = f"choosing {choice} has too many alternatives inside '{self.parent}'"
            self._fault("PC308", message, place(rule, "min"), "include the file at the top level of the schema")
            return ()
        enough = " and ".join(f"({' or '.join(some)})" for some in combinations(paths, size))
        least = Assert(test=f"/{self.parent} implies ({enough})", span=rule.span, message=rule.message)
        return (least, replace(rule, minimum=None)) if rule.maximum is not None else (least,)

    def _demand(self, test: Test, rule: Require | Assert) -> Assert:
        """Return a rule that requires a test if the module around the `include` is present."""
        here = Or((Not(Present("")), test)) if self.parent else test
        return Assert(test=self._written(here), span=rule.span, message=rule.message)

    def _written(self, test: Test) -> str:
        return write_condition(test, self._named)

    def _named(self, path: str) -> str:
        """Return a path of a rule; "" is the module around the `include`.

        A leading slash distinguishes a path from a keyword.
        """
        return self._from_root(path) if self.prefix or self.parent or path in KEYWORDS else path

    def _path(self, path: str, owner: str) -> str:
        """Return a renamed path; relative paths below the top level do not change."""
        if path.startswith("/"):
            return self._from_root(path[1:])
        return path if owner else self.prefix + path

    def _from_root(self, path: str) -> str:
        return "/" + (join_path(self.parent, self.prefix + path) if path else self.parent)

    def _is_selected(self, path: str, owner: str) -> bool:
        return absolute(path, owner).partition("/")[0] in self.tops

    def _kept(
        self, paths: tuple[str, ...], places: Places, attribute: str, owner: str
    ) -> tuple[tuple[str, ...], Places]:
        """Return the paths of included modules, and the places without those of the other paths."""
        taken = [self._is_selected(path, owner) for path in paths]
        if all(taken):
            return paths, places
        kept = tuple(
            (name, tuple(compress(spans, taken)) if name == attribute and len(spans) > 1 else spans)
            for name, spans in places
        )
        return tuple(compress(paths, taken)), kept

    def _refuse(self, module: Module, attribute: str, paths: tuple[str, ...], owner: str) -> None:
        for number, path in enumerate(paths):
            if not self._is_selected(path, owner):
                name = absolute(path, owner).partition("/")[0]
                message = f"'{module.name}' needs '{name}', which select= leaves out"
                fix = f"also select the module or union with '{name}', or leave out '{module.name}'"
                self._fault("PC220", message, place(module, attribute, number), fix)

    def _fault(self, code: str, message: str, span: Span, fix: str) -> None:
        self.faults.append(diagnostic(code, message, span, fix))


def _read(condition: str) -> Test:
    return read_condition(condition, lambda path, _: absolute(path, ""))


def _modules(item: _TopItem) -> tuple[Module | Collection, ...]:
    return item.members if isinstance(item, Union) else (item,)


def _chosen(document: SchemaDocument, wanted: IncludeOptions, faults: list[Diagnostic]) -> dict[int, _TopItem]:
    """Return the selected items by their index among the children of the document."""
    there = {number: item for number, item in enumerate(document.children) if isinstance(item, _TopItem)}
    if wanted.select is None:
        anonymous = [*_anonymous(document)]
        faults += anonymous
        if not there and not anonymous:
            message = "the included file has no module at its top level"
            faults.append(diagnostic("PC218", message, wanted.span, "name another file, or remove the include"))
        return there
    known = [item.name for item in there.values() if item.name is not None]
    for name, span in wanted.select:
        if name not in known:
            fix = "separate names by spaces" if "," in name else None
            fix = fix or _instead(name, there.values()) or did_you_mean(name, known)
            message = f"the included file has no module or union '{name}' at its top level"
            faults.append(diagnostic("PC218", message, span, fix or f"the file has: {few(known) or 'none'}"))
    names = {name for name, _ in wanted.select}
    return {number: item for number, item in there.items() if item.name in names}


def _anonymous(document: SchemaDocument) -> Iterator[Diagnostic]:
    """Yield a diagnostic for the first item outside all modules; such an item would be part of every prompt."""
    for child in document.children:
        match child:
            case Text() if child.exact or not is_blank(child.text):
                what = "text"
            case Turn():
                what = f"a turn of <{child.role}>"
            case Parameter():
                what = "a parameter"
            case _:
                continue
        fix = "put it into a module, or name the modules to include with select="
        if isinstance(child, Turn):
            fix = "put the turn into a module; only modules at the top level are included, not those in a turn"
        yield diagnostic("PC219", f"the included file has {what} outside of its modules", child.span, fix)
        return


def _instead(name: str, there: Iterable[_TopItem]) -> str | None:
    for item in there:
        if isinstance(item, Union) and any(member.name == name for member in item.members):
            owner = f"select '{item.name}'" if item.name else "give the union a name and select it"
            return f"'{name}' is a member of a union, and a union is included as a whole: {owner}"
    return "a module is included with its content: select the module at the top level" if "/" in name else None


def _with_options(item: _TopItem, document: SchemaDocument, place: Place) -> _TopItem:
    """Set the options that modules inherit from their own document if the inherited options here are different."""
    around = place.options
    own = InheritedOptions(document.whitespace, document.separator, document.context)
    if place.in_collection:
        around = own._replace(whitespace=place.options.whitespace)
    if own == around:
        return item
    if isinstance(item, Module):
        return _with(item, own, around)
    if isinstance(item, Collection):
        return _with(item, own, around)
    members = (_with(child, own, around) if isinstance(child, Module) else child for child in item.children)
    return replace(item, children=tuple(members))


def _with(item: _Heir, own: InheritedOptions, around: InheritedOptions) -> _Heir:
    differs = item.separator is None and own.separator != around.separator
    item = replace(
        item,
        whitespace=item.whitespace or (own.whitespace if own.whitespace is not around.whitespace else None),
        separator=own.separator if differs else item.separator,
    )
    if isinstance(item, Collection):  # it does not inherit the context
        return item
    return replace(item, context=item.context or (own.context if own.context is not around.context else None))
