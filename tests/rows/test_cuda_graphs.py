"""Recorded steps on a GPU: `make test-gpu`."""

import pytest
import torch

from promptcache.rows.step_graphs import CudaRecorder, StepGraphs, open_graphs
from tests.rows.paired_batches import Requests, with_usual_experts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt-oss"])
def test_a_cuda_graph_serves_other_requests(family: str) -> None:
    """A captured step gives the logits of steps without graphs, as `test_step_graphs` shows on a CPU."""
    model = with_usual_experts(family, torch.bfloat16, "cuda")
    if open_graphs(model) is None:
        pytest.skip("the Triton kernels do not run here")
    graphs = StepGraphs(model, CudaRecorder(model.device))
    graphs.record_all()
    assert graphs._graphs, "nothing was recorded"
    requests = Requests(model, family, graphs)

    for sizes in ([1, 2, 1], [0, 1, 0], [1, 0, 2], [1, 1, 1], [3, 0, 0]):
        assert requests.step(sizes) < 0.05
