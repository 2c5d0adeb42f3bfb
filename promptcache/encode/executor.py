"""The executor: the only way from encodings to KV. It fetches them from the store, or encodes them."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import torch

from promptcache.diagnostics import NotFinite, StoreError
from promptcache.encode.encode import (
    CHECKED_TOKENS,
    CHUNK_TOKENS,
    Chain,
    Progress,
    compute,
    encoding_batches,
    missing_encodings,
)
from promptcache.encode.idle import Activity, end_helping_threads
from promptcache.kv import KV, Codec, Lookup, OnWait, Recipe, Store, Tier, apply_codec
from promptcache.layout import Encoding, Plan, RequestTokens, positions_to_repair
from promptcache.locks import new_lock
from promptcache.model import Model
from promptcache.rows import (
    Copies,
    History,
    Recalled,
    Salt,
    StepGraphs,
    StopCheck,
    attention_weights,
    open_copies,
    open_graphs,
    without_cache,
)

PATIENCE_S = 60.0
"""Seconds to wait for another process that computes an encoding. After that, it is computed here, too."""

MAX_CHOICES = 1000
"""Limit of the choices that are kept, by last use."""

_log = logging.getLogger(__name__)
_MAX_KEYS = 1 << 16  # cached keys, about 200 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """KV of encodings, with the work of fetching them.

    Attributes:
        kv_of: KV of each wanted encoding.
        encoded: Encodings that were computed, contexts included.
        encode_s: Seconds to compute them.
        tiers: The tier that held each of the others.
        moved_bytes: Bytes that stores copied.
        faults: Store faults that did not stop the request, one sentence each.
    """

    kv_of: Mapping[Encoding, KV]
    encoded: frozenset[Encoding]
    encode_s: float
    tiers: Mapping[Encoding, Tier]
    moved_bytes: int
    faults: tuple[str, ...]

    @property
    def num_encoded_tokens(self) -> int:
        """The number of tokens of all encodings that were computed."""
        return sum(each.num_tokens for each in self.encoded)


class Executor:
    """A model with the store of its KV. All methods are thread-safe.

    A missing encoding is computed once, however many threads ask for it. If the store refuses computed KV, the request
    still uses it, and the next request computes it again.

    The model is served as it was when it was made (`Model.check_unchanged`).

    Attributes:
        fingerprint: Returns what tells the KV of model and tokenizer from others in the store.
        activity: Says whether requests use the model now.
    """

    def __init__(
        self,
        model: Model,
        store: Store,
        fingerprint: Callable[[], str],
        copies: Copies | None = None,
        history: History | None = None,
        graphs: StepGraphs | None = None,
    ) -> None:
        """Create an executor for a model and a store.

        Args:
            copies: Those of moved and of joined segments; None keeps none.
            history: KV of own tokens of earlier requests; None keeps none.
            graphs: Recorded steps of the model; None records none.
        """
        self.model = model
        self.store = store
        self.copies = without_cache(model) if copies is None else copies
        self.history = history
        self.graphs = graphs
        self.fingerprint = fingerprint
        self._keys: dict[str, str] = {}  # by digest
        self.activity = Activity()
        self._chosen: OrderedDict[int, frozenset[int]] = OrderedDict()  # positions, by a hash of the question
        self._lock, self._lock_of_choices = new_lock(), new_lock()

    @classmethod
    def open(cls, model: Model, store: Store, tokenizer: str, *, keeps_history: bool) -> Executor:
        """Return an executor with all that its model can use; `tokenizer` is the fingerprint of the tokenizer."""
        return cls(
            model,
            store,
            lambda: f"{store.name(model)}:{tokenizer}",
            open_copies(model, store.memory),
            History(store.memory) if keeps_history else None,
            open_graphs(model),
        )

    def key(self, encoding: Encoding) -> str:
        """Return the store key of an encoding, 64 hexadecimal digits."""
        key = self._keys.get(encoding.digest)
        if key is None:
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            key = self._keys[encoding.digest] = self.recipe(encoding).key
        return key

    def recipe(self, encoding: Encoding) -> Recipe:
        """Return the facts about an encoding that the store keeps beside its KV."""
        return Recipe(
            fingerprint=self.fingerprint(),
            digest=encoding.digest,
            num_tokens=encoding.num_tokens,
            first_position=encoding.position_ids[0],
            last_position=encoding.position_ids[-1],
            codec=Codec(encoding.codec),
        )

    def recall(self, tokens: RequestTokens, salt: Salt, *, is_whole: bool = False) -> Recalled | None:
        """Look up the own tokens of a request in history, as `History.recall`; None if this executor keeps none."""
        return None if self.history is None else self.history.recall(tokens, salt, is_whole=is_whole)

    def keep(self, recalled: Recalled, answer_ids: Sequence[int], own_kv: KV) -> int:
        """As `History.keep`, but return the number of copied bytes, and log an error.

        Nothing is kept if the model was changed.
        """
        if self.history is None or not self.model.is_unchanged():
            return 0
        try:
            return self.history.keep(recalled, answer_ids, own_kv) * self.model.shape.token_bytes
        except Exception:  # noqa: BLE001 - history costs no answer
            _log.exception("the tokens of a request could not be kept in history")
            return 0

    def fetch(
        self, wanted: Iterable[Encoding], progress: Progress | None = None, *, patience_s: float = PATIENCE_S
    ) -> Fetched:
        """Return the KV of the encodings `wanted`. Missing encodings and contexts are computed.

        Args:
            progress: Called after each forward pass with the number of computed tokens and the number of all missing
                tokens, and about once a second while it waits for another process. No lock is held, so it may call the
                engine. If it raises, nothing more is computed.
            patience_s: As `PATIENCE_S`.

        Raises:
            ModelChanged: The model is not as it was when it was made.
        """
        self.activity.arrived()
        self.model.check_unchanged()
        lookups: dict[Encoding, Lookup] = {}
        wanted = unknown = tuple(dict.fromkeys(wanted))
        while unknown:  # the contexts of missing encodings, too
            found = self._get_many(unknown)
            lookups.update(found)
            missing = [each for each, lookup in found.items() if lookup.kv is None]
            contexts = dict.fromkeys(part.encoding for each in missing for part in each.context)
            unknown = tuple(each for each in contexts if each not in lookups)
        faults = [fault for each in lookups.values() for fault in each.faults]
        held = {each: lookup.kv for each, lookup in lookups.items() if lookup.kv is not None}
        encoded = set[Encoding]()
        total = sum(each.num_tokens for each in lookups if each not in held)
        done, started = 0, time.perf_counter()

        def report() -> None:
            if progress is not None:
                progress(done, total)

        while not all(each in held for each in wanted):
            for batch in encoding_batches(missing_encodings(wanted, held.__contains__)):
                again, computed = self._encode(batch, held, faults, patience_s, report)
                lookups.update(again)
                encoded.update(computed)
                held.update(computed)
                held.update((each, lookup.kv) for each, lookup in again.items() if lookup.kv is not None)
                done += sum(each.num_tokens for each in (*again, *computed))
                report()
                if not all(each in held for chain in batch for each in chain):
                    break  # another thread or process encodes the rest: list the missing ones again
        if encoded:
            faults += self.store.faults()
            end_helping_threads()
        return Fetched(
            kv_of={each: held[each] for each in wanted},
            encoded=frozenset(encoded),
            encode_s=time.perf_counter() - started if encoded else 0.0,
            tiers={each: lookups[each].tier for each in wanted if each not in encoded},
            moved_bytes=sum(each.moved_bytes for each in lookups.values()),
            faults=tuple(dict.fromkeys(faults)),
        )

    def choose(self, plan: Plan, kv_of: Mapping[Encoding, KV], salt: str | None) -> Plan:
        """Return a plan that computes again the cached tokens that its new tokens attend to most.

        A choice depends on the modules of a prompt and on its text up to the first answer. So the turns of a
        conversation have one choice, and history serves them.

        Args:
            plan: One with `repair="attended-K"`, that awaits the choice.
            salt: A choice is kept for requests of the same salt, so that no other one shows by its time what was asked.
        """
        question = plan.question
        parts = tuple((part.encoding.digest, part.start, part.stop, part.shift) for part in question.parts)
        key = hash((parts, question.token_ids, question.position_ids, plan.repair, salt))
        with self._lock_of_choices:
            if (positions := self._chosen.get(key)) is not None:
                self._chosen.move_to_end(key)
                return plan.with_choice(positions)
        weights = attention_weights(question, kv_of, self.model, self.copies, CHUNK_TOKENS)
        end_helping_threads()
        positions = positions_to_repair(plan.pieces, plan.repair, weights)
        with self._lock_of_choices:
            self._chosen[key] = positions
            if self.history is None or len(self._chosen) > MAX_CHOICES:  # choices are kept for history
                self._chosen.popitem(last=False)
        return plan.with_choice(positions)

    def extend_history(self, tokens: RequestTokens, salt: Salt, check: StopCheck) -> int:
        """Compute the next tokens of a request that history lacks, and keep them; return the number of kept tokens.

        `check` is called in each layer. What it raises ends the forward pass, and nothing is kept.
        """
        assert self.history is not None, "the caller knows that there is a history"
        recalled = self.history.recall(tokens, salt, is_whole=True)
        if not recalled.missing:
            return 0
        start = recalled.missing[0]
        (stretch,) = (each for each in recalled.stretches if each.start <= start < each.stop)
        stop = min(stretch.stop, start + CHECKED_TOKENS)
        wanted = Encoding(
            token_ids=tokens.token_ids[start:stop],
            position_ids=tokens.position_ids[start:stop],
            context=tuple(part for each in recalled.stretches if each.start <= start for part in each.parts),
        )
        ((_, kv),) = compute(self.model, [(wanted,)], recalled.kv_of, partial(self._check, check))
        if not self.model.is_unchanged():
            return 0
        return self.history.keep(recalled, (), KV(keys=kv[0], values=kv[1]))

    def _check(self, check: StopCheck) -> None:
        """Check for requests. A GPU computes a layer at a time, so that no further ones wait in its queue."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        check()

    def _encode(
        self, batch: Sequence[Chain], held: Mapping[Encoding, KV], faults: list[str], patience_s: float, on_wait: OnWait
    ) -> tuple[dict[Encoding, Lookup], dict[Encoding, KV]]:
        """Encode the chains of a batch that no other process encodes now. Locks are held during a forward pass only.

        If other processes encode all of them, wait; after `patience_s`, encode them here, too. If some encodings are in
        the store now, return only these.
        """
        keys = [[*map(self.key, each)] for each in batch]
        with self.store.claim(keys, patience_s, on_wait) as claimed, self._lock:
            begins = (tuple(takewhile(lambda each: self.key(each) in claimed, chain)) for chain in batch)
            free = [*filter(None, begins)] or batch
            again = self._get_many([each for chain in free for each in chain])
            faults += (fault for each in again.values() for fault in each.faults)
            if found := {each: lookup for each, lookup in again.items() if lookup.kv is not None}:
                return found, {}
            return {}, self._computed(free, held, faults)

    def _computed(self, batch: Sequence[Chain], held: Mapping[Encoding, KV], faults: list[str]) -> dict[Encoding, KV]:
        """Compute the chains of a batch in one forward pass and store their encodings.

        If some KV is not finite, each encoding is computed by itself, so that only the faulty one is not stored.

        Raises:
            ModelChanged: The model was changed meanwhile; nothing was stored.
        """
        try:
            computed = self.copies.with_room(lambda: dict(compute(self.model, batch, held)))
        except NotFinite:
            encodings = [each for chain in batch for each in chain]
            if len(encodings) == 1:
                raise
        else:
            self.model.check_unchanged()
            return {each: self._stored(each, kv, faults) for each, kv in computed.items()}
        kv_of: dict[Encoding, KV] = {}
        for each in encodings:
            kv_of.update(self._computed([(each,)], {**held, **kv_of}, faults))
        return kv_of

    def _stored(self, encoding: Encoding, kv: tuple[torch.Tensor, torch.Tensor], faults: list[str]) -> KV:
        """Put keys and values into the store and return them as stored. If refused, the result owns its memory."""
        recipe = self.recipe(encoding)
        try:
            return self.store.put(recipe, *kv)
        except StoreError as fault:
            faults.append(str(fault))
            keys, values = apply_codec(recipe, *kv)
            return KV(keys=keys.contiguous(), values=values.contiguous())

    def _get_many(self, encodings: Sequence[Encoding]) -> dict[Encoding, Lookup]:
        keys = {each: self.key(each) for each in encodings}
        found = self.store.get_many(keys.values())
        return {each: found[key] for each, key in keys.items()}
