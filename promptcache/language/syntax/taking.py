"""What an `include` takes of another schema.

Comes in: a declared schema whose names and paths have been checked, and what is wanted of it. Goes out: its modules,
unions, scaffolds and rules as they stand in the schema that takes them, and a diagnostic for everything that cannot
come along. This file opens no files; how names and paths change is told by `moving`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from promptcache.diagnostics import Diagnostic, Span, did_you_mean
from promptcache.language.syntax.moving import Move
from promptcache.language.syntax.nodes import (
    Context,
    Item,
    Module,
    Parameter,
    RuleList,
    Scaffold,
    SchemaDocument,
    Text,
    Turn,
    Union,
    Whitespace,
)
from promptcache.language.syntax.whitespace import is_blank


class Options(NamedTuple):
    """What modules inherit from what stands around them."""

    whitespace: Whitespace
    separator: str
    context: Context


class Place(NamedTuple):
    """Where an `include` stands: the path of the module around it ("" is the root), and what is inherited there.

    `in_turn` says that it stands in a turn directly, where no scaffold can.
    """

    parent: str
    in_turn: bool
    options: Options


class Wanted(NamedTuple):
    """What an `include` asks for: `select` are names with their places, None is everything."""

    select: tuple[tuple[str, Span], ...] | None
    prefix: str
    span: Span


class Taken(NamedTuple):
    """What comes along: `here` for the place of the `include`, `top` for the top level of the schema."""

    here: tuple[Item, ...]
    top: tuple[RuleList | Scaffold, ...]


def take(document: SchemaDocument, wanted: Wanted, place: Place, faults: list[Diagnostic]) -> Taken:
    """Return what is wanted of a document; what is wrong goes to `faults`."""
    before = len(faults)
    chosen = _chosen(document, wanted, faults)
    if len(faults) > before:
        return Taken((), ())
    tops = frozenset(module.name for item in chosen.values() for module in _modules(item))
    move = Move(prefix=wanted.prefix, parent=place.parent, tops=tops, faults=faults)
    here: list[Item] = []
    top: list[RuleList | Scaffold] = []
    for number, child in enumerate(document.children):
        match child:
            case Module() | Union() if number in chosen:
                here.append(_with_options(move.top(child), document, place.options))
            case Scaffold() if place.in_turn:
                top += move.scaffold(child, "", from_root=True)
            case Scaffold():
                here += move.scaffold(child, "")
            case RuleList():
                top += move.rules(child)
    return Taken(tuple(here), tuple(top))


def _modules(item: Module | Union) -> tuple[Module, ...]:
    return item.members if isinstance(item, Union) else (item,)


def _chosen(document: SchemaDocument, wanted: Wanted, faults: list[Diagnostic]) -> dict[int, Module | Union]:
    """Return the modules and unions that are wanted, each by its number among what the document holds."""
    there = {number: item for number, item in enumerate(document.children) if isinstance(item, Module | Union)}
    if wanted.select is None:
        faults += _anonymous(document)
        if not there:
            message = "there is nothing to include: the file has no module at its top level"
            faults.append(_fault("PC218", message, wanted.span, "name another file, or remove the include"))
        return there
    known = [item.name for item in there.values() if item.name is not None]
    for name, span in wanted.select:
        if name not in known:
            mend = _instead(name, there.values()) or did_you_mean(name, known)
            message = f"the included file has no module or union '{name}' at its top level"
            faults.append(_fault("PC218", message, span, mend or f"it has: {', '.join(known[:12]) or 'none'}"))
    names = {name for name, _ in wanted.select}
    return {number: item for number, item in there.items() if item.name in names}


def _anonymous(document: SchemaDocument) -> Iterator[Diagnostic]:
    """Yield a diagnostic for the first thing that stands in no module, and so would be part of every prompt."""
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
        mend = "put it into a module, or say with select= which modules are taken"
        yield _fault("PC219", f"an included file holds {what} outside all modules", child.span, mend)
        return


def _instead(name: str, there: Iterable[Module | Union]) -> str | None:
    for item in there:
        if isinstance(item, Union) and any(member.name == name for member in item.members):
            owner = f"select '{item.name}'" if item.name else "give the union a name, and select that"
            return f"'{name}' is a member of a union, which is taken whole: {owner}"
    return "a module is taken with all that is in it: select the one at the top level" if "/" in name else None


def _with_options(item: Module | Union, document: SchemaDocument, around: Options) -> Module | Union:
    """Write on modules what they inherit from their own document, where they would inherit something else here."""
    own = Options(document.whitespace, document.separator, document.context)
    if own == around:
        return item
    if isinstance(item, Module):
        return _with(item, own, around)
    members = (_with(child, own, around) if isinstance(child, Module) else child for child in item.children)
    return replace(item, children=tuple(members))


def _with(module: Module, own: Options, around: Options) -> Module:
    differs = module.separator is None and own.separator != around.separator
    return replace(
        module,
        whitespace=module.whitespace or (own.whitespace if own.whitespace is not around.whitespace else None),
        separator=own.separator if differs else module.separator,
        context=module.context or (own.context if own.context is not around.context else None),
    )


def _fault(code: str, message: str, span: Span, mend: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, span=span, help=mend)
