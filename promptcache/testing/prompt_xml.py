"""A choice of modules, arguments and messages becomes a prompt document, in one of the many ways to write it.

Comes in: a checked schema and what to choose. Goes out: an XML tree that says so, and where it names each module. Knows
nothing of how the choice was made; it makes no prompt valid that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from hypothesis import strategies as st
from lxml import etree

from promptcache.language.checked import CheckedSchema, CheckedUnion
from promptcache.language.syntax.names import ancestors, is_version
from promptcache.testing.choices import Key, Said
from promptcache.testing.markup import append_text, indent, to_text
from promptcache.testing.shortest import Shortest
from promptcache.testing.walk import walk_checked

Draw = Callable[[st.SearchStrategy[int]], int]

_COIN = st.integers(0, 1)
_FORM = st.integers(0, 3)
_STYLE = st.integers(0, 2)
_INDEX = st.integers(0, 15)
_BOUNDS = ("", ">=", "<=", "==")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a prompt says."""

    modules: frozenset[str]
    arguments: Mapping[Key, str]
    messages: Sequence[Said]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTree:
    """A prompt document without its messages.

    `references` are the elements that name a module, by its path; "" is the prompt.
    """

    root: etree._Element
    references: Mapping[str, etree._Element]
    choice: Choice
    indented: bool

    def document(self, messages: Sequence[Said] | None = None) -> str:
        """Return the whole prompt as text, ending in its own messages or in others."""
        root = deepcopy(self.root)
        if self.indented:
            indent(root)
        for message in self.choice.messages if messages is None else messages:
            _write_message(root, message)
        return to_text(root)


def write_prompt(draw: Draw, schema: CheckedSchema, choice: Choice, *, in_full: bool = False) -> PromptTree:
    """Write a prompt; all zeros drawn give the shortest form that there is.

    Args:
        draw: Draws from a strategy.
        schema: The prompt's schema.
        choice: What to write; not checked.
        in_full: Name every module itself, also those that others or a default would bring.
    """
    root = etree.Element("prompt", schema=schema.name)
    if schema.version is not None and is_version(schema.version) and (bounds := _BOUNDS[draw(_FORM)]):
        root.set("version", f"{bounds}{schema.version}")
    references = {"": root}
    if not in_full and not draw(_STYLE):
        _write_shortest(root, schema, choice, references)
        return PromptTree(root=root, references=references, choice=choice, indented=False)
    for path in _in_order(schema, choice.modules if in_full else _needed(draw, schema, choice)):
        references[path] = _write_reference(draw, path, references)
    for (module, parameter), text in choice.arguments.items():
        _write_argument(draw, references[module], parameter, text)
    return PromptTree(root=root, references=references, choice=choice, indented=bool(draw(_COIN)))


def _write_shortest(
    root: etree._Element, schema: CheckedSchema, choice: Choice, references: dict[str, etree._Element]
) -> None:
    given = {module for module, _ in choice.arguments}
    shortest = Shortest(_in_order(schema, choice.modules), given, set(_defaults_taken(schema, choice.modules)))
    for path, outer, relative in shortest.references():
        if "/" in relative:
            references[path] = etree.SubElement(references[outer], "use", module=relative)
        else:
            references[path] = etree.SubElement(references[outer], relative)
    for (module, parameter), text in choice.arguments.items():
        references[module].set(parameter, text)


def _needed(draw: Draw, schema: CheckedSchema, choice: Choice) -> set[str]:
    """Return modules from which all others follow: as their ancestors, or as the default of a union."""
    needed = {module for module, _ in choice.arguments if module}
    implied = set(_defaults_taken(schema, choice.modules))
    for path in reversed(_in_order(schema, choice.modules)):
        if path in needed or path not in implied or draw(_COIN):
            needed.add(path)
            implied.update(ancestors(path))
    return needed


def _in_order(schema: CheckedSchema, modules: Collection[str]) -> list[str]:
    return sorted(modules, key=schema.rules.order.__getitem__)


def _defaults_taken(schema: CheckedSchema, modules: Collection[str]) -> Iterator[str]:
    """Yield the members that a union's default brings if they are not named."""
    for union in walk_checked(schema.children):
        if isinstance(union, CheckedUnion):
            taken = [member.path for member in union.members if member.path in modules]
            if taken == [union.default]:
                yield taken[0]


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
    elif form == 1 or "/" in relative:
        element = etree.Element("use", module=relative)
    else:
        element = etree.Element(relative)
    _insert(draw, references[outer], element)
    return element


def _write_argument(draw: Draw, element: etree._Element, parameter: str, text: str) -> None:
    """Give an argument as an attribute or as an element."""
    if draw(_COIN):
        argument = etree.Element("arg", name=parameter)
        argument.text = text
        _insert(draw, element, argument)
    else:
        element.set(parameter, text)


def _write_message(root: etree._Element, message: Said) -> None:
    if not message.role and len(root):
        root[-1].tail = None  # whitespace before a text is part of it
    element = etree.SubElement(root, message.role) if message.role else root
    append_text(etree.SubElement(element, "text") if message.exact else element, message.text)


def _insert(draw: Draw, parent: etree._Element, element: etree._Element) -> None:
    parent.insert(0 if draw(_COIN) else len(parent), element)
