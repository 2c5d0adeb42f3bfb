"""A machine over an engine that promotes: every answer is the modular or the exact one, and says which."""

from contextlib import nullcontext, suppress
from functools import cache
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from promptcache import Completion, Engine, StoreConfig
from promptcache.decode import KVSource
from promptcache.diagnostics import PromptCacheError
from promptcache.encode import check_linking
from promptcache.encode.idle import Interrupted
from promptcache.layout import Level, Origin, Plan
from promptcache.model import Model, reference_logits
from promptcache.model.reference import plain_logits
from promptcache.planning import ChatPrompt
from tests.engine import asking
from tests.engine.asking import WAYS, answered
from tests.engine.changing import activate, adapted, is_refused
from tests.laws.position_oracle import planned_tokens

_TEXT = """<schema name="s" context="guaranteed" repair="slots">Root.<module name="a">alpha</module><module name="b">beta <parameter name="p" length="6"/></module>
<module name="c">gamma</module><module name="new" cache="false">late</module></schema>"""
_OTHER = _TEXT.replace("beta", "other")
TEXTS = (_TEXT, _OTHER, _OTHER.replace(' context="guaranteed"', ""))
MODULES = ("<a/>", "<a/><b/>", "<a/><c/>", "<a/><b/><c/>", "<b/><c/>", '<a/><b p="x"/><c/>', "<a/><c/><new/>", "<c/>")
PROMPTS = tuple(f'<prompt schema="s">{each}Well?</prompt>' for each in MODULES)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 3, "logprobs": 0}
TOLERANCE = 1e-9
FEW_TOKENS = 192
"""Room of a small memory: that of three nodes of history."""


def never() -> None: ...


def work(engine: Engine) -> None:
    while engine._repetition.work(never):
        pass


def engine_of(model: Any, **options: Any) -> Engine:
    """Return an engine with automatic promotion whose thread never works: the caller does."""
    with patch("promptcache.engine.check_linking"):  # would test the model again
        made = asking.engine_of(model, schema=TEXTS[0], promote="auto", **options)
    made._repetition.thread.end()
    return made


def num_combined(plan: Plan) -> int:
    """Return the number of tokens that the promotion of a plan computes if nothing is known."""
    if plan.level is Level.EXACT:
        return 0
    last = max(index for index, piece in enumerate(plan.pieces) if piece.source or piece.origin is Origin.LAST)
    return sum(len(piece.token_ids) for piece in plan.pieces[: last + 1])


