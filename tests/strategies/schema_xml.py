"""A draft becomes a document: items are nested, names made unique and sizes limited.

All selections that nesting, unions and `required` allow are returned with it, as bit masks over the modules.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from lxml import etree

from promptcache.language import Role
from promptcache.testing.prompt_xml import append_text
from promptcache.testing.texts import fit
from tests.strategies.drafts import (
    TYPES,
    ItemDraft,
    ModuleDraft,
    ParameterDraft,
    SchemaDraft,
    TextDraft,
    TextForm,
    TurnDraft,
    UnionDraft,
)

MAX_MODULES = 12
MAX_BYTES = 150
MAX_TURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModule:
    """A module in the document; `bit` is its bit in masks, and rises in document order."""

    path: str
    parent: str
    bit: int
    cached: bool
    element: etree._Element


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaTree:
    """A document; `masks` holds every selection that it allows."""

    root: etree._Element
    modules: tuple[PlacedModule, ...]
    masks: tuple[int, ...]


def grow(draft: SchemaDraft) -> SchemaTree:
    """Return the document of a draft; parts beyond the limits above are left out."""
    growth = _Growth(etree.Element("schema", {"name": "s", **draft.attributes}))
    if draft.answer is not None:
        etree.SubElement(growth.stack[0].element, "answer", dict(draft.answer))
    for item in draft.items:
        growth.add(item)
    if draft.question is not None:
        growth.add(TurnDraft(level=0, role=Role.USER, text=draft.question))
    growth.name_defaults()
    root = growth.stack[0]
    return SchemaTree(root=root.element, modules=tuple(growth.modules), masks=tuple(_masks(root.choices)))


@dataclass(slots=True, kw_only=True)
class _Choice:
    """A module or a union: what of it a selection may have."""

    bit: int = 0
    needed: bool
    parts: list["_Choice"] = field(default_factory=list)

    def masks(self) -> list[int]:
        """Return the masks of every way to take it, and 0 where it may be left out."""
        if self.bit:
            taken = [self.bit | mask for mask in _masks(self.parts)]
        else:
            taken = [mask for member in self.parts for mask in member.masks()]
        return taken if self.needed else [0, *taken]


def _masks(choices: Iterable[_Choice]) -> list[int]:
    """Return the masks of every way to take each of `choices`."""
    masks = [0]
    for choice in choices:
        masks = [mask | part for part in choice.masks() for mask in masks]
    return masks


@dataclass(slots=True, kw_only=True)
class _Place:
    """An open element: where its choices go, and its module's scope, which turns and unions share with their parent."""

    element: etree._Element
    choices: list[_Choice]
    path: str = ""
    cached: bool = True
    modules: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)

    @property
    def is_union(self) -> bool:
        """Whether only modules are allowed here."""
        return self.element.tag == "union"


