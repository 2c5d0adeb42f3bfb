"""Stand-ins: texts that modules attend to while they are encoded, and that no request uses.

If a module is encoded as if it were the first one, models mix it up with the modules before it. So it is encoded behind
one stand-in for each module that may stand before it. Stand-ins do not depend on the content of modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from promptcache.language import CheckedItem, CheckedModule, CheckedSchema, CheckedTurn, CheckedUnion, Sees
from promptcache.tokenizer import Tokenizer

MAX_STAND_IN_TOKENS = 256
"""Limit of the tokens of the stand-ins before a module. Modules further behind have the same stand-ins."""

TYPICAL_MEMBERS = 4
"""A module behind a collection has stand-ins for so many of its members, or for its `max` if that is lower."""

STAND_INS = (
    "The door of the harbour office is blue.",
    "The keeper of the orchard is Mrs. Vale.",
    "The telescope of the club is small.",
    "The apprentice of the bakery is called Ruben.",
    "The bell of the ferry is made of brass.",
    "The guardian of the old maps is Paul.",
    "The author of the new play is Irene.",
    "The dog of the garage is called Bruno.",
    "The bench in the clinic is made of pine.",
    "The carpet of the hotel is red.",
    "The name of the weaver is Salome.",
    "The stairs of the lighthouse have ninety steps.",
    "The price of the lamp is eleven coins.",
    "The driver of the last bus is Mr. Holm.",
    "The roof of the theatre is made of copper.",
    "The cook of the monastery is called Ambrose.",
    "The window of the pharmacy is round.",
    "The teacher of the choir is Ludmila.",
    "The gate of the cemetery is green.",
    "The pilot of the airship is Okafor.",
    "The clock of the lobby is five minutes late.",
    "The landlord of the mill is called Emil.",
    "The bridge of the canal is closed on Mondays.",
    "The painter of the old fence is Hanna.",
)
"""Texts of stand-ins, for schemas without texts of their own."""


def stand_in_ids(schema: CheckedSchema, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the token IDs of the stand-ins of a schema: as many as the module with the most stand-ins needs.

    Members of collections choose among all.
    """
    needed = [
        len(STAND_INS) if schema.modules[path].collection is not None else number
        for path, number in num_before(schema).items()
        if schema.modules[path].sees is Sees.STAND_INS
    ]
    own = tuple(each.text for each in schema.source.stand_ins)
    separator, left = schema.source.separator or " ", MAX_STAND_IN_TOKENS
    found: list[tuple[int, ...]] = []
    for text in (own or STAND_INS)[: max(needed, default=0)]:
        token_ids = tuple(tokenizer.tokenize(separator + text))
        left -= len(token_ids)
        if left < 0:
            break
        if token_ids:
            found.append(token_ids)
    return tuple(found)


def num_before(schema: CheckedSchema) -> Mapping[str, int]:
    """Return how many modules that may be absent stand before each module, by its path.

    Of the members of a union, only one can be present. Modules that are guaranteed with a module do not count for it.
    """
    counts: dict[str, int] = {}
    _count(schema.children, 0, counts)
    order = {path: number for number, path in enumerate(counts)}
    found = {}
    for path, number in counts.items():
        guaranteed = sum(order[other] < order[path] for other in schema.guaranteed[path])
        found[path] = max(0, number - guaranteed)
    return found


def _typical_members(module: CheckedModule) -> int:
    """Return the number of modules that a module stands for: 1, or that of the members of a collection."""
    collection = module.collection
    return 1 if collection is None else max(1, min(collection.maximum or TYPICAL_MEMBERS, TYPICAL_MEMBERS))


def _count(items: Iterable[CheckedItem], number: int, counts: dict[str, int]) -> int:
    """Set the number of modules before each module, and return that behind `items`."""
    for item in items:
        if isinstance(item, CheckedModule):
            counts[item.path] = number
            number = _count(item.children, number + _typical_members(item), counts)
        elif isinstance(item, CheckedTurn):
            number = _count(item.children, number, counts)
        elif isinstance(item, CheckedUnion):
            number = max([number, *(_count([member], number, counts) for member in item.members)])
    return number
