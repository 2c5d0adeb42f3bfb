"""What a prompt may choose: arguments for its slots and messages after its modules.

Comes in: a checked schema and the modules that a prompt uses. Goes out: strategies for texts. Knows no XML. Free texts
are cut to bytes of UTF-8, of which no tokenizer makes more tokens; values of a type are measured in tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from promptcache.language.checked import CheckedSchema
from promptcache.language.schema import Parameter, ParameterType, Role
from promptcache.language.syntax.values import refusal
from promptcache.layout import shortest_text
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.texts import full_texts, maybe, texts, visible_texts
from promptcache.tokenizer import Tokenizer

Key: TypeAlias = tuple[str, str]
Slots: TypeAlias = Mapping[Key, SearchStrategy[str] | SearchStrategy[str | None]]


BYTES = ByteTokenizer()
"""Measures slots for those who say nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of a prompt: a turn, or bare text with role ""; `exact` writes it as a `text` element."""

    role: str = ""
    text: str
    exact: bool = False


def arguments(schema: CheckedSchema, modules: Iterable[str]) -> SearchStrategy[dict[Key, str]]:
    """Draw arguments for the slots of `modules` and of the root: all required ones, any of the others.

    Returns:
        Texts by module path and parameter name, never longer in bytes than the slot has positions, often just as long.
    """
    return _arguments(slots(schema), frozenset(modules))


@st.composite
def _arguments(draw: DrawFn, known: Slots, modules: frozenset[str]) -> dict[Key, str]:
    return draw_arguments(draw, known, modules)


def slots(schema: CheckedSchema, tokenizer: Tokenizer = BYTES) -> Slots:
    """Return a strategy for each slot: for its argument, or for None where it may stay empty."""
    found: dict[Key, SearchStrategy[str] | SearchStrategy[str | None]] = {}
    for owner, parameters in schema.parameters.items():
        for name, parameter in parameters.items():
            fitting = argument_texts(parameter, tokenizer)
            found[owner, name] = given_or_left_out(parameter, fitting)
    return found


def given_or_left_out(
    parameter: Parameter, fitting: SearchStrategy[str]
) -> SearchStrategy[str] | SearchStrategy[str | None]:
    """Draw an argument that fits: text that is not empty where one is required, else None half of the time."""
    return fitting.map(lambda text: text or "x") if parameter.required else maybe(fitting)


def draw_arguments(draw: DrawFn, known: Slots, modules: frozenset[str]) -> dict[Key, str]:
    """Draw what `arguments` does, from strategies that were made once for the schema."""
    drawn = {key: draw(texts) for key, texts in known.items() if not key[0] or key[0] in modules}
    return {key: text for key, text in drawn.items() if text is not None}


def argument_texts(parameter: Parameter, tokenizer: Tokenizer) -> SearchStrategy[str]:
    """Draw text that fits into a slot and is of its type: short, full, or what already stands there while encoding."""
    if is_restricted(parameter):
        return typed_texts(parameter, tokenizer)
    known = (parameter.placeholder, parameter.default)
    fillers = [text for text in known if text is not None and fits(parameter, text, tokenizer)]
    as_filled = [st.sampled_from(fillers)] if fillers else []
    return st.one_of(texts(parameter.length), full_texts(parameter.length), *as_filled)


def is_restricted(parameter: Parameter) -> bool:
    """Whether a parameter takes only texts of a type, a list or a pattern."""
    return parameter.type is not ParameterType.TEXT or parameter.pattern is not None


def fits(parameter: Parameter, text: str, tokenizer: Tokenizer) -> bool:
    """Whether a parameter takes a text, and its slot holds it."""
    return refusal(parameter, text) is None and len(tokenizer.tokenize(text)) <= parameter.length


def typed_texts(parameter: Parameter, tokenizer: Tokenizer) -> SearchStrategy[str]:
    """Draw values of a type or pattern that fit into the slot; in place of what does not fit stands the shortest.

    Raises:
        ValueError: no choice fits.
    """
    match parameter.type:
        case ParameterType.CHOICE:
            fitting = [text for text in parameter.choices if fits(parameter, text, tokenizer)]
            if not fitting:
                raise ValueError(f"no choice of '{parameter.name}' fits into its slot of length {parameter.length}")
            return st.sampled_from(fitting)
        case _ if parameter.pattern is not None:
            flags = re.NOFLAG if parameter.type in {ParameterType.TEXT, ParameterType.LINE} else re.ASCII
            drawn = st.from_regex(re.compile(parameter.pattern, flags), fullmatch=True)
        case ParameterType.INT | ParameterType.NUMBER:
            drawn = st.integers(0, 10 ** min(parameter.length, 9) - 1).map(str)
        case _:
            drawn = texts(parameter.length).map(lambda text: " ".join(text.splitlines()))
    least = shortest_text(parameter, tokenizer)
    if least is None or not fits(parameter, least.text, tokenizer):
        return drawn.filter(lambda text: fits(parameter, text, tokenizer))
    return drawn.map(lambda text: text if fits(parameter, text, tokenizer) else least.text)


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


_ROLES = st.sampled_from([Role.USER.value, Role.SYSTEM.value, Role.ASSISTANT.value])
_TURNS = st.lists(st.builds(Said, role=_ROLES, text=texts(), exact=st.booleans()), min_size=1, max_size=3)
MESSAGES: SearchStrategy[Sequence[Said]] = st.one_of(
    st.just(()), st.tuples(st.builds(Said, text=texts(), exact=st.booleans())), _TURNS
)
"""What follows the modules: nothing, bare text, or turns."""

SOME_MESSAGES: SearchStrategy[Sequence[Said]] = st.one_of(
    st.tuples(st.builds(Said, text=visible_texts(), exact=st.booleans())), _TURNS
)
"""The same, but never without a token."""
