"""Faults of encoding, linking, attention, generation, keys and store."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from promptcache.attention import PassTokens
from promptcache.attention.torch_backends import CpuBackend
from promptcache.decode.request import Request, RequestBuilder
from promptcache.encode.executor import Executor
from promptcache.kv import Recipe, Store
from promptcache.layout import Encoding
from promptcache.model.model import Model
from promptcache.model.positioned_cache import PositionedDynamicCache
from tests.planted.registry import fault, module_of, replaced, wrapped

Patch = pytest.MonkeyPatch
encode, executor, repetition = (
    module_of(f"promptcache.encode.{name}") for name in ("encode", "executor", "repetition")
)
batch, coalesce, forward_pass, history, segments, tails, weighing = (
    module_of(f"promptcache.rows.{name}")
    for name in ("batch", "coalesce", "forward_pass", "history", "segments", "tails", "weighing")
)
decoder, job, sampling, scheduler = (
    module_of(f"promptcache.decode.{name}") for name in ("decoder", "job", "sampling", "scheduler")
)
guard, relocation = module_of("promptcache.model.guard"), module_of("promptcache.model.relocation")
REFERENCE, HISTORY, STEPS = "cached is the reference", "histories change nothing", "steps are the reference"
REQUESTS, CHANGES = "requests are the reference", "models that change do not mix"
PROMOTED = "promotions keep answers"
MOVED = "moved keys are the model's"
ATTENDED = "attended is the reference"


@wrapped("new tokens stand one position late", Model, "forward", law=REFERENCE, quick=True)
def _late_positions(original: Any, self: Any, token_ids: Any, position_ids: Any, *args: Any, keep: Any = None) -> Any:
    is_cached = keep is not None  # the reference returns all logits
    return original(self, token_ids, position_ids + is_cached, *args, keep=keep)


def _views(name: str, **how: Any) -> Callable[[Any], Any]:

    def register(change: Callable[[Any, Any, int], tuple[Any, Any]]) -> Any:
        @wrapped(name, PassTokens, "seen", law=REFERENCE, **how)
        def seen(original: Any, self: Any, window: Any) -> Any:
            for view, tokens, start, is_cut in original(self, window):
                changed, some = (view, tokens) if is_cut else change(view, tokens, len(self.positions))
                if len(some):
                    yield changed, some, start, is_cut

        return change

    return register


@_views("the first token after a segment does not see it", quick=True)
def _late(view: Any, tokens: Any, _: int) -> Any:
    return view, tokens[1:]


@_views("an argument sees the future")
def _all_tokens(view: Any, _: Any, num_tokens: int) -> Any:
    return view, np.arange(num_tokens)


@_views("the last cached token of a segment is not seen")
def _shorter(view: Any, tokens: Any, _: int) -> Any:
    return view if view.num_tokens < 2 else replace(view, stop=view.stop - 1), tokens


@wrapped("a context misses a run while a module is encoded", encode, "_tokens", law=REFERENCE)
def _context_missing(original: Any, chain: Any) -> Any:
    return replace(original(chain), parts=original(chain).parts[1:])


@wrapped("runs are chained that do not see each other", encode, "chains", law=REFERENCE)
def _chained_strangers(_: Any, missing: Any) -> Any:
    """Chain encodings that share the first part of their context."""
    grown: dict[Any, list[Any]] = {}
    for each in missing:
        grown.setdefault(each.context[:1], []).append(each)
    return tuple(map(tuple, grown.values()))


@wrapped("a chain is cut one token late", encode.Batch, "own_kv", law=REFERENCE)
def _cut_late(original: Any, self: Any, row: Any) -> Any:
    found = original(self, row)
    return replace(found, keys=found.keys.roll(-1, dims=2), values=found.values.roll(-1, dims=2))


@wrapped("tokens of a pass are swapped", forward_pass.Pass, "write", law=REFERENCE)
def _swapped_tokens(original: Any, self: Any, layer: int, keys: Any, values: Any) -> None:
    """Write the states of the token before each token in the pass."""
    original(self, layer, keys.roll(1, dims=2), values.roll(1, dims=2))


@wrapped("runs are encoded as if they stood at the start", encode, "_tokens", law=REFERENCE)
def _from_zero(original: Any, chain: Any) -> Any:
    found = original(chain)
    return replace(found, position_ids=tuple(each - found.position_ids[0] for each in found.position_ids))


@wrapped("KV is kept in a narrower dtype", Store, "put", law=REFERENCE)
def _narrow_dtype(original: Any, self: Any, recipe: Any, keys: Any, values: Any) -> Any:
    return original(self, recipe, keys.to(torch.float16).to(keys.dtype), values.to(torch.float16).to(values.dtype))


@wrapped("KV of another encoding of the same size is fetched", Executor, "fetch", law=REFERENCE)
def _other_encoding(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    fetched = original(self, *args, **kwargs)
    by_size = {run.num_tokens: run for run in fetched.kv_of.values()}
    return replace(fetched, kv_of={each: by_size[run.num_tokens] for each, run in fetched.kv_of.items()})


def _merges(name: str, wrong: Callable[[torch.Tensor], torch.Tensor], **how: Any) -> None:
    @wrapped(name, CpuBackend, "attend", law=REFERENCE, **how)
    def attend(original: Any, self: Any, *args: Any) -> Any:
        out, lse = original(self, *args)
        return out, wrong(lse)


_merges("partial attentions are averaged, not merged", torch.zeros_like, quick=True)
_merges("the merge takes its scores for powers of two", lambda lse: lse * np.log(2))


replaced(
    "keys stay where they were encoded",
    relocation.Relocation,
    "move",
    lambda self, keys, start, stop, out: out.copy_(keys),
    law=REFERENCE,
)


@fault("a context stays where it was encoded", law="cached is the reference")
def _context_stays(patch: Patch) -> None:
    class Lazy(coalesce.Copies):  # type: ignore[name-defined, misc]
        def coalesce(self, segments: Any, new_positions: Any) -> Any:
            return tuple(segments), 0

    patch.setattr(batch, "without_cache", Lazy)


@wrapped(
    "own tokens beyond the first forward do not see the older ones",
    PassTokens,
    "tail_mask",
    law="generation is the reference",
)
def _old_tail_lost(_: Any, self: Any, group: Any, window: Any) -> torch.Tensor:
    mask = np.zeros((len(group.views[0][0]), 1, 1, group.positions.shape[1]), dtype=np.bool_)
    mask[list(group.indices), 0, 0] = group.positions == self.positions[group.start : group.stop, None]
    return torch.from_numpy(mask)


@wrapped("generated tokens repeat the last position", Model, "forward", law="generation is the reference")
def _decode_position(original: Any, self: Any, token_ids: Any, position_ids: Any, *args: Any, **options: Any) -> Any:
    repeats = int(token_ids.shape[1] == 1 and "keep" in options)
    return original(self, token_ids, (position_ids - repeats).clamp(min=0), *args, **options)


def _window(name: str, law: str, attribute: str, positions: int, owner: Any = PassTokens) -> None:
    """Register a fault: a method computes with another window."""

    @wrapped(name, owner, attribute, law=f"{law}, windows")
    def widened(original: Any, self: Any, first: Any, window: Any, *rest: Any) -> Any:
        return original(self, first, None if window is None else window + positions, *rest)


_window("a sliding window is one position too wide", REFERENCE, "prepare", 1, CpuBackend)
_window("a sliding window is one position too narrow among new tokens", REFERENCE, "chunk_mask", -1)
_window("a sliding window is one position too wide in a step", STEPS, "tail_mask", 1)


def _sinks(name: str, change: Callable[[Any], Any]) -> None:
    @wrapped(name, CpuBackend, "prepare", law=f"{REFERENCE}, sinks")
    def prepare(original: Any, self: Any, *args: Any) -> Any:
        prepared = original(self, *args)
        run = prepared.run
        prepared.run = lambda layer, call: run(layer, call._replace(sinks=change(call.sinks)))
        return prepared


_sinks("attention sinks count twice", lambda sinks: None if sinks is None else sinks + np.log(2))
_sinks("attention sinks are left out", lambda sinks: None)


wrapped("attention to later tokens counts", weighing, "_probabilities", law=ATTENDED)(
    lambda original, query, keys, far, call: original(query, keys, far.abs(), call)
)
replaced("attention of the first layers is added up", weighing, "middle_layers", lambda windows: (0,), law=ATTENDED)
replaced(
    "attention is not divided by the sum of all scores",
    weighing,
    "_probabilities",
    lambda query, keys, far, call: _scores(query, keys, far, call.scale),
    law=ATTENDED,
)


def _scores(query: torch.Tensor, keys: torch.Tensor, far: torch.Tensor, scale: float) -> torch.Tensor:
    scores = (query.reshape(len(keys), -1, query.shape[2]) @ keys.transpose(1, 2)).view(*query.shape[:2], -1)
    return (scores * scale).masked_fill(far < 0, -torch.inf).exp().sum((0, 1))


@fault("digests of encodings leave out their positions", law=HISTORY, rare=True)
def _digest_without_positions(patch: Patch) -> None:
    original, nowhere = (
        Encoding.digest_until,
        {"first_position": 0, "last_position": 0},
    )  # keys would still contain them
    patch.setattr(
        Encoding,
        "digest_until",
        lambda self, stop: original(replace_fields(self, position_ids=tuple(range(self.num_tokens))), stop),
    )
    patch.setattr(executor, "Recipe", lambda **fields: Recipe(**fields | nowhere))


def _digests(name: str, changed: Callable[[Any], Any]) -> None:
    wrapped(name, Encoding, "digest_until", law=HISTORY)(lambda original, self, stop: original(changed(self), stop))


_digests("digests of encodings leave out their context", lambda each: replace_fields(each, context=()))
_digests(
    "digests of encodings leave out their tokens", lambda each: replace_fields(each, token_ids=(0,) * each.num_tokens)
)


def replace_fields(encoding: Any, **fields: Any) -> Any:
    """Return the fields that `digest_until` reads from an encoding, some of them replaced."""
    names = ("token_ids", "position_ids", "codec", "context")
    return SimpleNamespace(**{name: getattr(encoding, name) for name in names} | fields)


replaced(
    "keys of encodings leave out the model",
    executor,
    "Recipe",
    lambda **fields: Recipe(**fields | {"fingerprint": ""}),
    law="models do not mix",
)
replaced(
    "a change of the model is not noticed", guard.ModelGuard, "check", lambda self, numbers=False: None, law=CHANGES
)


@wrapped("history keeps what a model computed while it changed", Executor, "keep", law=CHANGES)
def _history_of_changed_model(_: Any, self: Any, recalled: Any, answer_ids: Any, own_kv: Any) -> int:
    return int(self.history.keep(recalled, answer_ids, own_kv))


@fault("an evicted encoding is still served after its memory was given away", law=HISTORY)
def _stale_after_eviction(patch: Patch) -> None:
    freed: dict[int, Any] = {}
    put = Store.put

    def delete(self: Any, key: str) -> bool:
        handle = self.get(key).kv
        if handle is not None:
            freed[handle.num_tokens] = handle
        return handle is not None

    def reuse(self: Any, recipe: Any, keys: Any, values: Any) -> Any:
        handle = freed.pop(keys.shape[2], None)
        if handle is None or self.get(recipe.key).kv is not None:
            return put(self, recipe, keys, values)
        handle.keys.copy_(keys)
        handle.values.copy_(values)
        return handle

    patch.setattr(Store, "delete", delete)
    patch.setattr(Store, "put", reuse)


@wrapped("memory that a request holds is written over", Store, "delete", law=HISTORY)
def _held_memory(original: Any, self: Any, key: str) -> bool:
    handle = self.get(key).kv
    if handle is not None:
        handle.keys.zero_()
    return original(self, key)


@wrapped("memory of own KV is used again without zeros", tails.Tails, "take", law=STEPS)
def _tails_without_zeros(original: Any, self: Any, num_tokens: int) -> Any:
    tail = original(self, num_tokens)
    memory = self.memory(tail)
    memory.keys[:] = memory.values[:] = torch.nan
    return tail


replaced(
    "a decoded token attends beyond the end of its row",
    PassTokens,
    "tail_mask",
    lambda self, group, window: None,
    law=STEPS,
)
wrapped("a row loses a token when it moves to a larger tail", tails.Tails, "grown", law=STEPS)(
    lambda original, self, tail, held, wanted: original(self, tail, max(0, held - 1), wanted)
)
replaced(
    "a chunk does not attend to the tokens of its row before it",
    forward_pass.Pass,
    "_older",
    lambda self, row: None,
    law=STEPS,
)


@wrapped("a row attends to the modules of other rows", forward_pass.SharedKV, "__init__", law=STEPS)
def _modules_of_others(original: Any, self: Any, *args: Any) -> None:
    original(self, *args)
    self.users[:] = True


@wrapped("the logits of a step are in the order of its kernel calls", Model, "forward", law=STEPS)
def _unsorted_logits(original: Any, self: Any, *args: Any, keep: Any = None) -> Any:
    return original(self, *args, keep=None if keep is None else keep.sort().values)


replaced(
    "beams keep the KV of other beams",
    PositionedDynamicCache,
    "reorder_cache",
    lambda self, beam_idx: None,
    law=REQUESTS,
)


@wrapped("what reads tokens does not see those of modules", job.Job, "seen", law=REQUESTS)
def _own_tokens_only(original: Any, self: Any) -> Any:
    num_own = self.request.plan.num_new_tokens + len(self.token_ids)
    return original(self)[:, -num_own:]


wrapped("processors are applied twice", decoder, "_processed", law=REQUESTS)(
    lambda original, job, scores: original(job, original(job, scores)[None])
)
wrapped("further sequences draw the same numbers", Request, "copies", law=REQUESTS)(
    lambda original, self, number: [original(self, 1)[0]] * number
)
wrapped("a row of a service is penalized for its new tokens only", sampling, "penalized", law=REQUESTS)(
    lambda original, logits, options, jobs: original(logits, options, [_with_own_answer(each) for each in jobs])
)


def _with_own_answer(one: Any) -> Any:
    seen = one.seen[:, one.seen.shape[1] - len(one.token_ids) :]
    return SimpleNamespace(seen=seen, token_ids=one.token_ids)


def _angles(name: str, **how: Any) -> Callable[[Any], Any]:
    """Register a fault of the angles by which keys move: a function of `between`, its result and its arguments."""

    def register(change: Callable[..., Any]) -> Any:
        @wrapped(name, relocation.Rotation, "between", law=MOVED, **how)
        def changed(between: Any, self: Any, start: Any, stop: Any, like: Any) -> Any:
            return change(between, between(self, start, stop, like), self, start, stop, like)

        return change

    return register


@_angles("keys move in the opposite direction", quick=True)
def _opposite_direction(between: Any, cos_sin: Any, *_: Any) -> Any:
    return cos_sin[0], -cos_sin[1]


@_angles("keys are rotated by the angle of the distance, without the rounding of the model")
def _rotated_by_distance(between: Any, cos_sin: Any, rotation: Any, start: Any, stop: Any, like: Any) -> Any:
    cos, sin = between(rotation, torch.zeros_like(start), (stop - start).abs(), like)
    return cos, torch.where(stop < start, -1, 1)[:, None] * sin


@_angles("the attention scaling of rotary embeddings is not divided out")
def _scaled_again(between: Any, cos_sin: Any, rotation: Any, start: Any, stop: Any, like: Any) -> Any:
    scale = sum(each.square() for each in rotation.at(start, like))
    return tuple(each * scale for each in cos_sin)


@wrapped("keys are rotated with the other pairs of dimensions", relocation.Relocation, "move", law=MOVED)
def _other_pairs(original: Any, self: Any, *args: Any) -> Any:
    others = [None if each is None else replace(each, is_interleaved=not each.is_interleaved) for each in self.layers]
    return original(relocation.Relocation(others), *args)


@wrapped("keys of all layers are rotated as those of the first", relocation.Relocation, "move", law=MOVED)
def _one_rotation_for_all(original: Any, self: Any, *args: Any) -> Any:
    return original(relocation.Relocation([self.layers[0]] * len(self.layers)), *args)


@wrapped("dimensions without rotation are not moved with their key", relocation, "rotate", law=MOVED)
def _only_rotated_dimensions(original: Any, rotation: Any, factor: Any, sin: Any, keys: Any, out: Any) -> None:
    original(rotation, factor, sin, keys[..., : rotation.width], out[..., : rotation.width])


@wrapped("rotated keys lose the first token of each chunk", relocation, "_chunks", law=MOVED)
def _chunks_lose_a_token(original: Any, keys: Any) -> Any:
    return [(layers, heads, slice(part.start + 1, part.stop)) for layers, heads, part in original(keys)]


replaced(
    "a promotion misses the part before it",
    executor,
    "Encoding",
    lambda **given: Encoding(**{**given, "context": given["context"][:-1]}),
    law=PROMOTED,
)


@wrapped("deterministic requests use promoted KV", RequestBuilder, "build", law=PROMOTED, quick=True)
def _never_deterministic(original: Any, self: Any, prompt: Any, settings: Any) -> Any:
    return original(self, prompt, replace(settings, deterministic=False))


@fault("an interruption ends a promotion", law=PROMOTED)
def _interruption_ends(patch: Patch) -> None:
    patch.setattr(repetition, "Interrupted", KeyboardInterrupt)
    patch.setattr(repetition._log, "exception", lambda *args: None)


wrapped("a forward pass in idle time does not check for requests", batch.Batch, "open", law=PROMOTED)(
    lambda original, self, work, check=None: original(self, work)
)
