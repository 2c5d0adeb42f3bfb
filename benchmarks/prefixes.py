"""The benchmark of repeated prefixes: `python -m benchmarks prefixes`.

The workload has the shape of MMLU: questions about several subjects, each behind the few-shot prefix of its subject.
All alternatives serve one batch before any serves the next one, and CPU time is compared batch by batch.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from benchmarks.common import BenchReport, CharacterTokenizer, stock_attention
from benchmarks.intervals import ratio_of_sums
from promptcache.engine import Engine
from promptcache.kv import Store
from promptcache.loops import PrefixCache
from promptcache.model import Model, token_tensor
from promptcache.progress import Progress, silent

BLOCK_TOKENS = 16
"""Tokens of a block of the block-hash cache."""

NO_CACHE, BLOCKS, PADDED_BLOCKS = "no cache", "block hash", "block hash, padded"
PREFIX_CACHE, REPAIR_ALL = "prefix cache", "repair all"

_OURS = (PREFIX_CACHE, REPAIR_ALL)
_LETTERS = range(256, 500)  # each token ID is a letter, so that a row is also the text of a prompt

Rows = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSizes:
    """Numbers of subjects, of questions about each, and of tokens; those of single texts vary by a quarter."""

    subjects: int
    questions: int
    prefix_tokens: int
    new_tokens: int


class PrefixAlternative(Protocol):
    """Serves batches with state of its own."""

    uses_stock_attention: bool

    def build(self, prefixes: Rows) -> None:
        """Compute prefixes beforehand."""

    def serve(self, rows: Rows) -> torch.Tensor:
        """Return the logits `[B, V]` of the last tokens."""


def compare_prefixes(
    model: Model, sizes: PrefixSizes, batches: Sequence[int], repeats: int, progress: Progress = silent
) -> BenchReport:
    """Compare the CPU time of all questions, for each order, batch size, and with prefixes built beforehand or not.

    Args:
        batches: Rows in a batch.
        repeats: How often all questions are served, each time with empty caches.
    """
    prefixes, ordered = questions(sizes)
    shuffled = random.Random(1).sample(ordered, len(ordered))
    arrangements = [
        (batch, order, built)
        for batch in batches
        for built in (False, True)
        for order in (("ordered", ordered), ("shuffled", shuffled))
    ]
    without: dict[int, float] = {}  # CPU seconds without a cache do not depend on the order
    cells, rows = [], []
    for number, (batch, (order, asked), built) in enumerate(arrangements):
        progress(f"batches of {batch}, {order}", number, len(arrangements))
        makers = _makers(model, prefixes, batch)
        if batch not in without:
            makers[NO_CACHE] = lambda: NoCache(model)
        seconds, far = _serve_all(makers, model, asked, batch, prefixes if built else (), repeats)
        if NO_CACHE in seconds:
            without[batch] = sum(seconds.pop(NO_CACHE)) / repeats
        best = min((name for name in seconds if name not in _OURS), key=lambda name: sum(seconds[name]))
        ratio = ratio_of_sums(seconds[PREFIX_CACHE], seconds[best])
        totals = {name: sum(each) / repeats for name, each in seconds.items()}
        ceiling = sum(map(len, asked)) / num_needed(prefixes if built else (), asked)
        speedup = without[batch] / totals[PREFIX_CACHE]
        cells.append(
            (
                str(batch),
                order,
                "yes" if built else "no",
                f"{without[batch]:.2f}",
                f"{totals[BLOCKS]:.2f}",
                f"{totals[PADDED_BLOCKS]:.2f}" if PADDED_BLOCKS in totals else "",
                f"{totals[PREFIX_CACHE]:.2f}",
                f"{totals[REPAIR_ALL]:.2f}",
                "{:.3f} ({:.3f} to {:.3f})".format(*ratio),
                f"{speedup:.2f} of {ceiling:.2f} ({speedup / ceiling:.0%})",
                f"{far:.0e}",
            )
        )
        rows.append(
            {
                "batch": batch,
                "order": order,
                "built": built,
                "cpu_seconds": {NO_CACHE: [without[batch]], **seconds},
                "reference": best,
                "ratio": ratio,
                "speedup": speedup,
                "ceiling": ceiling,
                "distance": far,
            }
        )
    return BenchReport(
        name="prefixes",
        title=f"Repeated prefixes: CPU seconds for {len(ordered)} questions about {sizes.subjects} subjects",
        columns=(
            "batch",
            "order",
            "built",
            NO_CACHE,
            BLOCKS,
            "padded",
            PREFIX_CACHE,
            REPAIR_ALL,
            "/ best blocks",
            "speedup",
            "far",
        ),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def questions(sizes: PrefixSizes) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the prefix of each subject, and all rows: a prefix with a question, subject by subject."""
    draw = random.Random(0)

    def text(num_tokens: int) -> tuple[int, ...]:
        length = num_tokens + draw.randint(-(num_tokens // 4), num_tokens // 4)
        return tuple(draw.choice(_LETTERS) for _ in range(max(1, length)))

    prefixes = [text(sizes.prefix_tokens) for _ in range(sizes.subjects)]
    return prefixes, [(*prefix, *text(sizes.new_tokens)) for prefix in prefixes for _ in range(sizes.questions)]


def num_needed(known: Rows, rows: Rows) -> int:
    """Return how many tokens of rows need a forward pass if each known beginning, built or served, is reused.

    The last token of a row always needs one.
    """
    seen = {prefix[:stop] for prefix in known for stop in range(1, len(prefix) + 1)}
    count = 0
    for row in rows:
        beginnings = [row[:stop] for stop in range(1, len(row))]
        count += 1 + sum(each not in seen for each in beginnings)
        seen.update(beginnings)
    return count


def _makers(model: Model, prefixes: Rows, batch: int) -> dict[str, Callable[[], PrefixAlternative]]:
    makers: dict[str, Callable[[], PrefixAlternative]] = {
        BLOCKS: lambda: BlockCache(model),
        PREFIX_CACHE: lambda: Prefixes(model),
        REPAIR_ALL: lambda: RepairedModules(model, prefixes),
    }
    if batch > 1:
        makers[PADDED_BLOCKS] = lambda: PaddedBlockCache(model)
    return makers


def _serve_all(
    makers: dict[str, Callable[[], PrefixAlternative]], model: Model, rows: Rows, batch: int, built: Rows, repeats: int
) -> tuple[dict[str, list[float]], float]:
    """Return the CPU seconds of each batch for each alternative, and the largest distance of logits."""
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    far, order = 0.0, random.Random(0)
    for _ in range(repeats):
        alternatives = {name: make() for name, make in makers.items()}
        for each in alternatives.values():
            with _attention(each, model):
                each.build(built)
        for start in range(0, len(rows), batch):
            found = {}
            for name in order.sample([*alternatives], len(alternatives)):
                gc.collect()
                with _attention(alternatives[name], model):
                    started = time.process_time()
                    found[name] = alternatives[name].serve(rows[start : start + batch])
                    seconds[name].append(time.process_time() - started)
            expected = found[BLOCKS].double()
            far = max(far, *(_distance(each.double(), expected) for each in found.values()))
    return seconds, far


def _attention(alternative: PrefixAlternative, model: Model) -> Any:
    return stock_attention(model) if alternative.uses_stock_attention else nullcontext()


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


class Prefixes:
    """A `PrefixCache`."""

    uses_stock_attention = False

    def __init__(self, model: Model) -> None:
        self._model = model
        engine = SimpleNamespace(model=model, store=Store(model.shape))
        self._cache = PrefixCache(engine)

    def build(self, prefixes: Rows) -> None:
        self._cache.build(list(prefixes))

    @torch.no_grad()
    def serve(self, rows: Rows) -> torch.Tensor:
        hit = self._cache.get(*_left_padded(rows, self._model))
        out = self._model.hf(**hit.inputs)
        self._cache.update(hit, out)
        return hit.last_logits(out)


class RepairedModules:
    """Requests with `repair="all"`: history has the prefix of earlier ones. One row after another.

    Each prefix is the module of a schema of its own, so that no gap lies before the text of a prompt.
    """

    uses_stock_attention = False

    def __init__(self, model: Model, prefixes: Rows) -> None:
        self._prefixes = prefixes
        self._tokenizer = CharacterTokenizer()
        self._engine = Engine(model, self._tokenizer, repair="all")
        for number, prefix in enumerate(prefixes):
            text = self._tokenizer.detokenize(prefix)
            module = f'<module name="prefix">{text}</module>'
            self._engine.add_schema(f'<schema name="s{number}" separator="">{module}</schema>')

    def build(self, prefixes: Rows) -> None:
        for each in prefixes:
            self._answer(each)

    def serve(self, rows: Rows) -> torch.Tensor:
        return torch.stack([self._answer(row) for row in rows])

    def _answer(self, row: tuple[int, ...]) -> torch.Tensor:
        """Return the logits `[V]` of the first token of an answer."""
        number = next(number for number, prefix in enumerate(self._prefixes) if row[: len(prefix)] == prefix)
        text = self._tokenizer.detokenize(row[len(self._prefixes[number]) :])
        prompt = f'<prompt schema="s{number}"><prefix/>{text}</prompt>'
        found: list[torch.Tensor] = []

        def noted(_token_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            found.append(logits[0])
            return logits

        self._engine.generate(prompt, max_new_tokens=1, do_sample=False, logits_processor=[noted])
        return found[-1]


class NoCache:
    """A left-padded batch of all tokens."""

    uses_stock_attention = True

    def __init__(self, model: Model) -> None:
        self._model = model

    def build(self, prefixes: Rows) -> None:
        """Do nothing."""

    @torch.no_grad()
    def serve(self, rows: Rows) -> torch.Tensor:
        token_ids, mask = _left_padded(rows, self._model)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self._model.hf(
            input_ids=token_ids,
            attention_mask=mask if len(rows) > 1 else None,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=1,
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits


class BlockCache:
    """KV in blocks of 16 tokens, found by the tokens of the block and all before it; one row after another.

    The blocks of a row are concatenated into a `DynamicCache`, once for all layers.
    """

    uses_stock_attention = True

    def __init__(self, model: Model) -> None:
        self._model = model
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}  # by the block before and the tokens
        self._blocks: list[torch.Tensor] = []  # [L, 2, Hkv, 16, D]

    def build(self, prefixes: Rows) -> None:
        for each in prefixes:
            BlockCache.serve(self, [each])

    @torch.no_grad()
    def serve(self, rows: Rows) -> torch.Tensor:
        return torch.cat([self._serve_row(row) for row in rows])

    def find(self, row: tuple[int, ...]) -> list[int]:
        """Return the blocks of a row that are known; the last token is not in one."""
        found: list[int] = []
        before = -1
        for start in range(0, len(row) - BLOCK_TOKENS, BLOCK_TOKENS):
            number = self._numbers.get((before, row[start : start + BLOCK_TOKENS]))
            if number is None:
                break
            found.append(number)
            before = number
        return found

    def joined(self, found: Sequence[int]) -> torch.Tensor | None:
        """Return the KV of blocks, `[L, 2, Hkv, n, D]`."""
        return torch.cat([self._blocks[number] for number in found], dim=3) if found else None

    def keep(self, row: tuple[int, ...], found: Sequence[int], layers: Sequence[Any], index: int, start: int) -> None:
        """Keep the new full blocks of a row, whose new tokens begin at `start` in the cache."""
        first = len(found) * BLOCK_TOKENS
        num_blocks = (len(row) - first) // BLOCK_TOKENS
        stop = start + num_blocks * BLOCK_TOKENS
        if not num_blocks:
            return
        kv = torch.stack(
            [torch.stack([each.keys[index, :, start:stop], each.values[index, :, start:stop]]) for each in layers]
        )
        before = found[-1] if found else -1
        for number, block in enumerate(kv.chunk(num_blocks, dim=3)):
            at = first + number * BLOCK_TOKENS
            key = (before, row[at : at + BLOCK_TOKENS])
            before = self._numbers.setdefault(key, len(self._blocks))
            if before == len(self._blocks):
                self._blocks.append(block)

    def _serve_row(self, row: tuple[int, ...]) -> torch.Tensor:
        found = self.find(row)
        start = len(found) * BLOCK_TOKENS
        kv = self.joined(found)
        cache = _cache(None if kv is None else kv[:, :, None])
        logits: torch.Tensor = self._model.hf(
            input_ids=token_tensor(row[start:], self._model.device),
            position_ids=token_tensor(range(start, len(row)), self._model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        self.keep(row, found, cache.layers, 0, start)
        return logits


class PaddedBlockCache(BlockCache):
    """A block cache that left-pads all rows into one forward pass."""

    @torch.no_grad()
    def serve(self, rows: Rows) -> torch.Tensor:
        model, found = self._model, [self.find(row) for row in rows]
        new = [row[len(each) * BLOCK_TOKENS :] for row, each in zip(rows, found, strict=True)]
        held = max(map(len, found)) * BLOCK_TOKENS
        shape = model.shape
        size = (shape.num_layers, 2, len(rows), shape.num_kv_heads, held, shape.head_dim)
        kv = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        token_ids, mask = _left_padded(new, model)
        held_mask = torch.zeros((len(rows), held), dtype=mask.dtype, device=mask.device)
        for index, each in enumerate(found):
            joined = self.joined(each)
            if joined is not None:
                kv[:, :, index, :, held - joined.shape[3] :] = joined
                held_mask[index, held - joined.shape[3] :] = 1
        cache = _cache(kv if held else None)
        both = torch.cat([held_mask, mask], dim=1)
        positions = (both.cumsum(1) - 1).clamp(min=0)[:, held:]
        logits: torch.Tensor = model.hf(
            input_ids=token_ids,
            attention_mask=both,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        for index, row in enumerate(rows):
            self.keep(row, found[index], cache.layers, index, both.shape[1] - len(new[index]))
        return logits


def _cache(kv: torch.Tensor | None) -> DynamicCache:
    """Return a `DynamicCache` over KV `[L, 2, B, Hkv, n, D]`, without another copy."""
    cache = DynamicCache()
    if kv is not None:
        for keys, values in kv:
            layer: Any = DynamicLayer()  # type: ignore[no-untyped-call] # not annotated
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            cache.layers.append(layer)
    return cache


def _left_padded(rows: Rows, model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    token_ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
    return token_ids, mask
