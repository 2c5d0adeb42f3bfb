"""One request, both ways: what the laws compare."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from promptcache.kv import MemoryStore, Store
from promptcache.language import CheckedSchema, Selection
from promptcache.layout import Plan, make_plan
from promptcache.runtime.answer import needed
from promptcache.runtime.generate import request_logits
from promptcache.runtime.hf.model import Model
from promptcache.runtime.link import link
from promptcache.runtime.prepare import Fetcher, Prepared, prepare
from promptcache.runtime.self_test import choose_linking
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import CONTEXT_LENGTH, tiny_model

TOLERANCE = 1e-10
"""Of float64 runs: rounding stays below 1e-14, the smallest planted fault gives 1e-4."""


@cache
def model() -> Model:
    """The model of all laws."""
    made = tiny_model()
    choose_linking(made)
    return made


def fresh_store() -> Store:
    """A store with nothing in it."""
    return MemoryStore(model().shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A schema being served."""

    prepared: Prepared
    store: Store

    def plan(self, selection: Selection) -> Plan:
        """Plan one prompt."""
        return make_plan(selection, self.prepared.layout, self.prepared.encodings, ByteTokenizer())

    def logits(self, selection: Selection) -> torch.Tensor:
        """Answer one prompt from linked KV, `[N, V]`."""
        plan = self.plan(selection)
        fetched = Fetcher(model(), self.store).fetch(self.prepared, needed(plan))
        return request_logits(model(), link(plan, fetched.runs, model()))


def serve(schema: CheckedSchema, store: Store | None = None) -> Service:
    """Prepare a schema with a store of its own."""
    prepared = prepare(schema, ByteTokenizer(), "laws", CONTEXT_LENGTH)
    store = store if store is not None else fresh_store()
    store.reserve(prepared.sizes)
    return Service(prepared=prepared, store=store)


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return max|a-b| / max|b|; NaN is as far as can be."""
    far = float((actual - expected).abs().max() / expected.abs().max())
    return far if far == far else float("inf")
