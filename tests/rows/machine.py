"""A state machine of one batch: rows join, compute any number of tokens, and leave, in any order.

Free memory of tails is filled with NaN, and memory that is allocated holds NaN.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from promptcache.kv import KVMemory
from promptcache.language import CheckedSchema
from promptcache.layout import RequestTokens
from promptcache.model.model import Model
from promptcache.model.reference import reference_logits
from promptcache.rows.batch import Batch
from promptcache.rows.coalesce import Copies
from promptcache.rows.forward_pass import Row
from promptcache.rows.step_graphs import StepGraphs
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cached import distance
from tests import strategies
from tests.laws.service import serve

MAX_ROWS = 5


@dataclass(kw_only=True)
class Answered:
    """The tokens that a row was given, and the logits that came back, by index of the token."""

    token_ids: list[int] = field(default_factory=list)
    logits: dict[int, torch.Tensor] = field(default_factory=dict)


def continued(tokens: RequestTokens, token_ids: list[int]) -> RequestTokens:
    """Return a request whose own tokens are `token_ids`; those beyond its plan follow its last position."""
    planned = tokens.position_ids[: len(token_ids)]
    beyond = range(tokens.position_ids[-1] + 1, tokens.position_ids[-1] + 1 + len(token_ids) - len(planned))
    return replace(tokens, token_ids=tuple(token_ids), position_ids=(*planned, *beyond))


class StepMachine(RuleBasedStateMachine):
    """One batch over the prompts of a random schema, and its tolerance: max|a-b| / max|b| of logits."""

    model: ClassVar[Model]
    tolerance: ClassVar[float]
    graphs: ClassVar[StepGraphs | None]

    def __init__(self) -> None:
        super().__init__()
        self.answered: dict[Row, Answered] = {}
        self.batch = Batch(self.model)

    @initialize(schema=strategies.schemas(), small_tokens=st.sampled_from([0, 8, 64]), tokenizer=strategies.TOKENIZERS)
    def start(self, schema: CheckedSchema, small_tokens: int, tokenizer: ByteTokenizer) -> None:
        torch.use_deterministic_algorithms(True)  # allocated memory is filled with NaN
        self.schema = schema
        self.service = serve(schema, self.model, tokenizer)
        self.batch = Batch(
            self.model, Copies(self.model, KVMemory(self.model.shape), small_tokens=small_tokens), self.graphs
        )

    @precondition(lambda self: len(self.answered) < MAX_ROWS)
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        tokens = self.service.plan(data.draw(strategies.prompts(self.schema))).tokens
        fetched = self.service.executor.fetch(part.encoding for part in tokens.parts)
        self.answered[self.batch.join(tokens, fetched.kv_of)] = Answered()

    @precondition(lambda self: self.answered)
    @rule(data=st.data(), num_last=st.sampled_from([1, 2, None]))
    def step(self, data: st.DataObject, num_last: int | None) -> None:
        sizes = {row: data.draw(st.sampled_from([1, 0, 2, 5, 40])) for row in self.answered}
        order = data.draw(st.permutations([row for row, size in sizes.items() if size]))
        if order:
            self._step([(row, self._next_ids(row, sizes[row], data)) for row in order], num_last)

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        self._step([(row, self._next_ids(row, 1, data)) for row in self.answered], 1)

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self._check(data.draw(st.sampled_from(list(self.answered))))

    @rule()
    def poison(self) -> None:
        for slab in self.batch.tails.slabs.values():
            for slot in slab.free:
                slab.keys[:, slot] = slab.values[:, slot] = torch.nan

    def teardown(self) -> None:
        try:
            for row in list(self.answered):
                self._check(row)
            assert not self.batch._rows
            assert self.batch.tails.nbytes == 0
        finally:
            torch.use_deterministic_algorithms(False)

    def _next_ids(self, row: Row, num_tokens: int, data: st.DataObject) -> list[int]:
        done = len(self.answered[row].token_ids)
        planned = list(row.tokens.token_ids[done : done + num_tokens])
        return planned + [data.draw(st.integers(5, 250)) for _ in range(num_tokens - len(planned))]

    def _step(self, work: list[tuple[Row, list[int]]], num_last: int | None) -> None:
        logits = self.batch.step(work, num_last=num_last)
        parts = logits.split([min(num_last or len(token_ids), len(token_ids)) for _, token_ids in work])
        for (row, token_ids), part in zip(work, parts, strict=True):
            answered = self.answered[row]
            answered.token_ids += token_ids
            stop = len(answered.token_ids)
            answered.logits.update(zip(range(stop - len(part), stop), part, strict=True))

    def _check(self, row: Row) -> None:
        answered = self.answered.pop(row)
        assert row.num_own == len(answered.token_ids)
        self.batch.leave(row)
        if answered.logits:
            expected = reference_logits(continued(row.tokens, answered.token_ids), self.model)
            actual = torch.stack(list(answered.logits.values()))
            assert distance(actual, expected[list(answered.logits)]) < self.tolerance


def step_machine(model: Model, tolerance: float, graphs: StepGraphs | None = None) -> type[StepMachine]:
    own = {"model": model, "tolerance": tolerance, "graphs": graphs}
    return type("StepMachineOfModel", (StepMachine,), own)
