"""Random declared schemas, small enough to try all their combinations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import strategies as st

from promptcache.language import (
    Assert,
    Choose,
    Context,
    Doc,
    Exclude,
    Item,
    Module,
    Parameter,
    Require,
    Role,
    RuleList,
    Schema,
    Text,
    Turn,
    Union,
    Whitespace,
    join_path,
)
from promptcache.language.rules.rules import Rules
from promptcache.language.syntax.nodes import IN_PYTHON

TEXTS = st.text(alphabet="ab \n\t<&é", max_size=6)
Draw = Callable[[st.SearchStrategy[Any]], Any]


ALL_KINDS = ("text", "exact", "parameter", "doc", "module", "module", "union", "turn")
RULES_ONLY = ("module", "union")


class _Tree:
    """Generator of items, up to a number of modules."""

    def __init__(self, draw: Draw, num_modules: int, kinds: tuple[str, ...]) -> None:
        self._draw = draw
        self._kinds = kinds
        self._left = num_modules
        self.paths: list[str] = []
        self._count = 0

    def items(self, parent: str, depth: int, in_turn: bool) -> tuple[Item, ...]:
        kinds = [kind for kind in self._kinds if not (in_turn and kind == "turn")]
        chosen = self._draw(st.lists(st.sampled_from(kinds), max_size=4 if depth else 5))
        return tuple(item for kind in chosen if (item := self._item(kind, parent, depth, in_turn)) is not None)

    def _item(self, kind: str, parent: str, depth: int, in_turn: bool) -> Item | None:
        match kind:
            case "text" | "exact":
                return Text(text=self._draw(TEXTS), span=IN_PYTHON, exact=kind == "exact")
            case "doc":
                return Doc(text="documentation", span=IN_PYTHON)
            case "parameter":
                self._count += 1
                default = self._draw(st.none() | TEXTS)
                return Parameter(name=f"p{self._count}", length=7, span=IN_PYTHON, default=default)
            case "turn":
                role = self._draw(st.sampled_from(Role))
                return Turn(role=role, children=self.items(parent, depth + 1, True), span=IN_PYTHON)
            case "module":
                return self._module(parent, depth, in_turn)
            case _:
                return self._union(parent, depth, in_turn)

    def _module(self, parent: str, depth: int, in_turn: bool) -> Module | None:
        if self._left == 0 or depth > 3:
            return None
        self._left -= 1
        name = f"m{len(self.paths)}"
        path = join_path(parent, name)
        self.paths.append(path)
        return Module(
            name=name,
            children=self.items(path, depth + 1, in_turn),
            span=IN_PYTHON,
            required=self._draw(st.sampled_from([False, False, False, True])),
            whitespace=self._draw(st.sampled_from([None, None, *Whitespace])),
            separator=self._draw(st.sampled_from([None, None, "", " ", "\n\n\\t"])),
            cache=self._draw(st.sampled_from([None, None, False, True])),
            context=self._draw(st.sampled_from([None, *Context])),
        )

    def _union(self, parent: str, depth: int, in_turn: bool) -> Union | None:
        wanted = self._draw(st.integers(1, 3))
        members = [member for _ in range(wanted) if (member := self._module(parent, depth, in_turn)) is not None]
        if not members:
            return None
        default = self._draw(st.sampled_from([None, None, members[0].name]))
        required = self._draw(st.booleans())
        return Union(children=tuple(members), span=IN_PYTHON, required=required, default=default)


@st.composite
def declared_schemas(draw: Draw, max_modules: int = 8, kinds: tuple[str, ...] = ALL_KINDS) -> Schema:
    """Draw a schema with items of all these kinds, and rules; the schema may be unsatisfiable."""
    tree = _Tree(draw, draw(st.integers(min(3, max_modules), max_modules)), kinds)
    children = tree.items("", 0, False)
    if tree.paths:
        children = (*children, *draw(_rule_lists(tree.paths)))
        path = st.sampled_from(tree.paths).map(lambda path: f"/{path}")
        rules = st.tuples(path, st.sampled_from(["requires", "excludes"]), path)
        for subject, kind, other in draw(st.lists(rules, max_size=6)):
            children = tuple(_with_rule(item, "", subject[1:], kind, other) for item in children)
    return Schema(name="s", children=children, span=IN_PYTHON)


def conditions(paths: list[str]) -> st.SearchStrategy[str]:
    """Draw conditions over few of the module paths; alternatives are nested in alternatives up to four deep."""
    few = st.lists(st.sampled_from(paths), min_size=1, max_size=3, unique=True)
    return st.tuples(few, st.integers(0, 4)).flatmap(lambda drawn: _conditions(*drawn))


def _conditions(paths: list[str], depth: int) -> st.SearchStrategy[str]:
    found = st.sampled_from([form.format(path) for path in paths for form in ("{}", "/{}", "not {}")])
    joins = st.sampled_from(["({}) and {}", "({}) or ({})", "({}) implies {}", "not (({}) and ({}))"])
    for _ in range(depth):
        found = st.tuples(joins, found, found).map(lambda drawn: drawn[0].format(*drawn[1:]))
    return found


@st.composite
def _rule_lists(draw: Draw, paths: list[str]) -> tuple[RuleList, ...]:
    several = st.lists(st.sampled_from(paths), min_size=1, max_size=4, unique=True).map(tuple)
    bound = st.none() | st.integers(0, 3)
    rules = st.one_of(
        st.builds(Require, condition=conditions(paths), consequence=conditions(paths), span=st.just(IN_PYTHON)),
        st.builds(Exclude, modules=several, span=st.just(IN_PYTHON)),
        st.builds(Assert, test=conditions(paths), span=st.just(IN_PYTHON), message=st.none() | st.just("Mind this.")),
        st.builds(Choose, modules=several, span=st.just(IN_PYTHON), minimum=st.just(1), maximum=st.none()),
        st.builds(Choose, modules=several, span=st.just(IN_PYTHON), minimum=bound, maximum=st.integers(3, 4)),
        st.builds(Choose, modules=several, span=st.just(IN_PYTHON), minimum=st.none(), maximum=st.integers(1, 2)),
    )
    found = draw(st.lists(rules, max_size=2))
    kept = tuple(rule for rule in found if not isinstance(rule, Choose) or (rule.minimum or 0) <= len(rule.modules))
    return (RuleList(children=kept, span=IN_PYTHON),) if kept else ()


def _with_rule(item: Item, parent: str, subject: str, kind: str, other: str) -> Item:
    if isinstance(item, Module):
        path = join_path(parent, item.name)
        if path == subject:
            return replace(item, **{kind: (*getattr(item, kind), other)})
        children = tuple(_with_rule(child, path, subject, kind, other) for child in item.children)
        return replace(item, children=children)
    if isinstance(item, Turn | Union):
        children = tuple(_with_rule(child, parent, subject, kind, other) for child in item.children)
        return replace(item, children=children)  # type: ignore[arg-type]
    return item


def all_selections(rules: Rules) -> list[frozenset[str]]:
    """Return every set of modules that keeps the rules, by trying all sets."""
    modules = [module for module in rules.order if module]
    found = []
    for bits in product((False, True), repeat=len(modules)):
        chosen = {module for module, bit in zip(modules, bits, strict=True) if bit}
        nested = all("/" not in module or module.rpartition("/")[0] in chosen for module in chosen)
        if nested and not any(rules.broken(chosen | {""})):
            found.append(frozenset(chosen))
    return found
