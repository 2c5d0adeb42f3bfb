"""A machine over an engine that promotes: every answer is the modular or the exact one, and says which."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache import Completion, Engine
from promptcache.diagnostics import PromptCacheError
from promptcache.layout import Encoding, Level, Plan, combination, has_combination, in_full_context
from promptcache.runtime import Model, check_linking, plain_logits, reference_logits
from promptcache.runtime.idle import Interrupted
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.engine.changing import activate, adapted, is_refused
from tests.laws.position_oracle import planned_tokens

TEXTS = (
    """<schema name="s" context="guaranteed">Root.<module name="a">alpha</module><module name="b">beta <parameter name="p" length="6"/></module>
<module name="c">gamma</module><module name="new" cache="false">late</module></schema>""",
    """<schema name="s" context="guaranteed">Root.<module name="a">alpha</module><module name="b">other <parameter name="p" length="6"/></module>
<module name="c">gamma</module><module name="new" cache="false">late</module></schema>""",
    """<schema name="s">Root.<module name="a">alpha</module><module name="b">other <parameter name="p" length="6"/></module>
<module name="c">gamma</module><module name="new" cache="false">late</module></schema>""",
)
MODULES = ("<a/>", "<a/><b/>", "<a/><c/>", "<a/><b/><c/>", "<b/><c/>", '<a/><b p="x"/><c/>', "<a/><c/><new/>", "<c/>")
PROMPTS = tuple(f'<prompt schema="s">{each}Well?</prompt>' for each in MODULES)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 3, "logprobs": 0}
TOLERANCE = 1e-9
LIMIT_TOKENS = 20
"""Limit of promoted KV: that of two modules."""

WAYS = ("generate", "stream", "batch", "service", "chat")


def never() -> None:
    """Let work in idle time go on."""


def work(engine: Engine) -> None:
    """Do all work that waits for idle time."""
    while engine._promoter.work(never):
        pass


def engine_of(model: Any, **options: Any) -> Engine:
    """Return an engine with automatic promotion whose thread never works: the caller does."""
    with patch("promptcache.engine.check_linking"):  # would test the model again
        made = Engine(model, ByteTokenizer(), promote="auto", **options)
    made.add_schema(TEXTS[0])
    made._promoter.end()
    return made


def nodes_of(plan: Plan) -> tuple[Encoding, ...]:
    """Return the encodings that the promotion of a plan needs beside those of its schema, contexts first."""
    if not has_combination(plan):
        return ()
    own = combination(plan)
    pairs = zip(in_full_context(own), own, strict=True)
    return tuple(part.encoding for part, before in pairs if part != before)


def all_nodes(engine: Engine) -> Iterator[Encoding]:
    """Yield the nodes of all prompts under the schema of now."""
    for prompt in PROMPTS:
        yield from nodes_of(engine.plan(prompt))


class PromotingEngine(RuleBasedStateMachine):
    """An engine whose modules are promoted, evicted, replaced and removed, and whose model is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.model = changing_model()
        self.model.hf.disable_adapters()
        self.version = 0
        self.is_evicted = False
        self.engine = engine_of(self.model, promote_bytes=LIMIT_TOKENS * self.model.shape.token_bytes)

    def teardown(self) -> None:
        """Bring the model back into its first state."""
        self.model.hf.disable_adapters()

    @rule(prompt=st.sampled_from(PROMPTS), way=st.sampled_from(WAYS), deterministic=st.booleans())
    def ask(self, prompt: str, way: str, deterministic: bool) -> None:
        """Ask a prompt, and compare the answer with the modular or the exact one."""
        before = self.engine.stats().promotions
        completion = answered(self.engine, prompt, way, deterministic=deterministic)
        usage = completion.usage
        if deterministic:
            assert not usage.promoted
        assert (self.engine.stats().promotions.num_hits > before.num_hits) is usage.promoted
        if usage.promoted:
            assert completion.level is Level.EXACT
            assert usage.num_encoded_tokens == 0
        check_answer(completion, self.planned(prompt, way), self.model)

    @rule(prompt=st.sampled_from(PROMPTS), way=st.sampled_from(WAYS), deterministic=st.booleans())
    def ask_until_promoted(self, prompt: str, way: str, deterministic: bool) -> None:
        """Ask a prompt with idle time in between, until it is exact, if that is possible."""
        self.promote(prompt)
        plan = self.planned(prompt, way)
        is_promotable = 0 < sum(node.num_tokens for node in nodes_of(plan)) <= LIMIT_TOKENS
        completion = answered(self.engine, prompt, way, deterministic=deterministic)
        check_answer(completion, plan, self.model)
        if nodes_of(plan) == nodes_of(self.engine.plan(prompt)):  # the text of a chat may begin otherwise
            assert completion.usage.promoted is (is_promotable and not deterministic)

    @rule(prompt=st.sampled_from(PROMPTS), way=st.sampled_from(WAYS))
    def promote_now(self, prompt: str, way: str) -> None:
        """Promote a prompt by a call: it is exact then, without idle time."""
        modular = self.engine.plan(prompt)
        nodes = nodes_of(modular)
        num_tokens = sum(node.num_tokens for node in nodes)
        if num_tokens > LIMIT_TOKENS:
            with pytest.raises(PromptCacheError, match="promote_bytes"):
                self.engine.promote(prompt)
            return
        assert self.engine.promote(prompt) <= num_tokens
        assert self.engine.promote(prompt) == 0
        completion = answered(self.engine, prompt, way)
        check_answer(completion, self.planned(prompt, way), self.model)
        if nodes == nodes_of(self.planned(prompt, way)):
            assert completion.usage.promoted is bool(nodes)

    def promote(self, prompt: str) -> None:
        """Ask a prompt until it is promoted, if it can be."""
        for _ in range(3):
            answered(self.engine, prompt, "generate")
            work(self.engine)

    @rule()
    def idle(self) -> None:
        """Do a piece of work in idle time."""
        self.engine._promoter.work(never)

    @rule(prompt=st.sampled_from(PROMPTS), num_layers=st.integers(0, 2))
    def interrupt(self, prompt: str, num_layers: int) -> None:
        """Interrupt work after some layers: nothing is stored, and it is done later."""
        promoter = self.engine._promoter
        for _ in range(2):
            answered(self.engine, prompt, "generate")
        left, before = [num_layers], set(self.engine.store.keys())

        def check() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Interrupted

        while num_waiting := self.engine.stats().promotions.num_waiting:
            keys = set(self.engine.store.keys())
            try:
                promoter.work(check)
            except Interrupted:
                assert left[0] == -1
                assert set(self.engine.store.keys()) <= keys
                assert self.engine.stats().promotions.num_waiting == num_waiting
                return
        num_encoded = len(set(self.engine.store.keys()) - before)
        assert 0 <= left[0] <= num_layers - num_encoded * self.model.shape.num_layers

    @rule(prompt=st.sampled_from(PROMPTS), data=st.data())
    def evict(self, prompt: str, data: st.DataObject) -> None:
        """Take KV of a promoted prompt from the store, as its own eviction does: the answer is the modular one."""
        self.promote(prompt)
        nodes = nodes_of(self.engine.plan(prompt))
        if nodes:
            self.engine.store.delete(self.engine._executor.key(data.draw(st.sampled_from(nodes))))
            self.is_evicted = True
        completion = answered(self.engine, prompt, "generate")
        assert not completion.usage.promoted
        check_answer(completion, self.engine.plan(prompt), self.model)

    @rule(version=st.sampled_from(range(len(TEXTS))))
    def replace(self, version: int) -> None:
        """Replace the schema."""
        self.engine.add_schema(TEXTS[version])
        self.version = version

    @rule()
    def remove(self) -> None:
        """Remove the schema, and add it again."""
        self.engine.remove_schema("s")
        self.engine.add_schema(TEXTS[self.version])

    @rule(prompt=st.sampled_from(PROMPTS))
    def change(self, prompt: str) -> None:
        """Change the model and change it back: in between nothing is answered or promoted, and then all is as before."""
        for _ in range(2):
            answered(self.engine, prompt, "generate")
        keys = set(self.engine.store.keys())
        activate("french")(self.model.hf)
        assert is_refused(lambda: answered(self.engine, prompt, "generate"))
        work(self.engine)
        assert set(self.engine.store.keys()) == keys
        self.model.hf.disable_adapters()
        self.promote(prompt)
        check_answer(answered(self.engine, prompt, "generate"), self.engine.plan(prompt), self.model)

    @invariant()
    def memory_has_what_is_promoted(self) -> None:
        """Promoted KV is within its limit, and in memory with its context."""
        engine, held = self.engine, self.engine._promoter._nodes
        nbytes = sum(node.num_tokens for node in held) * self.model.shape.token_bytes
        assert nbytes == engine.stats().promotions.nbytes <= LIMIT_TOKENS * self.model.shape.token_bytes
        if not self.is_evicted:  # by the store, which knows no contexts
            needed = {*held, *(part.encoding for node in held for part in node.context)}
            assert not engine._executor.absent(needed)

    def planned(self, prompt: str, way: str) -> Plan:
        """Return the modular plan of a prompt."""
        return self.engine.plan(prompt) if way != "chat" else chat_plan(self.engine, prompt)


