"""Wrong values for every parameter of the public interface: a `PromptCacheError` or success, and soon.

`CALLS` says how each public callable is called validly. Each of its parameters is then given each of `WRONG`, one at a
time, and what comes back is used. `inspect.signature` finds the parameters, so that a new one is tested, too.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import promptcache
from promptcache.diagnostics import Diagnostic, PromptCacheError, Span
from promptcache.kv import Recipe, StoreConfig, StoredEncoding, open_store
from promptcache.language import module
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import DEMO_FOLDER
from tests.speed import is_within

pytestmark = pytest.mark.long

SECONDS = 5.0
"""Processor time that a call with a wrong value may take."""

SCHEMA = """<schema name="travel">You plan trips.
<module name="plan">Stay <parameter name="days" length="8" placeholder="n days"/>.</module>
<module name="paris">Paris has soup.</module><parameter name="who" length="8"/></schema>"""
PROMPT = '<prompt schema="travel"><plan days="nine"/><paris/>Where to?</prompt>'
CHAT = [{"role": "user", "content": "Hello"}]
SPAN = Span("a", 1, 1, 1, 1)


class Hostile:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


WRONG: Mapping[str, Callable[[], object]] = {
    "None": lambda: None,
    "minus one": lambda: -1,
    "5,000 digits": lambda: 10**5000,
    "nan": lambda: float("nan"),
    "lone surrogate": lambda: "a\udc80b",
    "bracket": lambda: "<",
    "list of None": lambda: [None],
    "tensor": lambda: torch.ones(2),
    "hostile": Hostile,
}


@dataclass(kw_only=True)
class Call:
    """A callable with valid arguments by name; for `*names` a tuple, for `**names` a dict of those worth trying."""

    function: Callable[..., Any]
    valid: Mapping[str, Any] = field(default_factory=dict)
    use: Callable[[Any], object] = lambda made: list(made) if isinstance(made, Iterator) else None


NOT_WRONG = {("Level", "hostile"), ("Level", "5,000 digits")}
"""Values that Python's own enum shows before it asks us."""

SETTINGS = {"max_new_tokens": 1, "logprobs": None, "seed": None, "repair": None, "positions": None, "salt": None}

GENERATION = {
    "num_beams": 2,
    "num_return_sequences": 1,
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 5,
    "top_p": 0.5,
    "repetition_penalty": 1.1,
    "min_new_tokens": 1,
    "stop_strings": None,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "bad_words_ids": None,
    "logits_processor": None,
    "stopping_criteria": None,
    "streamer": None,
    "generation_config": None,
    "output_scores": False,
    "output_logits": False,
    "return_dict_in_generate": False,
    "max_tokens": None,
}
"""Options of `generate` that are tried; transformers has 60 more, which are checked by the same lines."""


def _world(folder: Path) -> SimpleNamespace:
    engine = promptcache.Engine(tiny_model(), ByteTokenizer(), store=folder / "kv")
    engine.add_schema(SCHEMA)
    shape = engine.model.shape
    recipe = Recipe(fingerprint="f", digest="d" * 64, num_tokens=2, first_position=0, last_position=1)
    kv = torch.zeros((shape.num_layers, shape.num_kv_heads, 2, shape.head_dim), dtype=shape.dtype)
    completion = engine.generate(PROMPT, max_new_tokens=1)
    (folder / "travel.xml").write_text(SCHEMA)
    (folder / "prompt.xml").write_text(PROMPT)
    engine.chat().save(folder / "chat.json")
    _save_tiny_model(folder / "tiny")
    return SimpleNamespace(engine=engine, shape=shape, recipe=recipe, kv=kv, completion=completion, folder=folder)


