"""Models, tokenizers and settings that an engine refuses by name, with the fix."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from promptcache.diagnostics import InvalidValue, PromptCacheError, UnsupportedModel
from promptcache.engine import Engine
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import CONTEXT_LENGTH, tiny_model
from tests.engine.asking import PROMPT, answered, engine_of

LLAMA = transformers.LlamaConfig(
    vocab_size=263, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2}


def llama(change: Callable[[Any], object] = lambda hf: None) -> Any:
    hf = transformers.LlamaForCausalLM(LLAMA)
    change(hf)
    return hf


def of(name: str, **fields: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(vocab_size=263, **fields)
    return transformers.AutoModelForCausalLM.from_config(config)


def wrapped(config: Any) -> Any:
    with warnings.catch_warnings():  # of transformers, which peft causes
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return get_peft_model(llama(), config)


def make_sparse(hf: Any) -> None:
    hf.lm_head.weight = torch.nn.Parameter(hf.lm_head.weight.detach().to_sparse())


def compiled_layer(hf: Any) -> None:
    hf.model.layers[0].forward = torch.compile(hf.forward, backend="eager")


NO_MODELS: dict[str, tuple[Any, str]] = {
    "a name": (lambda: "demo", r"a loaded model of transformers, not str; Engine.from_pretrained\(\) loads one"),
    "a module": (lambda: torch.nn.Linear(2, 2), "not Linear"),
    "peft": (
        lambda: wrapped(LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")),
        "not PeftModelForCausalLM; pass the LlamaForCausalLM inside of it, model.base_model.model",
    ),
    "virtual tokens": (
        lambda: wrapped(PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
        r"inside of it, model\.base_model.* not what the wrapper itself adds, such as virtual tokens",
    ),
    "a sparse weight": (lambda: llama(make_sparse), r"lm_head.weight' is sparse .*to_dense"),
    "torch.compile": (lambda: torch.compile(llama(), backend="eager"), r"not OptimizedModule; .* model\._orig_mod"),
    "a wrapper for devices": (lambda: torch.nn.DataParallel(llama()), r"not DataParallel; .* model\.module"),
    "compiled in place": (
        lambda: llama(lambda hf: hf.compile(backend="eager")),
        "LlamaForCausalLM is compiled by torch.compile",
    ),
    "a compiled layer": (lambda: llama(compiled_layer), r"LlamaForCausalLM\.model\.layers\.0 is compiled"),
    "no output layer": (
        lambda: transformers.LlamaModel(LLAMA),
        "LlamaModel does not generate text; load it with AutoModelForCausalLM",
    ),
    "no generation configuration": (
        lambda: llama(lambda hf: setattr(hf, "generation_config", None)),
        "LlamaForCausalLM has no generation configuration; set it to",
    ),
    "alibi": (
        lambda: of("Bloom", hidden_size=16, n_layer=1, n_head=2),
        "bloom .*takes positions from the order of the cache",
    ),
    "alibi by choice": (
        lambda: of("Falcon", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, alibi=True),
        "falcon .*takes positions from the order of the cache",
    ),
    "few positions": (lambda: of("GPT2", n_positions=8, **GPT2), "has 8 positions; 36 are needed at least"),
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_what_is_no_model_is_refused(kind: str) -> None:
    make, message = NO_MODELS[kind]
    with pytest.raises(UnsupportedModel, match=message):
        Engine(make(), ByteTokenizer())


def gpt2(**changes: Any) -> Any:
    model = of("GPT2", n_positions=64, **GPT2)
    for name, part in changes.items():
        setattr(model.transformer, name, part)
    return model


class Failing(transformers.GPT2LMHeadModel):
    """A model whose forward pass fails, always or for more than one token."""

    def __init__(self, config: Any, longest: int, error: type[Exception]) -> None:
        super().__init__(config)
        self.longest, self.error = longest, error

    def forward(self, input_ids: Any = None, position_ids: Any = None, **kwargs: Any) -> Any:
        if input_ids.shape[1] > self.longest:
            raise self.error("no kernel\nfor this")
        return super().forward(input_ids=input_ids, position_ids=position_ids, **kwargs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gpt2().to("meta"), r"GPT2LMHeadModel: (\d+) of \1 weights and buffers are on the meta device"),
        (lambda: gpt2(wpe=torch.nn.Embedding(64, 16, device="meta")), r"1 of \d+ weights and buffers are on the meta"),
        (
            lambda: gpt2(ln_f=torch.nn.LayerNorm(16, dtype=torch.float64)),
            r"its own forward pass fails: .*several dtypes \(float32, float64\): give them one with model.to\(dtype\)",
        ),
        *(
            (
                lambda longest=longest, error=error: Failing(gpt2().config, longest, error),
                r"gpt2 .Failing.: (its own forward pass|attention to stored KV) fails: no kernel$",
            )
            for longest in (0, 1)
            for error in (RuntimeError, NotImplementedError, ImportError, ZeroDivisionError)
        ),
    ],
)
def test_a_model_that_does_not_run_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        Engine(make(), ByteTokenizer())


DTYPES = "is not one of 'auto', 'float16', 'bfloat16', 'float32', 'float64'"
DEVICES = ("cudaa", "cuda:99", "cpu:x", "", "xla", 99, -1, 2.5, [], "meta", torch.device("meta"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "bf16"}, rf"{DTYPES}.*did you mean 'bfloat16'\?$"),
        ({"dtype": "Float32"}, rf"{DTYPES}.*did you mean 'float32'\?$"),
        *(({"dtype": each}, f"{DTYPES}(?!.*did you mean)") for each in ("fp99", "", torch.int8, 5, None)),
        *(({"device": each}, r"device .* (cannot be used: .*this machine has 'cpu' and|holds no values)") for each in DEVICES),
        ({"divice": "x"}, "has no option 'divice', .*: .*'device'"),
        ({"kept": "x"}, "has no option 'kept', .*: .*'keep'"),
        ({"revison": "x"}, "has no option 'revison', .*: .*'revision'"),
        ({"memory": "x"}, "has no option 'memory', .*: .*store=StoreConfig.memory_bytes="),
        ({"qqq": "x"}, "from_pretrained.. has no option 'qqq', .*: .*its options are device, "),
    ],
)  # fmt: skip
def test_wrong_options_of_loading_are_refused(options: dict[str, Any], message: str) -> None:
    """An unknown dtype, device or option is refused before loading, with the known ones and the nearest."""
    with pytest.raises((UnsupportedModel, InvalidValue), match=message):
        Engine.from_pretrained("demo", **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('<prompt schema="travel"><rome/>a</prompt>', r"^prompts\[1\], <prompt>:1:26: PC401 .*'rome'"),
        ('<prompt schema="other">a</prompt>', r"^prompts\[1\]: .*other"),
        (PROMPT.replace("</prompt>", "word " * 3000 + "</prompt>"), r"^prompts\[1\]: the prompt takes"),
    ],
)
def test_an_error_in_a_batch_names_the_prompt(wrong: str, message: str) -> None:
    with pytest.raises(PromptCacheError, match=message):
        engine_of().generate_batch([PROMPT, wrong])


def test_limits_of_a_service_are_an_object_of_their_class() -> None:
    with pytest.raises(InvalidValue, match=r"limits={'max_rows': 2} is not allowed: ServiceLimits\(max_rows="):
        engine_of().service({"max_rows": 2})  # type: ignore[arg-type]


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    """Unreadable weights and contradicting configurations are refused."""
    gpt2().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    wrong = json.dumps({"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4})
    for text in ((tmp_path / "config.json").read_text(), wrong):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UnsupportedModel, match="cannot use model"):
            Engine.from_pretrained(tmp_path)


def test_a_model_of_ours_keeps_its_context_length() -> None:
    """A `Model` with another context length is refused; the same one is accepted."""
    model = tiny_model()

    assert Engine(model, ByteTokenizer(), context_length=CONTEXT_LENGTH).model is model
    with pytest.raises(UnsupportedModel, match=f"made for {CONTEXT_LENGTH} positions, not 64"):
        Engine(model, ByteTokenizer(), context_length=64)


@pytest.mark.parametrize("prompt", ['<prompt schema="s"/>', '<prompt schema="t"><a/>é</prompt>'])
def test_a_tokenizer_of_another_model_is_noticed(prompt: str) -> None:
    """Token IDs beyond the vocabulary are refused before anything is computed, in schemas and prompts."""
    engine = engine_of(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=120, **GPT2)),
        schema='<schema name="s">é<module name="a">abc</module></schema>',
    )
    engine.add_schema('<schema name="t"><module name="a">abc</module></schema>')

    for way in ("generate", "batch"):
        with pytest.raises(UnsupportedModel, match=r"has 120 tokens, and its tokenizer returned token \d+"):
            answered(engine, prompt, way)
