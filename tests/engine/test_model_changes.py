"""An engine serves the model as it was when the engine was made, and refuses another one before anything is computed or kept."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from peft.utils.hotswap import hotswap_adapter_from_state_dict
from transformers import LlamaForCausalLM, LlamaModel

from promptcache import Engine, PrefixCache
from promptcache.diagnostics import ModelChanged, UnsupportedModel
from promptcache.kv import Store
from promptcache.model import Model
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.conftest import law_examples
from tests.engine.asking import WAYS, answered, by_service
from tests.engine.changing import (
    GREEDY,
    PROMPT,
    TOLERANCE,
    Change,
    ChangingModel,
    activate,
    adapted,
    add_adapter,
    after_tokens,
    engine,
    hook,
    kept,
)


def of_french(change: Change) -> Change:
    def changed(hf: Any) -> None:
        activate("french")(hf)
        for layer in [each for each in hf.modules() if hasattr(each, "lora_A")]:
            change(layer)

    return changed


def patch_forward(hf: Any) -> None:
    module = hf.model.layers[0].mlp
    original = module.forward
    module.forward = lambda *args, **kwargs: original(*args, **kwargs) * 1.5


def train(hf: Any) -> None:
    with torch.no_grad():
        hf.model.layers[0].self_attn.k_proj.weight.mul_(1.5)


CHANGES: dict[str, Change] = {
    "all adapters disabled": lambda hf: None,
    "french": activate("french"),
    "german": activate("german"),
    "both": lambda hf: (hf.enable_adapters(), hf.set_adapter(["french", "german"])),
    "french at half": of_french(lambda layer: layer.set_scale("french", 0.5)),
    "french merged": of_french(lambda layer: layer.merge()),
    "hook": hook(1.5),
    "another hook": hook(1.25),
    "hook before": lambda hf: hf.model.layers[1].mlp.register_forward_pre_hook(lambda _, args: (args[0] * 1.5,)),
    "forward": patch_forward,
    "buffer": lambda hf: hf.model.rotary_emb.inv_freq.mul_(1.5),
    "weights": train,
    "dtype": lambda hf: hf.float(),
}


def changed(change: Change, store: Any = None) -> Engine:
    hf = adapted("french", "german")
    change(hf)
    return engine(hf, store)


def check_alone(found: Engine, alone: Engine) -> None:
    assert (found.logits(PROMPT) - alone.logits(PROMPT)).abs().max() < TOLERANCE
    expected = alone.generate(PROMPT, **GREEDY).token_ids
    for _ in range(2):
        assert found.generate(PROMPT, **GREEDY).token_ids == expected


OWN_CODE = ("hook", "another hook", "hook before", "forward")


def test_models_in_one_folder_never_share_kv() -> None:
    """A model made again has the same fingerprint, unless it has code of its own, which cannot be read."""
    first, again = ({name: changed(change).fingerprint for name, change in CHANGES.items()} for _ in range(2))

    assert {name for name in CHANGES if first[name] != again[name]} == {*OWN_CODE}
    assert len({*first.values(), *again.values()}) == len(CHANGES) + len(OWN_CODE)


@pytest.mark.law
@pytest.mark.long
def test_any_changes_and_restarts_change_no_answer() -> None:
    """Whatever changes between and during requests, an engine answers as a fresh one alone, or refuses."""
    run_state_machine_as_test(
        ChangingModel, settings=settings(max_examples=law_examples(0.1), stateful_step_count=15, deadline=None)
    )


USES: dict[str, Callable[[Engine], object]] = {
    **{way: lambda one, way=way: answered(one, PROMPT, way, **GREEDY) for way in WAYS},
    "processors": lambda one: one.generate(PROMPT, no_repeat_ngram_size=3, **GREEDY),
    "a chat without modules": lambda one: one.generate([{"role": "user", "content": "hi"}], **GREEDY),
    "warm": lambda one: one.warm(),
    "logits": lambda one: one.logits(PROMPT),
    "reference": lambda one: one.reference(PROMPT),
    "score": lambda one: one.score(PROMPT, ["a", "b"]),
    "promote": lambda one: one.promote(PROMPT),
    "audit": lambda one: one.audit(PROMPT),
    "link": lambda one: one.link(PROMPT),
    "PrefixCache.get": lambda one: PrefixCache(one).get(torch.tensor([[5, 6, 7]])),
    "PrefixCache.build": lambda one: PrefixCache(one).build([[5, 6, 7]]),
    "another engine": lambda one: Engine(one.model, ByteTokenizer()),
}
FOUND = {"french": "adapters", "hook": "hooks", "forward": "forward functions", "buffer": "weights or layers"}


def with_weights(rank: int, change: Callable[[Any, Any, dict[str, torch.Tensor]], object]) -> Change:
    """Return a change that is given a model whose adapter "french" has other weights of a rank, and the weights."""
    other = adapted()
    add_adapter(other, "french", seed=9, r=rank, lora_alpha=2 * rank)
    weights = {name: each.detach().clone() for name, each in other.named_parameters() if ".french." in name}
    return lambda hf: change(hf, other.peft_config["french"], weights)


def copied(hf: Any, _: Any, weights: dict[str, torch.Tensor]) -> None:
    hf.load_state_dict(weights, strict=False)


def swapped(hf: Any, config: Any, weights: dict[str, torch.Tensor]) -> None:
    """Swap the weights of the adapter as peft does, which leaves no trace in tensors of the same size."""
    hotswap_adapter_from_state_dict(hf, weights, "french", config)


def loaded_again(hf: Any, config: Any, weights: dict[str, torch.Tensor]) -> None:
    hf.delete_adapter("french")
    hf.add_adapter(config, adapter_name="french")
    hf.double().eval().load_state_dict(weights, strict=False)


NEW_WEIGHTS: dict[str, Change] = {
    "copied": with_weights(4, copied),
    "swapped": with_weights(4, swapped),
    "swapped for more": with_weights(8, swapped),
    "loaded again": with_weights(4, loaded_again),
    "loaded again with more": with_weights(8, loaded_again),
    "a weight": train,
    "dtype": lambda hf: hf.float(),
    "attention": lambda hf: hf.set_attn_implementation("eager"),
    "a layer": lambda hf: setattr(hf.model.layers[0], "mlp", copy.deepcopy(hf.model.layers[0].mlp)),
    "a bias": lambda hf: setattr(hf.model.layers[0].mlp.up_proj, "bias", torch.nn.Parameter(torch.ones(1).double())),
}


@pytest.mark.parametrize("name", NEW_WEIGHTS)
def test_new_weights_are_noticed(name: str) -> None:
    hf = adapted("french")
    activate("french")(hf)
    one = engine(hf)
    NEW_WEIGHTS[name](hf)

    with pytest.raises(ModelChanged):
        one.generate(PROMPT, **GREEDY)


def test_requests_and_hooks_of_other_libraries_change_nothing() -> None:
    """Requests of any kind, hooks of transformers and of this library, of accelerate, and inactive adapters are no change."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module

    hf = adapted("french")
    activate("french")(hf)
    one = engine(hf)
    check_alone(one, changed(activate("french")))
    hf(torch.tensor([[1, 2]]), output_hidden_states=True)
    hf.train()
    hf.requires_grad_(False)
    hf.eval()
    add_adapter(hf, "german")
    activate("french")(hf)
    for change in (lambda _: None, partial(add_hook_to_module, hook=AlignDevicesHook("cpu")), remove_hook_from_module):
        for module in hf.model.layers:
            change(module)
        assert one.generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0
        assert engine(hf).fingerprint == one.fingerprint
    assert hf.base_model._forward_pre_hooks  # it places the tokens of own loops