class _Growth:
    """Writes items one after another, each into the deepest open element that its level allows."""

    def __init__(self, root: etree._Element) -> None:
        self.stack = [_Place(element=root, choices=[])]
        self.modules: list[PlacedModule] = []
        self._bytes_left = MAX_BYTES
        self._turns_left = MAX_TURNS
        self._num_unions = 0
        self._defaults: list[tuple[etree._Element, int]] = []

    def add(self, item: ItemDraft) -> None:
        """Write one item."""
        latest = self.stack[item.level + 1 :][:1]
        del self.stack[item.level + 1 :]
        if self.stack[-1].is_union and not isinstance(item, ModuleDraft):
            # What a union cannot hold goes into its latest member, or behind the union if that member is closed.
            self.stack[len(self.stack) if latest else -1 :] = latest
        place = self.stack[-1]
        match item:
            case TextDraft():
                self._add_text(place, item)
            case ParameterDraft():
                self._add_parameter(place, item)
            case TurnDraft():
                self._add_turn(place, item)
            case UnionDraft():
                self._add_union(place, item)
            case ModuleDraft():
                self._add_module(place, item)

    def name_defaults(self) -> None:
        """Write which member each union takes by default, now that all members are there."""
        for element, number in self._defaults:
            members = element.findall("module")
            element.set("default", str(members[number % len(members)].get("name")))

    def _take_text(self, text: str) -> str:
        """Return as much of `text` as there is room for."""
        taken = fit(text, self._bytes_left)
        self._bytes_left -= len(taken.encode())
        return taken

    def _add_text(self, place: _Place, item: TextDraft) -> None:
        if item.form is TextForm.COMMENT:
            place.element.append(etree.Comment(item.text))
            return
        if item.form is TextForm.DOC:
            etree.SubElement(place.element, "doc").text = item.text
            return
        text = self._take_text(item.text)
        if item.form is TextForm.ANONYMOUS:
            append_text(place.element, text)
        else:
            is_cdata = item.form is TextForm.CDATA and text and "]]>" not in text
            etree.SubElement(place.element, "text").text = etree.CDATA(text) if is_cdata else text

    def _add_parameter(self, place: _Place, item: ParameterDraft) -> None:
        if item.length > self._bytes_left:
            return
        self._bytes_left -= item.length
        element = etree.SubElement(place.element, "parameter")
        element.set("name", _free(item.name, place.parameters))
        element.set("length", str(item.length))
        declared, value = TYPES[item.typed] if item.typed else ({}, None)
        for name, text in declared.items():
            element.set(name, text)
        if item.default is not None or (value and item.required):
            element.set("default", fit(value or item.default or "", item.length))
        if item.placeholder is not None:
            if item.dialect:
                element.set("scaffold", value or item.placeholder)
            else:
                element.set("placeholder", fit(value or item.placeholder, item.length))
        if item.required:
            element.set("required", "true")
        append_text(place.element, self._take_text(item.after))

    def _add_turn(self, place: _Place, item: TurnDraft) -> None:
        open_roles = ("system", "user", "assistant")
        if not self._turns_left or any(outer.element.tag in open_roles for outer in self.stack):
            return
        self._turns_left -= 1
        element = etree.SubElement(place.element, item.role.value)
        append_text(element, self._take_text(item.text))
        self.stack.append(replace(place, element=element))

    def _add_union(self, place: _Place, item: UnionDraft) -> None:
        if len(self.modules) == MAX_MODULES:
            return
        element = etree.SubElement(place.element, "union")
        self._num_unions += 1
        if item.named:
            element.set("name", f"u{self._num_unions}")
        if item.required:
            element.set("required", "true")
        if item.dialect:
            element.set("scaffold", item.members[0].name)
        choice = _Choice(needed=item.required)
        place.choices.append(choice)
        inside = replace(place, element=element, choices=choice.parts)
        self.stack.append(inside)
        depth = len(self.stack)
        for member in item.members[: MAX_MODULES - len(self.modules)]:
            del self.stack[depth:]
            self._add_module(inside, member)
        if item.default is not None:
            choice.needed = True
            self._defaults.append((element, item.default))

    def _add_module(self, place: _Place, item: ModuleDraft) -> None:
        if len(self.modules) == MAX_MODULES:
            return
        name = _free(item.name, place.modules)
        required = item.required and not place.is_union
        element = etree.SubElement(place.element, "module", {"name": name, **item.attributes})
        if required:
            element.set("required", "true")
        append_text(element, self._take_text(item.text))
        path = f"{place.path}/{name}".removeprefix("/")
        cached = {"true": True, "false": False}.get(item.attributes.get("cache", ""), place.cached)
        choice = _Choice(bit=1 << len(self.modules), needed=required or place.is_union)
        self.modules.append(PlacedModule(path=path, parent=place.path, bit=choice.bit, cached=cached, element=element))
        place.choices.append(choice)
        self.stack.append(_Place(element=element, choices=choice.parts, path=path, cached=cached))


def _free(name: str, taken: set[str]) -> str:
    """Return `name`, or `name` with the first number that makes it new, and take it."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}{number}"
    taken.add(free)
    return free
