"""Random declared schemas, small enough to try all their combinations."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import strategies as st

from promptcache.language import Assert, Choose, Exclude, Item, Module, Require, RuleList, Schema, Union, join_path
from promptcache.language.rules.rules import Rules
from promptcache.language.syntax.nodes import IN_PYTHON

Draw = Callable[[st.SearchStrategy[Any]], Any]


class _Tree:
    """Generator of modules and unions, up to a number of modules."""

    def __init__(self, draw: Draw, num_modules: int) -> None:
        self._draw = draw
        self._left = num_modules
        self.paths: list[str] = []

    def items(self, parent: str, depth: int) -> tuple[Item, ...]:
        chosen = self._draw(st.lists(st.sampled_from((self._module, self._union)), max_size=4 if depth else 5))
        return tuple(item for make in chosen if (item := make(parent, depth)) is not None)

    def _module(self, parent: str, depth: int) -> Module | None:
        if self._left == 0 or depth > 3:
            return None
        self._left -= 1
        name = f"m{len(self.paths)}"
        path = join_path(parent, name)
        self.paths.append(path)
        required = self._draw(st.sampled_from([False, False, False, True]))
        return Module(name=name, children=self.items(path, depth + 1), span=IN_PYTHON, required=required)

    def _union(self, parent: str, depth: int) -> Union | None:
        wanted = self._draw(st.integers(1, 3))
        members = [member for _ in range(wanted) if (member := self._module(parent, depth)) is not None]
        if not members:
            return None
        default = self._draw(st.sampled_from([None, None, members[0].name]))
        return Union(children=tuple(members), span=IN_PYTHON, required=self._draw(st.booleans()), default=default)


@st.composite
def declared_schemas(draw: Draw, max_modules: int = 8) -> Schema:
    """Draw a schema of modules, unions and rules, without text; it may be unsatisfiable."""
    tree = _Tree(draw, draw(st.integers(min(3, max_modules), max_modules)))
    children = tree.items("", 0)
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
    if isinstance(item, Union):
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
