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
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import groupby, zip_longest
from typing import NamedTuple, cast

from promptcache.diagnostics import Span
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
from promptcache.language.syntax.nodes import (
    AnswerFormat,
    Collection,
    Context,
    Doc,
    Example,
    Item,
    Member,
    Module,
    Parameter,
    Role,
    RuleList,
    Scaffold,
    Text,
    Turn,
    Union,
    Whitespace,
    join_path,
)
from promptcache.language.syntax.whitespace import finish


class TextOptions(NamedTuple):
    """Options that modules inherit."""

    cache: bool
    context: Context
    whitespace: Whitespace
    separator: str

    def within(self, node: Module | Collection) -> TextOptions:
        """Return the options in a module or collection, which may state its own."""
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
    options = TextOptions(
        cache=True,
        context=schema.context,
        whitespace=schema.whitespace,
        separator=schema.separator,
    )
    items, empty, _ = _content(schema.children, "", options, "")
    if not any(isinstance(item, CheckedTurn) for item in walk_checked(items)):
        return items, "" if empty else schema.separator
    last = next(index for index in reversed(range(len(items))) if not _is_empty(items[index]))  # no turn is empty
    turn = items[last]
    if not isinstance(turn, CheckedTurn) or turn.role is not Role.USER:
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


def _content(items: tuple[Item, ...], parent: str, options: TextOptions, lead: str) -> Finished:
    """Normalize the blocks of one parent; the first non-empty block begins with `lead`."""
    found: list[CheckedItem] = []
    empty, after_turn = True, False
    for block in blocks(items):
        finished = _block(block, parent, options, lead)
        found += finished.items
        if not finished.empty:
            empty, after_turn = False, finished.after_turn
            lead = "" if after_turn else options.separator
    return Finished(tuple(_spaced(_joined(found))), empty, after_turn)


def blocks(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Yield each text block as one group, and every other block alone."""
    for inline, group in groupby(items, key=lambda item: isinstance(item, Text | Parameter)):
        if inline:
            yield tuple(group)
        else:
            yield from ((item,) for item in group)


def _block(block: tuple[Item, ...], parent: str, options: TextOptions, lead: str) -> Finished:
    match block[0]:
        case Doc() | AnswerFormat() | Scaffold() | RuleList() | Example():
            return Finished((), empty=True, after_turn=False)
        case Module() as module:
            return _module(module, parent, options, lead)
        case Union() as union:
            return _union(union, parent, options, lead)
        case Collection() as collection:
            return Finished((_collection(collection, parent, options),), empty=False, after_turn=False)
        case Turn() as turn:
            children = _content(turn.children, parent, options, "").items
            checked = CheckedTurn(role=turn.role, children=children, span=turn.span)
            return Finished((checked,), empty=False, after_turn=True)
        case _:
            return _text_block(block, options, lead)


def _module(module: Module, parent: str, options: TextOptions, lead: str) -> Finished:
    path = join_path(parent, module.name)
    options = options.within(module)
    content = _content(module.children, path, options, lead)
    checked = CheckedModule(
        path=path, parent=parent, node=module, children=content.items, cache=options.cache, context=options.context
    )
    return Finished((checked,), content.empty, content.after_turn)


def _union(union: Union, parent: str, options: TextOptions, lead: str) -> Finished:
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


def _collection(collection: Collection, parent: str, options: TextOptions) -> CheckedModule:
    """Normalize a collection. Each member begins with the separator, because any of them can be the first one."""
    options = options.within(collection)
    own = {each.name: _member(each, options.within(each).whitespace) for each in collection.members}
    listed = cast("dict[str, Member]", collection.listed)  # ChainMap has its type from maps that it could change
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


def _member(member: Module, mode: Whitespace) -> Member:
    texts = [each for each in _merged(member.children) if isinstance(each, Text)]
    finished = finish([None if each.exact else each.text for each in texts], mode)
    text = "".join(each.text if final is None else final for each, final in zip(texts, finished, strict=True))
    return Member(text=text, span=member.span)


def _text_block(block: tuple[Item, ...], options: TextOptions, lead: str) -> Finished:
    block = tuple(_merged(block))
    pieces = [item.text if isinstance(item, Text) and not item.exact else None for item in block]
    texts = finish(pieces, options.whitespace)
    found: list[CheckedItem] = []
    for item, text in zip(block, texts, strict=False):
        if isinstance(item, Parameter):
            found.append(_checked(item))
        elif isinstance(item, Text) and (final := item.text if text is None else text):
            found.append(FinalText(text=final, span=item.span))
    if not found:
        return Finished((), empty=True, after_turn=False)
    if lead:
        found.insert(0, FinalText(text=lead, span=found[0].span))
    return Finished(tuple(found), empty=False, after_turn=False)


def _checked(parameter: Parameter) -> CheckedParameter:
    declared = {each.name: getattr(parameter, each.name) for each in fields(parameter)}
    return CheckedParameter(**declared, lead="")


def _merged(block: tuple[Item, ...]) -> Iterator[Item]:
    """Merge adjacent texts; only schemas built in Python have them."""
    for plain, group in groupby(block, key=lambda item: isinstance(item, Text) and not item.exact):
        if plain:
            texts = [item for item in group if isinstance(item, Text)]
            yield Text(text="".join(item.text for item in texts), span=_around(texts[0].span, texts[-1].span))
        else:
            yield from group


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


def _joined(items: list[CheckedItem]) -> tuple[CheckedItem, ...]:
    """Merge adjacent texts, because they are tokenized together."""
    joined: list[CheckedItem] = []
    for is_text, group in groupby(items, key=lambda item: isinstance(item, FinalText)):
        if not is_text:
            joined += group
            continue
        texts = [item for item in group if isinstance(item, FinalText)]
        span = _around(texts[0].span, texts[-1].span)
        joined.append(FinalText(text="".join(item.text for item in texts), span=span))
    return tuple(joined)


def _around(first: Span, last: Span) -> Span:
    return replace(first, stop_line=last.stop_line, stop_column=last.stop_column)
