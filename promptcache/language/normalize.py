"""Normalize a declared schema: apply whitespace rules and separators, and inherit options.

The blocks of a parent are its text blocks, modules, unions and turns; `doc`, `answer` and `scaffold` are no
blocks.
Each block that is not empty begins with the separator of its parent, except the first one. The separator is part of the
first text of the block, so it is present only if the module with this text is present:

- A text block begins with the separator. If the block begins with a parameter, the separator is a text before the slot.
- A module passes the separator to its first block. A union passes the separator to every member.
- A turn drops the separator, because headers have none beside them. Text after a turn's footer has no separator either.
- The bare text of a prompt is a block too: of the open turn, or of a schema without turns (`open_separator`).

A collection is a block that is never empty. Each of its members begins with the separator, also if it is the first one.

An empty block has no text for a separator, so the next block gets the separator. Separators depend on the schema
alone, not on the selection of a prompt.

A space directly before a slot becomes part of the slot (`CheckedParameter.lead`).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import groupby, zip_longest
from typing import Any, NamedTuple, TypeVar, cast

from promptcache.language.checked import (
    CheckedCollection,
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    walk_checked,
)
from promptcache.language.schema import Schema
from promptcache.language.syntax import nodes
from promptcache.language.syntax.nodes import join_path
from promptcache.language.syntax.whitespace import finish

_Item = TypeVar("_Item")


class TextOptions(NamedTuple):
    """Options that modules inherit."""

    cache: bool
    context: nodes.Context
    whitespace: nodes.Whitespace
    separator: str

    def within(self, node: nodes.Module | nodes.Collection) -> TextOptions:
        own = ((name, getattr(node, name, None)) for name in self._fields)
        return self._replace(**{name: value for name, value in own if value is not None})


class Finished(NamedTuple):
    """Normalized block, or the normalized content of a parent.

    `empty` means that the content has no positions. `after_turn` means that the content can end with a turn's
    footer.
    """

    items: tuple[CheckedItem, ...]
    empty: bool
    after_turn: bool


def normalize_schema(schema: Schema) -> tuple[tuple[CheckedItem, ...], str]:
    """Return the items of a schema, and the separator for bare text that continues it ("" behind no block)."""
    options = TextOptions(cache=True, context=schema.context, whitespace=schema.whitespace, separator=schema.separator)
    items, empty, _ = _content(schema.children, "", options, "")
    if not any(isinstance(item, CheckedTurn) for item in walk_checked(items)):
        return items, "" if empty else schema.separator
    last = next(index for index in reversed(range(len(items))) if not _is_empty(items[index]))  # no turn is empty
    turn = items[last]
    if not isinstance(turn, CheckedTurn) or turn.role is not nodes.Role.USER:
        return items, ""
    opened = CheckedTurn(role=turn.role, children=turn.children, span=turn.span, open=True)
    separator = "" if all(_is_empty(child) for child in turn.children) else schema.separator
    return (*items[:last], opened, *items[last + 1 :]), separator


def _is_empty(item: CheckedItem) -> bool:
    match item:
        case CheckedModule(children=children):
            return item.collection is None and all(_is_empty(child) for child in children)
        case CheckedUnion(members=members):
            return all(_is_empty(member) for member in members)
        case _:
            return False


def _content(items: tuple[nodes.Item, ...], parent: str, options: TextOptions, lead: str) -> Finished:
    """Normalize the blocks of one parent; the first non-empty block begins with `lead`."""
    found: list[CheckedItem] = []
    empty, after_turn = True, False
    for block in blocks(items):
        match block[0]:
            case nodes.Doc() | nodes.AnswerFormat() | nodes.Scaffold() | nodes.RuleList() | nodes.Example():
                continue
            case nodes.Module() as module:
                finished = _module(module, parent, options, lead)
            case nodes.Union() as union:
                finished = _union(union, parent, options, lead)
            case nodes.Collection() as collection:
                finished = Finished((_collection(collection, parent, options),), empty=False, after_turn=False)
            case nodes.Turn() as turn:
                children = _content(turn.children, parent, options, "").items
                checked = CheckedTurn(role=turn.role, children=children, span=turn.span)
                finished = Finished((checked,), empty=False, after_turn=True)
            case _:
                texts = _text_block(block, options, lead)
                finished = Finished(texts, empty=not texts, after_turn=False)
        found += finished.items
        if not finished.empty:
            empty, after_turn = False, finished.after_turn
            lead = "" if after_turn else options.separator
    joined = [*_joined(found, lambda item: isinstance(item, FinalText))]  # texts are tokenized together
    return Finished(tuple(_spaced(joined)), empty, after_turn)


def blocks(items: tuple[nodes.Item, ...]) -> Iterator[tuple[nodes.Item, ...]]:
    """Yield each text block as one group, and every other block alone."""
    for inline, group in groupby(items, key=lambda item: isinstance(item, nodes.Text | nodes.Parameter)):
        if inline:
            yield tuple(group)
        else:
            yield from ((item,) for item in group)


def _module(module: nodes.Module, parent: str, options: TextOptions, lead: str) -> Finished:
    path = join_path(parent, module.name)
    options = options.within(module)
    content = _content(module.children, path, options, lead)
    checked = CheckedModule(
        path=path, parent=parent, node=module, children=content.items, cache=options.cache, context=options.context
    )
    return Finished((checked,), content.empty, content.after_turn)


def _union(union: nodes.Union, parent: str, options: TextOptions, lead: str) -> Finished:
    members = [_module(member, parent, options, lead) for member in union.members]
    checked = CheckedUnion(
        name=union.name,
        parent=parent,
        members=tuple(item for member in members for item in member.items if isinstance(item, CheckedModule)),
        span=union.span,
        required=union.required,
        default=None if union.default is None else join_path(parent, union.default),
    )
    empty = all(member.empty for member in members)
    return Finished((checked,), empty, any(member.after_turn for member in members))


def _collection(collection: nodes.Collection, parent: str, options: TextOptions) -> CheckedModule:
    """Normalize a collection. Each member begins with the separator, because any of them can be the first one."""
    options = options.within(collection)
    own = {each.name: _member(each, options.within(each).whitespace) for each in collection.members}
    listed = cast("dict[str, nodes.Member]", collection.listed)  # ChainMap has its type from maps that it could change
    return CheckedModule(
        path=join_path(parent, collection.name),
        parent=parent,
        node=collection.as_module(),
        children=(),
        cache=True,
        context=options.context,
        collection=CheckedCollection(
            minimum=collection.minimum,
            maximum=collection.maximum,
            lead=options.separator,
            members=ChainMap(listed, own),  # own ones come first; not copied, as a file can have 100,000
        ),
    )


def _member(member: nodes.Module, mode: nodes.Whitespace) -> nodes.Member:
    texts = [each for each in _joined(member.children, _is_inexact) if isinstance(each, nodes.Text)]
    finished = finish([None if each.exact else each.text for each in texts], mode)
    text = "".join(each.text if final is None else final for each, final in zip(texts, finished, strict=True))
    return nodes.Member(text=text, span=member.span)


def _text_block(block: tuple[nodes.Item, ...], options: TextOptions, lead: str) -> tuple[CheckedItem, ...]:
    block = tuple(_joined(block, _is_inexact))
    pieces = [item.text if isinstance(item, nodes.Text) and not item.exact else None for item in block]
    texts = finish(pieces, options.whitespace)
    found: list[CheckedItem] = []
    for item, text in zip(block, texts, strict=False):
        if isinstance(item, nodes.Parameter):
            declared = {each.name: getattr(item, each.name) for each in fields(item)}
            found.append(CheckedParameter(**declared, lead=""))
        elif isinstance(item, nodes.Text) and (final := item.text if text is None else text):
            found.append(FinalText(text=final, span=item.span))
    if found and lead:
        found.insert(0, FinalText(text=lead, span=found[0].span))
    return tuple(found)


def _is_inexact(item: nodes.Item) -> bool:
    """Whether whitespace rules apply to an item. Only schemas that are built in Python have adjacent ones."""
    return isinstance(item, nodes.Text) and not item.exact


def _joined(items: Iterable[_Item], is_text: Callable[[_Item], bool]) -> Iterator[_Item]:
    """Merge adjacent texts."""
    for are_texts, group in groupby(items, key=is_text):
        found: list[Any] = list(group)
        if are_texts and len(found) > 1:
            first, last = found[0], found[-1].span
            span = replace(first.span, stop_line=last.stop_line, stop_column=last.stop_column)
            found = [replace(first, text="".join(item.text for item in found), span=span)]
        yield from found


def _spaced(items: Sequence[CheckedItem]) -> Iterator[CheckedItem]:
    """Move the last space of a text that is directly before a slot to the slot; yield no empty text."""
    lead = ""
    for item, after in zip_longest(items, items[1:]):
        if isinstance(item, CheckedParameter):
            yield replace(item, lead=lead)
            lead = ""
        elif isinstance(item, FinalText) and isinstance(after, CheckedParameter) and item.text.endswith(" "):
            lead = " "
            if len(item.text) > 1:
                yield replace(item, text=item.text[:-1])
        else:
            yield item
