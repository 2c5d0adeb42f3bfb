"""Prompts as XML trees: a choice of modules, arguments and messages, written in any form of the language.

With all draws zero, `write_prompt` writes the plainest form: it names only modules that no other reference and no
default brings. It does not check the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import TypeAlias

from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import InvalidValue
from promptcache.language import (
    CheckedCollection,
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedSchema,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    ancestors,
    format_markup,
    is_element,
    walk_checked,
)
from promptcache.testing.texts import Key, Said

Draw = Callable[[st.SearchStrategy[int]], int]

_COIN = st.integers(0, 1)
_FORM = st.integers(0, 3)
_INDEX = st.integers(0, 15)
_ANSWERS: Sequence[Mapping[str, str]] = (
    {},
    {"type": "int"},
    {"type": "choice", "choices": "a|b"},
    {"pattern": "[ab]+"},
)
_ANSWER_FORM = st.integers(0, 15)


Members: TypeAlias = Mapping[str, Sequence[str]]
"""Names of members of collections, by the path of the collection."""

_MAX_TRIED = 1000
_MAX_DRAWN = 4
"""Number of members of a collection in a prompt of Hypothesis, unless its minimum is higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """The modules, arguments and messages of a prompt, and for collections, by path, the names of members in order."""

    modules: frozenset[str]
    arguments: Mapping[Key, str]
    messages: Sequence[Said]
    members: Members = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTree:
    """A prompt document without its messages.

    `references` are the elements that name a module, by its path; "" is the prompt. `formatted` prompts are written as
    the formatter writes them, others in one line.
    """

    root: etree._Element
    references: Mapping[str, etree._Element]
    choice: PromptChoice
    formatted: bool

    def document(self, messages: Sequence[Said] | None = None) -> str:
        """Return the whole prompt as text, ending in its own messages or in others."""
        root = deepcopy(self.root)
        for message in self.choice.messages if messages is None else messages:
            element = etree.SubElement(root, message.role) if message.role else root
            append_text(etree.SubElement(element, "text") if message.exact else element, message.text)
        return format_markup(to_text(root), is_prompt=True) if self.formatted else to_text(root)


def write_prompt(draw: Draw, schema: CheckedSchema, choice: PromptChoice, *, in_full: bool = False) -> PromptTree:
    """Write a prompt; if all draws are zero, in its plainest form.

    Args:
        draw: Draws from a strategy.
        schema: The prompt's schema.
        choice: What to write; it is not checked.
        in_full: Name every module, even if another reference or a default brings it.
    """
    root = etree.Element("prompt", schema=schema.name)
    if schema.version is not None and draw(_FORM):
        root.set("version", schema.version)
    references = {"": root}
    for path in _in_order(schema, choice.modules if in_full else _needed(draw, schema, choice)):
        references[path] = _write_reference(draw, path, references)
    for (module, parameter), text in choice.arguments.items():
        if draw(_COIN) or not is_element(parameter):
            argument = etree.Element("arg", name=parameter)
            argument.text = text
            _insert(draw, references[module], argument)
        else:
            references[module].set(parameter, text)
    for path, names in choice.members.items():
        for name in names:
            if draw(_COIN) or not is_element(name):
                etree.SubElement(references[path], "use", module=name)
            else:
                etree.SubElement(references[path], name)
    if (form := draw(_ANSWER_FORM)) in range(1, len(_ANSWERS) + 1):
        _insert(draw, root, etree.Element("answer", dict(_ANSWERS[form - 1])))
    return PromptTree(root=root, references=references, choice=choice, formatted=bool(draw(_COIN)))


def _needed(draw: Draw, schema: CheckedSchema, choice: PromptChoice) -> set[str]:
    """Return modules that bring all others, as their ancestors or as the default of a union."""
    needed = {module for module, _ in choice.arguments if module}
    needed |= {path for path, names in choice.members.items() if names}
    implied = set[str]()  # first the members that a default adds if they are not named
    for union in walk_checked(schema.children):
        if isinstance(union, CheckedUnion):
            taken = [member.path for member in union.members if member.path in choice.modules]
            implied.update(taken if taken == [union.default] else ())
    for path in reversed(_in_order(schema, choice.modules)):
        if path in needed or path not in implied or draw(_COIN):
            needed.add(path)
            implied.update(ancestors(path))
    return needed


def _in_order(schema: CheckedSchema, modules: Collection[str]) -> list[str]:
    return sorted(modules, key=schema.rules.order.__getitem__)


