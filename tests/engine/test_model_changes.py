"""An engine serves the model as it was when the engine was made, and refuses another one before anything is computed or kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from peft.utils.hotswap import hotswap_adapter_from_state_dict
from transformers import DynamicCache, LlamaForCausalLM, LlamaModel

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


def layers_of(hf: Any) -> list[Any]:
    """Return the layers with adapters."""
    return [each for each in hf.modules() if hasattr(each, "lora_A")]


def scale(factor: float) -> Change:
    """Return a change to an adapter with another scale."""

    def change(hf: Any) -> None:
        activate("french")(hf)
        for layer in layers_of(hf):
            layer.set_scale("french", factor)

    return change


def merge(hf: Any) -> None:
    """Merge an adapter into the weights."""
    activate("french")(hf)
    for layer in layers_of(hf):
        layer.merge()


def hook_inputs(hf: Any) -> None:
    """Multiply what a layer gets."""
    hf.model.layers[1].mlp.register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))


def patch_forward(hf: Any) -> None:
    """Replace the `forward` of one module."""
    module = hf.model.layers[0].mlp
    original = module.forward
    module.forward = lambda *args, **kwargs: original(*args, **kwargs) * 1.5


def change_buffer(hf: Any) -> None:
    """Change a buffer that no file of weights has."""
    hf.model.rotary_emb.inv_freq.mul_(1.5)


def train(hf: Any) -> None:
    """Write to a weight."""
    with torch.no_grad():
        hf.model.layers[0].self_attn.k_proj.weight.mul_(1.5)


CHANGES: dict[str, Change] = {
    "all adapters disabled": lambda hf: None,
    "french": activate("french"),
    "german": activate("german"),
    "both": lambda hf: (hf.enable_adapters(), hf.set_adapter(["french", "german"])),
    "french at half": scale(0.5),
    "french merged": merge,
    "hook": hook(1.5),
    "another hook": hook(1.25),
    "hook before": hook_inputs,
    "forward": patch_forward,
    "buffer": change_buffer,
    "weights": train,
    "dtype": lambda hf: hf.float(),
}
OWN_CODE = ("hook", "another hook", "hook before", "forward")


def changed(change: Change, store: Any = None) -> Engine:
    """Return a fresh engine over a changed model with two adapters."""
    hf = adapted("french", "german")
    change(hf)
    return engine(hf, store)


def check_alone(found: Engine, alone: Engine, *, history: bool = True) -> None:
    """Compare answers in every form with those of an engine that has seen nothing else."""
    expected = alone.generate(PROMPT, **GREEDY)
    assert (found.logits(PROMPT) - alone.logits(PROMPT)).abs().max() < TOLERANCE
    for _ in range(1 + history):  # the second time from history
        assert found.generate(PROMPT, **GREEDY).token_ids == expected.token_ids
    assert "".join(found.stream(PROMPT, **GREEDY)) == expected.text
    batch = found.generate_batch([PROMPT, PROMPT], **GREEDY)
    assert [each.token_ids for each in batch] == [expected.token_ids] * 2
    scores = [each.score(PROMPT, ["red", "blue"]) for each in (found, alone)]
    assert [each.logprob for each in scores[0]] == pytest.approx([each.logprob for each in scores[1]], abs=TOLERANCE)


@pytest.mark.long
def test_models_in_one_folder_never_share_kv(tmp_path: Path) -> None:
    """Each model of one folder answers as alone. Started again, it encodes nothing, unless it has code of its own."""
    alone = {name: changed(change) for name, change in CHANGES.items()}
    answers = {each.generate(PROMPT, **GREEDY).token_ids for each in alone.values()}
    for name, change in CHANGES.items():
        check_alone(changed(change, tmp_path), alone[name])
    for name, change in CHANGES.items():
        again = changed(change, tmp_path)
        answer = again.generate(PROMPT, **GREEDY)
        assert (answer.usage.num_encoded_tokens > 0) is (name in OWN_CODE)
        assert answer.token_ids == alone[name].generate(PROMPT, **GREEDY).token_ids

    assert len(answers) > len(CHANGES) // 2  # the changes do change answers


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
    "to_dynamic_cache": lambda one: one.to_dynamic_cache(PROMPT),
    "PrefixCache.get": lambda one: PrefixCache(one).get(torch.tensor([[5, 6, 7]])),
    "PrefixCache.build": lambda one: PrefixCache(one).build([[5, 6, 7]]),
    "another engine": lambda one: Engine(one.model, ByteTokenizer()),
}
FOUND: dict[str, str] = {
    **dict.fromkeys(("french", "german", "both", "french at half", "french merged"), "adapters"),
    **dict.fromkeys(("hook", "another hook", "hook before"), "hooks"),
    "forward": "forward functions",
    "buffer": "weights or layers",
}


@pytest.mark.parametrize("name", ["french", "german", "both", "hook", "forward"])
def test_a_model_that_is_changed_back_answers_as_before(name: str) -> None:
    """After the change is undone, an engine encodes nothing, and finds its history."""
    hf = adapted("french", "german")
    mlp = hf.model.layers[0].mlp
    original, one = mlp.forward, engine(hf)
    expected = one.generate(PROMPT, **GREEDY).token_ids
    undo: Any = CHANGES[name](hf)
    with pytest.raises(ModelChanged):
        one.generate(PROMPT, **GREEDY)

    if hasattr(undo, "remove"):
        undo.remove()
    hf.disable_adapters()
    mlp.forward = original
    answer = one.generate(PROMPT, **GREEDY)

    assert answer.token_ids == expected
    assert answer.usage.num_encoded_tokens == 0
    assert answer.usage.num_history_tokens > 0


def test_engines_of_several_adapters_share_a_model(tmp_path: Path) -> None:
    """Each engine answers while its adapter is active, also if adapters are loaded after it was made."""
    hf = adapted("french")
    engines = {}
    for name in ("french", "german"):
        if name not in hf.peft_config:
            add_adapter(hf, name)
        activate(name)(hf)
        engines[name] = engine(hf, tmp_path)
    for name in ("french", "german", "french"):
        activate(name)(hf)
        check_alone(engines[name], changed(activate(name)))
        with pytest.raises(ModelChanged, match="other adapters"):
            engines["german" if name == "french" else "french"].generate(PROMPT, **GREEDY)


def other_french(rank: int) -> Any:
    """Return a model whose adapter "french" has other weights of a rank and the same scale."""
    hf = adapted()
    add_adapter(hf, "french", seed=9, r=rank, lora_alpha=2 * rank)
    return hf


def weights_of(hf: Any) -> dict[str, torch.Tensor]:
    """Return the weights of the adapter "french" by name."""
    return {name: each.detach().clone() for name, each in hf.named_parameters() if ".french." in name}


def copy_weights(hf: Any, other: Any) -> None:
    """Write other weights into those of an adapter."""
    hf.load_state_dict(weights_of(other), strict=False)


def swap_weights(hf: Any, other: Any) -> None:
    """Swap the weights of an adapter as peft does, which leaves no trace in tensors of the same size."""
    hotswap_adapter_from_state_dict(hf, weights_of(other), "french", other.peft_config["french"])


def load_again(hf: Any, other: Any) -> None:
    """Delete an adapter and add one of the same name."""
    hf.delete_adapter("french")
    hf.add_adapter(other.peft_config["french"], adapter_name="french")
    hf.double().eval().load_state_dict(weights_of(other), strict=False)


NEW_WEIGHTS: dict[str, Change] = {
    "copied": lambda hf: copy_weights(hf, other_french(4)),
    "swapped": lambda hf: swap_weights(hf, other_french(4)),
    "swapped for more": lambda hf: swap_weights(hf, other_french(8)),
    "loaded again": lambda hf: load_again(hf, other_french(4)),
    "loaded again with more": lambda hf: load_again(hf, other_french(8)),
    "a weight": train,
    "dtype": lambda hf: hf.float(),
    "attention": lambda hf: hf.set_attn_implementation("eager"),
    "a layer": lambda hf: setattr(hf.model.layers[0], "mlp", copy.deepcopy(hf.model.layers[0].mlp)),
    "a bias": lambda hf: setattr(hf.model.layers[0].mlp.up_proj, "bias", torch.nn.Parameter(torch.ones(1).double())),
}


@pytest.mark.parametrize("name", NEW_WEIGHTS)
def test_new_weights_are_noticed(name: str) -> None:
    """Other weights for the active adapter or the model, of any dtype, and replaced layers are refused."""
    hf = adapted("french")
    activate("french")(hf)
    one = engine(hf)
    one.generate(PROMPT, **GREEDY)
    NEW_WEIGHTS[name](hf)

    with pytest.raises(ModelChanged):
        one.generate(PROMPT, **GREEDY)


def test_inactive_adapters_do_not_count(tmp_path: Path) -> None:
    """An adapter finds the KV that it computed before another adapter was loaded."""
    for names in (("french",), ("german", "french")):
        hf = adapted(*names)
        activate("french")(hf)
        report = engine(hf, tmp_path).warm()[0]
        assert report.num_encoded == (report.num_encodings if len(names) == 1 else 0)


def test_requests_and_hooks_of_other_libraries_change_nothing(tmp_path: Path) -> None:
    """Requests of any kind, transformers' recording hooks and accelerate's device hooks are no change of a model."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module

    hf = adapted()
    one = engine(hf, tmp_path)
    check_alone(one, engine(adapted()))
    hf(torch.tensor([[1, 2]]), output_hidden_states=True)
    hf.train()
    hf.requires_grad_(False)
    hf.eval()
    assert one.generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0
    for module in hf.model.layers:
        add_hook_to_module(module, AlignDevicesHook(execution_device="cpu"))
    assert engine(hf).fingerprint == one.fingerprint
    assert one.generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0
    for module in hf.model.layers:
        remove_hook_from_module(module)
    assert engine(hf).fingerprint == one.fingerprint
    assert one.generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0


