"""What a prompt may choose: arguments for its slots and messages after its modules.

Comes in: a checked schema and the modules that a prompt uses. Goes out: strategies for texts. Knows no XML; lengths are
counted in bytes of UTF-8, which are tokens of the byte tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.language.checked import CheckedSchema
from promptcache.language.schema import Parameter, Role
from promptcache.testing.texts import full_texts, texts, visible_texts

Key: TypeAlias = tuple[str, str]
Messages: TypeAlias = Sequence[tuple[str, str]]


def arguments(schema: CheckedSchema, modules: Iterable[str]) -> SearchStrategy[dict[Key, str]]:
    """Draw arguments for the slots of `modules` and of the root: all required ones, any of the others.

    Returns:
        Texts by module path and parameter name, never longer in bytes than the slot has positions, often just as long.
    """
    present = frozenset(modules)
    required: dict[Key, SearchStrategy[str]] = {}
    optional: dict[Key, SearchStrategy[str]] = {}
    for owner, parameters in schema.parameters.items():
        if owner and owner not in present:
            continue
        for name, parameter in parameters.items():
            (required if parameter.required else optional)[owner, name] = argument_texts(parameter)
    return st.fixed_dictionaries(required, optional=optional)


def argument_texts(parameter: Parameter) -> SearchStrategy[str]:
    """Draw text that fits into a slot: short, full, or what already stands there while encoding."""
    fillers = [text for text in (parameter.placeholder, parameter.default) if text is not None]
    known = [st.sampled_from(fillers)] if fillers else []
    return st.one_of(texts(parameter.length), full_texts(parameter.length), *known)


def filler_arguments(schema: CheckedSchema) -> dict[Key, str]:
    """Return the arguments that leave every slot of every module at its filler."""
    return {
        (owner, name): filler
        for owner, parameters in schema.parameters.items()
        for name, parameter in parameters.items()
        if parameter.required or (filler_of(parameter) != (parameter.default or ""))
        for filler in [filler_of(parameter)]
    }


def filler_of(parameter: Parameter) -> str:
    """Return what holds a slot's place while encoding."""
    return (parameter.default or "") if parameter.placeholder is None else parameter.placeholder


def messages(*, needed: bool) -> SearchStrategy[Messages]:
    """Draw what follows the modules: nothing unless text is `needed`, bare text (role ""), or turns."""
    spoken = visible_texts() if needed else texts()
    nothing: tuple[SearchStrategy[Messages], ...] = () if needed else (st.just(()),)
    turn = st.tuples(st.sampled_from([Role.USER.value, Role.SYSTEM.value, Role.ASSISTANT.value]), texts())
    return st.one_of(*nothing, spoken.map(lambda text: (("", text),)), st.lists(turn, min_size=1, max_size=3))
