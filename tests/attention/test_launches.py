"""A layer starts few kernels on a GPU, counted without one."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch

from promptcache.rows import Batch
from promptcache.rows.step_graphs import StepGraphs
from tests.attention import launches
from tests.attention.launches import KernelCounter, LaunchCase, Models, Sizes, count_decoding, count_ttft

pytestmark = pytest.mark.long

SIZES = Sizes(num_modules=4, module_tokens=64, new_tokens=3)


def test_with_triton_every_layer_starts_40_kernels_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of rows, segments and windows."""
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(launches, "STEP_ROWS", (1, 3))

    counts = [*count_ttft(torch.bfloat16, SIZES).values(), *count_decoding(torch.bfloat16, SIZES).values()]

    assert max(counts) <= 40


@pytest.mark.parametrize(("window", "num_kernels"), [(None, 4), (8, 4)])
def test_with_a_graph_the_host_starts_few_kernels(window: int | None, num_kernels: int) -> None:
    """Beside the graph: copies of the tokens, of the places of new KV and of the lists of a window, and of the logits."""
    pytest.importorskip("triton", reason="triton is not installed")
    model = Models(torch.bfloat16).with_layers(2, window)
    replays: list[None] = []
    graph = Mock(replay=lambda: replays.append(None))
    batch = Batch(model, graphs=StepGraphs(model, lambda run: (graph, run())))
    rows = [launches.join(batch, model, LaunchCase(lengths=(16, 16)), 1, launches.handles_of(model, (16, 16), 0))]
    batch.step([(rows[0], [0])])

    with KernelCounter() as counter:
        batch.step([(rows[0], [0])])

    assert (len(replays), counter.num_kernels) == (2, num_kernels)
