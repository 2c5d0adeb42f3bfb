"""The law that no history of a store changes an answer, as a stateful machine of Hypothesis.

Its steps warm, ask, generate, evict and restart on one store. Every answer is compared with that of a fresh engine.
"""

from collections.abc import Sequence
from functools import cache

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.encode import Executor
from promptcache.kv import KV
from promptcache.language import Selection, parse_prompt, resolve_prompt
from promptcache.testing.cached import distance
from promptcache.testing.subject import SchemaSource, read_schema
from tests.laws.laws import BrokenLaw
from tests.laws.service import SchemaServer, serve

_NUMBERS = st.integers(0, 2**16)
_NUM_GENERATED = 2


def history_machine(documents: Sequence[tuple[SchemaSource, Sequence[str]]]) -> type[RuleBasedStateMachine]:
    """Return a machine over schemas, each with the XML of its prompts, all served from one store by a tiny model."""
    services = [serve(read_schema(source)) for source, _ in documents]
    asked = [
        (index, resolve_prompt(parse_prompt(xml), service.served.schema))
        for index, (service, (_, prompts)) in enumerate(zip(services, documents, strict=True))
        for xml in prompts
    ]
    return type("Histories", (_Histories,), {"fresh": _Fresh(services, asked)})


class _Histories(RuleBasedStateMachine):
    """Steps over one store; `held` has the KV that requests in flight use."""

    fresh: "_Fresh"

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, tuple[KV, torch.Tensor]] = {}
        self.restart()

    @rule()
    def restart(self) -> None:
        self.store = self.fresh.services[0].renewed().store
        self.services = [
            serve(each.served.schema, each.model, each.tokenizer, self.store) for each in self.fresh.services
        ]
        self.held.clear()

    @rule(number=_NUMBERS)
    def ask(self, number: int) -> None:
        number %= len(self.fresh.prompts)
        index, selection = self.fresh.prompts[number]
        far = distance(self.services[index].logits(selection), self.fresh.logits(number))
        if not far < self.services[index].tolerance:
            raise BrokenLaw(f"{selection.modules} is answered {far:.2g} from a fresh engine's answer")
        self.hold()

    @rule(number=_NUMBERS)
    def generate(self, number: int) -> None:
        number %= len(self.fresh.prompts)
        index, selection = self.fresh.prompts[number]
        tokens = self.services[index].tokens(selection, _NUM_GENERATED)
        expected = self.fresh.tokens(number)
        if tokens != expected:
            raise BrokenLaw(f"{selection.modules} gives {tokens}, a fresh engine {expected}")

    @rule(number=_NUMBERS)
    def warm(self, number: int) -> None:
        service = self.services[number % len(self.services)]
        Executor(service.model, self.store, service.executor.fingerprint).fetch(service.served.encodings)

    @rule(number=_NUMBERS)
    def evict(self, number: int) -> None:
        keys = sorted(self.store.keys())
        if keys:
            self.store.delete(keys[number % len(keys)])

    @rule()
    def evict_all(self) -> None:
        for key in list(self.store.keys()):
            self.store.delete(key)

    @rule()
    def hold(self) -> None:
        for key in list(self.store.keys()):
            handle = self.store.get(key).kv
            if handle is not None and key not in self.held:
                self.held[key] = (handle, handle.keys.clone())

    @rule()
    def release(self) -> None:
        self.held.clear()

    @invariant()
    def held_is_unchanged(self) -> None:
        if not all(torch.equal(handle.keys, before) for handle, before in self.held.values()):
            raise BrokenLaw("KV that a request held has changed")


class _Fresh:
    """The answers of fresh engines, each computed once."""

    def __init__(self, services: Sequence[SchemaServer], prompts: Sequence[tuple[int, Selection]]) -> None:
        self.services = services
        self.prompts = prompts
        self.logits, self.tokens = cache(self._logits), cache(self._tokens)

    def _logits(self, number: int) -> torch.Tensor:
        index, selection = self.prompts[number]
        return self.services[index].renewed().logits(selection)

    def _tokens(self, number: int) -> tuple[int, ...]:
        index, selection = self.prompts[number]
        return self.services[index].renewed().tokens(selection, _NUM_GENERATED)
