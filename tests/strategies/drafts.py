"""Strategies for drafts of schemas: flat lists of items, each with a level of nesting.

Any draft gives a valid schema: `schema_xml` settles unique names, sizes and nesting. Hypothesis shrinks a flat list
better than a tree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.language import Module, Role
from promptcache.language.syntax.attributes import NUMBER, SEPARATOR, attributes_of
from promptcache.language.syntax.nodes import SchemaDocument
from promptcache.testing.texts import maybe, texts

_MODULE_NAMES = ("a", "b", "c", "unit.py", "low-tide", "d_1", "été")
_PARAMETER_NAMES = ("p", "q", "top-k", "x.y")
_OF_SCHEMA = {
    "version": ("1", "2.0-rc"),
    "repair": ("none", "slots", "first-2", "first-30%", "all"),
    "positions": ("closed", *4 * ("fixed",)),
}
_VALUES = {NUMBER: ("1", "5", "9"), SEPARATOR: ("", " ", "\n", r"\n\n", "; ")}
"""Values of attributes that are drawn, by kind, beside those of kinds that have few."""

_MAX_SLOT = 6
_LEVELS = st.integers(0, 4)
_DOCS = st.sampled_from(("a", "b < c", "</s>"))


TYPES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "line": ({"type": "line"}, "a"),
    "int": ({"type": "int"}, "7"),
    "number": ({"type": "number"}, "5"),
    "choice": ({"type": "choice", "choices": "a|b|cc"}, "a"),
    "pattern": ({"pattern": "[ab]+"}, "b"),
    "pattern with a message": ({"pattern": "[ab]+", "message": "it takes a and b"}, "b"),
}
"""Types of parameters: the attributes that declare each, and a value of it."""


ANSWERS: tuple[Mapping[str, str], ...] = (
    {},
    {"type": "text"},
    *(declared for declared, _ in TYPES.values() if "message" not in declared),
    {"type": "int", "pattern": "[1-5]"},
)
"""Attributes of answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Which elements and options of the language a schema may use."""

    includes: bool = True
    complete: bool = False  # all modules required and cached, no unions, scaffolds and own contexts; fillers repeatable


class TextForm(Enum):
    """How text is written."""

    ANONYMOUS = "anonymous"
    ELEMENT = "element"
    CDATA = "cdata"
    DOC = "doc"
    COMMENT = "comment"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDraft:
    """Text of the schema, or about it: a `doc` element or a comment."""

    level: int
    text: str
    form: TextForm


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterDraft:
    """A slot, whose fillers are cut to its length, and the text `after` it; `dialect` writes it as the paper does."""

    level: int
    name: str
    length: int
    default: str | None
    placeholder: str | None
    required: bool
    dialect: bool
    after: str
    typed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDraft:
    """A module that begins with `text`; `attributes` are those that no rule hangs on."""

    level: int
    name: str
    required: bool
    attributes: Mapping[str, str]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionDraft:
    """A union and its first members; `default` picks a member by its number, counted round."""

    level: int
    named: bool
    required: bool
    default: int | None
    dialect: bool
    members: tuple[ModuleDraft, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDraft:
    """A chat turn that begins with `text`."""

    level: int
    role: Role
    text: str


ItemDraft: TypeAlias = TextDraft | ParameterDraft | ModuleDraft | UnionDraft | TurnDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDraft:
    """A whole document; `question` is what its last user turn asks, `indented` writes every block on its own line."""

    attributes: Mapping[str, str]
    items: tuple[ItemDraft, ...]
    question: str | None
    indented: bool
    answer: Mapping[str, str] | None = None  # attributes of the format of answers


def schema_drafts(elements: Elements) -> SearchStrategy[SchemaDraft]:
    """Draw the outline of a schema that uses no more than `elements`."""
    return st.builds(
        SchemaDraft,
        attributes=attribute_choices(attribute_values(SchemaDocument, elements) | _OF_SCHEMA),
        items=st.lists(_items(elements), min_size=2, max_size=14).map(tuple),
        question=st.sampled_from((None, None, None, "", "a?")),
        indented=st.booleans(),
        answer=st.sampled_from((None, None, None, *ANSWERS)),
    )


def _items(elements: Elements) -> SearchStrategy[ItemDraft]:
    """Draw one item; the kind that takes the fewest choices comes first, since examples shrink to it."""
    weights: list[tuple[int, SearchStrategy[ItemDraft]]] = [
        (3, st.builds(TextDraft, level=_LEVELS, text=texts(), form=st.sampled_from([*TextForm][:3]))),
        (2, _parameters(elements)),
        (6, _modules(elements)),
        (0 if elements.complete else 3, _unions(elements)),
        (2, st.builds(TurnDraft, level=_LEVELS, role=st.sampled_from(Role), text=texts())),
        (1, st.builds(TextDraft, level=_LEVELS, text=_DOCS, form=st.sampled_from([*TextForm][3:]))),
    ]
    kinds = [kind for weight, kind in weights for _ in range(weight)]
    return st.integers(0, len(kinds) - 1).flatmap(kinds.__getitem__)


def _parameters(elements: Elements) -> SearchStrategy[ItemDraft]:
    drafts = st.builds(
        ParameterDraft,
        level=_LEVELS,
        name=st.sampled_from(_PARAMETER_NAMES),
        length=st.integers(1, _MAX_SLOT),
        default=maybe(texts(_MAX_SLOT)),
        placeholder=maybe(texts(_MAX_SLOT)),
        required=st.booleans(),
        dialect=st.booleans(),
        after=texts(),
        typed=st.sampled_from((None, None, None, None, *TYPES)),
    )
    if not elements.complete:
        return drafts
    # a filler that a prompt can repeat: it is not cut, and not empty where it is required
    return drafts.map(
        lambda each: replace(each, placeholder="filler" if each.required else each.placeholder, dialect=False)
    )


def _modules(elements: Elements, *, member: bool = False) -> SearchStrategy[ModuleDraft]:
    required = (False,) if member else (True,) if elements.complete else (False, False, True)
    values = attribute_values(Module, elements)
    del values["required"]
    if elements.complete:
        del values["cache"]
    return st.builds(
        ModuleDraft,
        level=st.just(0) if member else _LEVELS,
        name=st.sampled_from(_MODULE_NAMES),
        required=st.sampled_from(required),
        attributes=attribute_choices(values),
        text=texts(),
    )


def _unions(elements: Elements) -> SearchStrategy[ItemDraft]:
    return st.builds(
        UnionDraft,
        level=_LEVELS,
        named=st.booleans(),
        required=st.booleans(),
        default=st.none() | st.integers(0, 2),
        dialect=st.booleans(),
        members=st.lists(_modules(elements, member=True), min_size=1, max_size=3).map(tuple),
    )


def attribute_values(node: type, elements: Elements) -> dict[str, tuple[str, ...]]:
    """Return the values of the attributes of an element whose kind has few values, or some in `_VALUES`."""
    return {
        each.name: tuple(value for value in values if not (elements.complete and value == "own"))
        for each in attributes_of(node)
        if (values := _VALUES.get(each.kind, each.kind.values))
    }


def attribute_choices(values: Mapping[str, tuple[str, ...]]) -> SearchStrategy[Mapping[str, str]]:
    """Draw at most two attributes out of those that have `values`."""
    pairs = [(name, value) for name, known in values.items() for value in known]
    return st.lists(st.sampled_from(pairs), max_size=2).map(dict)
