"""The engine: the facade of the library. It adds schemas and answers prompts, and connects the rooms.

All methods are thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack
from weakref import WeakSet

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from promptcache.declared import declared
from promptcache.decode import (
    DEFAULT_BATCH_BYTES,
    AsyncService,
    AsyncStream,
    Completion,
    RequestBuilder,
    Score,
    Service,
    ServiceObserver,
    Stream,
    answer,
    score,
    tokenized_choices,
)
from promptcache.diagnostics import InvalidValue, Unpicklable
from promptcache.encode import (
    DEFAULT_AUDIT_TOKENS,
    Audit,
    Executor,
    Progress,
    Repetition,
    audit,
    check_linking,
    expected_logits,
    linked_logits,
)
from promptcache.kv import Store, checked_source, codec_named, open_store
from promptcache.language import CheckedSchema, Repair, Schema, check_schema, new_member, open_schema
from promptcache.layout import Layout, Plan, piece_texts
from promptcache.loops import linked_inputs
from promptcache.model import Model, as_model, load_model, tell_unused, wrap_tokenizer
from promptcache.options import OPTIONS, AnswerKeywords, OptionKeywords
from promptcache.planning import Catalog, Planner, PromptSource, TemplateOptions, choose_placement, serve_schema
from promptcache.rows import choose_kernels, used_kernels
from promptcache.session import Chat, EngineStats, WarmReport, chat_prompt, warm
from promptcache.settings import CodecName, EngineKeywords, EngineSettings, PretrainedKeywords, ServiceLimits
from promptcache.structured import OutputType, Parsed
from promptcache.tokenizer import Tokenizer


class Engine(Unpicklable):
    """Serves prompts written against schemas. `close` ends an engine, and so does the end of its `with` block.

    A `prompt` is XML text (starting with "<"), a path, a `Prompt`, or chat messages:
    `[{"role": "user", "content": "…"}]`. Methods that take one raise `PromptError` if it is not valid (it lists every
    fault with its place), `UnknownSchema` if its schema was not added, and `ContextLengthExceeded` if it needs more
    positions than the model has, with the answer that was asked for. Nothing was computed then. Methods that take the
    name of a schema raise `UnknownSchema` as well. `repair=None` is the setting of the schema, else of the engine.

    Attributes:
        model: The model; the engine changes it in place.
        tokenizer: Turns text into token IDs.
        settings: All settings, with those that were not given.
        store: Holds the KV of all encodings.
        positions: Where cached text stands, if a schema does not state it.
    """

    _instead = "make one in each process; processes share a folder, Engine(…, store=…)"

    def __init__(
        self,
        model: PreTrainedModel | Model,
        tokenizer: PreTrainedTokenizerBase | Tokenizer,
        **settings: Unpack[EngineKeywords],
    ) -> None:
        """Create an engine for a loaded model and its tokenizer.

        Args:
            model: A causal language model of transformers, on its device and in its dtype. It is changed in place.
            tokenizer: Its tokenizer, of transformers or any `Tokenizer`.
            settings: The fields of `promptcache.settings.EngineSettings`; docs/settings.md lists them.

        Raises:
            InvalidValue: A setting has a value that is not allowed.
            UnsupportedModel: One of the two is not usable, or linked KV is not what the model computes.
            StoreError: `store` does not name a store, or is a `Store` for KV of another shape.
        """
        self.settings = chosen = EngineSettings(**settings)
        self.model = own = as_model(model, chosen.context_length)
        tell_unused(own.hf.generation_config, f"the generation configuration of {own.facts.name}")
        self.store: Store = open_store(chosen.store, own.shape)
        self.store.name(own)  # packed weights are unpacked for a fingerprint, which takes memory
        own.pack_weights(chosen.pack)
        self.tokenizer: Tokenizer = wrap_tokenizer(tokenizer, own.end_ids)
        choose_kernels(own)
        check_linking(own)
        self.positions = choose_placement(own, chosen.positions)
        # The threads of services have no reference to the engine, so an engine that is dropped ends.
        self._executor = Executor.open(own, self.store, self.tokenizer.fingerprint, keeps_history=chosen.history)
        self._catalog = Catalog(self.store, self._executor.key, own.name)
        self._planner = Planner(
            self._catalog, self.tokenizer, own.context_length, Repair.parse(chosen.repair), chosen.strict_template
        )
        self._repetition = Repetition(self._executor, chosen.promote)
        self._requests = RequestBuilder(self._planner, self._executor, self.tokenizer, (self._repetition.refine,))
        self._services: WeakSet[Service] = WeakSet()
        self._async_service = AsyncService(self._requests, self.service)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = "demo",
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        **options: Unpack[PretrainedKeywords],
    ) -> Engine:
        """Load a model with its tokenizer and create an engine for it.

        Args:
            model: "demo" (part of this package), a folder, or a hub id. Transformers shows the progress of downloads.
            device: For example "cpu" or "cuda"; None chooses a GPU if there is one.
            dtype: Dtype of the weights. "auto" is the checkpoint's own dtype, or float32 for float16 on a CPU.
            options: Settings, as for `Engine`, but `pack=None`, and options of transformers' `from_pretrained`.

        Raises:
            ModelNotFound: There is no such folder or hub id, or files are missing in it.
            UnsupportedModel: The model or tokenizer cannot be cached by modules.
        """
        given: dict[str, Any] = {"pack": None, **options}
        own = {name: given.pop(name) for name in declared(EngineSettings) if name in given}
        own["store"] = checked_source(own.get("store"))  # all before a large model is loaded
        EngineSettings(**own)
        return cls(*load_model(model, device=device, dtype=dtype, **given), **own)

    def close(self) -> None:
        """End the services and the work in idle time, remove all schemas, and free their KV and history.

        Other methods then raise `EngineClosed`. Requests in flight and streams go on to their end; those of services
        get `ServiceClosed`. The model, KV in folders and under URLs, and a `Store` of the caller stay as they are.
        """
        self._catalog.close()
        self._repetition.thread.end()
        for service in tuple(self._services):
            service.close()
        self.clear_history()
        if self.store is not self.settings.store:
            self.store.memory.clear()

    def __enter__(self) -> Self:
        self._catalog.check_open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def schemas(self) -> Mapping[str, CheckedSchema]:
        """The added schemas by name."""
        return {each.schema.name: each.schema for each in self._catalog.schemas}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.model.facts.name}: schemas {', '.join(self.schemas) or 'none yet'}>"

    @property
    def fingerprint(self) -> str:
        """Digest of model and tokenizer as they are now. KV with another fingerprint is never used."""
        return f"{self.model.fingerprint}:{self.tokenizer.fingerprint}"

    def add_schema(
        self,
        source: str | Path | Schema | CheckedSchema,
        *,
        context: Mapping[str, object] | None = None,
        keep: CodecName | None = None,
    ) -> CheckedSchema:
        """Add a schema, or replace that of the same name, which requests in flight keep. Nothing is encoded yet.

        Args:
            source: XML text (starting with "<"), a path, a `Schema` or a `CheckedSchema`.
            context: Variables of a template (`*.xml.j2`), as plain data like JSON.
            keep: "full", or quantized: "int8" or "int4" (`Completion.lossy`); None means the setting of the engine.

        Raises:
            SchemaError: The schema is not valid (lists every fault with its place), or it needs more positions than the
                model has.
        """
        codec = codec_named(self.settings.keep if keep is None else keep)
        schema = source if isinstance(source, CheckedSchema) else check_schema(open_schema(source, context))
        placement = self.positions if schema.positions is None else choose_placement(self.model, schema.positions)
        self._catalog.add(serve_schema(schema, self.tokenizer, self.model.context_length, codec, placement))
        return schema

    def add_member(self, schema: str, collection: str, name: str, text: str) -> None:
        """Add or replace a member of a collection. It is encoded by `warm(members=True)`, or for its first prompt.

        Args:
            schema: Name of an added schema.
            collection: Path of a collection, such as "docs".
            name: Name of the member, as for a module. Prompts name it as `<docs><name/></docs>`.
            text: Its text, used exactly.

        Raises:
            InvalidValue: There is no such collection, or the name or the text cannot be that of a member.
        """
        self._catalog.set_member(schema, collection, name, new_member(name, text))

    def remove_member(self, schema: str, collection: str, name: str) -> None:
        """Remove a member of a collection. Requests in flight keep it. Errors as `add_member`."""
        self._catalog.set_member(schema, collection, name, None)

    def members(self, schema: str, collection: str) -> Mapping[str, str]:
        """Return the texts of the members of a collection, by name; it shows later changes. Errors as `add_member`."""
        return self._catalog.members(schema, collection)

    def layout(self, schema: str) -> Layout:
        """Return the positions of a schema's runs and slots under this engine's tokenizer."""
        return self._catalog.find(schema).layout

    def remove_schema(self, name: str) -> None:
        """Remove a schema. Requests in flight keep it. Its KV makes room when other KV needs it."""
        self._catalog.remove(name)

    def warm(
        self, schema: str | None = None, *, members: bool = False, pairs: bool = False, progress: Progress | None = None
    ) -> tuple[WarmReport, ...]:
        """Encode the missing encodings of a schema, and write them to every folder and URL of the store.

        Args:
            schema: Its name; None warms all schemas.
            members: Encode the members of collections, too, which may be many, before prompts name them.
            pairs: Encode modules with `context="previous"` also behind each module that may be the one before them.
            progress: Called with the number of tokens done so far, found or encoded, and the number of all tokens: with
                0 while they are counted. If it raises, nothing more is encoded.

        Raises:
            ContextLengthExceeded: A member alone needs more positions than the model has; its schema is not encoded.
        """
        return warm(schema, self._catalog, self._executor, progress, members=members, pairs=pairs)

    def promote(self, prompt: PromptSource, *, salt: str | None = None) -> int:
        """Promote the combination of modules that a prompt reuses: later requests with it are `exact`.

        `promote="auto"` does it in idle time, for combinations that came. History keeps the KV, while it has room.

        Args:
            prompt: Its arguments are part of the combination; its text at the end is not.
            salt: Requests with arguments use the promotion only if they have the same salt.

        Returns:
            The number of tokens that were computed; 0 if the prompt is `exact` without it, or promoted already.

        Raises:
            InvalidValue: The engine keeps no history.
            PromptCacheError: Memory has no room for the promotion.
        """
        return self._repetition.promote(self._planner.fitting(prompt), salt)

    def stats(self) -> EngineStats:
        """Return figures of memory and of promotion, and the kernels of attention."""
        memory = self.store.memory
        return EngineStats(
            memory_bytes=memory.nbytes(),
            budget_bytes=memory.budget_bytes,
            promotions=self._repetition.figures,
            attention=used_kernels(self.model).value,
        )

    def clear_history(self) -> None:
        """Free all history. Modules stay encoded, and requests in flight keep what they use."""
        if self._executor.history is not None:
            self._executor.history.clear()

    def keys(self, schema: str, module: str | None = None) -> tuple[str, ...]:
        """Return the store keys of a schema's encodings, or of one module with the modules in it."""
        return tuple(map(self._executor.key, self._catalog.find(schema).encodings_of(module)))

    def plan(self, prompt: PromptSource, *, repair: str | None = None, template_kwargs: TemplateOptions = None) -> Plan:
        """Return the plan of a prompt: the KV it reuses, the tokens it prefills, and their positions. No model work.

        `template_kwargs` are variables of the chat template, such as `{"enable_thinking": False}`.
        """
        return self._planner.plan(prompt, repair, template_kwargs)

    def render(self, prompt: PromptSource, *, template_kwargs: TemplateOptions = None) -> str:
        """Return the text of a prompt as the model gets it, with what the chat template writes."""
        return "".join(piece_texts(self.plan(prompt, template_kwargs=template_kwargs), self.tokenizer))

    def generate(
        self, prompt: PromptSource, *, output: OutputType[Parsed] = None, **options: Unpack[AnswerKeywords]
    ) -> Completion[Parsed]:
        """Answer a prompt.

        Args:
            output: The format of the answer: a type, a JSON schema, `Choice`, `Regex` or `Grammar`; None is that of the
                prompt or its schema. Of a type, `Completion.parsed` is an instance, for type checkers too.
            options: The fields of `promptcache.options.Options`: `max_new_tokens` (by default 256, or less if the
                context ends earlier), `seed`, `tools`, …, and options of transformers' `generate`. Its processors,
                criteria and streamers get all tokens of the prompt in position order; functions of the caller are
                called for one row, `[1, T]` and `[1, V]`.

        Raises:
            InvalidGeneration: An option that this library sets itself or cannot support.
        """
        asked = self._requests.read({"output": output, **options})
        return answer([self._requests.build(prompt, asked)], self._executor)[0]

    def generate_batch(
        self,
        prompts: Sequence[PromptSource],
        *,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        output: OutputType[Parsed] = None,
        **options: Unpack[AnswerKeywords],
    ) -> tuple[Completion[Parsed], ...]:
        """Answer several prompts together, of one schema or several. Each answer equals that of `generate`.

        KV that several prompts reuse is held once, and attended to once per layer. An error ends the batch. It names
        the index of its prompt.

        Args:
            prompts: Any number. As many as fit into `batch_bytes` are computed together, and then the others.
            batch_bytes: Limit of the KV of own tokens, prompt and answer, of the prompts that are computed together.
            output: As for `generate`, of each answer.
            options: Those of `generate` for each prompt, `seed` as well, without a streamer.
        """
        asked = self._requests.read({"output": output, **options})
        return answer(self._requests.build_batch(prompts, asked), self._executor, batch_bytes)

    def stream(
        self, prompt: PromptSource, *, output: OutputType[Parsed] = None, **options: Unpack[AnswerKeywords]
    ) -> Stream[Parsed]:
        """Return an iterator over the pieces of an answer. `completion` is set at its end. Closing it stops generation.

        Options and errors are those of `generate`, raised before the first piece.
        """
        asked = self._requests.read({"output": output, **options})
        return Stream(self._requests.build(prompt, asked), self._requests.executor)

    async def agenerate(
        self, prompt: PromptSource, *, output: OutputType[Parsed] = None, **options: Unpack[AnswerKeywords]
    ) -> Completion[Parsed]:
        """Answer a prompt in an event loop of asyncio, as `generate`. If the task is cancelled, so is the request."""
        return await self._async_service.answer(prompt, self._requests.read({"output": output, **options}))

    def astream(
        self, prompt: PromptSource, *, output: OutputType[Parsed] = None, **options: Unpack[AnswerKeywords]
    ) -> AsyncStream[Parsed]:
        """Return an asynchronous iterator over the pieces of an answer. Arguments and errors are those of `stream`.

        The prompt is checked and planned before this returns, in the calling thread: milliseconds, more with a new
        `output`. `await asyncio.to_thread(engine.astream, prompt)` does it in another thread. The request begins with
        the first piece. Closing the iterator, or cancelling the task that reads it, stops generation.
        """
        return self._async_service.stream(prompt, self._requests.read({"output": output, **options}))

    def service(self, limits: ServiceLimits | None = None, *, observer: ServiceObserver | None = None) -> Service:
        """Start a service: a thread that answers many requests together, as they come.

        Args:
            limits: Its limits; None means those of `ServiceLimits`.
            observer: Gets figures of its work, in its thread.
        """
        self._catalog.check_open()
        service = Service(self._requests, limits, observer)
        self._services.add(service)
        return service

    def chat(self, prompt: PromptSource | None = None, **options: Unpack[OptionKeywords]) -> Chat:
        """Start a conversation over a prompt.

        Args:
            prompt: Its turns come first. If it ends with a user turn or bare text, `Chat.say()` without a text answers
                that first. None means a plain chat.
            options: As for `generate`, for every answer.

        Raises:
            InvalidValue: The prompt has bare text and other turns.
        """
        self._catalog.check_open()
        return Chat.over(self._requests, chat_prompt(prompt), options)

    def load_chat(self, path: str | Path, **options: Unpack[OptionKeywords]) -> Chat:
        """Return the conversation that `Chat.save` wrote. Its schema has to be added before the next answer.

        The next answer prefills the turns that history does not have. If the text of an answer was edited in the file,
        its tokens are those of the new text. `repair` is as saved, if `options` do not have it.

        Raises:
            InvalidValue: The file is not a saved chat, or cannot be read.
        """
        self._catalog.check_open()
        return Chat.load(self._requests, path, options)

    def logits(self, prompt: PromptSource, *, repair: str | None = None) -> torch.Tensor:
        """Return the logits `[N, V]` of a prompt's N new tokens, in position order, from linked KV."""
        return linked_logits(self._planner.fitting(prompt, repair), self._executor)

    def score(self, prompt: PromptSource, choices: Sequence[str], *, repair: str | None = None) -> tuple[Score, ...]:
        """Return the log-probabilities of texts as continuations of a prompt, which is prefilled once.

        Args:
            choices: Texts that directly continue the prompt, each tokenized by itself. At least one, none empty.

        Raises:
            InvalidValue: `choices` are not texts, or one has no tokens.
        """
        tokenized = tokenized_choices(choices, self.tokenizer)
        plan = self._planner.fitting(prompt, repair, max(map(len, tokenized)))
        return score(plan, choices, tokenized, self._executor)

    def reference(self, prompt: PromptSource, *, repair: str | None = None) -> torch.Tensor:
        """Return the logits `[N, V]` that `logits` must equal, from one forward pass without cache. Slow."""
        return expected_logits(self._planner.fitting(prompt, repair), self._executor)

    def link(self, prompt: PromptSource, *, repair: str | None = None) -> dict[str, Any]:
        """Link a prompt for one generation of your own: `engine.model.hf.generate(**inputs)`.

        Returns:
            `input_ids` of the whole prompt, its `attention_mask`, and `past_key_values`: a `DynamicCache` of
            transformers with a copy of the KV of all its tokens but the last.

        Raises:
            UnsupportedModel: The model has sliding windows, and the prompt has a gap in its positions within one.
        """
        return linked_inputs(self._planner.fitting(prompt, repair, 1), self._executor)

    def audit(
        self, prompt: PromptSource, *, max_new_tokens: int = DEFAULT_AUDIT_TOKENS, repair: str | None = None
    ) -> Audit:
        """Compare a prompt with ordinary prefill of the same text: how far the two are apart, and both answers. Slow.

        Args:
            max_new_tokens: Limit of the tokens of the greedy answers, which are the places that are compared.
        """
        OPTIONS["max_new_tokens"].kind.check("max_new_tokens", max_new_tokens, InvalidValue)
        plan = self._planner.fitting(prompt, repair, max_new_tokens)
        return audit(plan, self._executor, self.tokenizer, self.end_ids, max_new_tokens)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        return self._requests.end_ids
