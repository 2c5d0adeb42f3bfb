"""Rules, scaffolds and examples for a random schema.

The valid selections of the document are known as masks. A rule is written only if every module can still be used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, or_

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from lxml.etree import SubElement, _Element

from tests.strategies.schema_xml import MAX_MODULES, PlacedModule, SchemaTree

_INDICES = st.integers(0, MAX_MODULES - 1)


FORMS: Mapping[str, tuple[Callable[[Sequence[bool], int], bool], Callable[[Sequence[str], int], dict[str, str]]]] = {
    "exclude": (
        lambda present, _: sum(present) <= 1,
        lambda paths, _: {"modules": " ".join(paths)},
    ),
    "choose at most": (
        lambda present, _: sum(present) < len(present),
        lambda paths, _: {"modules": " ".join(paths), "max": str(len(paths) - 1)},
    ),
    "choose at least": (
        lambda present, number: sum(present) >= min(number, 1),
        lambda paths, number: {"modules": " ".join(paths), "min": str(min(number, 1))},
    ),
    "require": (
        lambda present, _: not present[0] or any(present[1:]),
        lambda paths, _: {"if": paths[0], "then": " or ".join(paths[1:])},
    ),
    "require if several": (
        lambda present, _: not all(present[:-1]) or not present[-1],
        lambda paths, _: {"if": " and ".join(paths[:-1]), "then": f"not {paths[-1]}"},
    ),
    "assert": (
        lambda present, _: not (present[0] and present[1]) or present[-1],
        lambda paths, _: {"test": f"({paths[0]} and {paths[1]}) implies {paths[-1]}"},
    ),
    "assert not all": (
        lambda present, _: any(present) and not all(present),
        lambda paths, _: {"test": f"({' or '.join(paths)}) and not ({' and '.join(paths)})"},
    ),
}
"""Forms of rules by element: whether present modules keep it, and its attributes for their paths; both take a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleWish:
    """A rule of one module about another: the one of that `number`, counted round, of those that can be granted."""

    kind: str  # a form is written into a `rules` element, about `members` by number
    number: int
    absolute: bool
    members: tuple[int, ...] = ()
    message: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffoldWish:
    """Modules to be encoded together, by number, counted round; `place` is the module that declares it, if it can."""

    members: tuple[int, ...]
    place: int
    absolute: bool
    named: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleWish:
    """A worked prompt: that of the valid selection of this `number`, counted round, or one that is not valid."""

    number: int
    valid: bool
    contains: bool
    named: bool


def example_wishes() -> SearchStrategy[list[ExampleWish]]:
    """Draw no example, mostly, or one or two."""
    flags = {name: st.booleans() for name in ("valid", "contains", "named")}
    wishes = st.lists(st.builds(ExampleWish, number=st.integers(0, 99), **flags), min_size=1, max_size=2)
    none: SearchStrategy[list[ExampleWish]] = st.just([])
    options = (none, none, none, wishes)
    return st.integers(0, 3).flatmap(options.__getitem__)


def rule_wishes() -> SearchStrategy[list[RuleWish]]:
    """Draw a few rules."""
    kinds = st.sampled_from(("requires", "excludes", "after"))
    wish = st.builds(RuleWish, kind=kinds, number=st.integers(0, 99), absolute=st.booleans())
    listed = st.builds(
        RuleWish,
        kind=st.sampled_from((*FORMS, "exclude")),  # seldom leaves all modules usable
        number=st.integers(0, 2),
        absolute=st.booleans(),
        members=st.lists(_INDICES, min_size=2, max_size=3, unique=True).map(tuple),
        message=st.booleans(),
    )
    return st.builds(add, st.lists(wish, max_size=2), st.lists(listed, max_size=3))


def scaffold_wishes() -> SearchStrategy[list[ScaffoldWish]]:
    """Draw a few scaffolds."""
    members = st.lists(_INDICES, min_size=2, max_size=3, unique=True).map(tuple)
    wish = st.builds(ScaffoldWish, members=members, place=_INDICES, absolute=st.booleans(), named=st.booleans())
    return st.lists(wish, max_size=2)


def grant(tree: SchemaTree, rules: Sequence[RuleWish], scaffolds: Sequence[ScaffoldWish]) -> SchemaTree:
    """Write what can be granted into the document of `tree`, and return it with the selections that are left."""
    masks = tree.masks
    granted: set[tuple[str, int, int]] = set()
    for rule in rules:
        masks = _grant_form(tree, masks, rule) if rule.members else _grant_rule(tree, masks, rule, granted)
    names: set[str] = set()
    for scaffold in scaffolds:
        _grant_scaffold(tree, masks, scaffold, names)
    return replace(tree, masks=masks)


def add_examples(tree: SchemaTree, wishes: Sequence[ExampleWish]) -> None:
    """Write examples behind everything else in the document."""
    for number, wish in enumerate(wishes):
        example = SubElement(tree.root, "example")
        if wish.named:
            example.set("name", f"e{number}")
        prompt = SubElement(example, "prompt", schema=str(tree.root.get("name")))
        if not wish.valid:
            example.set("valid", "false")
            SubElement(prompt, "nowhere")
            continue
        if wish.contains:
            example.set("contains", "Ask")
        else:
            example.set("valid", "true")
        if wish.named:
            example.set("answer", "7")
            example.set("expect", "seven")
            SubElement(prompt, "answer", type="int")
        _write_selection(prompt, tree, sorted(tree.masks)[wish.number % len(tree.masks)])