def _save_tiny_model(folder: Path) -> None:
    """Save a small model with the demo model's tokenizer: wrong values that are ignored load it hundreds of times."""
    shutil.copytree(DEMO_FOLDER, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = LlamaConfig.from_pretrained(folder)
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 1, 16, 16
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim = 8
    LlamaForCausalLM(config).save_pretrained(folder)


def _try_schema(world: SimpleNamespace) -> Callable[[Any], object]:
    def use(schema: Any) -> None:
        repr(schema)
        engine = world.engine
        engine.plan(promptcache.Prompt(engine.add_schema(schema).name).user("Hello"))

    return use


def _try_prompt(world: SimpleNamespace) -> Callable[[Any], object]:
    def use(prompt: Any) -> None:
        repr(prompt)
        prompt.to_xml()
        world.engine.plan(prompt)

    return use


def _enter(made: Any) -> None:
    with made:
        pass


def _calls(world: SimpleNamespace) -> Mapping[str, Call]:
    engine, shape = world.engine, world.shape
    schema, prompt = promptcache.Schema("travel"), promptcache.Prompt("travel")
    text = promptcache.Schema("travel").text("Hello")
    try_schema, try_prompt = _try_schema(world), _try_prompt(world)
    generation = {"prompt": PROMPT, "max_new_tokens": 1, "logprobs": None, "generation": GENERATION}
    plan, done = world.completion.plan, world.completion
    keys = {"key": world.recipe.key}
    put = {"recipe": world.recipe, "keys": world.kv, "values": world.kv}
    signature = StoredEncoding(recipe=world.recipe, shape=shape, tensors={"keys": world.kv, "values": world.kv})
    diagnostic = Diagnostic(code="PC001", message="m", span=SPAN)
    memory = promptcache.MemoryStore(shape)
    tiers = open_store(world.folder / "tiers", shape)

    def stored(store: Any) -> Mapping[str, Call]:
        return {
            "get": Call(function=store.get, valid=keys),
            "put": Call(function=store.put, valid=put),
            "delete": Call(function=store.delete, valid=keys),
            **{
                name: Call(function=getattr(store, name))
                for name in ("keys", "nbytes", "local_bytes", "faults", "probe")
            },
            **{
                name: Call(function=getattr(store, name), valid={"keys": [world.recipe.key]})
                for name in ("get_many", "lacking", "absent", "forget", "pin", "unpin")
            },
            "recognize": Call(function=store.recognize, valid={"signature": signature}),
            "reserve": Call(function=store.reserve, valid={"sizes": [(world.recipe.key, 2)]}),
            "note": Call(function=store.note, valid={"facts": {world.recipe.key: {"schema": "travel"}}}),
            "claim": Call(function=store.claim, valid={"keys": (world.recipe.key,), "timeout_s": 0.0}, use=_enter),
        }

    def remove_schema(name: Any) -> None:
        engine.add_schema(promptcache.Schema("spare"))
        engine.remove_schema(name)

    engine.add_schema(promptcache.Schema("desk").collection("notes", module("a", "A")))
    desk = {"schema": "desk", "collection": "notes"}

    def remove_member(schema: Any, collection: Any, name: Any) -> None:
        engine.add_member("desk", "notes", "a", "A")
        engine.remove_member(schema, collection, name)

    prefixes, ids = promptcache.PrefixCache(engine), torch.tensor([[5, 6, 7]])

    def update(hit: Any, out: Any) -> int:
        found = prefixes.get(ids)
        made = engine.model.hf(**found.inputs)
        return prefixes.update(found if hit is None else hit, made if out is None else out)

    def model() -> Any:
        return tiny_model()

    def engine_of(**given: Any) -> Any:
        return promptcache.Engine(**{"model": model(), **given})

    def used(output: Any) -> object:
        return engine.generate(PROMPT, output=output, max_new_tokens=4)

    return {
        "Completion": Call(function=promptcache.Completion, valid=vars_of(done), use=lambda made: None),
        "Choice": Call(function=promptcache.Choice, valid={"values": ["a"]}, use=used),
        "Choice.accepts": Call(function=promptcache.Choice(["a"]).accepts, valid={"text": "a"}),
        "Choice.parse": Call(function=promptcache.Choice(["a"]).parse, valid={"text": "a"}),
        "Grammar": Call(function=promptcache.Grammar, valid={"lark": 'start: "a"'}, use=used),
        "Grammar.accepts": Call(function=promptcache.Grammar('start: "a"').accepts, valid={"text": "a"}),
        "Grammar.parse": Call(function=promptcache.Grammar('start: "a"').parse, valid={"text": "a"}),
        "JSONSchema": Call(function=promptcache.JSONSchema, valid={"schema": "{}", "load": str}, use=used),
        "JSONSchema.accepts": Call(function=promptcache.JSONSchema("{}").accepts, valid={"text": "{}"}),
        "JSONSchema.parse": Call(function=promptcache.JSONSchema("{}").parse, valid={"text": "{}"}),
        "Regex": Call(function=promptcache.Regex, valid={"pattern": "a"}, use=used),
        "Regex.accepts": Call(function=promptcache.Regex("a").accepts, valid={"text": "a"}),
        "Regex.parse": Call(function=promptcache.Regex("a").parse, valid={"text": "a"}),
        "Diagnostic": Call(function=promptcache.Diagnostic, valid=vars_of(diagnostic)),
        "Engine": Call(
            function=engine_of,
            valid={"tokenizer": ByteTokenizer(), "store": None, "context_length": None, "pack": False},
            use=lambda made: made.generate(PROMPT, max_new_tokens=1) if made.add_schema(SCHEMA) else None,
        ),
        "Engine.from_pretrained": Call(
            function=promptcache.Engine.from_pretrained,
            valid={
                "model": world.folder / "tiny",
                "device": "cpu",
                "options": {"local_files_only": True, "revision": None},
            },
        ),
        "Engine.add_schema": Call(function=engine.add_schema, valid={"source": SCHEMA}, use=repr),
        "Engine.remove_schema": Call(function=remove_schema, valid={"name": "spare"}),
        "Engine.add_member": Call(function=engine.add_member, valid={**desk, "name": "b", "text": "B"}),
        "Engine.remove_member": Call(function=remove_member, valid={**desk, "name": "a"}),
        "Engine.members": Call(function=engine.members, valid=desk, use=repr),
        "Engine.warm": Call(function=engine.warm, valid={"schema": "travel", "members": True, "progress": None}),
        "Engine.layout": Call(function=engine.layout, valid={"schema": "travel"}, use=repr),
        "Engine.keys": Call(function=engine.keys, valid={"schema": "travel"}),
        "Engine.pin": Call(function=engine.pin, valid={"schema": "travel"}),
        "Engine.unpin": Call(function=engine.unpin, valid={"schema": "travel"}),
        "Engine.promote": Call(function=engine.promote, valid={"prompt": PROMPT, "promote_bytes": 2**30}, use=repr),
        "Engine.demote": Call(function=engine.demote, valid={"prompt": None, "schema": "travel"}),
        "Engine.close": Call(function=promptcache.Engine(engine.model, engine.tokenizer).close),
        "Engine.stats": Call(function=engine.stats),
        "Engine.clear_history": Call(function=engine.clear_history),
        "Engine.chat": Call(
            function=engine.chat,
            valid={"prompt": CHAT, "salt": "a"},
            use=lambda chat: chat.say(None if chat.question else "a", max_new_tokens=1),
        ),
        "Engine.load_chat": Call(function=engine.load_chat, valid={"path": world.folder / "chat.json", "salt": "a"}),
        "Engine.service": Call(
            function=engine.service, valid={"limits": None, "observer": None}, use=lambda made: made.close()
        ),
        "MemoryStore.buffers": Call(function=memory.buffers, valid={"limit_bytes": 10}),
        "Engine.audit": Call(function=engine.audit, valid={"prompt": PROMPT, "max_new_tokens": 2}, use=repr),
        "Engine.render": Call(function=engine.render, valid={"prompt": PROMPT}, use=repr),
        "Engine.plan": Call(function=engine.plan, valid={"prompt": PROMPT}, use=repr),
        **{
            f"Engine.{name}": Call(function=getattr(engine, name), valid={"prompt": PROMPT}, use=dict)
            for name in ("link", "to_dynamic_cache")
        },
        "Engine.logits": Call(function=engine.logits, valid={"prompt": PROMPT}),
        "Engine.logits_batch": Call(function=engine.logits_batch, valid={"prompts": [PROMPT, PROMPT]}),
        "Engine.score": Call(function=engine.score, valid={"prompt": PROMPT, "choices": ["a", "bc"]}, use=repr),
        "Engine.reference": Call(function=engine.reference, valid={"prompt": PROMPT}),
        "Engine.generate": Call(function=engine.generate, valid=generation, use=repr),
        "Engine.stream": Call(function=engine.stream, valid={"prompt": PROMPT, "settings": SETTINGS}),
        "Engine.agenerate": Call(
            function=lambda prompt, **settings: asyncio.run(engine.agenerate(prompt, **settings)),
            valid={"prompt": PROMPT, "settings": SETTINGS},
            use=repr,
        ),
        "Engine.astream": Call(
            function=engine.astream,
            valid={"prompt": PROMPT, "settings": SETTINGS},
            use=lambda made: asyncio.run(anext(made, "")),
        ),
        "Engine.generate_batch": Call(
            function=engine.generate_batch,
            valid={"prompts": [PROMPT, PROMPT], "settings": SETTINGS},
        ),
        "Layout": Call(function=promptcache.Layout, valid=vars_of(plan.layout)),
        "Level": Call(function=promptcache.Level, valid={"value": "exact"}),
        "MemoryStore": Call(function=promptcache.MemoryStore, valid={"shape": shape}, use=lambda made: made.put(**put)),
        **{f"MemoryStore.{name}": call for name, call in stored(memory).items()},
        "MemoryStore.offer": Call(function=memory.offer, valid=put),
        "MemoryStore.unmanaged": Call(function=memory.unmanaged, valid={"keys": world.kv, "values": world.kv}),
        "MemoryStore.recipe": Call(function=memory.recipe, valid=keys),
        "MemoryStore.pinned": Call(function=memory.pinned),
        "Plan": Call(function=promptcache.Plan, valid=vars_of(plan)),
        "PrefixCache": Call(function=promptcache.PrefixCache, valid={"engine": engine, "cache_bytes": None}, use=repr),
        "PrefixCache.get": Call(
            function=prefixes.get,
            valid={"input_ids": ids, "attention_mask": None},
            use=lambda hit: engine.model.hf(**hit.inputs),
        ),
        "PrefixCache.update": Call(function=update, valid={"hit": None, "out": None}),
        "PrefixCache.build": Call(function=prefixes.build, valid={"prefixes": [[5, 6, 7]]}),
        "PrefixCache.add": Call(
            function=prefixes.add,
            valid={"input_ids": ids, "past_key_values": engine.model.hf(ids).past_key_values, "attention_mask": None},
        ),
        "frequent_prefixes": Call(
            function=promptcache.frequent_prefixes,
            valid={"token_lists": [[5, 6, 7], [5, 6, 8]], "tokenizer": None, "min_tokens": 1},
        ),
        "Prompt": Call(function=promptcache.Prompt, valid={"schema": "travel"}, use=try_prompt),
        "Prompt.from_messages": Call(
            function=promptcache.Prompt.from_messages, valid={"schema": "travel", "messages": CHAT}, use=try_prompt
        ),
        "Prompt.use": Call(
            function=prompt.use, valid={"module": "plan", "arguments": {"days": "nine"}}, use=try_prompt
        ),
        "Prompt.fill": Call(function=prompt.fill, valid={"arguments": {"who": "Ann"}}, use=try_prompt),
        **{
            f"Prompt.{name}": Call(function=getattr(prompt, name), valid={"text": "Hello"}, use=try_prompt)
            for name in ("text", "system", "user", "assistant")
        },
        "Prompt.answer": Call(
            function=prompt.answer, valid={"kind": "choice", "choices": ("a",), "pattern": "a"}, use=try_prompt
        ),
        "Prompt.to_xml": Call(function=prompt.to_xml),
        "Prompt.from_xml": Call(function=promptcache.Prompt.from_xml, valid={"text": PROMPT}, use=try_prompt),
        "Prompt.from_file": Call(
            function=promptcache.Prompt.from_file, valid={"path": world.folder / "prompt.xml"}, use=try_prompt
        ),
        "Prompt.of": Call(function=promptcache.Prompt.of, valid={"document": prompt}, use=try_prompt),
        "PromptCacheError": Call(function=promptcache.PromptCacheError, valid={"args": ("a",)}),
        "PromptError": Call(function=promptcache.PromptError, valid={"diagnostics": [diagnostic]}, use=str),
        "PromptError.excerpt": Call(function=promptcache.PromptError([diagnostic]).excerpt),
        "SchemaError": Call(function=promptcache.SchemaError, valid={"diagnostics": [diagnostic]}, use=str),
        "SchemaError.excerpt": Call(function=promptcache.SchemaError([diagnostic]).excerpt),
        "Schema": Call(
            function=promptcache.Schema, valid={"name": "travel", "children": text.children}, use=try_schema
        ),
        "Schema.from_xml": Call(
            function=promptcache.Schema.from_xml, valid={"text": "<schema name='travel'>Hello</schema>"}, use=try_schema
        ),
        "Schema.from_file": Call(
            function=promptcache.Schema.from_file, valid={"path": world.folder / "travel.xml"}, use=try_schema
        ),
        "Schema.from_messages": Call(
            function=promptcache.Schema.from_messages, valid={"name": "travel", "messages": CHAT}, use=try_schema
        ),
        "Schema.of": Call(function=promptcache.Schema.of, valid={"document": text}, use=try_schema),
        "Schema.module": Call(
            function=text.module,
            valid={
                "name": "a",
                "content": ("text",),
                "options": dict.fromkeys(["reserve", "context", "sees", "separator"]),
            },
            use=try_schema,
        ),
        "Schema.with_module": Call(function=text.with_module, valid={"modules": (module("a", "b"),)}, use=try_schema),
        "Schema.union": Call(function=text.union, valid={"members": (module("a", "b"),)}, use=try_schema),
        "Schema.collection": Call(
            function=text.collection, valid={"name": "a", "members": (module("b", "B"),)}, use=try_schema
        ),
        "Schema.rule": Call(function=text.rule, valid={"rules": ()}, use=try_schema),
        "Schema.stand_in": Call(function=text.stand_in, valid={"texts": ("text",)}, use=try_schema),
        "Schema.answer": Call(
            function=text.answer, valid={"kind": "choice", "choices": ("a",), "pattern": "a"}, use=try_schema
        ),
        "Schema.scaffold": Call(function=text.module("a", "b").scaffold, valid={"modules": ("a",)}, use=try_schema),
        **{
            f"Schema.{name}": Call(function=getattr(schema, name), valid={"content": ("Hello",)}, use=try_schema)
            for name in ("text", "system", "user", "assistant")
        },
        **{f"Store.{name}": call for name, call in stored(tiers).items()},
        "StoreConfig": Call(
            function=StoreConfig,
            valid={"folder": world.folder / "config"},
            use=lambda made: open_store(made, shape).put(**put),
        ),
    }


def vars_of(made: Any) -> dict[str, Any]:
    """Return the fields of a record by name."""
    return {name: getattr(made, name) for name in inspect.signature(type(made)).parameters}


def callables() -> Iterator[tuple[str, Any]]:
    """Every public name with its class's constructor and public methods, inherited ones of ours included."""
    for name in promptcache.__all__:
        public = getattr(promptcache, name)
        if not inspect.isabstract(public):
            yield name, public
        for attribute in dir(public):
            found = inspect.getattr_static(public, attribute)
            function = getattr(found, "__func__", found)
            ours = getattr(function, "__module__", "") or ""
            if not attribute.startswith("_") and callable(function) and ours.startswith("promptcache"):
                yield f"{name}.{attribute}", function


def parameters(name: str, function: Any) -> Iterator[str]:
    """Names of a callable's parameters; each option of `generate` that is tried is one of its own."""
    if name in ("Level", "PromptCacheError"):
        yield {"Level": "value", "PromptCacheError": "*args"}[name]
        return
    for each in inspect.signature(function).parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.name == "generation":
            yield from (f"**{option}" for option in GENERATION)
            continue
        yield {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "") + each.name


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Call]]:
    """How everything is called validly."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("values")
        patch.chdir(folder)
        yield _calls(_world(folder))


def test_every_public_callable_is_tried(calls: Mapping[str, Call]) -> None:
    """The table names every public callable, and nothing else."""
    assert set(calls) == {name for name, _ in callables()}


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize(("name", "function"), [pytest.param(*each, id=each[0]) for each in callables()])
def test_wrong_values_are_refused_or_work(calls: Mapping[str, Call], name: str, function: Any) -> None:
    """Valid values work. A wrong one raises a `PromptCacheError` or does no harm, within seconds of CPU time."""
    _run(calls[name], {})
    faults = [fault for parameter in parameters(name, function) for fault in _faults(calls[name], name, parameter)]

    assert not faults, "\n".join(faults)


def _faults(call: Call, name: str, parameter: str) -> Iterator[str]:
    default = _default(call, parameter)
    for label, make in WRONG.items():
        if (name, label) in NOT_WRONG or (label == "None" and default is None):
            continue
        started = time.process_time()
        try:
            _run(call, {parameter: make()})
        except PromptCacheError as error:
            if not str(error).strip():
                yield f"{parameter}: {label}: says nothing"
        except Exception as error:  # noqa: BLE001 - that there is none is what is tested
            yield f"{parameter}: {label}: {type(error).__name__}: {error!s:.200}"
        if not is_within(took := time.process_time() - started, SECONDS):
            yield f"{parameter}: {label}: {took:.1f} s"


def _default(call: Call, parameter: str) -> object:
    return next((each.default for each in _signature(call.function) if each.name == parameter), inspect.Parameter.empty)


def _run(call: Call, wrong: Mapping[str, Any]) -> None:
    """Call with valid arguments but for those in `wrong`, and use what comes back."""
    positional: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    kinds = {each.name: each.kind for each in _signature(call.function)}
    for name, value in call.valid.items():
        kind = kinds.get(name, inspect.Parameter.KEYWORD_ONLY)
        if kind is inspect.Parameter.VAR_POSITIONAL:
            positional = value
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named |= {} if name in ("generation", "options") else value
        else:
            named[name] = value
    for parameter, value in wrong.items():
        if parameter.startswith("**"):
            options = parameter.removeprefix("**")
            for option in call.valid.get(options, [options]) if options not in GENERATION else [options]:
                named[option] = value
        elif parameter.startswith("*"):
            positional = (value,)
        else:
            named[parameter] = value
    leading = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY and name in named]
    if positional:
        leading = [name for name, kind in kinds.items() if kind.name.startswith("POSITIONAL") and name in named]
    arguments = [named.pop(name) for name in leading]
    call.use(call.function(*arguments, *positional, **named))


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    if function in (promptcache.Level, promptcache.PromptCacheError):
        kind = inspect.Parameter.POSITIONAL_ONLY if function is promptcache.Level else inspect.Parameter.VAR_POSITIONAL
        return [inspect.Parameter("value" if function is promptcache.Level else "args", kind)]
    return list(inspect.signature(function).parameters.values())