def _write_reference(draw: Draw, path: str, references: Mapping[str, etree._Element]) -> etree._Element:
    """Name a module by element or by path, nested or from the root."""
    form = draw(_FORM)
    outer = max((known for known in references if path.startswith(f"{known}/")), key=len, default="")
    if form == 2:
        outer = ""
    elif form == 3:
        outer = list(references)[draw(_INDEX) % len(references)]
    relative = path.removeprefix(f"{outer}/") if outer else path
    if form == 3:
        element = etree.Element("use", module=f"/{path}")
    elif form == 1 or not is_element(relative):
        element = etree.Element("use", module=relative)
    else:
        element = etree.Element(relative)
    _insert(draw, references[outer], element)
    return element


def _insert(draw: Draw, parent: etree._Element, element: etree._Element) -> None:
    parent.insert(0 if draw(_COIN) else len(parent), element)


def draw_members(draw: Callable[[st.SearchStrategy[list[str]]], list[str]], schema: CheckedSchema) -> Members:
    """Draw members for each collection of a schema that declares some, as many as it allows, in any order."""
    found: dict[str, Sequence[str]] = {}
    for path, module in schema.modules.items():
        if module.collection is not None and module.collection.members:
            names = sorted(module.collection.members)
            least, most = member_counts(module.collection, _MAX_DRAWN)
            found[path] = draw(st.lists(st.sampled_from(names), unique=True, min_size=least, max_size=most))
    return found


def check_members(schema: CheckedSchema, modules: Collection[str]) -> None:
    """Refuse collections of which a prompt needs more members than the schema declares.

    Raises:
        InvalidValue: A collection among the modules is one; names it and the fix.
    """
    for path in modules:
        collection = schema.modules[path].collection
        if collection is not None and (known := len(collection.members)) < collection.minimum:
            raise InvalidValue(
                f"a prompt names at least {collection.minimum} of collection '{path}', and the schema has {known}: "
                f'name a file of members to test with, src="{path.rpartition("/")[2]}.jsonl"; engines do not need it'
            )


def member_counts(collection: CheckedCollection, limit: int) -> tuple[int, int]:
    """Return how many declared members a prompt names, at least and at most: `limit` if the collection allows it."""
    known = len(collection.members)
    least = min(collection.minimum, known)
    return least, min(collection.maximum or known, known, max(least, limit))


def first_members(schema: CheckedSchema, modules: Collection[str]) -> Members:
    """Return as few members of the collections among `modules` as they allow, with others that rules demand."""
    collections = ((path, schema.modules[path].collection) for path in modules)
    fewest = {path: tuple(islice(each.members, each.minimum)) for path, each in collections if each is not None}
    if keep_rules(schema, modules, fewest):
        return fewest
    named = sorted({path for rule in schema.rules.of_members for path in rule.modules} - schema.modules.keys())
    for more in islice((some for size in range(1, len(named) + 1) for some in combinations(named, size)), _MAX_TRIED):
        found = {
            path: (*names, *(each[len(path) + 1 :] for each in more if each.rpartition("/")[0] == path))
            for path, names in fewest.items()
        }
        if keep_rules(schema, modules, found):
            return found
    return fewest


def keep_rules(schema: CheckedSchema, modules: Collection[str], members: Members) -> bool:
    """Whether members that are named with a complete set of modules keep the rules over members."""
    paths = {f"{path}/{name}" for path, names in members.items() for name in names}
    return not any(True for _ in schema.rules.broken_by_members({"", *modules, *paths}))


def to_text(root: etree._Element) -> str:
    """Return the document as text."""
    return etree.tostring(root, encoding="unicode")


def append_text(element: etree._Element, text: str) -> None:
    """Write `text` after everything that `element` holds."""
    if not text:
        return
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def has_tokens(
    items: Iterable[CheckedItem],
    modules: Collection[str],
    arguments: Mapping[tuple[str, str], str],
    members: Members,
    owner: str = "",
) -> bool:
    """Whether `items` give a prompt with these modules and arguments any token besides BOS; a turn always does."""
    for item in items:
        match item:
            case FinalText() | CheckedTurn():
                return True
            case CheckedParameter():
                found = bool(item.lead or arguments.get((owner, item.name), item.default))
            case CheckedModule():
                inside = bool(members.get(item.path)) or has_tokens(
                    item.children, modules, arguments, members, item.path
                )
                found = item.path in modules and inside
            case CheckedUnion():
                found = has_tokens(item.members, modules, arguments, members)
        if found:
            return True
    return False