class PromotingEngine(RuleBasedStateMachine):
    """An engine whose modules are promoted, evicted, replaced and removed, and whose model is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.model = changing_model()
        self.model.hf.disable_adapters()
        self.version = 0
        self.is_small = False
        self.engine = engine_of(self.model)

    @initialize(is_small=st.booleans())
    def choose_memory(self, is_small: bool) -> None:
        self.is_small = is_small
        if is_small:
            self.engine = engine_of(
                self.model, store=StoreConfig(memory_bytes=FEW_TOKENS * self.model.shape.token_bytes)
            )

    def teardown(self) -> None:
        self.model.hf.disable_adapters()

    @rule(
        prompt=st.sampled_from(PROMPTS),
        way=st.sampled_from(WAYS),
        deterministic=st.booleans(),
        came_before=st.booleans(),
    )
    def ask(self, prompt: str, way: str, deterministic: bool, came_before: bool) -> None:
        """Compare an answer with the modular or the exact one. It is exact after idle time, if that is possible."""
        if came_before:
            self.promote(prompt)
        plan, before = self.planned(prompt, way), self.engine.stats().promotions
        completion = asked(self.engine, prompt, way, deterministic=deterministic)
        check_answer(completion, plan, self.model)
        usage = completion.usage
        assert (self.engine.stats().promotions.num_hits > before.num_hits) is usage.promoted
        assert not (usage.promoted and (deterministic or usage.num_encoded_tokens))
        if came_before and not self.is_small and way != "chat":  # the text of a chat may begin otherwise
            assert usage.promoted is (plan.level is Level.MODULAR and not deterministic)

    @rule(prompt=st.sampled_from(PROMPTS), way=st.sampled_from(WAYS))
    def promote_now(self, prompt: str, way: str) -> None:
        """Promote a prompt by a call: it is exact then, without idle time."""
        plan = self.engine.plan(prompt)
        num_tokens = 0
        with suppress(PromptCacheError) if self.is_small else nullcontext():
            num_tokens = self.engine.promote(prompt)
        if self.is_small:
            return
        assert num_tokens <= num_combined(plan)
        assert self.engine.promote(prompt) == 0
        completion = asked(self.engine, prompt, way)
        check_answer(completion, self.planned(prompt, way), self.model)
        if way != "chat":
            assert completion.usage.promoted is (plan.level is Level.MODULAR)

    def promote(self, prompt: str) -> None:
        asked(self.engine, prompt)
        work(self.engine)

    @rule()
    def idle(self) -> None:
        self.engine._repetition.work(never)

    @rule(prompt=st.sampled_from(PROMPTS), num_layers=st.integers(0, 2))
    def interrupt(self, prompt: str, num_layers: int) -> None:
        """Interrupt work after some layers: nothing is kept of it, and it is done later."""
        asked(self.engine, prompt)
        left = num_layers

        def check() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted

        repetition = self.engine._repetition
        before = self.engine.stats().promotions
        first = next(reversed(repetition._waiting), None)
        is_needed = first is not None and not repetition._is_known(first)
        try:
            repetition.work(check)
        except Interrupted:
            assert left < 0
            assert self.engine.stats().promotions == before
        else:
            assert left >= 0
            assert (left < num_layers) is is_needed

    @rule(prompt=st.sampled_from(PROMPTS))
    def forget(self, prompt: str) -> None:
        self.promote(prompt)
        self.engine.clear_history()
        completion = asked(self.engine, prompt)
        assert not completion.usage.promoted
        check_answer(completion, self.engine.plan(prompt), self.model)

    @rule(version=st.sampled_from(range(len(TEXTS))))
    def replace(self, version: int) -> None:
        self.engine.add_schema(TEXTS[version])
        self.version = version

    @rule()
    def remove(self) -> None:
        self.engine.remove_schema("s")
        self.engine.add_schema(TEXTS[self.version])

    @rule(prompt=st.sampled_from(PROMPTS))
    def change(self, prompt: str) -> None:
        """Change the model and change it back: in between nothing is answered or promoted, and then all is as before."""
        asked(self.engine, prompt)
        before = self.engine.stats().promotions.num_combinations
        activate("french")(self.model.hf)
        assert is_refused(lambda: asked(self.engine, prompt))
        work(self.engine)
        assert self.engine.stats().promotions.num_combinations == before
        self.model.hf.disable_adapters()
        self.promote(prompt)
        check_answer(asked(self.engine, prompt), self.engine.plan(prompt), self.model)

    @invariant()
    def memory_is_within_its_budget(self) -> None:
        stats = self.engine.stats()
        assert stats.memory_bytes <= stats.budget_bytes

    def planned(self, prompt: str, way: str) -> Plan:
        return self.engine.plan(prompt) if way != "chat" else chat_plan(self.engine, prompt)


def asked(engine: Engine, prompt: str, way: str = "generate", **options: Any) -> Completion:
    return answered(engine, prompt, way, **GREEDY, **options)


def chat_plan(engine: Engine, prompt: str) -> Plan:
    return engine._planner.plan(ChatPrompt(prompt=engine.chat(prompt).prompt, turns=(), question="Well?"))


def check_answer(completion: Completion, plan: Plan, model: Model) -> None:
    """Check that an answer has the tokens of the modular plan, the probabilities of its level, and a right usage."""
    usage = completion.usage
    assert planned_tokens(completion.plan) == planned_tokens(plan)
    assert completion.plan.pieces == (plan.plain() if usage.promoted else plan).pieces
    is_plain = usage.promoted or plan.level is Level.EXACT
    assert completion.level is (Level.EXACT if is_plain else Level.MODULAR)
    logits = (plain_logits if is_plain else reference_logits)(plan.tokens, model)[-1].log_softmax(-1)
    assert completion.logprobs is not None
    first = completion.logprobs[0]
    assert first.token_id == completion.token_ids[0]
    assert abs(first.logprob - float(logits[first.token_id])) < TOLERANCE
    assert float(logits.max()) - first.logprob < TOLERANCE

    assert usage.num_reused_tokens + usage.num_history_tokens + usage.num_new_tokens == len(planned_tokens(plan))
    assert usage.num_reused_tokens + usage.num_history_tokens == sum(each.num_tokens for each in usage.modules)
    from_history = sum(each.num_tokens for each in usage.modules if each.source is KVSource.HISTORY)
    assert from_history == usage.num_history_tokens
    if usage.promoted:
        by_module = {each.module: each.num_tokens for each in usage.modules}
        assert usage.num_reused_tokens == 0
        assert all(by_module[name] >= count for name, count in plan.num_reused_tokens_by_module.items())


@cache
def changing_model() -> Model:
    made = Model(adapted("french"))
    check_linking(made)
    return made
