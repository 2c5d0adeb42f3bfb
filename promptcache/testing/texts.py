"""Strategies for the texts of a prompt: arguments for its slots and messages after its modules.

Free texts are short, and some look like markup, control tokens or whitespace. They are cut to the tokens of their slot
and often fill it. Values of a type or pattern are drawn as that type or pattern says.
"""

from __future__ import annotations

import operator
import re
import string
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument, NoSuchExample
from hypothesis.strategies import DrawFn, SearchStrategy

from promptcache.diagnostics import InvalidValue
from promptcache.language import CheckedParameter, CheckedSchema, ParameterType, Role, python_pattern, refusal
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.tokenizer import Tokenizer

_T = TypeVar("_T")
Key: TypeAlias = tuple[str, str]
"""The path of a module, "" for the root, and the name of a parameter."""

Slots: TypeAlias = Mapping[Key, SearchStrategy[str] | SearchStrategy[str | None]]
"""A strategy for the argument of each slot; None leaves the argument out."""

BYTES = ByteTokenizer()

_NEAR = 32  # characters in which a longer text may have fewer tokens

# Texts that a careless parser, tokenizer or template reads as something else.
TRICKY = (
    "</s>",
    "<|end|>",
    "<|user|>",
    "<s>",
    "[INST]",
    "<b>x</b>",
    "&lt;",
    "]]>",
    "{{ x }}",
    "<!--",
    " a ",
    "a\n\n b",
    "\ta\n",
    "é",
    "日本",
    "🙂",
    "e\u0301",
    "\u00a0",
    "\u2028",
    "a\r\nb",
)
_WORDS = ("x", " a", " the", "-", "1", "é", " 日", "\n")
_BEGINNINGS = ("", "a", "Nine days", *TRICKY)
_SEARCHED = 300  # texts
_ARGUMENTS = ("nine", "a", "0", "1", "")
_LETTERS = f"{string.ascii_letters}{string.digits}{string.punctuation} \n\téß日"
# Few letters keep counterexamples readable.
_PLAIN = st.text(alphabet="abc \n", min_size=1, max_size=8)
# Every character of XML 1.0 except control characters.
_ANY = st.text(
    alphabet=st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff"), min_size=1, max_size=4
)
_MIXED = st.one_of(st.just(""), _PLAIN, st.sampled_from(TRICKY), _ANY)


_NUMBERS = st.from_regex(
    re.compile(r"[+-]?([0-9]{1,3}(\.[0-9]{0,2})?|\.[0-9]{1,2})([eE][+-]?[0-9]{1,2})?"),
    fullmatch=True,
    alphabet="+-.eE0123456789",
)
"""Numbers in every form of the language: signs, decimals and exponents."""


def maybe(strategy: SearchStrategy[_T]) -> SearchStrategy[_T | None]:
    """Draw None half of the time; with `none() | strategy` the share depends on the branches of `strategy`."""
    options: tuple[SearchStrategy[_T | None], ...] = (st.none(), strategy)
    return st.booleans().flatmap(options.__getitem__)


def fit(text: str, max_bytes: int) -> str:
    """Return the longest beginning of `text` that takes at most `max_bytes` of UTF-8."""
    return text.encode()[:max_bytes].decode(errors="ignore")


def texts(max_bytes: int = 12) -> SearchStrategy[str]:
    """Draw text of at most `max_bytes`, sometimes empty or only whitespace."""
    return _MIXED.map(lambda text: fit(text, max_bytes))


