"""Declarations of attributes: a field of a node declares one in its annotation, by the kind of its values and by words.

`cache: Annotated[bool, BOOLEAN("`false`: …")] = True` declares an attribute with a default. The reader, the printer,
the formatter, the checks of values from Python, the grammars, the completion on the page and the tables of
docs/language.md are made from these declarations.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple, get_args, get_type_hints

from promptcache.diagnostics import FLAG, TEXT, Kind, is_text, one_of, whole
from promptcache.language.limits import MAX_NAME
from promptcache.language.syntax.conditions import TOKEN
from promptcache.language.syntax.repair import REPAIR

_MAX_NUMBER = 999_999_999
_NUMBER = re.compile(r"[0-9]{1,9}")
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueKind:
    """Kind of the values of an attribute.

    Attributes:
        in_python: The values that a field of a node can have.
        expected: What a document must write, for messages.
        read: Returns the value of a text; None if the text is not allowed.
        write: Returns the text of a value.
        values: Texts for completion. Without `facets`, they are all texts that are allowed.
        facets: Restrictions of the text as an XML Schema datatype has them.
        word: Pattern of the words that have a span each.
        enum: The enumeration of the values.
        example: A value for messages, by default the first of `values`.
    """

    in_python: Kind = TEXT
    expected: str = "text"
    read: Callable[[str], Any] = str
    write: Callable[[Any], str] = str
    values: tuple[str, ...] = ()
    facets: tuple[tuple[str, str], ...] = ()
    word: re.Pattern[str] | None = None
    enum: type[StrEnum] | None = None
    example: str = ""

    def __call__(
        self, words: str, *, name: str = "", inherited: bool = False, of_members: bool = False, alias_of: str = ""
    ) -> AttributeType:
        """Declare an attribute with values of this kind; the arguments are those of `AttributeType`."""
        return AttributeType(self, words, name, inherited, of_members, alias_of)


class AttributeType(NamedTuple):
    """Attribute of an element, as the annotation of a field declares it; `attributes_of` adds what the field says.

    Attributes:
        words: Its meaning, in Markdown, for the reference, for editors and for the page.
        name: Its name in documents, if the field has another one.
        inherited: Whether an element without it has the value of the parent.
        of_members: Whether members of collections have it.
        alias_of: The attribute whose value it gives under another name. The field says whether it is in use.
        field: The name of the field.
        default: The default of the field.
        required: Whether a document must write it.
        optional: Whether the field can be None.
    """

    kind: ValueKind
    words: str
    name: str
    inherited: bool
    of_members: bool
    alias_of: str
    field: str = ""
    default: object = None
    required: bool = False
    optional: bool = False


def _number(least: int) -> ValueKind:
    return ValueKind(
        in_python=whole(least, _MAX_NUMBER),
        expected=f"a whole number from {least} to {_MAX_NUMBER}",
        read=lambda text: int(text) if _NUMBER.fullmatch(text) and int(text) >= least else None,
        facets=(("pattern", "0*[1-9][0-9]*" if least else "[0-9]+"), ("maxLength", "9")),
        example="8",
    )


def choice(enum: type[StrEnum]) -> ValueKind:
    """Return the kind of the values of an enumeration."""
    kind = one_of(enum)
    return ValueKind(
        in_python=kind,
        expected=kind.words,
        read=lambda text: enum(text) if text in [*enum] else None,
        values=tuple(enum),
        enum=enum,
    )


def _unescape(text: str) -> str | None:
    found = _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], ""), text)
    is_right = all(match[1] in _ESCAPES for match in _ESCAPE.finditer(text)) and len(found) <= MAX_NAME
    return found if is_right else None


def _are_paths(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(is_text, value))


def _are_different(value: Any) -> bool:
    return _are_paths(value) and len({*value}) == len(value) and not any(not each or "|" in each for each in value)


STRING = ValueKind()
NUMBER_OR_ZERO, NUMBER = _number(0), _number(1)
CONDITION = ValueKind(word=TOKEN)
PATTERN = ValueKind(word=re.compile(".", re.DOTALL))
BOOLEAN = ValueKind(
    in_python=FLAG,
    expected="true or false",
    read={"true": True, "false": False}.get,
    write=lambda value: str(value).lower(),
    values=("true", "false"),
)
PATHS = ValueKind(
    in_python=Kind('a tuple of paths, such as ("a", "b/c"),', _are_paths),
    expected="at least one name or path",
    read=lambda text: tuple(text.split()) or None,
    write=" ".join,
    facets=(("pattern", r"\s*\S(.|\s)*"),),
    word=re.compile(r"\S+"),
    example="a b/c",
)
SOME_PATHS = replace(
    PATHS,
    in_python=Kind(
        'a tuple of one path or more, such as ("a", "b/c"),', lambda value: _are_paths(value) and bool(value)
    ),
)
ALTERNATIVES = ValueKind(
    in_python=Kind("a tuple of different texts that are not empty and have no |", _are_different),
    expected="different values separated by |",
    read=lambda text: found if _are_different(found := tuple(text.split("|"))) else None,
    write="|".join,
    facets=(("pattern", r"[^|]+(\|[^|]+)*"),),
    example="one|two",
)
SEPARATOR = ValueKind(
    in_python=Kind(f"text of at most {MAX_NAME} characters", lambda value: is_text(value) and len(value) <= MAX_NAME),
    expected=rf"text of at most {MAX_NAME} characters with no escapes but \n, \t and \\",
    read=_unescape,
    write=lambda text: text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t"),
    facets=(("pattern", r"([^\\]|\\[nt\\])*"),),
    example=r"\n",
)
REPAIR_NAME = ValueKind(
    in_python=REPAIR,
    expected=REPAIR.words,
    read=lambda text: text if REPAIR.takes(text) else None,
    values=("none", "slots", "attended-8", "first-16", "first-20%", "all"),
    facets=(("pattern", "none|slots|all|(attended|first)-((0|[1-9][0-9]{0,8})|([0-9]|[1-9][0-9]|100)%)"),),
)


_KNOWN: dict[type[Any], tuple[AttributeType, ...]] = {}


def attributes_of(node: type[Any]) -> tuple[AttributeType, ...]:
    """Return the attributes that the fields of a node declare. They are read once."""
    if node not in _KNOWN:
        hints = get_type_hints(node, include_extras=True)
        _KNOWN[node] = tuple(
            declared._replace(
                name=declared.name or each.name,
                field=each.name,
                default=each.default,
                required=each.default is MISSING,
                optional=type(None) in get_args(hints[each.name].__origin__),
            )
            for each in fields(node)
            for declared in getattr(hints[each.name], "__metadata__", ())
        )
    return _KNOWN[node]


def write_attributes(node: object) -> tuple[tuple[str, str], ...]:
    """Return the attributes of a node as text, without those that have their default."""
    written: dict[str, str] = {}
    for each in attributes_of(type(node)):
        value = getattr(node, each.field)
        if each.alias_of:
            if value and each.alias_of in written:
                written[each.name] = written.pop(each.alias_of)
        elif value is not None and value != each.default:
            written[each.name] = each.kind.write(value)
    return tuple(written.items())
