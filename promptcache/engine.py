"""The engine: schemas in, answers out. It wires the rooms together and decides nothing itself.

Comes in: a model, schemas and prompts. Goes out: completions. Thread-safe: any number of threads may call any method.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from promptcache.diagnostics import PromptCacheError, UnknownSchema, did_you_mean
from promptcache.kv import MemoryStore, Store
from promptcache.language import (
    CheckedSchema,
    Prompt,
    Schema,
    check_schema,
    load_prompt,
    load_schema,
    parse_prompt,
    parse_schema,
    resolve_prompt,
)
from promptcache.layout import Plan, Tokenizer, check_positions, make_plan
from promptcache.runtime.answer import Request, answer, needed
from promptcache.runtime.completion import Completion, WarmReport
from promptcache.runtime.encode import Progress
from promptcache.runtime.generate import check_generation, request_logits
from promptcache.runtime.hf.load import adapt_tokenizer, load_model
from promptcache.runtime.hf.model import Model
from promptcache.runtime.link import link
from promptcache.runtime.prepare import Fetcher, Prepared, prepare
from promptcache.runtime.reference import reference_logits
from promptcache.runtime.self_test import choose_linking
from promptcache.runtime.stream import Stream, TokenQueue

DEFAULT_NEW_TOKENS = 256
"""Tokens generated at most when a request does not say; fewer where the context ends earlier."""


class Engine:
    """Serves prompts written against schemas, computing the attention states of every module once.

    Attributes:
        model: The model, owned by the engine from here on.
        tokenizer: Text to token IDs.
        store: Where encodings rest.
    """

    def __init__(
        self,
        model: PreTrainedModel | Model,
        tokenizer: PreTrainedTokenizerBase | Tokenizer,
        *,
        store: Store | None = None,
        context_length: int | None = None,
    ) -> None:
        """Take over a loaded model and its tokenizer.

        Args:
            model: A causal language model of transformers, on its device and in its dtype.
            tokenizer: Its tokenizer, of transformers or any `Tokenizer`.
            store: Where encodings rest; None keeps them in memory, on the model's device.
            context_length: Positions that may be used; None takes what the model declares.

        Raises:
            UnsupportedModel: Its computation cannot be reproduced from linked KV; says why.
        """
        self.model = model if isinstance(model, Model) else Model(model, context_length=context_length)
        self._own_tokenizer = tokenizer if isinstance(tokenizer, PreTrainedTokenizerBase) else None
        self.tokenizer: Tokenizer = (
            adapt_tokenizer(tokenizer) if isinstance(tokenizer, PreTrainedTokenizerBase) else tokenizer
        )
        choose_linking(self.model)
        self._owns_store = store is None
        self.store: Store = store if store is not None else MemoryStore(self.model.shape)
        self._fetcher = Fetcher(self.model, self.store)
        self._prepared: dict[str, Prepared] = {}
        self._schemas_lock = threading.Lock()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = "demo",
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        store: Store | None = None,
        context_length: int | None = None,
        **options: Any,
    ) -> Engine:
        """Load a model with its tokenizer and return an engine for it.

        Args:
            model: "demo" (ships with the package), a folder, or a hub id.
            device: For example "cpu" or "cuda"; None takes a GPU where there is one.
            dtype: Of the weights; "auto" is the checkpoint's own, float32 where that is float16 and the device a CPU.
            store: Where encodings rest; None keeps them in memory.
            context_length: Positions that may be used; None takes what the model declares.
            options: Passed on to transformers' `from_pretrained`.

        Raises:
            ModelNotFound: No such folder or hub id, or files missing in it.
            UnsupportedModel: A model or tokenizer that cannot be cached by modules; says why.
        """
        loaded, tokenizer = load_model(model, device=device, dtype=dtype, context_length=context_length, **options)
        return cls(loaded, tokenizer, store=store)

    @property
    def schemas(self) -> Mapping[str, CheckedSchema]:
        """The schemas that prompts can name, by name."""
        return {name: prepared.schema for name, prepared in self._prepared.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Digest over model and tokenizer: KV made under one fingerprint is never used under another."""
        return f"{self.model.fingerprint}:{self.tokenizer.fingerprint}"

    def add_schema(self, source: str | Path | Schema) -> CheckedSchema:
        """Make a schema known; one of the same name is replaced at once, and requests in flight keep the old one.

        Nothing is encoded yet: `warm` does that, or the first request that needs it.

        Args:
            source: XML text (starting with "<"), a path, or a `Schema`.

        Raises:
            SchemaError: Every fault with its place, or more positions needed than the model has.
        """
        schema = check_schema(_read_schema(source))
        prepared = prepare(schema, self.tokenizer, self.fingerprint, self.model.context_length)
        with self._schemas_lock:
            old = self._prepared.get(schema.name)
            self._prepared[schema.name] = prepared
            self.store.reserve(prepared.sizes)
            if old is not None and self._owns_store:
                self._forget_unused(old)
        return schema

    def warm(self, schema: str | None = None, *, progress: Progress | None = None) -> tuple[WarmReport, ...]:
        """Encode everything that a schema may need and that is not there yet.

        Args:
            schema: Its name; None means all schemas.
            progress: Called with the tokens encoded so far and the tokens to encode in all, per schema.
        """
        names = [schema] if schema is not None else list(self._prepared)
        return tuple(self._warm(self._find(name), progress) for name in names)

    def plan(self, prompt: str | Path | Prompt) -> Plan:
        """Return what a prompt would reuse and prefill, and where; no model work.

        Args:
            prompt: XML text (starting with "<"), a path, or a `Prompt`.

        Raises:
            PromptError: Every fault with its place.
            UnknownSchema: No schema of that name was added.
        """
        return self._plan(prompt)[1]

    def generate(
        self, prompt: str | Path | Prompt, *, max_new_tokens: int | None = None, **generation: Any
    ) -> Completion:
        """Answer a prompt.

        Args:
            prompt: XML text (starting with "<"), a path, or a `Prompt`.
            max_new_tokens: Length of the answer at most, in tokens; by default 256, or what the context has left.
            generation: Anything that transformers' `generate` takes (`do_sample`, `num_beams`, `streamer`, ...).
                Processors and penalties see the new tokens of the prompt, not the cached ones.

        Raises:
            PromptError: Every fault of the prompt with its place; nothing was computed.
            UnknownSchema: No schema of that name was added.
            ContextLengthExceeded: Prompt and answer need more positions than the model has.
            InvalidGeneration: An option that this library sets itself.
        """
        started = time.perf_counter()
        check_generation(generation)
        prepared, plan = self._plan(prompt)
        request = Request(
            prepared=prepared,
            plan=plan,
            eos_ids=self._eos_ids,
            max_new_tokens=self._check_room(plan, max_new_tokens),
            options=self._with_tokenizer(generation),
            started=started,
            text=self._text,
        )
        return answer(request, self.model, self._fetcher)

    def stream(self, prompt: str | Path | Prompt, *, max_new_tokens: int | None = None, **generation: Any) -> Stream:
        """Answer a prompt piece by piece; arguments and errors as for `generate`, raised before the first piece.

        Returns:
            An iterator over pieces of text; its `completion` is there when it is exhausted. Closing it stops
            generation.
        """
        check_generation(generation)
        self._check_room(self._plan(prompt)[1], max_new_tokens)

        def produce(queue: TokenQueue) -> Completion:
            criteria = [*generation.pop("stopping_criteria", ()), queue.should_stop]
            return self.generate(
                prompt, max_new_tokens=max_new_tokens, streamer=queue, stopping_criteria=criteria, **generation
            )

        return Stream(produce, self._text)

    def logits(self, prompt: str | Path | Prompt) -> torch.Tensor:
        """Return the logits `[N, V]` of a prompt's N new tokens, in position order, from linked KV."""
        prepared, plan = self._plan(prompt)
        fetched = self._fetcher.fetch(prepared, needed(plan))
        return request_logits(self.model, link(plan, fetched.runs, self.model))

    def reference(self, prompt: str | Path | Prompt) -> torch.Tensor:
        """Return what `logits` must equal, `[N, V]`: one forward pass without cache under an explicit mask. Slow."""
        return reference_logits(self._plan(prompt)[1], self.model)

    @cached_property
    def _eos_ids(self) -> tuple[int, ...]:
        configured: Any = getattr(self.model.hf.generation_config, "eos_token_id", None)
        declared = [configured] if isinstance(configured, int) else list(configured or ())
        return tuple(sorted({*self.tokenizer.eos_ids, *declared}))

    def _forget_unused(self, old: Prepared) -> None:
        used = {key for prepared in self._prepared.values() for key in prepared.keys}
        for key in set(old.keys) - used:
            self.store.delete(key)

    def _find(self, name: str) -> Prepared:
        prepared = self._prepared.get(name)
        if prepared is None:
            known = ", ".join(self._prepared) or "none"
            mend = did_you_mean(name, self._prepared) or f"schemas known here: {known}"
            raise UnknownSchema(f"schema '{name}' was not added to this engine ({mend})")
        return prepared

    def _plan(self, prompt: str | Path | Prompt) -> tuple[Prepared, Plan]:
        read = _read_prompt(prompt)
        prepared = self._find(read.schema)
        selection = resolve_prompt(read, prepared.schema)
        return prepared, make_plan(selection, prepared.layout, prepared.encodings, self.tokenizer)

    def _check_room(self, plan: Plan, max_new_tokens: int | None) -> int:
        if max_new_tokens is not None and max_new_tokens < 1:
            raise PromptCacheError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        room = self.model.context_length - plan.stop
        limit = max_new_tokens if max_new_tokens is not None else max(1, min(DEFAULT_NEW_TOKENS, room))
        check_positions(plan, self.model.context_length, limit)
        return limit

    def _warm(self, prepared: Prepared, progress: Progress | None) -> WarmReport:
        started = time.perf_counter()
        fetched = self._fetcher.fetch(prepared, range(len(prepared.keys)), progress)
        return WarmReport(
            schema=prepared.schema.name,
            num_encodings=len(prepared.keys),
            num_encoded=len(fetched.encoded),
            num_encoded_tokens=fetched.num_encoded_tokens,
            nbytes=sum(size for _, size in prepared.sizes) * self.model.shape.token_bytes,
            seconds=time.perf_counter() - started,
        )

    def _with_tokenizer(self, generation: Mapping[str, Any]) -> Mapping[str, Any]:
        """`stop_strings` is the one option for which transformers' `generate` needs a tokenizer."""
        if "stop_strings" not in generation or self._own_tokenizer is None:
            return generation
        return {"tokenizer": self._own_tokenizer, **generation}

    def _text(self, token_ids: Sequence[int]) -> str:
        control = self.tokenizer.control_ids
        return self.tokenizer.detokenize([each for each in token_ids if each not in control])


def _read_schema(source: str | Path | Schema) -> Schema:
    if isinstance(source, Schema):
        return source
    return parse_schema(source) if _is_markup(source) else load_schema(Path(source))


def _read_prompt(source: str | Path | Prompt) -> Prompt:
    if isinstance(source, Prompt):
        return source
    return parse_prompt(source) if _is_markup(source) else load_prompt(Path(source))


def _is_markup(source: str | Path) -> TypeGuard[str]:
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")
