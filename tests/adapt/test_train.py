"""A training brings modules nearer to plain prefill, continues where it was interrupted, and leaves an adapter."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from promptcache import Engine
from promptcache.adapt import adapt_model
from promptcache.adapt.train import _sources, check_trainable
from promptcache.bench.harness import Progress
from promptcache.diagnostics import InvalidValue, ModelNotFound, NotFinite, UnsupportedModel
from promptcache.language import Sees, check_schema, parse_schema
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.tokenizer import DEMO_FOLDER
from tests.adapt.conftest import NOTES, SCHEMA, new_engine, short


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def stopping(step: int) -> Progress:
    """A progress that interrupts the training before a step, as Ctrl-C does."""

    def show(what: str, done: int, total: int | None) -> None:
        if what.startswith(f"training, step {step}"):
            raise KeyboardInterrupt

    return show


def test_a_training_brings_modules_nearer(engine: Engine, tmp_path: Path) -> None:
    """Answers from modules come nearer to plain prefill on held-out prompts, and the engine's model is as before."""
    before = {name: weight.clone() for name, weight in engine.model.hf.state_dict().items()}
    fingerprint = engine.fingerprint

    report = adapt_model(
        engine, tmp_path / "out", schemas=[SCHEMA], settings=short(24, learning_rate=0.01, num_held_out=6)
    )

    assert report.after.divergence < 0.9 * report.before.divergence
    assert report.before.distance == pytest.approx(1)
    assert report.after.distance < 0.7
    assert (report.num_steps, report.num_lessons, report.before.num_prompts) == (24, 48, 6)
    after = engine.model.hf.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert engine.fingerprint == fingerprint
    assert all(weight.requires_grad for weight in engine.model.hf.parameters())
    assert not engine.schemas
    check_trainable(engine.model)


def test_members_of_collections_are_brought_nearer(engine: Engine, tmp_path: Path) -> None:
    """A schema in which only the members of a collection are modular can be trained for."""
    report = adapt_model(engine, tmp_path, schemas=[NOTES], settings=short(24, learning_rate=0.01, num_held_out=6))

    assert report.after.divergence < 0.9 * report.before.divergence
    assert report.after.distance < 0.7


@pytest.mark.parametrize("step", [3, 6])
def test_an_interrupted_training_continues(tmp_path: Path, step: int) -> None:
    """Interrupted within or between the lessons that are answered together, it ends with the weights of one run."""
    whole = adapt_model(new_engine(), tmp_path / "whole", schemas=[SCHEMA], settings=short(7))
    with pytest.raises(KeyboardInterrupt):
        adapt_model(new_engine(), tmp_path / "out", schemas=[SCHEMA], settings=short(7), progress=stopping(step))
    shown: list[str] = []
    rest = adapt_model(
        new_engine(),
        tmp_path / "out",
        schemas=[SCHEMA],
        settings=short(7),
        progress=lambda what, *_: shown.append(what),
    )

    first = next(each for each in shown if each.startswith("training"))
    assert first == f"training, step {step}, less than 1 min left"
    mine, theirs = weights(tmp_path / "out"), weights(tmp_path / "whole")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (rest.before, rest.after) == (whole.before, whole.after)


def test_adapters_are_trained_in_float32(tmp_path: Path) -> None:
    """Beside weights in bfloat16, the adapter has float32, and comes nearer as well."""
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    engine = Engine(LlamaForCausalLM(LlamaConfig(vocab_size=300, **size)).to(torch.bfloat16), ByteTokenizer())

    report = adapt_model(engine, tmp_path, schemas=[SCHEMA], settings=short(16, learning_rate=0.01))

    assert {weight.dtype for weight in weights(tmp_path).values()} == {torch.float32}
    assert report.after.distance < report.before.distance
    assert {weight.dtype for weight in engine.model.hf.parameters()} == {torch.bfloat16}


def test_a_training_can_be_made_longer(tmp_path: Path) -> None:
    """A second run with more steps goes on; one with no more steps only measures again."""
    first = adapt_model(new_engine(), tmp_path, schemas=[SCHEMA], settings=short(2))
    again = adapt_model(new_engine(), tmp_path, schemas=[SCHEMA], settings=short(2))
    longer = adapt_model(new_engine(), tmp_path, schemas=[SCHEMA], settings=short(4))

    assert (again.num_steps, again.after, again.seconds) == (2, first.after, first.seconds)
    assert longer.num_steps == 4
    assert longer.before == first.before
    assert longer.after != first.after


