"""KV belongs to the state of the model that computed it: an answer is that of a fresh engine alone, after any change."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from peft import LoraConfig
from peft.utils.hotswap import hotswap_adapter_from_state_dict
from transformers.models.llama import modeling_llama

from promptcache import Engine, PrefixCache
from promptcache.diagnostics import UnsupportedModel
from promptcache.kv import MemoryStore, StoreConfig
from promptcache.runtime import Model
from promptcache.runtime.hf import fingerprint
from promptcache.runtime.hf.additions import additions
from tests.conftest import law_examples
from tests.engine.changing import (
    CHAT,
    GREEDY,
    PROMPT,
    SCHEMA,
    TOLERANCE,
    Change,
    ChangingModel,
    activate,
    adapted,
    after_tokens,
    engine,
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


def hook_values(factor: float) -> Change:
    """Return a change that multiplies the values of the first layer."""
    return lambda hf: hf.model.layers[0].self_attn.v_proj.register_forward_hook(
        lambda module, args, output: output * factor
    )


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


CHANGES: dict[str, Change] = {
    "all adapters disabled": lambda hf: None,
    "french": activate("french"),
    "german": activate("german"),
    "both": lambda hf: (hf.enable_adapters(), hf.set_adapter(["french", "german"])),
    "french at half": scale(0.5),
    "french merged": merge,
    "hook": hook_values(1.5),
    "another hook": hook_values(1.25),
    "hook before": hook_inputs,
    "forward": patch_forward,
    "buffer": change_buffer,
}


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
    """Each model of one folder answers as alone, and encodes nothing when it is started again."""
    alone = {name: changed(change) for name, change in CHANGES.items()}
    answers = {each.generate(PROMPT, **GREEDY).token_ids for each in alone.values()}
    for name, change in CHANGES.items():
        check_alone(changed(change, tmp_path), alone[name])
    for name, change in CHANGES.items():
        again = changed(change, tmp_path)
        answer = again.generate(PROMPT, **GREEDY)
        assert answer.usage.num_encoded_tokens == 0, name
        assert answer.token_ids == alone[name].generate(PROMPT, **GREEDY).token_ids

    assert len(answers) > len(CHANGES) // 2  # the changes do change answers


def test_one_engine_follows_its_model() -> None:
    """After each change of the model between two requests, one engine answers as a fresh one alone."""
    hf = adapted("french", "german")
    one = engine(hf)
    remove: Any = None
    for name, change in CHANGES.items():
        if name in ("french merged", "forward", "buffer"):
            continue  # they stay, and have tests of their own
        scale(1.0)(hf)
        hf.disable_adapters()
        remove = change(hf)
        check_alone(one, changed(change))
        if hasattr(remove, "remove"):
            remove.remove()
        for module in (hf.model.layers[1].mlp,):
            module._forward_pre_hooks.clear()

    check_alone(one, changed(CHANGES["all adapters disabled"]))


@pytest.mark.law
@pytest.mark.long
def test_any_changes_and_restarts_change_no_answer() -> None:
    """Whatever changes between and during requests, answers are those of a fresh engine alone."""
    run_state_machine_as_test(
        ChangingModel, settings=settings(max_examples=law_examples(0.1), stateful_step_count=15, deadline=None)
    )


@pytest.mark.parametrize("name", ["french merged", "forward", "buffer"])
def test_changes_that_stay_are_noticed(name: str) -> None:
    """A merged adapter, a replaced `forward` and a written buffer are noticed between two requests."""
    hf = adapted("french", "german")
    one = engine(hf)
    one.generate(PROMPT, **GREEDY)
    CHANGES[name](hf)

    check_alone(one, changed(CHANGES[name]))


def test_a_state_that_returns_finds_its_kv_and_history() -> None:
    """An engine whose adapters are switched back encodes nothing, and finds its history again."""
    hf = adapted("french", "german")
    one = engine(hf)
    for name in ("french", "german"):
        activate(name)(hf)
        one.generate(PROMPT, **GREEDY)
    for name in ("french", "german", "french"):
        activate(name)(hf)
        usage = one.generate(PROMPT, **GREEDY).usage
        assert usage.num_encoded_tokens == 0
        assert usage.num_history_tokens > 0


def other_french(rank: int) -> Any:
    """Return a model whose adapter "french" has other weights of a rank and the same scale."""
    hf = adapted()
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(9)
    hf.add_adapter(config, adapter_name="french")
    return hf.double().eval()


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


@pytest.mark.parametrize(
    ("load", "rank"), [(copy_weights, 4), (swap_weights, 4), (swap_weights, 8), (load_again, 4), (load_again, 8)]
)
def test_new_weights_of_the_same_name_are_noticed(load: Callable[[Any, Any], None], rank: int) -> None:
    """Other weights for an adapter, loaded between two requests, give the answer of a fresh engine with them."""
    hf = adapted("french")
    activate("french")(hf)
    one = engine(hf)
    before = one.generate(PROMPT, **GREEDY)
    load(hf, other_french(rank))
    alone = engine(other_french(rank))

    check_alone(one, alone)
    assert before.token_ids != alone.generate(PROMPT, **GREEDY).token_ids
    assert one.fingerprint == alone.fingerprint


def test_inactive_adapters_do_not_count(tmp_path: Path) -> None:
    """An adapter finds the KV that it computed before another adapter was loaded."""
    for names in (("french",), ("german", "french")):
        hf = adapted(*names)
        activate("french")(hf)
        report = engine(hf, tmp_path).warm()[0]
        assert report.num_encoded == (report.num_encodings if len(names) == 1 else 0)


def test_trained_weights_are_noticed() -> None:
    """A weight that is written to between two requests gives the answer of a fresh engine."""
    hf = adapted()
    one = engine(hf)
    one.generate(PROMPT, **GREEDY)

    def train(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)

    train(hf)
    fresh = adapted()
    train(fresh)
    check_alone(one, engine(fresh))


def test_requests_and_hooks_of_other_libraries_change_nothing(tmp_path: Path) -> None:
    """Requests of any kind, transformers' recording hooks and accelerate's device hooks keep state and fingerprint."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module

    hf = adapted()
    one = engine(hf, tmp_path)
    state, fingerprint = one.model.state, one.fingerprint
    check_alone(one, engine(adapted()))
    hf(torch.tensor([[1, 2]]), output_hidden_states=True)
    hf.train()
    hf.requires_grad_(False)
    hf.eval()
    assert one.model.state == state
    for module in hf.model.layers:
        add_hook_to_module(module, AlignDevicesHook(execution_device="cpu"))
    assert one.fingerprint == fingerprint
    assert one.generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0
    for module in hf.model.layers:
        remove_hook_from_module(module)
    assert one.fingerprint == fingerprint


