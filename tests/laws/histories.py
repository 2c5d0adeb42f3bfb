"""The law that no history of a store changes an answer, as a stateful machine of Hypothesis.

Its steps warm, ask, generate, evict and restart on one store. Every answer is compared with that of a fresh engine.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """Return a machine over schemas and prompts for each of them, all served from one store by a tiny model.

    Run it with `run_state_machine_as_test(history_machine(…))`, or as a test case: `TestHistories = ….TestCase`.

    Args:
        documents: Schemas, each with the XML of its prompts; several may share a name, like versions of one schema.
    """
    services = [serve(read_schema(source)) for source, _ in documents]
    asked = [
        (index, resolve_prompt(parse_prompt(xml), service.served.schema))
        for index, (service, (_, prompts)) in enumerate(zip(services, documents, strict=True))
        for xml in prompts
    ]
    return type("Histories", (_Histories,), {"fresh": _Fresh(services, asked)})


class _Histories(RuleBasedStateMachine):
    """Steps over one store; `held` has the KV that requests in flight use."""

    fresh: _Fresh

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, tuple[KV, torch.Tensor]] = {}
        self.restart()

    @rule()
    def restart(self) -> None:
        """Start again with an empty store, as a process does."""
        self.store = self.fresh.services[0].renewed().store
        self.services = [
            serve(each.served.schema, each.model, each.tokenizer, self.store) for each in self.fresh.services
        ]
        self.held.clear()

    @rule(number=_NUMBERS)
    def ask(self, number: int) -> None:
        """Answer a prompt."""
        index, selection = self.fresh.asked(number)
        far = distance(self.services[index].logits(selection), self.fresh.logits(number))
        if not far < self.services[index].tolerance:
            raise BrokenLaw(f"{selection.modules} is answered {far:.2g} from a fresh engine's answer")
        self.hold()

    @rule(number=_NUMBERS)
    def generate(self, number: int) -> None:
        """Generate from a prompt."""
        index, selection = self.fresh.asked(number)
        tokens = self.services[index].tokens(selection, _NUM_GENERATED)
        expected = self.fresh.tokens(number)
        if tokens != expected:
            raise BrokenLaw(f"{selection.modules} gives {tokens}, a fresh engine {expected}")

    @rule(number=_NUMBERS)
    def warm(self, number: int) -> None:
        """Encode everything of a schema before it is asked for."""
        service = self.services[number % len(self.services)]
        Executor(service.model, self.store, service.executor.fingerprint).fetch(service.served.encodings)

    @rule(number=_NUMBERS)
    def evict(self, number: int) -> None:
        """Forget one encoding."""
        keys = sorted(self.store.keys())
        if keys:
            self.store.delete(keys[number % len(keys)])

    @rule()
    def evict_all(self) -> None:
        """Forget every encoding; KV that a request holds stays in memory."""
        for key in list(self.store.keys()):
            self.store.delete(key)

    @rule()
    def hold(self) -> None:
        """Keep every encoding in use, as requests in flight do."""
        for key in list(self.store.keys()):
            handle = self.store.get(key).kv
            if handle is not None and key not in self.held:
                self.held[key] = (handle, handle.keys.clone())

    @rule()
    def release(self) -> None:
        """End the requests in flight."""
        self.held.clear()

    @invariant()
    def held_is_unchanged(self) -> None:
        """KV that a request in flight holds is not written over."""
        if not all(torch.equal(handle.keys, before) for handle, before in self.held.values()):
            raise BrokenLaw("KV that a request held has changed")


class _Fresh:
    """The answers of fresh engines, each computed once."""

    def __init__(self, services: Sequence[SchemaServer], prompts: Sequence[tuple[int, Selection]]) -> None:
        self.services = services
        self._prompts = prompts
        self._logits: dict[int, torch.Tensor] = {}
        self._tokens: dict[int, tuple[int, ...]] = {}

    def asked(self, number: int) -> tuple[int, Selection]:
        """Return the index of a service and its prompt; numbers beyond the last prompt begin again at the first."""
        return self._prompts[number % len(self._prompts)]

    def logits(self, number: int) -> torch.Tensor:
        """Return the logits of a prompt."""
        key = number % len(self._prompts)
        if key not in self._logits:
            index, selection = self._prompts[key]
            self._logits[key] = self.services[index].renewed().logits(selection)
        return self._logits[key]

    def tokens(self, number: int) -> tuple[int, ...]:
        """Return the first tokens of the answer to a prompt."""
        key = number % len(self._prompts)
        if key not in self._tokens:
            index, selection = self._prompts[key]
            self._tokens[key] = self.services[index].renewed().tokens(selection, _NUM_GENERATED)
        return self._tokens[key]