def test_schemas_and_texts_are_learned_from(tmp_path: Path) -> None:
    """A training takes schemas, with their examples and slots, and texts; held-out prompts are other ones."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    text = "\n\n".join(" ".join([*words[number % 9 :], *words]) for number in range(40))

    report = adapt_model(new_engine(), tmp_path, schemas=[SCHEMA], texts=[text], settings=short(2))

    assert report.before.divergence > 0
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report.data()))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The folder of a small model with the demo model's tokenizer."""
    folder = tmp_path / "tiny"
    shutil.copytree(DEMO_FOLDER, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = LlamaConfig.from_pretrained(folder)
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 32, 32
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim = 16
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hf: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.ndim > 1:
                weight.mul_(8)
    hf.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("sees", ["stand-ins", "previous"])
def test_an_engine_loads_the_adapter(tiny: Path, tmp_path: Path, sees: str) -> None:
    """With the adapter, modules that have not seen all have other KV; plain and exact answers are as they were."""
    base = Engine.from_pretrained(tiny, pack=False)
    schema = SCHEMA.replace("stand-ins", sees)
    adapt_model(base, tmp_path / "out", schemas=[schema], settings=short(4, learning_rate=0.02))
    adapted = Engine.from_pretrained(tiny, adapter=tmp_path / "out", pack=True)
    for each in (base, adapted):
        each.add_schema(schema)
    first, several = (
        f'<prompt schema="club">{used}<user>Who likes tea?</user></prompt>' for used in ("<ann/>", "<ann/><bob/><cat/>")
    )

    assert torch.allclose(adapted.logits(first), base.logits(first), atol=1e-4)
    assert torch.allclose(adapted.logits(several), adapted.reference(several), atol=1e-4)
    assert not torch.allclose(adapted.logits(several), base.logits(several), atol=1e-3)
    assert adapted.fingerprint != base.fingerprint
    token_ids = torch.tensor([adapted.tokenizer.tokenize("Ann likes tea and toast.")])
    with torch.no_grad():
        plain = base.model.hf(input_ids=token_ids).logits
        assert torch.allclose(adapted.model.hf(input_ids=token_ids).logits, plain, atol=1e-4)
    exact = [each.logits(several, repair="all")[-1] for each in (base, adapted)]
    assert torch.allclose(*exact, atol=1e-4)


def test_an_adapter_for_stand_ins_changes_no_pairs(tiny: Path, tmp_path: Path) -> None:
    """Without a schema whose modules see the previous one, the adapter learned nothing about them and changes none."""
    base = Engine.from_pretrained(tiny, pack=False)
    adapt_model(base, tmp_path / "out", settings=short(2, learning_rate=0.02))
    adapted = Engine.from_pretrained(tiny, adapter=tmp_path / "out")
    prompt = '<prompt schema="club"><ann/><bob/><cat/><user>Who likes tea?</user></prompt>'
    for each in (base, adapted):
        each.add_schema(SCHEMA.replace("stand-ins", "previous"))

    assert torch.allclose(adapted.logits(prompt), base.logits(prompt), atol=1e-4)


@pytest.mark.parametrize("sees", [Sees.STAND_INS, Sees.PREVIOUS])
def test_texts_are_laid_out_like_the_schemas(engine: Engine, sees: Sees) -> None:
    """Beside schemas whose modules see the previous one, so do the modules of texts."""
    schema = check_schema(parse_schema(SCHEMA.replace("stand-ins", sees)))
    text = "\n\n".join(f"This is paragraph {number} of a very short book." for number in range(12))

    _, source = _sources(engine, [schema], [text], 0)
    drawn = source.draw(Random(0), held_out=False)

    assert drawn is not None
    assert {module.sees for module in drawn.state.schema.modules.values()} == {sees}


def test_an_adapter_of_another_version_is_refused(tiny: Path, tmp_path: Path) -> None:
    """What it was trained for is not known."""
    adapt_model(Engine.from_pretrained(tiny, pack=False), tmp_path / "out", schemas=[SCHEMA], settings=short(1))
    config = tmp_path / "out" / "adapter_config.json"
    config.write_text(config.read_text().replace("stand-ins", "modules"))

    with pytest.raises(UnsupportedModel, match="trained by another version of promptcache; train it again"):
        Engine.from_pretrained(tiny, adapter=tmp_path / "out")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_adapters_of_peft_are_merged(tiny: Path, tmp_path: Path) -> None:
    """An engine with an adapter of peft computes what peft's own model computes."""
    from peft import LoraConfig, PeftModel, get_peft_model

    own: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), LoraConfig(r=2, target_modules="all-linear"))
    for name, weight in own.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    own.save_pretrained(tmp_path / "out")
    base, merged = Engine.from_pretrained(tiny), Engine.from_pretrained(tiny, adapter=tmp_path / "out")
    own = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), tmp_path / "out")
    token_ids = torch.tensor([merged.tokenizer.tokenize("Ann likes tea and toast.")])

    with torch.no_grad():
        theirs, ours = own(input_ids=token_ids).logits, merged.model.hf(input_ids=token_ids).logits
        plain = base.model.hf(input_ids=token_ids).logits
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert not torch.allclose(ours, plain, atol=1e-2)
    assert merged.fingerprint != base.fingerprint