def test_hooks_of_the_library_do_not_count() -> None:
    """The hook that places the tokens of own loops is no change of the model."""
    model = Model(adapted())
    state, fingerprint = model.state, model.fingerprint
    assert model.hf.base_model._forward_pre_hooks
    model.hf.base_model._forward_pre_hooks.clear()

    assert (model.state, model.fingerprint) == (state, fingerprint)
    assert "hooks" not in additions(Model(adapted()).hf)


SCRIPT = """
from tests.engine.test_model_changes import CHANGES, changed
print(*(changed(CHANGES[name]).fingerprint for name in ("french", "hook", "another hook", "forward")))
"""


@pytest.mark.slow
@pytest.mark.process
def test_fingerprints_of_changed_models_are_the_same_in_every_process() -> None:
    """Functions are identified by their code and constants, which do not depend on the process."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split()

    assert printed == [changed(CHANGES[name]).fingerprint for name in ("french", "hook", "another hook", "forward")]
    assert len({*printed}) == 4


@pytest.fixture
def rotate() -> Iterator[Callable[[], None]]:
    """Yield a function that replaces a function which all models of this kind call. Nothing of it can be read."""
    with pytest.MonkeyPatch.context() as patch:
        original = modeling_llama.apply_rotary_pos_emb

        def rotated(q: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
            q, k = original(q, k, *args, **kwargs)
            return q, k * 1.05

        yield lambda: patch.setattr(modeling_llama, "apply_rotary_pos_emb", rotated)


def test_what_cannot_be_read_shows_in_the_signature(tmp_path: Path, rotate: Callable[[], None]) -> None:
    """A model that computes other KV under the same fingerprint has keys of its own, and finds its KV again."""
    first = engine(adapted(), tmp_path)
    first.warm()
    rotate()
    alone = engine(adapted())
    second = engine(adapted(), tmp_path)

    assert second.fingerprint == first.fingerprint
    assert not {*second.keys("t")} & {*first.keys("t")}
    check_alone(second, alone)
    assert engine(adapted(), tmp_path).generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0


def rounded(hf: Any, error: float) -> Any:
    """Return a model as another processor computes it: with an error that no description of the model has."""
    original = hf.model.layers[0].self_attn.k_proj.forward
    errors = [error]
    hf.model.layers[0].self_attn.k_proj.forward = lambda states: original(states) * (1 + errors[0])
    return hf


def test_signatures_agree_within_rounding(tmp_path: Path) -> None:
    """A model whose KV differs by rounding finds the KV in a folder; with a larger difference it does not."""
    engine(rounded(adapted(), 0.0), tmp_path).warm()

    assert engine(rounded(adapted(), 1e-8), tmp_path).warm()[0].num_encoded == 0
    assert engine(rounded(adapted(), 1e-4), tmp_path).warm()[0].num_encoded > 0


def test_merged_stores_of_two_processors_are_both_used(tmp_path: Path) -> None:
    """KV that one model computed on two processors is found after their folders were merged."""
    first, second = (engine(rounded(adapted(), error), tmp_path / str(error)) for error in (0.0, 1e-8))
    first.warm()
    second.add_schema(SCHEMA.replace("red", "blue"))
    second.warm()
    assert {*first.keys("t")} & {*second.keys("t")} == set()
    for path in (tmp_path / "1e-08").rglob("*.safetensors"):
        path.rename(tmp_path / "0.0" / path.relative_to(tmp_path / "1e-08"))
    merged = engine(rounded(adapted(), 0.0), tmp_path / "0.0")
    reports = [merged.warm()[0]]
    merged.add_schema(SCHEMA.replace("red", "blue"))
    reports += merged.warm()

    assert [each.num_encoded for each in reports] == [0, 0]


def test_a_model_that_changes_while_it_encodes_stores_no_wrong_kv(tmp_path: Path) -> None:
    """If an adapter is switched between two forward passes of warming, all KV is that of one adapter."""
    hf = adapted("french", "german")
    activate("french")(hf)
    one = engine(hf, tmp_path)

    def switch(done: int, total: int) -> None:
        if done:
            activate("german")(hf)

    one.warm(progress=switch)
    assert one.logits(PROMPT) is not None

    for name in ("german", "french"):
        check_alone(changed(CHANGES[name], tmp_path), changed(CHANGES[name]))


def test_a_model_that_changes_while_it_answers_keeps_no_history(tmp_path: Path) -> None:
    """If an adapter is switched during an answer and back, the conversation goes on as without history."""
    hf = adapted("french", "german")
    activate("french")(hf)
    chat = engine(hf).chat(CHAT)
    chat.say("hi", stopping_criteria=[after_tokens(2, lambda: activate("german")(hf))], **GREEDY)
    activate("french")(hf)
    chat.save(tmp_path / "chat.json")
    expected = changed(activate("french")).load_chat(tmp_path / "chat.json").say("and", **GREEDY)

    assert chat.say("and", **GREEDY).token_ids == expected.token_ids


def test_chats_and_saved_chats_follow(tmp_path: Path) -> None:
    """A chat that was saved under one adapter answers with the adapter that is active."""
    hf = adapted("french", "german")
    one = engine(hf)
    chats = {}
    for name in ("french", "german"):
        activate(name)(hf)
        chats[name] = one.chat(CHAT)
        chats[name].say("hi", **GREEDY)
    for name in ("german", "french"):
        activate(name)(hf)
        chats[name].save(tmp_path / "saved.json")
        for loader in ("german", "french"):
            alone = changed(activate(loader))
            expected = changed(activate(loader)).load_chat(tmp_path / "saved.json")
            found = alone.load_chat(tmp_path / "saved.json")
            assert found.say("and now?", **GREEDY).token_ids == expected.say("and now?", **GREEDY).token_ids


def test_a_service_follows() -> None:
    """A service answers with the adapter that is active when a request is computed."""
    hf = adapted("french", "german")
    one = engine(hf)
    service = one.service()
    try:
        for name in ("french", "german", "french"):
            activate(name)(hf)
            expected = changed(activate(name)).generate(PROMPT, **GREEDY).token_ids
            for _ in range(2):
                assert answered(service, PROMPT) == expected
    finally:
        service.close()


class Switching(MemoryStore):
    """A store that calls a function at the end of the next fetch that encodes something."""

    switch: Callable[[], object] | None = None

    def faults(self) -> tuple[str, ...]:
        """Call the function once."""
        switch, self.switch = self.switch, None
        if switch is not None:
            switch()
        return super().faults()


def test_a_service_fetches_again_after_a_change() -> None:
    """A request of a service whose KV was fetched before an adapter was switched gets KV of the new one."""
    hf = adapted("french", "german")
    activate("french")(hf)
    model = Model(hf)
    store = Switching(model.shape)
    one = engine(model, store)
    store.switch = lambda: activate("german")(hf)
    service = one.service()
    try:
        assert answered(service, PROMPT) == changed(activate("german")).generate(PROMPT, **GREEDY).token_ids
    finally:
        service.close()


def answered(service: Any, prompt: str) -> tuple[int, ...]:
    """Return the tokens of an answer of a service."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    service.submit(prompt, results.put, **GREEDY)
    while isinstance(item := results.get(timeout=60), int):
        pass
    if isinstance(item, BaseException):
        raise item
    token_ids: tuple[int, ...] = item.token_ids
    return token_ids