def test_a_model_that_changes_while_it_encodes_stores_no_wrong_kv(tmp_path: Path) -> None:
    """If an adapter is switched between two forward passes of warming, it ends, and all KV is that of one adapter."""
    hf = adapted("french", "german")
    activate("french")(hf)
    with pytest.raises(ModelChanged):
        engine(hf, tmp_path).warm(progress=lambda done, _: activate("german")(hf) if done else None)
    for name in ("german", "french"):
        check_alone(changed(CHANGES[name], tmp_path), changed(CHANGES[name]))


@pytest.mark.parametrize("number", [1, 6])
@pytest.mark.parametrize("way", [*WAYS, "processors"])
@pytest.mark.parametrize(
    ("change", "message"), [(activate("german"), "other adapters"), (lambda hf: hf.train(), "in training mode")]
)
def test_an_answer_ends_if_the_model_changes(change: Change, message: str, way: str, number: int) -> None:
    """If a model is changed during an answer, also at its last token, it ends with the error, and nothing is kept."""
    hf = adapted("french", "german")
    activate("french")(hf)
    one = engine(hf)
    one.warm()
    before = kept(one)[0]
    stops = [after_tokens(number, lambda: change(hf))]
    options = {**GREEDY, **({"no_repeat_ngram_size": 3} if way == "processors" else {})}

    with pytest.raises(ModelChanged, match=message):
        answered(one, PROMPT, way, stopping_criteria=stops, **options)
    assert kept(one)[0] == before

    activate("french")(hf.eval())
    check_alone(one, changed(activate("french")))