def test_hooks_of_the_library_do_not_count() -> None:
    """The hook that places the tokens of own loops is no change of the model."""
    model = Model(adapted())
    assert model.hf.base_model._forward_pre_hooks
    model.hf.base_model._forward_pre_hooks.clear()

    model.check_unchanged()
    assert Model(model.hf).fingerprint == model.fingerprint


@pytest.mark.parametrize("name", OWN_CODE)
def test_no_other_engine_finds_the_kv_of_own_code(name: str) -> None:
    """What a hook or a replaced `forward` computes cannot be read, so each engine has a fingerprint of its own."""
    hf = adapted()
    CHANGES[name](hf)
    one = Model(hf)

    assert one.fingerprint == one.fingerprint != Model(hf).fingerprint


def test_a_model_that_changes_while_it_encodes_stores_no_wrong_kv(tmp_path: Path) -> None:
    """If an adapter is switched between two forward passes of warming, it ends, and all KV is that of one adapter."""
    hf = adapted("french", "german")
    activate("french")(hf)

    def switch(done: int, total: int) -> None:
        if done:
            activate("german")(hf)

    with pytest.raises(ModelChanged):
        engine(hf, tmp_path).warm(progress=switch)
    for name in ("german", "french"):
        check_alone(changed(CHANGES[name], tmp_path), changed(CHANGES[name]))


