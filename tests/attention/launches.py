"""Kernels that one forward pass starts on a CUDA device, counted without one.

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
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from promptcache.kv import KV, KVMemory
from promptcache.layout import Encoding, RequestTokens
from promptcache.model import Model
from promptcache.model.guard import ModelGuard
from promptcache.rows import Batch, Segment, open_copies

STEP_ROWS = (1, 8, 32)
"""Rows of the decode steps that are counted."""

_FEWER, _MORE = 2, 4  # layers of the two models whose counts are compared
_SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131_072,
    "eos_token_id": None,
}
_PROMPT_TOKENS = 16  # new tokens of a row before it decodes
_WITHOUT_KERNEL = frozenset({"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})

_Work: TypeAlias = Callable[[Model], Callable[[], object]]
"""Prepares a forward pass of a model on the meta device, and returns it."""


class KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch does not annotate it
    """Counts kernels while it is active: operations that make or change numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.num_kernels = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and count it."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        is_empty = bool(made) and all(each.numel() == 0 for each in made)
        if not func.is_view and name not in _WITHOUT_KERNEL and not is_empty:
            self.num_kernels += 1
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Modules of a request, tokens of each, and tokens of the request's own text."""

    num_modules: int
    module_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCase:
    """Stored KV over which forward passes are counted.

    Attributes:
        lengths: Tokens of each module, with gaps between their positions.
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
    step = sizes.module_tokens // (4 * sizes.num_modules)
    different = tuple(
        sizes.module_tokens + (2 * index + 1 - sizes.num_modules) * step for index in range(sizes.num_modules)
    )
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


def count_ttft(dtype: torch.dtype, sizes: Sizes) -> dict[str, float]:
    """Count the launches of a layer in the forward pass from linked modules to the first token, by case."""
    models = Models(dtype)
    return {
        name: _counted(models, sizes, case, _prefill(case, sizes.new_tokens))
        for name, case in launch_cases(sizes).items()
        if not case.own  # one row: any module is its own
    }


def count_decoding(dtype: torch.dtype, sizes: Sizes) -> dict[tuple[str, int], float]:
    """Count the launches of a layer in a step that decodes one token of each of several rows, by case and number of rows."""
    models = Models(dtype)
    return {
        (name, num_rows): _counted(models, sizes, case, _decoding(case, num_rows))
        for num_rows in STEP_ROWS
        for name, case in launch_cases(sizes).items()
    }


class Models:
    """Small models on the meta device."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._made: dict[tuple[int, int | None], Model] = {}

    def with_layers(self, num_layers: int, window: int | None) -> Model:
        """Return the model with so many layers; with a window, all of its layers have it."""
        found = self._made.get((num_layers, window))
        if found is None:
            found = self._made[num_layers, window] = self._make(num_layers, window)
        return found

    def _make(self, num_layers: int, window: int | None) -> Model:
        config: Any = (
            LlamaConfig(**_SIZES, num_hidden_layers=num_layers)
            if window is None
            else MistralConfig(**_SIZES, num_hidden_layers=num_layers, sliding_window=window)
        )
        model = Model(AutoModelForCausalLM.from_config(config, dtype=self._dtype).eval())
        meta = torch.device("meta")
        model.hf.to(meta)
        model.shape = replace(model.shape, device=meta)
        model.guard = ModelGuard(model.hf)
        return model


def _counted(models: Models, sizes: Sizes, case: LaunchCase, work: _Work) -> float:
    """Count for two numbers of layers; the difference is what layers cost."""
    window = (2 * sizes.num_modules - 1) * sizes.module_tokens // 4 if case.has_window else None
    counts = []
    for num_layers in (_FEWER, _MORE):
        run = work(models.with_layers(num_layers, window))
        with torch.no_grad(), KernelCounter() as counter:
            run()
        counts.append(counter.num_kernels)
    fewer, more = counts
    return (more - fewer) / (_MORE - _FEWER)


def _prefill(case: LaunchCase, num_new: int) -> _Work:
    """Prefill the new tokens of one row. Its modules were used before, so that copies of them exist."""

    def prepare(model: Model) -> Callable[[], object]:
        copies, shared = open_copies(model, KVMemory(model.shape)), handles_of(model, case.lengths, 0)

        def joined() -> Callable[[], object]:
            batch = Batch(model, copies)
            row = join(batch, model, case, num_new, shared)
            return lambda: batch.step([(row, row.tokens.token_ids)])

        joined()()
        return joined()

    return prepare


def _decoding(case: LaunchCase, num_rows: int) -> _Work:
    """Decode one token of each row, the second after its prompt."""

    def prepare(model: Model) -> Callable[[], object]:
        batch = Batch(model, open_copies(model, KVMemory(model.shape)))
        shared = handles_of(model, case.lengths, 0)
        draw = random.Random(0)
        rows = [
            join(batch, model, case, _PROMPT_TOKENS + (draw.randrange(8) if index else 0), shared)
            for index in range(num_rows)
        ]
        batch.step([(row, row.tokens.token_ids) for row in rows])
        batch.step([(row, [0]) for row in rows])
        return lambda: batch.step([(row, [0]) for row in rows])

    return prepare


def join(batch: Batch, model: Model, case: LaunchCase, num_new: int, shared: Mapping[Encoding, KV]) -> Any:
    """Add a row over the modules of a case, its own KV included."""
    handles, history = dict(shared), dict[Encoding, KV]()
    if case.own:
        handles |= handles_of(model, (case.own,), 1 + last_position(handles))
    for length in case.history:
        history |= handles_of(model, (length,), 1 + last_position({**handles, **history}))
    first = 1 + last_position({**handles, **history})
    tokens = RequestTokens(
        parts=tuple(encoding.whole for encoding in handles),
        token_ids=(0,) * num_new,
        position_ids=tuple(range(first, first + num_new)),
    )
    row = batch.join(tokens, handles)
    row.growing = tuple(
        Segment(kv=handle, start=0, stop=handle.num_tokens, parts=(encoding.whole,))
        for encoding, handle in history.items()
    )
    return row


def last_position(handles: Mapping[Encoding, KV]) -> int:
    return max((encoding.position_ids[-1] for encoding in handles), default=-1)


def handles_of(model: Model, lengths: Sequence[int], first: int) -> dict[Encoding, KV]:
    """Return modules of these lengths, with a gap of one module behind each."""
    handles, start = {}, 0
    for length in lengths:
        positions = range(first + start, first + start + length)
        encoding = Encoding(token_ids=tuple(positions), position_ids=tuple(positions))
        handles[encoding] = KV.empty(model.shape, length)
        start += 2 * length
    return handles