def answered(engine: Engine, prompt: str, way: str, *, deterministic: bool = False) -> Completion:
    """Ask a prompt in one of the ways."""
    match way:
        case "stream":
            with engine.stream(prompt, deterministic=deterministic, **GREEDY) as stream:
                for _ in stream:
                    pass
            assert stream.completion is not None
            return stream.completion
        case "batch":
            return engine.generate_batch([prompt], deterministic=deterministic, **GREEDY)[0]
        case "service":
            return by_service(engine, prompt, deterministic=deterministic)
        case "chat":
            return engine.chat(prompt.replace("Well?", "")).say("Well?", deterministic=deterministic, **GREEDY)
    return engine.generate(prompt, deterministic=deterministic, **GREEDY)


def by_service(engine: Engine, prompt: str, *, deterministic: bool = False) -> Completion:
    """Ask a service for one answer, and close it."""
    items: queue.Queue[Any] = queue.Queue()
    service = engine.service()
    try:
        service.submit(prompt, items.put, deterministic=deterministic, **GREEDY)
        while not isinstance(item := items.get(timeout=60), Completion):
            if isinstance(item, BaseException):
                raise item
    finally:
        service.close()
    return item


def chat_plan(engine: Engine, prompt: str) -> Plan:
    """Return the plan of a chat that asks the text of a prompt."""
    chat = engine.chat(prompt.replace("Well?", ""))
    return engine._planner.plan_chat(chat.prompt, (), "Well?", None)


def check_answer(completion: Completion, plan: Plan, model: Model) -> None:
    """Check that an answer has the tokens of the modular plan, and the probabilities of its level."""
    assert sorted(planned_tokens(completion.plan)) == sorted(planned_tokens(plan))
    assert completion.plan.prefill == plan.prefill[-len(completion.plan.prefill) :]
    tokens = plan.tokens
    is_plain = completion.usage.promoted or plan.level is Level.EXACT
    assert completion.level is (Level.EXACT if is_plain else Level.MODULAR)
    logits = (plain_logits if is_plain else reference_logits)(tokens, model)[-1].log_softmax(-1)
    assert completion.logprobs is not None
    first = completion.logprobs[0]
    assert first.token_id == completion.token_ids[0]
    assert abs(first.logprob - float(logits[first.token_id])) < TOLERANCE
    assert float(logits.max()) - first.logprob < TOLERANCE


@cache
def changing_model() -> Model:
    """Return a model with an adapter, in float64."""
    made = Model(adapted("french"))
    check_linking(made)
    return made