def test_cached_digests_are_not_those_of_an_adapter(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of a model's folder, which is cached, does not hide an adapter."""
    fingerprint = import_module("promptcache.runtime.hf.fingerprint")
    monkeypatch.setattr(fingerprint, "MIN_BYTES", 0)
    monkeypatch.setattr(fingerprint, "SETTLED_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = Engine.from_pretrained(tiny, pack=False)
    adapt_model(base, tmp_path / "out", schemas=[SCHEMA], settings=short(1, learning_rate=0.02))

    adapted, again = Engine.from_pretrained(tiny, adapter=tmp_path / "out"), Engine.from_pretrained(tiny)

    assert again.fingerprint == base.fingerprint != adapted.fingerprint


def test_adapters_that_do_not_fit_are_refused(tiny: Path, tmp_path: Path) -> None:
    """A folder without an adapter, and an adapter of another model, are refused with their name."""
    adapt_model(new_engine(), tmp_path / "other", settings=short(1))

    with pytest.raises(ModelNotFound, match=r"has no adapter_config\.json; `promptcache adapt` makes one"):
        Engine.from_pretrained(tiny, adapter=tmp_path)
    with pytest.raises(UnsupportedModel, match=r"adapter '.*other' does not fit LlamaForCausalLM"):
        Engine.from_pretrained(tiny, adapter=tmp_path / "other")


def test_a_missing_peft_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without peft, the error for an adapter of it names the extra, before a model is loaded."""
    (tmp_path / "adapter_config.json").write_text("{}")
    monkeypatch.setattr(import_module("promptcache.runtime.hf.adapter"), "find_spec", lambda _: None)

    with pytest.raises(UnsupportedModel, match=r"pip install 'promptcache\[peft\]'"):
        Engine.from_pretrained("demo", adapter=tmp_path)


def test_models_without_gradients_are_refused(engine: Engine) -> None:
    """A quantized model, a packed one and one with adapters are refused, with what to do."""
    check_trainable(engine.model)

    quantized: Any = SimpleNamespace(facts=engine.model.facts, hf=SimpleNamespace(is_quantized=True))
    with pytest.raises(UnsupportedModel, match="is quantized; train an adapter for the model in its full precision"):
        check_trainable(quantized)
    engine.model.hf.peft_config = {"default": None}
    with pytest.raises(UnsupportedModel, match="has adapters; load the model without them"):
        check_trainable(engine.model)
    del engine.model.hf.peft_config
    packed = new_engine()
    packed.model.pack_weights(True)
    if packed.model.is_packed:  # this processor has the kernels
        with pytest.raises(UnsupportedModel, match=r"has packed layers.*pack=False"):
            check_trainable(packed.model)


def test_other_folders_are_refused(engine: Engine, tmp_path: Path) -> None:
    """A file, a folder with something else, and a checkpoint that cannot be read are refused and stay as they are."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "checkpoint.pt").write_bytes(b"no checkpoint")

    for name, words in (
        ("file", "is no folder"),
        ("other", "has other files and no checkpoint"),
        ("broken", "cannot be read"),
    ):
        with pytest.raises(InvalidValue, match=words):
            adapt_model(engine, tmp_path / name, settings=short(1))
    assert (tmp_path / "other" / "notes.txt").read_text() == (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": 2}, "another rank (4, not 2)"),
        ({"seed": 5}, "another seed (0, not 5)"),
        ({"schemas": [SCHEMA, SCHEMA]}, "another schemas or texts"),
    ],
    ids=["rank", "seed", "schemas"],
)
def test_another_training_is_not_continued(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """A folder with a training of other settings or prompts is refused, and names the difference."""
    adapt_model(new_engine(), tmp_path, schemas=[SCHEMA], settings=short(1))
    schemas = change.pop("schemas", [SCHEMA])

    with pytest.raises(InvalidValue) as refused:
        adapt_model(new_engine(), tmp_path, schemas=schemas, settings=short(1, **change))
    assert words in str(refused.value)


@pytest.mark.parametrize("src", ["notes.jsonl", "ann.txt"])
def test_another_text_of_a_file_is_another_training(tmp_path: Path, src: str) -> None:
    """Texts that a schema has from files count: a training is not continued with others."""
    files = {"notes.jsonl": '{"name": "dan", "text": "Dan likes tea, too."}', "ann.txt": "Ann likes tea and toast."}
    modules = '<module name="ann" src="ann.txt"/><module name="bob">Bob likes milk.</module>'
    text = f'<schema name="kb" sees="stand-ins">{modules}<collection name="notes" src="notes.jsonl"/></schema>'
    adapt_model(new_engine(), tmp_path, schemas=[parse_schema(text, folder=files)], settings=short(1))

    files[src] = files[src].replace("likes", "hates")
    with pytest.raises(InvalidValue, match="another schemas or texts"):
        adapt_model(new_engine(), tmp_path, schemas=[parse_schema(text, folder=files)], settings=short(1))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": None},
        {"minutes": 1.0},
        {"steps": 0},
        {"rank": 0},
        {"learning_rate": float("nan")},
        {"learning_rate": 0.0},
        {"steps": None, "minutes": -1.0},
        {"num_held_out": 0},
        {"checkpoint_s": -1},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(engine: Engine, tmp_path: Path, change: dict[str, Any]) -> None:
    """Wrong settings are refused before anything is computed or written."""
    with pytest.raises(InvalidValue):
        adapt_model(engine, tmp_path / "out", settings=short(**{"steps": 1, **change}))
    assert not (tmp_path / "out").exists()


def test_minutes_end_a_training(engine: Engine, tmp_path: Path) -> None:
    """A training by time ends when its time is over, and shows the time that is left."""
    shown: list[tuple[str, int, int | None]] = []
    settings = short(None, minutes=0.02)  # type: ignore[arg-type] # by time

    report = adapt_model(
        engine, tmp_path, schemas=[SCHEMA], settings=settings, progress=lambda *each: shown.append(each)
    )

    assert report.seconds >= 1.2
    assert report.num_steps > 0
    last = [each for each in shown if each[0].startswith("training")][-1]
    assert re.search(r"distance \d\.\d\d, less than 1 min left", last[0])
    assert last[2] == 1


def test_numbers_that_are_not_finite_end_it(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that is not finite ends the training, and so does a model that computes NaN."""
    module = import_module("promptcache.adapt.train")
    original = module.kv_distances
    monkeypatch.setattr(
        module, "kv_distances", lambda found, to: original(found, to) * (torch.nan if found.requires_grad else 1)
    )
    with pytest.raises(NotFinite, match="the loss of step 1 is not finite; start again with a lower learning rate"):
        adapt_model(engine, tmp_path / "loss", schemas=[SCHEMA], settings=short(2))
    with torch.no_grad():
        engine.model.hf.model.norm.weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match="computes logits of an answer as infinities or NaN"):
        adapt_model(engine, tmp_path / "model", schemas=[SCHEMA], settings=short(2))
