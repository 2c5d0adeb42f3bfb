"""Plans in full context: each stored part has attended to all parts in use before it.

The encodings of these parts form a trie: plans whose first parts are equal share the encodings of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from promptcache.layout.encoding import Encoding, KVPart
from promptcache.layout.repair import num_exact
from promptcache.layout.types import Level, Plan


def has_combination(plan: Plan) -> bool:
    """Return whether a plan reuses modular KV, and all of its new tokens are behind the reused ones.

    The reused parts of such a plan are a *combination*: they can be encoded together, whatever the new tokens are.
    """
    return plan.level is Level.MODULAR and plan.prefill[0].start > plan.reuse[-1].part.last


def combination(plan: Plan) -> tuple[KVPart, ...]:
    """Return the reused parts of a plan with a combination, in position order. They identify it."""
    return tuple(each.part for each in plan.reuse)


def in_full_context(parts: Sequence[KVPart]) -> tuple[KVPart, ...]:
    """Return the parts of a combination with the same tokens and positions, each encoded behind those before it.

    The first parts, which are exact already, stay. Each other part is a whole encoding.
    """
    found = list(parts[: num_exact(parts, ())])
    for part in parts[len(found) :]:
        encoding = Encoding(
            token_ids=part.token_ids,
            position_ids=part.position_ids,
            context=tuple(found),
            codec=part.encoding.codec,
        )
        found.append(encoding.whole)
    return tuple(found)


def exact_plan(plan: Plan, parts: Sequence[KVPart]) -> Plan:
    """Return a plan with the parts of its combination in full context. Its new tokens stay as they are.

    Args:
        plan: A plan with a combination.
        parts: The result of `in_full_context` for it.
    """
    reuse = tuple(
        each if part == each.part else replace(each, part=part, offset=each.offset + each.part.start)
        for each, part in zip(plan.reuse, parts, strict=True)
    )
    return replace(plan, reuse=reuse, level=Level.EXACT)
