"""Questions about a checked schema that several strategies ask.

Comes in: checked items. Goes out: items, or a fact about a choice of them. Knows no XML and draws nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from promptcache.language.checked import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion, FinalText
from promptcache.language.schema import Parameter


def walk_checked(items: Iterable[CheckedItem]) -> Iterator[CheckedItem]:
    """Yield every item, in document order."""
    for item in items:
        yield item
        if isinstance(item, CheckedModule | CheckedTurn):
            yield from walk_checked(item.children)
        elif isinstance(item, CheckedUnion):
            yield from walk_checked(item.members)


def has_tokens(
    items: Iterable[CheckedItem], modules: Collection[str], arguments: Mapping[tuple[str, str], str], owner: str = ""
) -> bool:
    """Whether `items` give a prompt with these modules and arguments any token besides BOS; a turn always does."""
    for item in items:
        match item:
            case FinalText() | CheckedTurn():
                return True
            case Parameter():
                found = bool(arguments.get((owner, item.name), item.default))
            case CheckedModule():
                found = item.path in modules and has_tokens(item.children, modules, arguments, item.path)
            case CheckedUnion():
                found = has_tokens(item.members, modules, arguments)
        if found:
            return True
    return False