def test_a_request_that_was_fetched_before_a_change_ends() -> None:
    hf = adapted("french", "german")
    activate("french")(hf)
    model = Model(hf)
    store = Switching(model.shape)
    one = engine(model, store)
    store.switch = lambda: activate("german")(hf)
    with pytest.raises(ModelChanged):
        answered(one, PROMPT, "service", **GREEDY)


class Switching(Store):
    """A store that calls a function at the end of each fetch that encodes something."""

    switch: Callable[[], object] = staticmethod(int)

    def faults(self) -> tuple[str, ...]:
        self.switch()
        return super().faults()


_FIX = "make another engine.*for each adapter"
REFUSED: dict[str, tuple[Change, str]] = {
    **{name: (CHANGES[name], f"LlamaForCausalLM has other {what} than.*{_FIX}") for name, what in FOUND.items()},
    "training": (lambda hf: hf.train(), r"LlamaForCausalLM is in training mode.*model\.eval\(\)"),
    "a layer in training": (lambda hf: hf.model.layers[1].train(), "LlamaForCausalLM.model.layers.1 is in training"),
    "compiled": (lambda hf: hf.compile(backend="eager"), "LlamaForCausalLM is compiled"),
    "a compiled part": (lambda hf: setattr(hf, "model", torch.compile(hf.model, backend="eager")), "model is compiled"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_changed_model_is_refused(name: str, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use of an engine says what has changed and what to do. Nothing is computed or kept."""
    hf = adapted("french", "german")
    one = engine(hf)
    expected = one.logits(PROMPT)
    before = kept(one)
    change, message = REFUSED[name]
    change(hf)

    with monkeypatch.context() as patched:
        patched.setattr(LlamaForCausalLM, "__call__", None)
        patched.setattr(LlamaModel, "__call__", None)
        with pytest.raises(ModelChanged, match=message):
            USES[use](one)
    assert kept(one) == before
    if "training" in name:
        hf.eval()
        assert torch.equal(one.logits(PROMPT), expected)
        assert USES[use](one) is not None


def test_a_service_goes_on_after_requests_to_a_model_in_training() -> None:
    hf = adapted()
    one = engine(hf)
    with one.service() as service:
        for _ in range(4):  # three failed steps in a row would end it
            for stops in ([after_tokens(2, hf.train)], []):
                with pytest.raises(ModelChanged, match="is in training mode"):
                    by_service(service, PROMPT, stopping_criteria=stops, **GREEDY)
            hf.eval()
        assert by_service(service, PROMPT, **GREEDY).token_ids == one.generate(PROMPT, **GREEDY).token_ids


@pytest.mark.slow
def test_a_compiled_wrapper_of_the_model_is_refused_in_a_loop() -> None:
    """The error says what to call, in place of one of the compiler."""
    hf = adapted()
    linked = engine(hf).link(PROMPT)
    compiled = torch.compile(hf, backend="eager")
    with torch.no_grad(), pytest.raises(UnsupportedModel, match="LlamaModel is compiled"):
        compiled(**linked)


def test_prefixes_and_linked_prompts_refuse_a_changed_model() -> None:
    """Inputs that were made under one adapter are refused under another one, and no KV of it is kept."""
    hf = adapted("french", "german")
    activate("french")(hf)
    one = engine(hf)
    cache, rows = PrefixCache(one), torch.tensor([[5, 6, 7, 8, 9, 10]])
    hit, linked = cache.get(rows), one.link(PROMPT)
    expected = hf(rows).logits[:, -1]
    with torch.no_grad():
        out = hf(**hit.inputs)
    activate("german")(hf)
    for use in (*(partial(hf, **inputs) for inputs in (hit.inputs, linked)), partial(cache.update, hit, out)):
        with pytest.raises(ModelChanged, match="other adapters"):
            use()
    assert cache.nbytes == 0

    activate("french")(hf)
    assert (hit.last_logits(out) - expected).abs().max() < TOLERANCE
    assert cache.update(hit, out) == 6
    assert cache.get(rows).num_cached == (5,)