def _write_selection(prompt: _Element, tree: SchemaTree, mask: int) -> None:
    """Name the modules of a selection, each inside its parent, with the arguments that they need; then ask."""
    _give(prompt, tree.root)
    references = {"": prompt}
    for module in tree.modules:
        if mask & module.bit:
            name = module.path.rpartition("/")[2]
            references[module.path] = SubElement(references[module.parent], name)
            _give(references[module.path], module.element)
    last = prompt[-1] if len(prompt) else None
    if last is None:
        prompt.text = "Ask."
    else:
        last.tail = "Ask."


def _give(reference: _Element, declared: _Element) -> None:
    """Give the required parameters of a module values that they accept; inner modules are not changed."""
    for child in declared:
        if child.tag == "parameter" and child.get("required") == "true":
            reference.set(str(child.get("name")), str(child.get("default") or "x"))
        elif child.tag in ("system", "user", "assistant"):
            _give(reference, child)


def _grant_rule(
    tree: SchemaTree, masks: tuple[int, ...], wish: RuleWish, granted: set[tuple[str, int, int]]
) -> tuple[int, ...]:
    """Write a new rule that leaves every module usable, if there is one, and return the selections that obey it."""
    everything = reduce(or_, masks)
    grantable = [
        (subject, other, left)
        for subject in tree.modules
        for other in tree.modules
        if _makes_sense(wish.kind, subject, other)
        and (wish.kind, subject.bit, other.bit) not in granted
        and reduce(or_, left := _kept(wish.kind, masks, subject.bit, other.bit), 0) == everything
    ]
    if not grantable:
        return masks
    subject, other, left = grantable[wish.number % len(grantable)]
    granted.add((wish.kind, subject.bit, other.bit))
    paths = str(subject.element.get(wish.kind, "")).split()
    path = _written(other, subject.parent, absolute=wish.absolute)
    subject.element.set(wish.kind, " ".join([*paths, path]))
    return left


def _grant_form(tree: SchemaTree, masks: tuple[int, ...], wish: RuleWish) -> tuple[int, ...]:
    """Write a rule about its members, or modules behind them, that leaves all usable and, if it can, forbids something."""
    holds, attributes = FORMS[wish.kind]
    everything = reduce(or_, masks)
    grantable: list[tuple[list[PlacedModule], tuple[int, ...]]] = []
    for shift in range(len(tree.modules)):
        found = (_at(tree, number + shift) for number in wish.members)
        members = list({module.bit: module for module in found}.values())
        if len(members) < 2:
            continue
        left = tuple(mask for mask in masks if holds([bool(mask & each.bit) for each in members], wish.number))
        if reduce(or_, left, 0) == everything:
            grantable.append((members, left))
    if not grantable:
        return masks
    members, left = min(grantable, key=lambda each: len(each[1]) == len(masks))  # one that forbids something
    paths = [_written(member, "", absolute=wish.absolute) for member in members]
    root, element = tree.root, wish.kind.partition(" ")[0]
    rules = root[-1] if len(root) and root[-1].tag == "rules" else SubElement(root, "rules")
    rule = SubElement(rules, element, attributes(paths, wish.number))
    if wish.message:
        rule.set("message", f"Mind {element}.")
    return left


def _makes_sense(kind: str, subject: PlacedModule, other: PlacedModule) -> bool:
    """Whether a module may say this of another: not of itself, nor of one that holds it; `after` looks back."""
    if subject is other or _holds(other, subject):
        return False
    return kind != "after" or other.bit < subject.bit


def _kept(kind: str, masks: tuple[int, ...], subject: int, other: int) -> tuple[int, ...]:
    """Return the selections that obey a rule."""
    if kind == "excludes":
        return tuple(mask for mask in masks if not (mask & subject and mask & other))
    return tuple(mask for mask in masks if not mask & subject or mask & other)


def _grant_scaffold(tree: SchemaTree, masks: tuple[int, ...], wish: ScaffoldWish, names: set[str]) -> None:
    """Write the scaffold with those of its members that can be present together, if they are two or more."""
    members: list[PlacedModule] = []
    if not tree.modules:
        return
    for module in (_at(tree, number) for number in wish.members):
        together = reduce(or_, (member.bit for member in members), module.bit)
        if module.cached and module not in members and any(mask & together == together for mask in masks):
            members.append(module)
    if len(members) < 2:
        return
    place = _at(tree, wish.place)
    inside = all(_holds(place, member) for member in members)
    element = SubElement(place.element if inside else tree.root, "scaffold")
    start = place.path if inside else ""
    paths = [_written(member, start, absolute=wish.absolute) for member in members]
    element.set("modules", " ".join(paths))
    if wish.named or "+".join(paths) in names:  # a scaffold without a name is called after its modules
        element.set("name", f"s{len(names)}")
    names.add(element.get("name", "+".join(paths)))


def _at(tree: SchemaTree, number: int) -> PlacedModule:
    return tree.modules[number % len(tree.modules)]


def _holds(outer: PlacedModule, inner: PlacedModule) -> bool:
    """Whether `inner` is a descendant of `outer`."""
    return inner.path.startswith(f"{outer.path}/")


def _written(module: PlacedModule, start: str, *, absolute: bool) -> str:
    """Return the path of `module` as it is written from module `start`: relative where it can be."""
    if not absolute and (not start or module.path.startswith(f"{start}/")):
        return module.path.removeprefix(f"{start}/") if start else module.path
    return f"/{module.path}"
