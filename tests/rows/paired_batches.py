"""Requests in two batches, with and without recorded steps."""

from collections.abc import Sequence

import torch

from promptcache.model.model import Model
from promptcache.rows.batch import Batch
from promptcache.rows.forward_pass import Row
from promptcache.rows.step_graphs import StepGraphs
from promptcache.testing.cached import distance
from tests.families import random_model
from tests.laws.service import serve
from tests.model.test_families import plan_for
from tests.rows.test_interleavings import PROMPTS


def with_usual_experts(family: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Model:
    """A random model. Its experts, if any, are computed as transformers does by default, and not one by one."""
    hf = random_model(family, dtype).to(device)
    if "experts" in repr(hf):
        hf.set_experts_implementation("grouped_mm")
    return Model(hf)


class Requests:
    """Several requests in two batches, one with graphs and one without. Both compute the same tokens."""

    def __init__(self, model: Model, family: str, graphs: StepGraphs, prompts: Sequence[str] = PROMPTS[:3]) -> None:
        plans = [plan_for(prompt, family=family) for prompt in prompts]
        executor = serve(plans[0].layout.schema, model).executor
        self._batches = Batch(model, graphs=graphs), Batch(model)
        self.rows: list[tuple[Row, Row]] = []
        self._tokens = [list(plan.tokens.token_ids) for plan in plans]
        for plan in plans:
            kv_of = executor.fetch(part.encoding for part in plan.tokens.parts).kv_of
            self.rows.append(tuple(batch.join(plan.tokens, kv_of) for batch in self._batches))
        self.step([len(tokens) - 3 for tokens in self._tokens])  # longer than any graph

    def step(self, sizes: Sequence[int]) -> float:
        """Compute so many tokens of each request; return the distance of the logits of the two batches."""
        chosen = [(index, size) for index, size in enumerate(sizes) if size]
        ids = {index: (self._tokens[index] + [50 + index] * size)[:size] for index, size in chosen}
        for index, size in chosen:
            del self._tokens[index][:size]
        found, expected = (
            batch.step([(self.rows[index][number], ids[index]) for index, _ in chosen])
            for number, batch in enumerate(self._batches)
        )
        assert found.shape == expected.shape == (len(chosen), found.shape[1])
        return distance(found, expected)