def visible_texts(max_bytes: int = 12) -> SearchStrategy[str]:
    """Draw text that is not empty after any whitespace rule."""
    return texts(max_bytes - 1).map(lambda text: text if text.strip() else "a" + text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of a prompt: a turn, or bare text with role ""; `exact` writes it as a `text` element."""

    role: str = ""
    text: str
    exact: bool = False


_ROLES = st.sampled_from([Role.USER.value, Role.SYSTEM.value, Role.ASSISTANT.value])
_TURNS = st.lists(st.builds(Said, role=_ROLES, text=texts(), exact=st.booleans()), min_size=1, max_size=3)
MESSAGES: SearchStrategy[Sequence[Said]] = st.one_of(
    st.just(()), st.tuples(st.builds(Said, text=texts(), exact=st.booleans())), _TURNS
)
"""The end of a prompt after its modules: nothing, bare text, or turns."""

SOME_MESSAGES: SearchStrategy[Sequence[Said]] = st.one_of(
    st.tuples(st.builds(Said, text=visible_texts(), exact=st.booleans())), _TURNS
)
"""The same with at least one token."""


def slots(schema: CheckedSchema, tokenizer: Tokenizer) -> Slots:
    """Return a strategy for the argument of each slot of a schema; required parameters get a text that is not empty."""
    return {
        (owner, name): fitting.map(lambda text: text or "x") if parameter.required else maybe(fitting)
        for owner, parameters in schema.parameters.items()
        for name, parameter in parameters.items()
        for fitting in [argument_texts(parameter, tokenizer)]
    }


def draw_arguments(draw: DrawFn, known: Slots, modules: frozenset[str]) -> dict[Key, str]:
    """Draw arguments for the slots of `modules` and of the root."""
    drawn = {key: draw(texts) for key, texts in known.items() if not key[0] or key[0] in modules}
    return {key: text for key, text in drawn.items() if text is not None}


def argument_texts(parameter: CheckedParameter, tokenizer: Tokenizer) -> SearchStrategy[str]:
    """Draw text that a parameter takes and its slot holds: short, full, or the filler of the slot.

    Raises:
        InvalidValue: no choice fits.
    """
    if parameter.type is not ParameterType.TEXT or parameter.pattern is not None:
        return _typed_texts(parameter, tokenizer)

    lead, size = parameter.lead, parameter.num_positions

    def cut(text: str) -> str:
        return fit_tokens(lead + text, size, tokenizer).removeprefix(lead)

    def full(beginning: str, word: str) -> str:
        return fill_tokens(lead + beginning, word, size, tokenizer).removeprefix(lead)

    known = (parameter.placeholder, parameter.default)
    fillers = [text for text in known if text is not None and fits(parameter, text, tokenizer)]
    beginnings = st.one_of(_MIXED, st.sampled_from(_BEGINNINGS))
    return st.one_of(
        texts(parameter.length).map(cut),
        st.builds(full, beginnings, st.sampled_from(_WORDS)),
        *([st.sampled_from(fillers)] if fillers else []),
    )


def fits(parameter: CheckedParameter, text: str, tokenizer: Tokenizer) -> bool:
    """Whether a parameter takes a text, and its slot holds it."""
    size = len(tokenizer.tokenize(parameter.lead + text))  # the space before the slot counts
    return refusal(parameter, text) is None and size <= parameter.num_positions


def fit_tokens(text: str, num_tokens: int, tokenizer: Tokenizer) -> str:
    """Return a prefix of `text` that has at most `num_tokens` tokens."""

    def count(length: int) -> int:
        return len(tokenizer.tokenize(text[:length]))

    if count(len(text)) <= num_tokens:
        return text
    length = max(0, bisect_right(range(len(text)), num_tokens, key=count) - 1)
    longer = range(min(len(text), length + _NEAR), length, -1)  # a longer text may have fewer tokens
    return text[: next((each for each in longer if count(each) <= num_tokens), length)]


def fill_tokens(beginning: str, word: str, num_tokens: int, tokenizer: Tokenizer) -> str:
    """Return a text of exactly `num_tokens` tokens if repeating `word` gives one, else the longest that fits."""
    text = fit_tokens(beginning, num_tokens, tokenizer)
    missing = num_tokens - len(tokenizer.tokenize(text))
    while missing > 0:
        longer = fit_tokens(text + word * missing, num_tokens, tokenizer)
        if len(longer) <= len(text):
            return text
        text, missing = longer, num_tokens - len(tokenizer.tokenize(longer))
    return text


def plain_argument(parameter: CheckedParameter, tokenizer: Tokenizer) -> str:
    """Return a short text for a required parameter.

    Raises:
        InvalidValue: none was found.
    """
    found = _short_text(parameter, tokenizer)
    if found is None:
        takes = f", which takes text like {parameter.pattern}" if parameter.pattern is not None else ""
        raise InvalidValue(f"no text was found for the slot '{parameter.name}' of length {parameter.length}{takes}")
    return found


@lru_cache(maxsize=256)
def _short_text(parameter: CheckedParameter, tokenizer: Tokenizer) -> str | None:
    """Return a short text that a parameter takes and its slot holds, or None if none was found."""
    known = (parameter.default, parameter.placeholder, *parameter.choices, *_ARGUMENTS)
    found = next((text for text in known if text is not None and fits(parameter, text, tokenizer)), None)
    if found is None and parameter.pattern is not None:
        return _simplest(_matching_texts(parameter.pattern), lambda text: fits(parameter, text, tokenizer))
    return found


def _typed_texts(parameter: CheckedParameter, tokenizer: Tokenizer) -> SearchStrategy[str]:
    """Draw values of a type or pattern that fit into the slot; a value that does not fit becomes a short one."""
    short = _short_text(parameter, tokenizer)
    match parameter.type:
        case ParameterType.CHOICE:
            fitting = [text for text in parameter.choices if fits(parameter, text, tokenizer)]
            if not fitting:
                raise InvalidValue(f"no choice of '{parameter.name}' fits into its slot of length {parameter.length}")
            return st.sampled_from(fitting)
        case _ if parameter.pattern is not None:
            drawn = _matching_texts(parameter.pattern)
            if drawn.is_empty:
                return drawn if short is None else st.just(short)
        case ParameterType.INT:
            drawn = _whole_numbers(parameter.length)
        case ParameterType.NUMBER:
            drawn = st.one_of(_whole_numbers(parameter.length), _NUMBERS)
        case _:
            drawn = texts(parameter.length).map(lambda text: " ".join(text.splitlines()))
    if short is None:
        return drawn.filter(lambda text: fits(parameter, text, tokenizer))
    return drawn.map(lambda text: text if fits(parameter, text, tokenizer) else short)


def _whole_numbers(length: int) -> SearchStrategy[str]:
    """Draw whole numbers; most are not negative, and few have a plus or begin with zeros."""
    positive = st.integers(0, 10 ** min(length, 9) - 1).map(str)
    signs = st.sampled_from(("", "", "-", "+", "0", "-0"))
    return st.builds(operator.add, signs, positive)


@lru_cache(maxsize=64)
def _matching_texts(pattern: str) -> SearchStrategy[str]:
    """Draw texts that match a pattern, over common letters if these are enough."""
    known = python_pattern(pattern)
    try:
        compiled = re.compile(known, re.ASCII)
    except re.error:  # Python has no such syntax
        return st.nothing()
    # Over all of Unicode, Hypothesis makes tables of characters in the first draw, which takes a second.
    common = st.from_regex(compiled, fullmatch=True, alphabet=_LETTERS + known)
    return st.from_regex(compiled, fullmatch=True) if _simplest(common, lambda _: True) is None else common


def _simplest(drawn: SearchStrategy[str], fits: Callable[[str], bool]) -> str | None:
    """Return the simplest text of a strategy that fits, the same one every time, or None if none is found."""
    search = settings(
        max_examples=_SEARCHED,
        database=None,
        derandomize=True,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    with ThreadPoolExecutor(1) as other:  # a test may be running in this thread, and Hypothesis does not nest them
        try:
            return other.submit(find, drawn, fits, settings=search).result()
        except (NoSuchExample, InvalidArgument):
            return None
