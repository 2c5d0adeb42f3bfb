"""Graphs of steps: the operations of a forward pass over T tokens are recorded once, and run again for any requests.

On a GPU, starting the kernels of a step one by one takes longer than most of them run. A CUDA graph starts all of them
at once. The Triton kernels read what differs between steps from memory, so one graph of each size serves all
requests. Other steps run as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from promptcache.attention import (
    AttentionCall,
    AttentionSpec,
    FixedStep,
    Kernels,
    PassTokens,
    has_kernels,
    uses_kernels,
    write_to_device,
)
from promptcache.diagnostics import first_line
from promptcache.locks import new_lock
from promptcache.model import Model, runs_own_code, step_cache
from promptcache.rows.forward_pass import Pass

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of tokens of which graphs are recorded. A step takes the next larger one."""

_MAX_ROWS = 32  # logits of so many tokens of a step

_LOG = logging.getLogger(__name__)


class Graph(Protocol):
    """Recorded operations."""

    def replay(self) -> None:
        """Run the operations again, on the same memory."""


Recorder: TypeAlias = Callable[[Callable[[], torch.Tensor]], tuple[Graph, torch.Tensor]]
"""Records what a function does. Returns the graph, and the memory that each replay writes the function's result to.

It raises `RuntimeError` if the operations cannot be recorded, for example because the host reads numbers of the device.
"""


class CudaRecorder:
    """Records CUDA graphs. They share the memory of intermediate results, so they do not run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # a handle that torch does not name

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        """Record what a function does, as a `Recorder`. Other threads may use the device meanwhile."""
        with torch.cuda.device(self._device):
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            before = torch.cuda.current_stream()
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch does not annotate it
            beside.wait_stream(before)
            with torch.cuda.stream(beside):
                run()  # compiles kernels, and lets libraries allocate their memory
            before.wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = run()
        return graph, result


class StepGraphs:
    """The graphs of one model, for each size one. Thread-safe.

    If a step cannot be recorded, steps run without graphs.

    Attributes:
        can_record: Whether no step failed to be recorded so far.
    """

    def __init__(self, model: Model, record: Recorder) -> None:
        """Record nothing yet."""
        self._model, self._record = model, record
        self._lock = new_lock()
        self._graphs: dict[int, _StepGraph] = {}
        self.can_record = not runs_own_code(model.hf)

    @torch.no_grad()
    def record_all(self) -> None:
        """Record the graphs of all sizes now, instead of when the first step of a size comes."""
        with self._lock:
            for size in reversed(SIZES):
                self._graph(size)

    @torch.no_grad()
    def compute(self, step: Pass, keep: Sequence[int]) -> torch.Tensor | None:
        """Compute a step, and return logits `[K, V]`; None if there is no graph for it, and nothing was computed.

        Args:
            keep: Indices of the K tokens whose logits are wanted.
        """
        size = next((each for each in SIZES if each >= len(step.token_list)), None)
        if size is None or len(keep) > _MAX_ROWS:
            return None
        self._model.guard.check()
        with self._lock:
            graph = self._graph(size)
            return None if graph is None else graph.compute(step, keep)

    def _graph(self, size: int) -> _StepGraph | None:
        if self.can_record and size not in self._graphs:
            try:
                with torch.inference_mode(mode=False), torch.no_grad():  # memory that later steps may write to
                    self._graphs[size] = _StepGraph(self._model, size, self._record)
            except RuntimeError as error:
                self._graphs.clear()
                self.can_record = False
                name = self._model.facts.name
                _LOG.warning("steps of %s cannot be recorded, and run without graphs: %s", name, first_line(error))
        return self._graphs.get(size)


class _StepGraph:
    """The graph of steps with up to T tokens, and the memory that it reads.

    Attributes:
        attention: Of T tokens, over the KV that the last loaded step uses.
    """

    def __init__(self, model: Model, num_tokens: int, record: Recorder) -> None:
        """Record a step without a request, or raise a `RuntimeError`."""
        # Replays read the weights by address: a weight that is replaced unnoticed stays allocated.
        self._weights = [each.detach() for each in (*model.hf.parameters(), *model.hf.buffers())]
        sizes = [num_tokens, num_tokens, min(num_tokens, _MAX_ROWS)]
        self._inputs = torch.zeros(sum(sizes), dtype=torch.long, device=model.device)
        token_ids, position_ids, keep = self._inputs.split_with_sizes(sizes)
        specs: dict[int | None, AttentionSpec] = {}  # by window; a step shows them: they depend on the model's code
        note_attention(model, num_tokens, lambda call: specs.update({call.window: AttentionSpec.of(call)}))
        if not all(map(uses_kernels, specs.values())):
            raise RuntimeError("the Triton kernels do not compute the attention of this model")
        self.attention = FixedStep(num_tokens, model.shape, specs)
        users, positions = np.zeros((0, 0), dtype=np.bool_), np.zeros(0, dtype=np.int64)
        nothing = PassTokens(segments=(), users=users, positions=positions, groups=(), chunks=(), device=model.device)
        has_room = self.attention.load(nothing, ())
        assert has_room, "spare tokens need no segments"
        cache = step_cache(self, model.shape.num_layers)
        self._graph, self._logits = record(lambda: model.forward(token_ids[None], position_ids[None], cache, keep=keep))

    def compute(self, step: Pass, keep: Sequence[int]) -> torch.Tensor | None:
        """As `StepGraphs.compute`."""
        if not self.attention.load(step.tokens, step.places):
            return None
        inputs = np.zeros(len(self._inputs), dtype=np.int64)
        num_tokens = len(step.token_list)
        inputs[:num_tokens] = step.token_list
        inputs[self.attention.num_tokens :][:num_tokens] = step.positions
        inputs[2 * self.attention.num_tokens :][: len(keep)] = keep
        write_to_device(self._inputs, torch.from_numpy(inputs))
        self._graph.replay()
        return self._logits[0, : len(keep)].clone()  # the next step writes to the same memory

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values `[1, Hkv, T, D]` of one layer to the places of the tokens."""
        self.attention.write(layer, keys[0].transpose(0, 1), values[0].transpose(0, 1))


class _Trial:
    """The attention of tokens of no request: the queries stand for the result of each layer."""

    def __init__(self, note: Callable[[AttentionCall], None]) -> None:
        self.attention, self._note = self, note

    def run(self, _layer: int, call: AttentionCall) -> torch.Tensor:
        """Note a call."""
        self._note(call)
        return call.query.transpose(1, 2)

    def write(self, _layer: int, _keys: torch.Tensor, _values: torch.Tensor) -> None:
        """Keep nothing."""


@torch.no_grad()
def note_attention(model: Model, num_tokens: int, note: Callable[[AttentionCall], None]) -> None:
    """Call `note` with each call of attention in a forward pass of tokens of no request."""
    tokens = torch.zeros((1, num_tokens), dtype=torch.long, device=model.device)
    model.encode(tokens, tokens, step_cache(_Trial(note), model.shape.num_layers))


def open_graphs(model: Model) -> StepGraphs | None:
    """Return graphs of a model that runs on a CUDA device and on the Triton kernels; None for other models."""
    if model.device.type != "cuda" or model.kernels not in (None, Kernels.GRAPHS) or not has_kernels(model.shape):
        return None
    return StepGraphs(model, CudaRecorder(model.device))
