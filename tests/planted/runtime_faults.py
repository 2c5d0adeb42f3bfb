"""Faults of encoding, linking, attention, generation, keys and store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from promptcache.attention import AttentionSpec, PassTokens, register_backend, unregister_backend
from promptcache.attention.backend import AttentionBackend
from promptcache.attention.cpu import CpuBackend
from promptcache.attention.kernel_calls import Kernel
from promptcache.attention.pass_tokens import SegmentMask
from promptcache.decode.request import Request, RequestBuilder
from promptcache.encode.executor import Executor
from promptcache.kv import Recipe, Store
from promptcache.layout import Encoding
from promptcache.model.model import Model
from tests.planted.registry import fault
from tests.planted.targets import module_of

Patch = pytest.MonkeyPatch
encode, executor, repetition = (
    module_of(f"promptcache.encode.{name}") for name in ("encode", "executor", "repetition")
)
batch, coalesce, forward_pass, history, segments, tails, weighing = (
    module_of(f"promptcache.rows.{name}")
    for name in ("batch", "coalesce", "forward_pass", "history", "segments", "tails", "weighing")
)
decoder, job, scheduler = (module_of(f"promptcache.decode.{name}") for name in ("decoder", "job", "scheduler"))
guard, relocation = module_of("promptcache.model.guard"), module_of("promptcache.model.relocation")
REFERENCE, HISTORY, STEPS = "cached is the reference", "histories change nothing", "steps are the reference"
REQUESTS, CHANGES = "requests are the reference", "models that change do not mix"
PROMOTED = "promotions keep answers"
MOVED = "moved keys are the model's"
ATTENDED = "attended is the reference"


@fault("new tokens stand one position late", law=REFERENCE, quick=True)
def _late_positions(patch: Patch) -> None:
    original = Model.forward

    def forward(self: Any, token_ids: Any, position_ids: Any, *args: Any, keep: Any = None) -> Any:
        is_cached = keep is not None  # the reference returns all logits
        return original(self, token_ids, position_ids + is_cached, *args, keep=keep)

    patch.setattr(Model, "forward", forward)


@fault("the first token after a segment does not see it", law=REFERENCE, quick=True)
def _sees_late(patch: Patch) -> None:
    def late(mask: SegmentMask, num_tokens: int) -> SegmentMask | None:
        first = min(mask.first_query + 1, num_tokens)
        tokens, near = (None if each is None else each[1:] for each in (mask.tokens, mask.mask))
        is_empty = first == num_tokens if tokens is None else not len(tokens)
        return None if is_empty else replace(mask, first_query=first if tokens is None else 0, tokens=tokens, mask=near)

    _change_masks(patch, late)


@fault("an argument sees the future", law=REFERENCE)
def _sees_future(patch: Patch) -> None:
    def all_tokens(mask: SegmentMask, num_tokens: int) -> SegmentMask:
        return mask if mask.mask is not None else replace(mask, first_query=0, tokens=None)

    _change_masks(patch, all_tokens)


@fault("the last cached token of a segment is not seen", law=REFERENCE)
def _mask_off_by_one(patch: Patch) -> None:
    def shorter(mask: SegmentMask, num_tokens: int) -> SegmentMask:
        is_short = mask.stop - mask.start < 2 or mask.mask is not None
        return mask if is_short else replace(mask, stop=mask.stop - 1)

    _change_masks(patch, shorter)


def _change_masks(patch: Patch, change: Callable[[SegmentMask, int], SegmentMask | None]) -> None:
    original = PassTokens.stored

    def stored(self: Any, window: Any) -> Any:
        masks = ((view, change(mask, len(self.positions))) for view, mask in original(self, window))
        return [(view, mask) for view, mask in masks if mask is not None]

    patch.setattr(PassTokens, "stored", stored)


@fault("a context misses a run while a module is encoded", law=REFERENCE)
def _context_missing(patch: Patch) -> None:
    original = encode.Chain.tokens.fget
    patch.setattr(
        encode.Chain, "tokens", property(lambda self: replace(original(self), parts=original(self).parts[1:]))
    )


@fault("runs are chained that do not see each other", law=REFERENCE)
def _chained_strangers(patch: Patch) -> None:
    def chains(missing: Any) -> Any:
        """Chain encodings that share the first part of their context."""
        grown: dict[Any, list[Any]] = {}
        for each in missing:
            grown.setdefault(each.context[:1], []).append(each)
        return tuple(encode.Chain(context=links[0].context, links=tuple(links)) for links in grown.values())

    patch.setattr(encode, "chains", chains)


@fault("a chain is cut one token late", law=REFERENCE)
def _cut_late(patch: Patch) -> None:
    original = encode.Batch.own_kv

    def own_kv(self: Any, row: Any) -> Any:
        found = original(self, row)
        return replace(found, keys=found.keys.roll(-1, dims=2), values=found.values.roll(-1, dims=2))

    patch.setattr(encode.Batch, "own_kv", own_kv)


@fault("rows of a pass are swapped", law=REFERENCE)
def _swapped_rows(patch: Patch) -> None:
    original = forward_pass._RowWrite.__init__

    def init(self: Any, tokens: Any, memory: Any) -> None:
        """Write the states of the token before each token in the pass."""
        original(self, replace(tokens, start=max(0, tokens.start - 1)), memory)

    patch.setattr(forward_pass._RowWrite, "__init__", init)


@fault("runs are encoded as if they stood at the start", law=REFERENCE)
def _from_zero(patch: Patch) -> None:
    original = encode.Chain.position_ids.fget

    def position_ids(self: Any) -> Any:
        found = original(self)
        return tuple(each - found[0] for each in found)

    patch.setattr(encode.Chain, "position_ids", property(position_ids))


@fault("KV is kept in a narrower dtype", law=REFERENCE)
def _narrow_dtype(patch: Patch) -> None:
    original = Store.put

    def put(self: Any, recipe: Any, keys: Any, values: Any) -> Any:
        return original(self, recipe, keys.to(torch.float16).to(keys.dtype), values.to(torch.float16).to(values.dtype))

    patch.setattr(Store, "put", put)


@fault("KV of another encoding of the same size is fetched", law=REFERENCE)
def _other_encoding(patch: Patch) -> None:
    original = Executor.fetch

    def fetch(self: Any, *args: Any, **kwargs: Any) -> Any:
        fetched = original(self, *args, **kwargs)
        by_size = {run.num_tokens: run for run in fetched.handles.values()}
        return replace(fetched, handles={each: by_size[run.num_tokens] for each, run in fetched.handles.items()})

    patch.setattr(Executor, "fetch", fetch)


@fault("partial attentions are averaged, not merged", law=REFERENCE, quick=True)
def _averaged(patch: Patch) -> None:
    _register(patch, _WrongScores(torch.zeros_like))


@fault("the merge takes its scores for powers of two", law=REFERENCE)
def _base_two(patch: Patch) -> None:
    _register(patch, _WrongScores(lambda lse: lse * np.log(2)))


@fault("keys stay where they were encoded", law=REFERENCE)
def _keys_stay(patch: Patch) -> None:
    patch.setattr(relocation.Relocation, "move", lambda self, keys, start, stop, out: out.copy_(keys))


@fault("a context stays where it was encoded", law="cached is the reference")
def _context_stays(patch: Patch) -> None:
    class Lazy(coalesce.Copies):  # type: ignore[name-defined, misc]
        def coalesce(self, segments: Any, new_positions: Any) -> Any:
            return tuple(segments), 0

    patch.setattr(batch, "without_cache", Lazy)


@fault("own tokens beyond the first forward do not see the older ones", law="generation is the reference")
def _old_tail_lost(patch: Patch) -> None:
    def newest(self: Any, group: Any, window: Any) -> torch.Tensor:
        mask = np.zeros((len(group.views.by_layer[0][0]), 1, 1, group.positions.shape[1]), dtype=np.bool_)
        mask[list(group.indices), 0, 0] = group.positions == self.positions[group.start : group.stop, None]
        return torch.from_numpy(mask)

    patch.setattr(PassTokens, "tail_mask", newest)


class _WrongScores(CpuBackend):
    """Backend whose kernel returns a wrong log-sum-exp."""

    name = "wrong scores"

    def __init__(self, wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._wrong = wrong

    def kernel(self, spec: AttentionSpec) -> Kernel:
        """Return the correct kernel with wrong scores."""
        right = super().kernel(spec)
        return replace(right, attend=self._wrongly(right.attend))

    def _wrongly(self, attend: Any) -> Any:
        def attend_wrongly(*args: Any, **kwargs: Any) -> Any:
            out, lse = attend(*args, **kwargs)
            return out, self._wrong(lse)

        return attend_wrongly


class _WrongRun(CpuBackend):
    """Backend whose prepared attention runs a replacement: a function of the correct `run` and its arguments."""

    name = "wrong run"

    def __init__(self, run: Callable[..., torch.Tensor]) -> None:
        self._run = run

    def prepare(self, tokens: PassTokens, window: int | None, spec: AttentionSpec) -> Any:
        """Prepare the correct attention, with the replaced `run`."""
        prepared: Any = super().prepare(tokens, window, spec)
        prepared.run = partial(self._run, prepared.run)
        return prepared


def _register(patch: Patch, backend: AttentionBackend) -> None:
    register_backend(backend)
    _on_undo(patch, partial(unregister_backend, backend.name))


@fault("generated tokens repeat the last position", law="generation is the reference")
def _decode_position(patch: Patch) -> None:
    original = Model.forward

    def forward(self: Any, token_ids: Any, position_ids: Any, *args: Any, **options: Any) -> Any:
        repeats = int(token_ids.shape[1] == 1 and "keep" in options)
        return original(self, token_ids, (position_ids - repeats).clamp(min=0), *args, **options)

    patch.setattr(Model, "forward", forward)


class _Undo:
    """Object that calls a function when its attribute is restored."""

    def __init__(self, undo: Any) -> None:
        object.__setattr__(self, "undo", undo)
        object.__setattr__(self, "planted", False)

    def __setattr__(self, name: str, value: Any) -> None:
        if value is False:
            self.undo()
        object.__setattr__(self, name, value)


def _on_undo(patch: Patch, undo: Any) -> None:
    patch.setattr(_Undo(undo), "planted", True)


@fault("a sliding window is one position too wide", law="cached is the reference, windows")
def _wide_window(patch: Patch) -> None:
    _widen(patch, "stored", 1)


@fault("a sliding window is one position too narrow among new tokens", law="cached is the reference, windows")
def _narrow_window(patch: Patch) -> None:
    _widen(patch, "chunk_mask", -1)


def _widen(patch: Patch, name: str, positions: int) -> None:
    """Let a method of `PassTokens` compute with another window."""
    original = getattr(PassTokens, name)

    def widened(self: Any, *args: Any) -> Any:
        *others, window = args
        return original(self, *others, None if window is None else window + positions)

    patch.setattr(PassTokens, name, widened)


@fault("attention sinks count twice", law="cached is the reference, sinks")
def _two_sinks(patch: Patch) -> None:
    def run_twice(run: Any, layer: int, call: Any) -> Any:
        return run(layer, call._replace(sinks=None if call.sinks is None else call.sinks + np.log(2)))

    _register(patch, _WrongRun(run_twice))


@fault("attention sinks are left out", law="cached is the reference, sinks")
def _no_sinks(patch: Patch) -> None:
    _register(patch, _WrongRun(lambda run, layer, call: run(layer, call._replace(sinks=None))))


@fault("attention to later tokens counts", law=ATTENDED)
def _future_weighs(patch: Patch) -> None:
    original = weighing._probabilities
    patch.setattr(weighing, "_probabilities", lambda query, keys, far, call: original(query, keys, far.abs(), call))


@fault("attention of the first layers is added up", law=ATTENDED)
def _first_layers(patch: Patch) -> None:
    patch.setattr(weighing, "middle_layers", lambda windows: (0,))


@fault("attention is not divided by the sum of all scores", law=ATTENDED)
def _unnormalized(patch: Patch) -> None:
    patch.setattr(weighing, "_probabilities", lambda query, keys, far, call: _scores(query, keys, far, call.scale))


def _scores(query: torch.Tensor, keys: torch.Tensor, far: torch.Tensor, scale: float) -> torch.Tensor:
    scores = (query.reshape(len(keys), -1, query.shape[2]) @ keys.transpose(1, 2)).view(*query.shape[:2], -1)
    return (scores * scale).masked_fill(far < 0, -torch.inf).exp().sum((0, 1))


@fault("digests of encodings leave out their positions", law=HISTORY, rare=True)
def _digest_without_positions(patch: Patch) -> None:
    _digest_with(patch, lambda each: replace_fields(each, position_ids=tuple(range(each.num_tokens))))
    nowhere = {"first_position": 0, "last_position": 0}  # the keys would still contain them
    patch.setattr(executor, "Recipe", lambda **fields: Recipe(**fields | nowhere))


@fault("digests of encodings leave out their context", law=HISTORY)
def _digest_without_context(patch: Patch) -> None:
    _digest_with(patch, lambda each: replace_fields(each, context_digest=""))


@fault("digests of encodings leave out their tokens", law=HISTORY)
def _digest_without_tokens(patch: Patch) -> None:
    _digest_with(patch, lambda each: replace_fields(each, token_ids=(0,) * each.num_tokens))


def _digest_with(patch: Patch, changed: Callable[[Any], Any]) -> None:
    """Plant wrong digests of encodings."""
    original = Encoding.digest_until
    patch.setattr(Encoding, "digest_until", lambda self, stop: original(changed(self), stop))


def replace_fields(encoding: Any, **fields: Any) -> Any:
    """Return the fields that `digest_until` reads from an encoding, some of them replaced."""
    names = ("token_ids", "position_ids", "codec", "context_digest")
    return SimpleNamespace(**{name: getattr(encoding, name) for name in names} | fields)


@fault("keys of encodings leave out the model", law="models do not mix")
def _key_without_model(patch: Patch) -> None:
    patch.setattr(executor, "Recipe", lambda **fields: Recipe(**fields | {"fingerprint": ""}))


@fault("a change of the model is not noticed", law=CHANGES)
def _unnoticed_change(patch: Patch) -> None:
    patch.setattr(guard.ModelGuard, "check", lambda self, numbers=False: None)


@fault("history keeps what a model computed while it changed", law=CHANGES)
def _history_of_changed_model(patch: Patch) -> None:
    def keep(self: Any, recalled: Any, answer_ids: Any, own_kv: Any) -> int:
        return 0 if recalled is None else int(self.history.keep(recalled, answer_ids, own_kv))

    patch.setattr(Executor, "keep", keep)


@fault("an evicted encoding is still served after its memory was given away", law=HISTORY)
def _stale_after_eviction(patch: Patch) -> None:
    freed: dict[int, Any] = {}
    put = Store.put

    def delete(self: Any, key: str) -> bool:
        handle = self.get(key).handle
        if handle is not None:
            freed[handle.num_tokens] = handle
        return handle is not None

    def reuse(self: Any, recipe: Any, keys: Any, values: Any) -> Any:
        handle = freed.pop(keys.shape[2], None)
        if handle is None or self.get(recipe.key).handle is not None:
            return put(self, recipe, keys, values)
        handle.keys.copy_(keys)
        handle.values.copy_(values)
        return handle

    patch.setattr(Store, "delete", delete)
    patch.setattr(Store, "put", reuse)


@fault("memory that a request holds is written over", law=HISTORY)
def _held_memory(patch: Patch) -> None:
    delete = Store.delete

    def zeroing(self: Any, key: str) -> bool:
        handle = self.get(key).handle
        if handle is not None:
            handle.keys.zero_()
        return delete(self, key)

    patch.setattr(Store, "delete", zeroing)


@fault("memory of own KV is used again without zeros", law=STEPS)
def _tails_without_zeros(patch: Patch) -> None:
    original = tails.TailSlab.take

    def take(self: Any) -> int:
        slot: int = original(self)
        self.keys[:, slot] = self.values[:, slot] = torch.nan
        return slot

    patch.setattr(tails.TailSlab, "take", take)


@fault("a decoded token attends beyond the end of its row", law=STEPS)
def _beyond_the_end(patch: Patch) -> None:
    patch.setattr(PassTokens, "tail_mask", lambda self, group, window: None)


@fault("a row loses a token when it moves to a larger tail", law=STEPS)
def _lost_when_moved(patch: Patch) -> None:
    original = tails.Tails.grown
    patch.setattr(tails.Tails, "grown", lambda self, tail, held, wanted: original(self, tail, max(0, held - 1), wanted))


@fault("a chunk does not attend to the tokens of its row before it", law=STEPS)
def _chunk_forgets(patch: Patch) -> None:
    patch.setattr(forward_pass.Pass, "_older", lambda self, row: None)


@fault("a row attends to the modules of other rows", law=STEPS)
def _modules_of_others(patch: Patch) -> None:
    original = forward_pass.SharedKV.__init__

    def shared(self: Any, *args: Any) -> None:
        original(self, *args)
        self.users[:] = True

    patch.setattr(forward_pass.SharedKV, "__init__", shared)


@fault("the logits of a step are in the order of its kernel calls", law=STEPS)
def _unsorted_logits(patch: Patch) -> None:
    original = Model.forward

    def forward(self: Any, *args: Any, keep: Any = None) -> Any:
        return original(self, *args, keep=None if keep is None else keep.sort().values)

    patch.setattr(Model, "forward", forward)


@fault("a sliding window is one position too wide in a step", law=f"{STEPS}, windows")
def _wide_window_in_step(patch: Patch) -> None:
    _widen(patch, "tail_mask", 1)


@fault("beams keep the KV of other beams", law=REQUESTS)
def _beams_stay(patch: Patch) -> None:
    rows = module_of("promptcache.loops.own_loop")._LinkedRows
    original = rows.select

    def select(self: Any, indices: Any) -> None:
        if len(indices) != self.num_rows:
            original(self, indices)

    patch.setattr(rows, "select", select)


@fault("what reads tokens does not see those of modules", law=REQUESTS)
def _own_tokens_only(patch: Patch) -> None:
    original: Any = job.Job.seen

    def seen(self: Any) -> Any:
        num_own = self.request.plan.num_new_tokens + len(self.token_ids)
        return original.fget(self)[:, -num_own:]

    patch.setattr(job.Job, "seen", property(seen))


@fault("processors are applied twice", law=REQUESTS)
def _processed_twice(patch: Patch) -> None:
    original = decoder._processed
    patch.setattr(decoder, "_processed", lambda job, scores: original(job, original(job, scores)[None]))


@fault("further sequences draw the same numbers", law=REQUESTS)
def _same_sequences(patch: Patch) -> None:
    original = Request.copies
    patch.setattr(Request, "copies", lambda self, number: [original(self, 1)[0]] * number)


@fault("a row of a service is penalized for its new tokens only", law=REQUESTS)
def _new_tokens_penalized(patch: Patch) -> None:
    original = decoder.SampledRow
    patch.setattr(
        decoder,
        "SampledRow",
        lambda **row: original(**row | {"seen": row["seen"][len(row["seen"]) - row["num_new"] :]}),
    )


@fault("keys move in the opposite direction", law=MOVED, quick=True)
def _opposite_direction(patch: Patch) -> None:
    _change_angles(patch, lambda between, cos_sin, rotation, start, stop, like: (cos_sin[0], -cos_sin[1]))


@fault("keys are rotated by the angle of the distance, without the rounding of the model", law=MOVED)
def _rotated_by_distance(patch: Patch) -> None:
    def by_distance(between: Any, cos_sin: Any, rotation: Any, start: Any, stop: Any, like: Any) -> Any:
        cos, sin = between(rotation, torch.zeros_like(start), (stop - start).abs(), like)
        return cos, torch.where(stop < start, -1, 1)[:, None] * sin

    _change_angles(patch, by_distance)


@fault("the attention scaling of rotary embeddings is not divided out", law=MOVED)
def _scaled_again(patch: Patch) -> None:
    def scaled(between: Any, cos_sin: Any, rotation: Any, start: Any, stop: Any, like: Any) -> Any:
        scale = sum(each.square() for each in rotation.at(start, like))
        return tuple(each * scale for each in cos_sin)

    _change_angles(patch, scaled)


def _change_angles(patch: Patch, change: Callable[..., Any]) -> None:
    between = relocation.Rotation.between

    def changed(self: Any, start: Any, stop: Any, like: Any) -> Any:
        return change(between, between(self, start, stop, like), self, start, stop, like)

    patch.setattr(relocation.Rotation, "between", changed)


@fault("keys are rotated with the other pairs of dimensions", law=MOVED)
def _other_pairs(patch: Patch) -> None:
    original = relocation._Rotator.__init__

    def init(self: Any, rotation: Any, cos: Any, sin: Any) -> None:
        original(self, replace(rotation, is_interleaved=not rotation.is_interleaved), cos, sin)

    patch.setattr(relocation._Rotator, "__init__", init)


@fault("keys of all layers are rotated as those of the first", law=MOVED)
def _one_rotation_for_all(patch: Patch) -> None:
    move = relocation.Relocation.move

    def as_first(self: Any, *args: Any) -> Any:
        return move(relocation.Relocation([self.layers[0]] * len(self.layers)), *args)

    patch.setattr(relocation.Relocation, "move", as_first)


@fault("dimensions without rotation are not moved with their key", law=MOVED)
def _only_rotated_dimensions(patch: Patch) -> None:
    apply = relocation._Rotator.apply

    def only_rotated(self: Any, keys: Any, out: Any) -> None:
        width = self._rotation.width
        apply(self, keys[..., :width], out[..., :width])

    patch.setattr(relocation._Rotator, "apply", only_rotated)


@fault("rotated keys lose the first token of each chunk", law=MOVED)
def _chunks_lose_a_token(patch: Patch) -> None:
    chunks = relocation._chunks
    patch.setattr(
        relocation,
        "_chunks",
        lambda keys: [(layers, heads, slice(part.start + 1, part.stop)) for layers, heads, part in chunks(keys)],
    )


@fault("a promotion misses the part before it", law=PROMOTED)
def _context_without_last(patch: Patch) -> None:
    patch.setattr(executor, "Encoding", lambda **given: Encoding(**{**given, "context": given["context"][:-1]}))


@fault("deterministic requests use promoted KV", law=PROMOTED, quick=True)
def _never_deterministic(patch: Patch) -> None:
    original = RequestBuilder.build

    def build(self: Any, prompt: Any, settings: Any) -> Any:
        return original(self, prompt, replace(settings, deterministic=False))

    patch.setattr(RequestBuilder, "build", build)


@fault("an interruption ends a promotion", law=PROMOTED)
def _interruption_ends(patch: Patch) -> None:
    patch.setattr(repetition, "Interrupted", KeyboardInterrupt)
    patch.setattr(repetition._log, "exception", lambda *args: None)


@fault("a forward pass in idle time does not check for requests", law=PROMOTED)
def _unchecked(patch: Patch) -> None:
    original = batch.Batch.open
    patch.setattr(batch.Batch, "open", lambda self, work, check=None: original(self, work))
