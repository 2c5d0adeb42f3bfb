"""Compiled grammars: what one may cost, and which are kept.

llguidance compiles grammars. All answers of a format share its compiled grammar with the states of its lexer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakValueDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from promptcache.diagnostics import QueueFull
from promptcache.locks import new_lock

_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    max_lexer_states=50_000,
    max_grammar_size=20_000,
    verbose_errors=False,
)
"""Limits of one grammar. On one core of a server the largest ones compile in half a second, a mask takes up to 15 ms,
and states take up to 40 MB. Five characters of a pattern or a `const` take ten of the fuel.
"""

_BYTES_PER_CHARACTER = 512
"""Memory of a compiled grammar for each character of its text, before there are states; patterns take the most."""

_MAX_KEPT = 16
_MAX_KEPT_BYTES = 64 * 2**20
"""Limits of the grammars that are kept for later answers: their number bounds the memory of states."""

_MAX_BYTES = 512 * 2**20
"""Limit of all grammars that are kept or used by answers, running and waiting, without their states."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledGrammar:
    """A grammar over the tokens of a tokenizer. Its memory stays allocated while this object is alive.

    Attributes:
        num_bytes: An upper bound of its memory, without states.
        start: The matcher at the start. It must not be changed.
    """

    num_bytes: int
    start: LLMatcher

    def matcher(self) -> LLMatcher:
        """Return a matcher at the start of an answer."""
        return self.start.deep_copy()

    @property
    def fault(self) -> str:
        """Why no answer can have this grammar, in the words of llguidance; empty if answers can."""
        matcher = self.matcher()
        if not matcher.is_error():
            matcher.compute_bitmask()  # finds out whether there is any text
        return str(matcher.get_error())


class GrammarCache:
    """The compiled grammars over the tokens of one tokenizer. Those used last are kept. Thread-safe."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = new_lock()
        self._all: WeakValueDictionary[str, CompiledGrammar] = WeakValueDictionary()
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()

    def compiled(self, grammar: str) -> CompiledGrammar:
        """Return a compiled grammar, which may have a fault. Other threads go on while it is compiled.

        Args:
            grammar: In the JSON form of llguidance.

        Raises:
            QueueFull: The grammars of other answers take too much memory.
        """
        with self._lock:
            found = self._all.get(grammar)
        if found is None or found.fault:  # answers have used up all states
            num_bytes = _BYTES_PER_CHARACTER * len(grammar)
            with self._lock:
                used = sum(each.num_bytes for each in self._all.values())
            if used + num_bytes > _MAX_BYTES:
                message = f"the formats of other answers take {used} bytes, and this one {num_bytes}"
                raise QueueFull(f"{message}: the limit is {_MAX_BYTES}; try later", "queue_full")
            start = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
            found = CompiledGrammar(num_bytes, start)
            if found.fault:
                return found
        with self._lock:
            self._all[grammar] = self._kept[grammar] = found
            self._kept.move_to_end(grammar)
            while len(self._kept) > _MAX_KEPT or sum(each.num_bytes for each in self._kept.values()) > _MAX_KEPT_BYTES:
                self._kept.popitem(last=False)
        return found
