"""Tiny models with adapters and hooks, and a machine that changes one between and during requests."""

import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from peft import LoraConfig

from promptcache import Completion, Engine
from promptcache.diagnostics import ModelChanged
from promptcache.testing.tiny_model import tiny_model
from tests.engine.asking import engine_of

SCHEMA = """<schema name="t">Root. <module name="a">The house is red and old.</module>
<module name="b">Its <parameter name="p" length="6"/> is open.</module></schema>"""
PROMPT = '<prompt schema="t"><a/><b p="door"/> hi</prompt>'
PROMPTS = (PROMPT, '<prompt schema="t"><a/> hi you</prompt>', '<prompt schema="t"><b p="gate"/> hi</prompt>')
CHAT = '<prompt schema="t"><a/></prompt>'
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6}
TOLERANCE = 1e-9

_numbers = count()

Change = Callable[[Any], object]


def adapted(*names: str) -> Any:
    """Return a tiny model with adapters, always with the same weights, none of them active."""
    hf = tiny_model().hf
    for name in names:
        add_adapter(hf, name)
    if names:
        hf.disable_adapters()
    return hf


def add_adapter(hf: Any, name: str, seed: int | None = None, **settings: int) -> None:
    """Add an adapter and make it active. Its weights are always those of its name, or of a seed."""
    config = LoraConfig(**{"r": 4, **settings}, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # there are several adapters
        torch.manual_seed(ord(name[0]) if seed is None else seed)
        hf.add_adapter(config, adapter_name=name)
    hf.double().eval()


def activate(name: str) -> Change:
    def change(hf: Any) -> None:
        hf.enable_adapters()
        hf.set_adapter(name)

    return change


@cache
def scaling(factor: float) -> Callable[..., torch.Tensor]:
    """Return a hook that multiplies an output, always the same object."""
    return lambda module, args, output: output * factor


def hook(factor: float) -> Change:
    """Return a change that multiplies the values of the first layer."""
    return lambda hf: hf.model.layers[0].self_attn.v_proj.register_forward_hook(scaling(factor))


def after_tokens(number: int, action: Callable[[], object]) -> Any:
    """Return a stopping criterion that stops nothing, and calls a function once, after a number of tokens."""
    calls: list[int] = []

    def criterion(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == number:
            action()
        return torch.zeros(len(input_ids), dtype=torch.bool)

    return criterion


def engine(hf: Any, store: Any = None) -> Engine:
    return engine_of(hf, schema=SCHEMA, store=store)


STATES: dict[str, Change] = {
    "none": lambda hf: None,
    "french": activate("french"),
    "german": activate("german"),
    "hook": hook(1.5),
    "another hook": hook(0.5),
}


class ChangingModel(RuleBasedStateMachine):
    """Engines over one model and folder, each made in a state of the model: in others it refuses, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.hf = adapted("french", "german")
        self.hooks: Any = None
        self.state = "none"
        self.engines: dict[str, Engine] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule()
    def restart(self) -> None:
        self.engines.clear()

    def change(self, state: str) -> None:
        if self.hooks is not None:
            self.hooks.remove()
        self.hf.disable_adapters()
        self.hooks, self.state = STATES[state](self.hf), state

    def engine_of(self, state: str) -> Engine:
        """Return the engine that was made in a state. The model is in it afterwards."""
        self.change(state)
        if state not in self.engines:
            self.engines[state] = engine(self.hf, self.folder)
        return self.engines[state]

    @rule(state=st.sampled_from([*STATES]))
    def ask(self, state: str) -> None:
        one = self.engine_of(state)
        for prompt in PROMPTS:
            check_equal(one.generate(prompt, logprobs=0, **GREEDY), _answer(state, prompt))
            assert (one.logits(prompt) - _logits(state, prompt)).abs().max() < TOLERANCE

    @rule(state=st.sampled_from([*STATES]), other=st.sampled_from([*STATES]))
    def ask_in_another_state(self, state: str, other: str) -> None:
        one = self.engine_of(state)
        self.change(other)
        if other != state:
            before = kept(one)
            for prompt in PROMPTS:
                assert is_refused(lambda prompt=prompt: one.generate(prompt, **GREEDY))
            assert kept(one) == before

    @rule(state=st.sampled_from([*STATES]), other=st.sampled_from([*STATES]))
    def change_while_answering(self, state: str, other: str) -> None:
        one = self.engine_of(state)
        chat = one.chat(CHAT)
        stops = [after_tokens(2, lambda: self.change(other))]
        before = kept(one)[0]
        assert is_refused(lambda: chat.say("hi", stopping_criteria=stops, **GREEDY)) is (other != state)
        assert other == state or kept(one)[0] == before
        self.change(state)
        found = one.chat(CHAT).say("hi", logprobs=0, **GREEDY)
        alone = _alone(state).chat(CHAT, salt=f"without history {next(_numbers)}")
        check_equal(found, alone.say("hi", logprobs=0, **GREEDY))


def is_refused(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except ModelChanged:
        return True
    return False


def kept(one: Engine) -> tuple[int, frozenset[str]]:
    return one._executor.history.nbytes if one._executor.history is not None else 0, frozenset(one.store.keys())


def answer_alone() -> None:
    """Compute all answers that the machine expects, before a fault is planted."""
    for state in STATES:
        for prompt in PROMPTS:
            _answer(state, prompt)
            _logits(state, prompt)


@cache
def _alone(state: str) -> Engine:
    hf = adapted("french", "german")
    STATES[state](hf)
    return engine(hf)


@cache
def _answer(state: str, prompt: str) -> Completion:
    return _alone(state).generate(prompt, logprobs=0, **GREEDY)


def check_equal(found: Completion, expected: Completion) -> None:
    assert found.token_ids == expected.token_ids
    assert found.logprobs is not None
    assert expected.logprobs is not None
    for each, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert abs(each.logprob - other.logprob) < TOLERANCE


@cache
def _logits(state: str, prompt: str) -> torch.Tensor:
    return _alone(state).logits(prompt)
