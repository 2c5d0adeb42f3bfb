"""Index the modules, parameters, unions, scaffolds and rules of a schema by path.

Names that are malformed, reserved or used twice become diagnostics. This module does not resolve paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from promptcache.diagnostics import FaultList, SchemaError, Span
from promptcache.language.syntax import nodes
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.names import (
    RESERVED_MODULES,
    RESERVED_OUTSIDE_MODULES,
    RESERVED_PARAMETERS,
    is_name,
    name_help,
    quoted,
)
from promptcache.language.syntax.nodes import join_path, place
from promptcache.language.syntax.values import answer_faults, check_type, second_answer

_Choices: TypeAlias = tuple[tuple[int, str], ...]
"""The number of each union around a module, with the path of the member that contains the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleEntry:
    """Module that a schema declares.

    `[start, stop)` is a range of module numbers in document order. If one module stops before another starts, its
    layout comes earlier, unless the two are in different members of a union. `choices` lists the unions around it.
    """

    path: str
    parent: str
    module: nodes.Module
    start: int
    stop: int
    choices: _Choices


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionEntry:
    """Union that a schema declares, with the path of the module around it and the paths of its members."""

    parent: str
    union: nodes.Union
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Declarations of a schema. Modules are in document order of their start tags.

    A collection, by its path, is also a module without content. Its members are no modules of the index.
    """

    modules: dict[str, ModuleEntry] = field(default_factory=dict)
    unions: list[UnionEntry] = field(default_factory=list)
    collections: dict[str, nodes.Collection] = field(default_factory=dict)
    scaffolds: list[tuple[str, nodes.Scaffold]] = field(default_factory=list)
    rules: list[nodes.RuleList] = field(default_factory=list)
    turns: list[nodes.Turn] = field(default_factory=list)
    answers: list[nodes.AnswerFormat] = field(default_factory=list)
    faults: FaultList = field(default_factory=lambda: FaultList(SchemaError))


def index_schema(schema: nodes.SchemaDocument) -> Index:
    """Return the index of a schema. Diagnostics for names and structure are added to its `faults`."""
    walker = _Walker(schema.span.source)
    if not schema.name.strip() or any(character.isspace() for character in schema.name):
        message = f"{quoted(schema.name)} cannot be the name of a schema: it is empty or contains whitespace"
        near = "-".join(schema.name.split()) or "…"
        walker.index.faults.add("PC201", message, place(schema, "name"), f'write name="{near}"')
    walker.items(schema.children, "", None, ())
    return walker.index


class _Walker:
    """Visitor that fills the index of one schema."""

    def __init__(self, source: str) -> None:
        self.index = Index()
        self._faults = self.index.faults
        self._source = source
        self._entered = 0
        self._first: dict[tuple[str, str, str], Span] = {}

    def items(self, items: tuple[nodes.Item, ...], parent: str, turn: nodes.Role | None, choices: _Choices) -> None:
        for item in items:
            match item:
                case nodes.Module():
                    self._module(item, parent, turn, choices)
                case nodes.Union():
                    self._union(item, parent, turn, choices)
                case nodes.Collection():
                    self._collection(item, parent, turn, choices)
                case nodes.Parameter():
                    self._parameter(item, parent)
                case nodes.Scaffold():
                    self._scaffold(item, parent)
                case nodes.RuleList():
                    self.index.rules.append(item)
                case nodes.AnswerFormat() if self.index.answers:
                    self._faults.append(second_answer(item.span, self.index.answers[0].span, "schema"))
                case nodes.AnswerFormat():
                    self._faults += answer_faults(item)
                    self.index.answers.append(item)
                case nodes.Turn():
                    if turn is not None:
                        message = f"<{item.role}> is inside a turn of <{turn}>, and turns cannot be nested"
                        self._faults.add("PC110", message, item.span, f"close <{turn}> first")
                    self.index.turns.append(item)
                    self.items(item.children, parent, item.role, choices)

    def _module(self, module: nodes.Module, parent: str, turn: nodes.Role | None, choices: _Choices) -> None:
        path, is_named = join_path(parent, module.name), True
        if module.name in RESERVED_MODULES or module.name.lower().startswith("xml"):
            message = f"a module cannot be named '{module.name}': <{module.name}> has another meaning in a prompt"
            self._faults.add("PC202", message, place(module, "name"), "choose another name")
        else:
            is_named = self._named(module.name, module, "module")
        if not is_named or not self._first_of("PC203", "module", module.name, parent, place(module, "name")):
            inside = _Walker(self._source)  # for the faults inside a module that is not declared because of its name
            inside.items(module.children, path, turn, ())
            self._faults += inside.index.faults
            return
        start = self._entered
        self._entered += 1
        entry = ModuleEntry(path=path, parent=parent, module=module, start=start, stop=start, choices=choices)
        self.index.modules[path] = entry
        self.items(module.children, path, turn, choices)
        self.index.modules[path] = replace(entry, stop=self._entered)

    def _union(self, union: nodes.Union, parent: str, turn: nodes.Role | None, choices: _Choices) -> None:
        if not union.members:
            self._faults.add("PC108", "a union needs members", union.span, "add modules to the union, or remove it")
        if union.name is not None and self._named(union.name, union, "union"):
            self._first_of("PC205", "union", union.name, parent, place(union, "name"))
        number = len(self.index.unions)
        members = tuple(dict.fromkeys(join_path(parent, member.name) for member in union.members))
        self.index.unions.append(UnionEntry(parent=parent, union=union, members=members))
        for member in union.members:
            inside = (*choices, (number, join_path(parent, member.name)))
            self.items((member,), parent, turn, inside)

    def _collection(
        self, collection: nodes.Collection, parent: str, turn: nodes.Role | None, choices: _Choices
    ) -> None:
        """Add a collection as a module without content, and check its members."""
        path = join_path(parent, collection.name)
        module = collection.as_module()
        self._module(module, parent, turn, choices)
        if path in self.index.modules and self.index.modules[path].module is module:
            self.index.collections[path] = collection
        if collection.maximum is not None and collection.minimum > collection.maximum:
            message = f"min is {collection.minimum}, but max is {collection.maximum}"
            self._faults.add("PC309", message, place(collection, "min"), "lower min")
        for member in collection.members:
            if member.name in collection.listed:
                span = collection.listed[member.name].span
                message = f"member '{member.name}' is defined twice (also in line {span.line} of {span.source})"
                related = ((span, "first defined here"),)
                self._faults.add("PC203", message, place(member, "name"), "give one of them another name", related)
            if self._named(member.name, member, "module"):
                self._first_of("PC203", "module", member.name, path, place(member, "name"))
            extra = next((item for item in member.children if not isinstance(item, nodes.Text | nodes.Doc)), None)
            if extra is not None:
                message = f"'{member.name}' is a member of a collection, which holds only text"
                fix = "write this outside of the collection, or make the member a module"
                self._faults.add("PC111", message, extra.span, fix)
            for option in attributes_of(nodes.Module):
                if not option.of_members and getattr(member, option.field) != option.default:
                    message, fix = f"a member of a collection has no option '{option.name}'", "set it on the collection"
                    self._faults.add("PC111", message, place(member, option.name), f"{fix}, or remove {option.name}")

    def _parameter(self, parameter: nodes.Parameter, parent: str) -> None:
        self._faults += check_type(parameter)
        reserved = RESERVED_PARAMETERS if parent else RESERVED_PARAMETERS | RESERVED_OUTSIDE_MODULES
        if parameter.name in reserved or parameter.name.lower().startswith("xml"):
            message = f"a parameter cannot be named '{parameter.name}': this attribute has another meaning in a prompt"
            self._faults.add("PC202", message, place(parameter, "name"), "choose another name")
        elif not self._named(parameter.name, parameter, "parameter"):
            return
        self._first_of("PC204", "parameter", parameter.name, parent, place(parameter, "name"))

    def _scaffold(self, scaffold: nodes.Scaffold, parent: str) -> None:
        if scaffold.name is not None and not self._named(scaffold.name, scaffold, "scaffold"):
            return
        if self._first_of("PC206", "scaffold", scaffold_name(scaffold), "", place(scaffold, "name")):
            self.index.scaffolds.append((parent, scaffold))

    def _named(self, name: str, item: nodes.Module | nodes.Union | nodes.Parameter | nodes.Scaffold, kind: str) -> bool:
        if is_name(name):
            return True
        self._faults.add(
            "PC201", f"{quoted(name)} cannot be the name of a {kind}", place(item, "name"), name_help(name)
        )
        return False

    def _first_of(self, code: str, kind: str, name: str, parent: str, span: Span) -> bool:
        key = (kind, parent, name)
        if key not in self._first:
            self._first[key] = span
            return True
        first = self._first[key]
        where = f" in '{parent}'" if parent else ""
        at = f" (first at {first.line}:{first.column})" if first.source == span.source else " (first in another file)"
        message = f"{kind} '{name}' is defined twice{where}{at if first.line else ''}"
        fix = "give one of them another name"
        if kind != "scaffold" and {first.source, span.source} != {self._source}:
            fix += ", or put the include into a module of its own"
        self._faults.add(code, message, span, fix, ((first, "first defined here"),))
        return False


def scaffold_name(scaffold: nodes.Scaffold) -> str:
    """Return the name of a scaffold. A scaffold without a name is named after its modules."""
    return scaffold.name if scaffold.name is not None else "+".join(scaffold.modules)