@pytest.mark.parametrize("number", [1, 2, 6])
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
    one.logits(PROMPT)
    before = kept(one)
    stops = [after_tokens(number, lambda: change(hf))]
    options = {**GREEDY, **({"no_repeat_ngram_size": 3} if way == "processors" else {})}

    with pytest.raises(ModelChanged, match=message):
        answered(one, PROMPT, way, stopping_criteria=stops, **options)
    assert kept(one)[0] == before[0]

    activate("french")(hf.eval())
    check_alone(one, changed(activate("french")))


def test_a_request_that_was_fetched_before_a_change_ends() -> None:
    """A request of a service whose KV was fetched before an adapter was switched ends with the error."""
    hf = adapted("french", "german")
    activate("french")(hf)
    model = Model(hf)
    store = Switching(model.shape)
    one = engine(model, store)
    store.switch = lambda: activate("german")(hf)
    with pytest.raises(ModelChanged):
        answered(one, PROMPT, "service", **GREEDY)


class Switching(Store):
    """A store that calls a function at the end of the next fetch that encodes something."""

    switch: Callable[[], object] | None = None

    def faults(self) -> tuple[str, ...]:
        """Call the function once."""
        switch, self.switch = self.switch, None
        if switch is not None:
            switch()
        return super().faults()


_FIX = "make another engine.*for each adapter"
REFUSED: dict[str, tuple[Change, str]] = {
    **{name: (CHANGES[name], f"LlamaForCausalLM has other {what} than.*{_FIX}") for name, what in FOUND.items()},
    "training": (lambda hf: hf.train(), r"LlamaForCausalLM is in training mode.*model\.eval\(\)"),
    "a layer in training": (lambda hf: hf.model.layers[1].train(), "LlamaForCausalLM.model.layers.1 is in training"),
    "compiled": (lambda hf: hf.compile(backend="eager"), "LlamaForCausalLM is compiled"),
    "a compiled forward": (
        lambda hf: setattr(hf, "forward", torch.compile(hf.forward, backend="eager")),
        "LlamaForCausalLM is compiled",
    ),
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
    """Each request that meets a model in training ends; the service answers later ones."""
    hf = adapted()
    one = engine(hf)
    expected = one.generate(PROMPT, **GREEDY).token_ids
    with one.service() as service:
        for _ in range(4):  # three failed steps in a row would end it
            for stops in ([after_tokens(2, hf.train)], []):
                with pytest.raises(ModelChanged, match="is in training mode"):
                    by_service(service, PROMPT, stopping_criteria=stops, **GREEDY)
            hf.eval()
        assert by_service(service, PROMPT, **GREEDY).token_ids == expected


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
    hit, linked, copied = cache.get(rows), one.link(PROMPT), one.to_dynamic_cache(PROMPT)
    expected = hf(rows).logits[:, -1]
    activate("german")(hf)
    for inputs in (hit.inputs, linked, copied):
        with pytest.raises(ModelChanged, match="other adapters"):
            hf(**inputs)
    activate("french")(hf)
    out = hf(**hit.inputs)
    with torch.no_grad():
        assert (hit.last_logits(out) - expected).abs().max() < TOLERANCE
    activate("german")(hf)
    with pytest.raises(ModelChanged, match="other adapters"):
        cache.update(hit, out)
    assert cache.nbytes == 0
    with pytest.raises(ModelChanged, match="other adapters"):
        cache.add(rows, DynamicCache())

    activate("french")(hf)
    assert cache.update(hit, out) == 6
    assert cache.get(rows).num_cached == (5,)
