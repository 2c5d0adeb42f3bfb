"""Kernels that one forward pass starts on a CUDA device, counted without one: `promptcache bench … --count-launches`.

Tensors on the meta device stand for those on a GPU: they have shapes and no memory. Every operation of PyTorch that
makes or changes numbers counts as one kernel. Views, allocations and empty results start none. A few operations start
more than one kernel on a GPU, so a count is a lower bound; it depends on no machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from promptcache.bench.harness import BenchReport
from promptcache.bench.shapes import SHAPES, random_weights
from promptcache.bench.workload import Sizes
from promptcache.kv import KVHandle, MemoryStore, Slab
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime import Batch, Model, Segment, open_pool

STEP_ROWS = (1, 8, 32)
"""Rows of the decode steps that are counted."""

_FEWER, _MORE = 2, 4  # layers of the two models whose counts are compared
_SMALL: Mapping[str, int] = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 64}  # weights are not counted
_PROMPT_TOKENS = 16  # new tokens of a row before it decodes
_WITHOUT_KERNEL = frozenset({"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})

_Work: TypeAlias = Callable[[Model], Callable[[], object]]
"""Prepares a forward pass of a model on the meta device, and returns it."""


class KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch does not annotate it
    """Counts kernels while it is active.

    Attributes:
        num_kernels: Operations that make or change numbers.
        num_operations: All operations, those without a kernel included. Each costs time of the host.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.num_kernels = self.num_operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and count it."""
        result = func(*args, **(kwargs or {}))
        self.num_operations += 1
        name = func._schema.name.partition("::")[2]
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        is_empty = bool(made) and all(each.numel() == 0 for each in made)
        if not func.is_view and name not in _WITHOUT_KERNEL and not is_empty:
            self.num_kernels += 1
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCount:
    """Launches of one forward pass.

    Attributes:
        per_layer: Kernels of each layer.
        once: Kernels outside of layers: embedding, rotary embeddings, the output layer, and masks that are prepared.
        operations_per_layer: Operations of each layer, those without a kernel included.
    """

    per_layer: float
    once: float
    operations_per_layer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCase:
    """Stored KV over which forward passes are counted.

    Attributes:
        lengths: Tokens of each module, in one slab with gaps between them.
        history: Tokens of each node of history behind the modules, in memory of its own for each row.
        own: Tokens of one more module that each row has for itself; 0 means none.
        has_window: Whether all layers have a sliding window that ends inside a module.
    """

    lengths: tuple[int, ...]
    history: tuple[int, ...] = ()
    own: int = 0
    has_window: bool = False


def launch_cases(sizes: Sizes) -> dict[str, LaunchCase]:
    """Return the cases of a table by name."""
    equal = (sizes.module_tokens,) * sizes.num_modules
    uneven = replace(sizes, uneven=True)
    different = tuple(uneven.tokens_of(index) for index in range(sizes.num_modules))
    history = (sizes.module_tokens // 2, sizes.module_tokens, 2 * sizes.module_tokens)
    return {
        "no modules": LaunchCase(lengths=()),
        "one length": LaunchCase(lengths=equal),
        "different lengths": LaunchCase(lengths=different),
        "history": LaunchCase(lengths=equal, history=history),
        "own module": LaunchCase(lengths=equal, own=sizes.module_tokens + 1),
        "window": LaunchCase(lengths=equal, has_window=True),
        "window, different lengths": LaunchCase(lengths=different, has_window=True),
    }


def count_ttft(shape: str, dtype: torch.dtype, all_sizes: Sequence[Sizes]) -> BenchReport:
    """Count the launches of the forward pass from linked modules to the first token, for a shape on CUDA."""
    models = _Models(shape, dtype)
    found = {
        (name, sizes.new_tokens): (sizes, _counted(models, sizes, case, _prefill(case, sizes.new_tokens)))
        for sizes in all_sizes
        for name, case in launch_cases(sizes).items()
        if not case.own  # one row: any module is its own
    }
    return _report("ttft", "new", shape, found)


def count_decoding(shape: str, dtype: torch.dtype, all_sizes: Sequence[Sizes]) -> BenchReport:
    """Count the launches of a step that decodes one token of each of several rows, for a shape on CUDA."""
    models = _Models(shape, dtype)
    found = {
        (name, num_rows): (sizes, _counted(models, sizes, case, _decoding(case, num_rows)))
        for sizes in all_sizes
        for num_rows in STEP_ROWS
        for name, case in launch_cases(sizes).items()
    }
    return _report("decode", "rows", shape, found)


def _report(
    name: str, number: str, shape: str, found: Mapping[tuple[str, int], tuple[Sizes, LaunchCount]]
) -> BenchReport:
    num_layers = SHAPES[shape][1]["num_hidden_layers"]
    cells, rows = [], []
    for (case, count), (sizes, launches) in found.items():
        total = num_layers * launches.per_layer + launches.once
        operations = launches.operations_per_layer
        shown = (launches.per_layer, launches.once, total, operations)
        cells.append((f"{sizes.cached_tokens:,}", str(count), case, *(f"{each:g}" for each in shown)))
        rows.append(
            {
                **sizes.data,
                number: count,
                "case": case,
                "kernels_per_layer": launches.per_layer,
                "kernels_once": launches.once,
                "operations_per_layer": operations,
            }
        )
    return BenchReport(
        name=name,
        title=f"Kernels of one forward pass on CUDA, counted with tensors without memory ({num_layers} layers)",
        columns=("cached", number, "modules", "per layer", "once", "all", "operations per layer"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


class _Models:
    """Models on the meta device with the heads of a shape, and small weights."""

    def __init__(self, shape: str, dtype: torch.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        self._made: dict[tuple[int, int | None], Model] = {}

    def with_layers(self, num_layers: int, window: int | None) -> Model:
        """Return the model with so many layers; with a window, all of its layers have it."""
        found = self._made.get((num_layers, window))
        if found is None:
            found = self._made[num_layers, window] = self._make(num_layers, window)
        return found

    def _make(self, num_layers: int, window: int | None) -> Model:
        kind, sizes = SHAPES[self._shape]
        head_dim = sizes.get("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
        own: dict[str, Any] = {**sizes, **_SMALL, "head_dim": head_dim, "num_hidden_layers": num_layers}
        if window is not None:
            kind, own = "MistralConfig", {**own, "sliding_window": window}
        model = Model(random_weights(kind, own, self._dtype, torch.device("cpu")))
        meta = torch.device("meta")
        model.hf.to(meta)
        model.shape = replace(model.shape, device=meta)
        return model


def _counted(models: _Models, sizes: Sizes, case: LaunchCase, work: _Work) -> LaunchCount:
    """Count for two numbers of layers; the difference is what layers cost."""
    window = (2 * sizes.num_modules - 1) * sizes.module_tokens // 4 if case.has_window else None
    counts = []
    for num_layers in (_FEWER, _MORE):
        run = work(models.with_layers(num_layers, window))
        with torch.no_grad(), KernelCounter() as counter:
            run()
        counts.append(counter)
    fewer, more = counts
    per_layer = (more.num_kernels - fewer.num_kernels) / (_MORE - _FEWER)
    return LaunchCount(
        per_layer=per_layer,
        once=fewer.num_kernels - _FEWER * per_layer,
        operations_per_layer=(more.num_operations - fewer.num_operations) / (_MORE - _FEWER),
    )


def _prefill(case: LaunchCase, num_new: int) -> _Work:
    """Prefill the new tokens of one row. Its modules were used before, so that copies of them exist."""

    def prepare(model: Model) -> Callable[[], object]:
        pool, shared = open_pool(model, MemoryStore(model.shape)), _handles(model, case.lengths, 0)

        def joined() -> Callable[[], object]:
            batch = Batch(model, pool)
            row = _join(batch, model, case, num_new, shared)
            return lambda: batch.step([(row, row.tokens.token_ids)])

        joined()()
        return joined()

    return prepare


def _decoding(case: LaunchCase, num_rows: int) -> _Work:
    """Decode one token of each row, the second after its prompt."""

    def prepare(model: Model) -> Callable[[], object]:
        batch = Batch(model, open_pool(model, MemoryStore(model.shape)))
        shared = _handles(model, case.lengths, 0)
        draw = random.Random(0)
        rows = [
            _join(batch, model, case, _PROMPT_TOKENS + (draw.randrange(8) if index else 0), shared)
            for index in range(num_rows)
        ]
        batch.step([(row, row.tokens.token_ids) for row in rows])
        batch.step([(row, [0]) for row in rows])
        return lambda: batch.step([(row, [0]) for row in rows])

    return prepare


def _join(batch: Batch, model: Model, case: LaunchCase, num_new: int, shared: Mapping[Encoding, KVHandle]) -> Any:
    """Add a row over the modules of a case, its own KV included."""
    handles, history = dict(shared), dict[Encoding, KVHandle]()
    if case.own:
        handles |= _handles(model, (case.own,), 1 + _end(handles))
    for length in case.history:
        history |= _handles(model, (length,), 1 + _end({**handles, **history}))
    first = 1 + _end({**handles, **history})
    tokens = RequestTokens(
        parts=tuple(encoding.whole for encoding in handles),
        token_ids=(0,) * num_new,
        position_ids=tuple(range(first, first + num_new)),
    )
    row = batch.join(tokens, handles, 0)
    row.growing = tuple(
        Segment(handles=(handle,), start=handle.start, stop=handle.stop, parts=(encoding.whole,))
        for encoding, handle in history.items()
    )
    return row


def _end(handles: Mapping[Encoding, KVHandle]) -> int:
    return max((encoding.position_ids[-1] for encoding in handles), default=-1)


def _handles(model: Model, lengths: Sequence[int], first: int) -> dict[Encoding, KVHandle]:
    """Return modules of these lengths in one slab without memory, with a gap of one module behind each."""
    slab = Slab.empty(model.shape, 2 * sum(lengths))
    handles, start = {}, 0
    for length in lengths:
        positions = range(first + start, first + start + length)
        encoding = Encoding(token_ids=tuple(positions), position_ids=tuple(positions))
        handles[encoding] = KVHandle(slab=slab, start=start, stop=start + length)
        start += 2 * length
    return handles
