"""Promotion: the modules of a prompt are also encoded together, like those of a scaffold in the schema.

A promotion is a scaffold of the schema's state. The text and the positions of the schema do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from promptcache.diagnostics import InvalidValue, PromptCacheError, Short
from promptcache.kv import KVShape, stored_bytes
from promptcache.language import CheckedScaffold, CheckedSchema, Selection, promoted_scaffold
from promptcache.layout import Encoding, run_states, runs_in_use, scaffolds_in_use, states_in_use
from promptcache.runtime.catalog import SchemaState


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Promotion(Short):
    """Result of `Engine.promote`.

    Attributes:
        schema: Name of the schema.
        modules: The cached modules of the prompt.
        num_encodings: Number of encodings that the promotion adds; 0 if these modules attended to each other before.
        num_tokens: Tokens of these.
        nbytes: Their stored bytes.
    """

    schema: str
    modules: tuple[str, ...]
    num_encodings: int
    num_tokens: int
    nbytes: int


def uses_promotion(selection: Selection) -> bool:
    """Return whether a promoted scaffold serves a prompt."""
    scaffolds = selection.schema.scaffolds
    if not any(each.promoted for each in scaffolds):
        return False
    used = frozenset(scaffolds_in_use(scaffolds, selection.modules).values())
    return any(each.promoted and each.name in used for each in scaffolds)


def promote(
    old: SchemaState, selection: Selection, shape: KVShape, promote_bytes: int
) -> tuple[SchemaState, Promotion]:
    """Return the state with a promotion of a prompt's modules, and what it adds.

    Raises:
        InvalidValue: The prompt has members of collections.
        PromptCacheError: It adds more KV than `promote_bytes`.
    """
    if member := next((path for path in selection.modules if path not in old.schema.modules), None):
        raise InvalidValue(
            f"{member} is a member of a collection, whose members come in any order: promote='auto' of the engine "
            "encodes repeated combinations of them together"
        )
    new = promoted(old, selection)
    before = frozenset(old.encodings)
    added = [each for each in new.encodings if each not in before]
    nbytes = sum(stored_bytes(old.codec, shape, each.num_tokens) for each in added)
    if nbytes > promote_bytes:
        raise PromptCacheError(
            f"promoting {' + '.join(selection.modules)} adds {nbytes} bytes of KV, promote_bytes={promote_bytes}: "
            "give a higher limit, or put fewer modules into the prompt"
        )
    report = Promotion(
        schema=old.schema.name,
        modules=_cached(selection),
        num_encodings=len(added),
        num_tokens=sum(each.num_tokens for each in added),
        nbytes=nbytes,
    )
    return new, report


def promoted(old: SchemaState, selection: Selection) -> SchemaState:
    """Return the state with a scaffold over the cached modules of a prompt; the same state if it changes nothing.

    Args:
        selection: A prompt for `old.schema`.
    """
    modules = _cached(selection)
    if not modules or any(each.promoted and each.members == modules for each in old.schema.scaffolds):
        return old
    scaffold = promoted_scaffold(old.schema, modules, selection.span)
    new = _with_scaffolds(old, (*old.schema.scaffolds, scaffold))
    return old if _in_use(old, selection.modules) == _in_use(new, selection.modules) else new


def demoted(old: SchemaState, selection: Selection | None) -> tuple[SchemaState, int]:
    """Return the state without the promotion of a prompt's modules, or without any, and the number of those removed."""
    modules = None if selection is None else _cached(selection)
    kept = [each for each in old.schema.scaffolds if not (each.promoted and modules in (None, each.members))]
    number = len(old.schema.scaffolds) - len(kept)
    return (_with_scaffolds(old, kept), number) if number else (old, 0)


def _cached(selection: Selection) -> tuple[str, ...]:
    return tuple(path for path in selection.modules if selection.schema.modules[path].cache)


def _with_scaffolds(state: SchemaState, scaffolds: Sequence[CheckedScaffold]) -> SchemaState:
    schema = replace(state.schema, scaffolds=_ordered(scaffolds, state.schema))
    layout = replace(state.layout, schema=schema)
    return replace(state, schema=schema, layout=layout, states=run_states(layout, state.codec))


def _ordered(scaffolds: Iterable[CheckedScaffold], schema: CheckedSchema) -> tuple[CheckedScaffold, ...]:
    """Return scaffolds in the order in which they are tried, whatever the order of the promotions was.

    A promoted scaffold comes directly before the first declared one whose members are all its own, or at the end.
    Between the same declared scaffolds, more members come first. So a promotion of all modules of a prompt serves it.
    """
    place = schema.rules.order
    scaffolds = tuple(scaffolds)
    declared = [each for each in scaffolds if not each.promoted]

    def order(scaffold: CheckedScaffold) -> tuple[int, int, tuple[int, ...]]:
        if not scaffold.promoted:
            return declared.index(scaffold), 1, ()
        own = frozenset(scaffold.members)
        inner = (index for index, each in enumerate(declared) if own.issuperset(each.members))
        return next(inner, len(declared)), -len(own), tuple(place[path] for path in scaffold.members)

    return tuple(sorted(scaffolds, key=order))


def _in_use(state: SchemaState, modules: Sequence[str]) -> dict[int, Encoding]:
    """Return the encoding of each run of the modules of a prompt."""
    layout, scaffolds = state.layout, scaffolds_in_use(state.schema.scaffolds, modules)
    found = states_in_use(layout, runs_in_use(layout, modules), state.states, scaffolds)
    return {run.index: each.encoding for run, each in found if each is not None}