USES: dict[str, Callable[[Engine], object]] = {
    "generate": lambda one: one.generate(PROMPT, **GREEDY),
    "generate_batch": lambda one: one.generate_batch([PROMPT], **GREEDY),
    "stream": lambda one: list(one.stream(PROMPT, **GREEDY)),
    "a chat without modules": lambda one: one.generate([{"role": "user", "content": "hi"}], **GREEDY),
    "service": lambda one: answered(one.service(), PROMPT),
    "warm": lambda one: one.warm(),
    "logits": lambda one: one.logits(PROMPT),
    "reference": lambda one: one.reference(PROMPT),
    "score": lambda one: one.score(PROMPT, ["a", "b"]),
    "link": lambda one: one.link(PROMPT),
    "to_dynamic_cache": lambda one: one.to_dynamic_cache(PROMPT),
    "PrefixCache": lambda one: PrefixCache(one).get(torch.tensor([[5, 6, 7]])),
}
UNUSABLE: dict[str, tuple[Change, str]] = {
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
@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_model_in_training_or_compiled_is_refused(kind: str, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use says so before anything is computed, and a model that is in evaluation again gives the old answers."""
    hf = adapted()
    one = engine(hf)
    expected = one.logits(PROMPT)
    change, message = UNUSABLE[kind]
    change(hf)
    with monkeypatch.context() as patched:
        patched.setattr(Model, "forward", None)
        patched.setattr(Model, "encode", None)
        with pytest.raises(UnsupportedModel, match=message):
            USES[use](one)
    if "training" in kind:
        hf.eval()
        assert torch.equal(one.logits(PROMPT), expected)
        assert USES[use](one) is not None


def with_dropout() -> Any:
    """Return a tiny model that computes other numbers in training mode."""
    hf = adapted()
    hf.model.layers[0].mlp = torch.nn.Sequential(hf.model.layers[0].mlp, torch.nn.Dropout(0.9))
    return hf


def test_what_is_computed_in_training_is_not_kept(tmp_path: Path) -> None:
    """If a model is trained during an answer, the conversation goes on as without history."""
    hf = with_dropout()
    chat = engine(hf).chat(CHAT)
    chat.say("hi", stopping_criteria=[after_tokens(2, hf.train)], **GREEDY)
    hf.eval()
    chat.save(tmp_path / "chat.json")
    expected = engine(with_dropout()).load_chat(tmp_path / "chat.json").say("and", logprobs=1, **GREEDY)

    found = chat.say("and", logprobs=1, **GREEDY)
    assert found.logprobs is not None
    assert expected.logprobs is not None
    for one, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=TOLERANCE)


def test_a_service_goes_on_after_requests_to_a_model_in_training() -> None:
    """Each request that meets a model in training ends; the service answers later ones."""
    hf = adapted()
    one = engine(hf)
    expected = one.generate(PROMPT, **GREEDY).token_ids
    with one.service() as service:
        for _ in range(4):  # three failed steps in a row would end it
            results: queue.SimpleQueue[Any] = queue.SimpleQueue()
            service.submit(PROMPT, results.put, stopping_criteria=[after_tokens(2, hf.train)], **GREEDY)
            while isinstance(results.get(timeout=60), int):
                pass
            with pytest.raises(UnsupportedModel, match="is in training mode"):
                answered(service, PROMPT)
            hf.eval()
        assert answered(service, PROMPT) == expected


@pytest.mark.slow
def test_a_compiled_wrapper_of_the_model_is_refused_in_a_loop() -> None:
    """The error says what to call, in place of one of the compiler."""
    hf = adapted()
    linked = engine(hf).link(PROMPT)
    compiled = torch.compile(hf, backend="eager")
    with torch.no_grad(), pytest.raises(UnsupportedModel, match="LlamaModel is compiled"):
        compiled(**linked)


def test_prefixes_follow() -> None:
    """A prefix cache does not use prefixes of another adapter, and does not keep those of a changed model."""
    hf = adapted("french", "german")
    one = engine(hf)
    cache = PrefixCache(one)
    rows = torch.tensor([[5, 6, 7, 8, 9, 10]])
    for name, known in (("french", 0), ("german", 0), ("french", 5)):
        activate(name)(hf)
        hit = cache.get(rows)
        assert hit.num_cached == (known,)
        out = hf(**hit.inputs)
        with torch.no_grad():
            assert (hit.last_logits(out) - hf(rows).logits[:, -1]).abs().max() < TOLERANCE
        cache.update(hit, out)
    hit = cache.get(torch.tensor([[1, 2, 3]]))
    out = hf(**hit.inputs)
    activate("german")(hf)

    assert cache.update(hit, out) == 0


def test_small_segments_are_not_shared_between_states() -> None:
    """A buffer of copied segments that one state filled serves no other, also while the first one is in use."""
    hf = adapted("french", "german")
    activate("french")(hf)
    one = engine(hf)
    held = one.link(PROMPT)
    activate("german")(hf)

    check_alone(one, changed(activate("german")))
    assert held["past_key_values"] is not None


def test_kv_of_a_removed_schema_is_freed_for_all_states() -> None:
    """Removing a schema frees the KV of every adapter that was used."""
    hf = adapted("french", "german")
    one = engine(hf)
    for name in ("french", "german"):
        activate(name)(hf)
        one.warm()
    assert one.store.nbytes() > 0
    one.remove_schema("t")

    assert one.store.nbytes() == 0


def test_files_name_their_schema_after_a_change(tmp_path: Path) -> None:
    """Files that are written after a change of the model have the facts of their schema, too."""
    hf = adapted("french")
    one = engine(hf, StoreConfig(folder=tmp_path))
    activate("french")(hf)
    one.warm()
    store: Any = one.store
    facts = [store.blob_tiers[0].header(key).facts for key in one.keys("t")]

    assert {each["schema"] for each in facts} == {"t"}


def test_a_model_is_digested_once_for_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another adapter reads its own weights only, not those of the model again."""
    hf = adapted("french", "german")
    model = Model(hf)
    activate("french")(hf)
    _ = model.fingerprint
    read: list[int] = []
    digest: Callable[[torch.Tensor], str] = fingerprint.tensor_digest  # type: ignore[attr-defined] # it is patched here

    def counted(tensor: torch.Tensor) -> str:
        read.append(tensor.nbytes)
        return digest(tensor)

    monkeypatch.setattr(fingerprint, "tensor_digest", counted)
    activate("german")(hf)
    _ = model.fingerprint
    adapter_bytes = sum(each.nbytes for name, each in hf.named_parameters() if ".german." in name)

    assert sum(read) == adapter_bytes
