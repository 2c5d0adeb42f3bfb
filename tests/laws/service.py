"""A schema with a model, a tokenizer and a store: plans, logits and tokens of its prompts, for the laws to compare.

A service takes the same steps as an engine.
"""

import time
from dataclasses import dataclass
from functools import cache

import torch

from promptcache.decode import Request, answer
from promptcache.encode import Executor, check_linking, linked_logits
from promptcache.kv import Store
from promptcache.language import CheckedSchema, Repair, Selection
from promptcache.layout import Plan
from promptcache.model import Model
from promptcache.options import Options
from promptcache.planning import ServedSchema, choose_placement, serve_schema
from promptcache.rows import Copies
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cached import TOLERANCES
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import Tokenizer
from tests.laws.position_oracle import SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaServer:
    """A schema as a model serves it from one store."""

    served: ServedSchema
    executor: Executor

    @property
    def model(self) -> Model:
        return self.executor.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.served.tokenizer

    @property
    def store(self) -> Store:
        return self.executor.store

    @property
    def tolerance(self) -> float:
        """The largest distance of logits that rounding explains, max|a-b| / max|b|."""
        return TOLERANCES[self.model.shape.dtype]

    def plan(self, selection: Selection, repair: Repair | None = None) -> Plan:
        """Plan one prompt; `repair` is by default that of the schema, else `SLOTS`."""
        return self.served.plan(selection, repair or selection.schema.repair or SLOTS)

    def logits(self, selection: Selection) -> torch.Tensor:
        """Answer one prompt from linked KV, `[N, V]`."""
        return linked_logits(self.plan(selection), self.executor)

    def tokens(self, selection: Selection, num_tokens: int) -> tuple[int, ...]:
        request = Request(
            plan=self.plan(selection),
            options=Options(),
            max_new_tokens=num_tokens,
            started=time.perf_counter(),
            text=self.tokenizer.decode,
            token_bytes=self.tokenizer.token_bytes,
        )
        return answer([request], self.executor)[0].token_ids

    def renewed(self, schema: CheckedSchema | None = None) -> "SchemaServer":
        """Return the same service with an empty store of its own, for another schema if one is given."""
        return serve(self.served.schema if schema is None else schema, self.model, self.tokenizer)

    def on(self, store: Store) -> "SchemaServer":
        return serve(self.served.schema, self.model, self.tokenizer, store, self.executor.copies)


def serve(
    schema: CheckedSchema,
    model: Model | None = None,
    tokenizer: Tokenizer | None = None,
    store: Store | None = None,
    copies: Copies | None = None,
) -> SchemaServer:
    """Serve a schema; by default with a tiny random model over bytes and an empty store in memory."""
    model = default_model() if model is None else model
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    store = Store(model.shape) if store is None else store
    executor = Executor(model, store, lambda: f"{model.fingerprint}:{tokenizer.fingerprint}", copies)
    placement = choose_placement(model, schema.positions)
    served = serve_schema(schema, tokenizer, model.context_length, placement=placement)
    return SchemaServer(served=served, executor=executor)


@cache
def default_model() -> Model:
    made = tiny_model()
    check_linking(made)
    return made
