"""The choice of the kernels that compute the attention of a model on a GPU: the fastest ones on its own device.

Each kind computes the same request of the model. Their seconds are kept in a file in the user's cache folder, so that a
model shape is measured once on a device. Every choice computes the same numbers within rounding.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import torch

from promptcache.atomic import atomic_write, cache_folder, open_regular
from promptcache.attention import (
    AttentionCall,
    AttentionSpec,
    Kernels,
    has_kernels,
    kernel_faults,
    kernel_versions,
    uses_kernels,
)
from promptcache.diagnostics import first_line
from promptcache.kv import KV, KVMemory
from promptcache.layout import Encoding, RequestTokens
from promptcache.locks import new_lock
from promptcache.model import MODEL_FAULTS, Model, runs_own_code
from promptcache.rows.batch import Batch
from promptcache.rows.coalesce import open_copies
from promptcache.rows.forward_pass import Row
from promptcache.rows.step_graphs import CudaRecorder, Recorder, StepGraphs, note_attention

_SEGMENTS, _SEGMENT_TOKENS = 8, 256
_NEW_TOKENS, _STEPS = 64, 32  # of the request that is measured
_ROUNDS, _LONGEST_S = 5, 1.0
_MAX_CHOICES, _MAX_BYTES = 100, 1 << 20

Clock: TypeAlias = Callable[[], float]
"""Returns seconds, when the device has done all work."""

_Seconds: TypeAlias = dict[str, float]
"""Seconds of the request that is measured, by the kernels that computed it."""

_one_at_a_time = new_lock()
_LOG = logging.getLogger(__name__)


def choose_kernels(model: Model) -> None:
    """Choose the fastest kernels for a model on a CUDA device, if none are chosen yet.

    The first choice on a machine compiles the Triton kernels, and measures for about a second.
    """

    def clock() -> float:
        torch.cuda.synchronize(model.device)
        return perf_counter()

    if model.device.type == "cuda":
        with _one_at_a_time:
            if model.kernels is None:
                model.kernels = fastest_kernels(model, CudaRecorder(model.device), clock)


def used_kernels(model: Model) -> Kernels:
    """Return the kernels that compute the attention of a model: PyTorch's, where those in Triton do not run."""
    return (model.kernels or Kernels.GRAPHS) if has_kernels(model.shape, model.kernels) else Kernels.TORCH


def fastest_kernels(model: Model, record: Recorder, clock: Clock) -> Kernels:
    """Return the kernels that compute a request of the model fastest. Other seconds are measured if none are known.

    Kernels that fail are not chosen, and a warning says why.
    """
    if not has_kernels(model.shape):
        return Kernels.TORCH
    faults: tuple[type[Exception], ...] = (*MODEL_FAULTS, *kernel_faults())
    try:
        calls: list[AttentionCall] = []
        note_attention(model, 1, calls.append)
        specs = [*map(AttentionSpec.of, calls)]
        if not specs or not all(map(uses_kernels, specs)):
            return Kernels.TORCH
        file, key = cache_folder() / "attention.json", _key(model, specs[0])
        known = _read(file)
        seconds = known.get(key)
        if seconds is None:
            seconds = _measured(model, record, clock)
            _write(file, {**known, key: seconds})
    except faults as error:
        reason = first_line(error)
        _LOG.warning("the Triton kernels do not run for %s, so that PyTorch's compute: %s", model.facts.name, reason)
        return Kernels.TORCH
    return Kernels(min(seconds, key=seconds.__getitem__))


def _measured(model: Model, record: Recorder, clock: Clock) -> _Seconds:
    """Return the median seconds of each kind of kernels, which run in turn for about a second."""
    graphs = StepGraphs(model, record)
    tokens, kv_of = _request(model)
    taken: dict[Kernels, list[float]] = {each: [] for each in Kernels}
    trials: dict[Kernels, tuple[Batch, Row]] = {}

    def seconds_of(kernels: Kernels) -> float:
        """Compute the prompt and one step; return the seconds of the prompt and of the steps of an answer."""
        model.kernels = kernels
        batch, row = trials[kernels]
        row.num_own = 0
        begin = clock()
        batch.step([(row, tokens.token_ids)])
        middle = clock()
        batch.step([(row, [0])])
        return middle - begin + _STEPS * (clock() - middle)

    try:
        for each in Kernels:
            model.kernels = each
            batch = Batch(model, open_copies(model, KVMemory(model.shape)), graphs if each is Kernels.GRAPHS else None)
            trials[each] = batch, batch.join(tokens, kv_of)
            seconds_of(each)  # compiles kernels, and records graphs
        if not graphs.can_record:
            del taken[Kernels.GRAPHS]
        end = clock() + _LONGEST_S
        for number in range(_ROUNDS):
            if number and clock() >= end:
                break
            for each, seconds in taken.items():
                seconds.append(seconds_of(each))
    finally:
        model.kernels = None
    found = {each.value: statistics.median(seconds) for each, seconds in taken.items()}
    _LOG.info("seconds of a request of %s with each kind of kernels: %s", model.facts.name, found)
    return found


def _request(model: Model) -> tuple[RequestTokens, Mapping[Encoding, KV]]:
    """Return new tokens behind several segments, with the KV of these."""
    size = max(1, min(_SEGMENT_TOKENS, model.context_length // (2 * _SEGMENTS)))
    kv_of: dict[Encoding, KV] = {}
    for start in range(0, _SEGMENTS * size, size):
        kv = KV.empty(model.shape, size)
        kv.keys.zero_()
        kv.values.zero_()
        kv_of[Encoding(token_ids=(0,) * size, position_ids=tuple(range(start, start + size)))] = kv
    first, num_new = _SEGMENTS * size, max(1, min(_NEW_TOKENS, model.context_length // 4))
    tokens = RequestTokens(
        parts=tuple(each.whole for each in kv_of),
        token_ids=(0,) * num_new,
        position_ids=tuple(range(first, first + num_new)),
    )
    return tokens, kv_of


def _key(model: Model, spec: AttentionSpec) -> str:
    """Return what the choice depends on: device, versions, the shape of attention, and the size of the model."""
    heads = spec.num_kv_heads, spec.num_groups, spec.head_dim, str(spec.dtype)
    size = model.shape.num_layers, sum(each.numel() for each in model.hf.parameters()), model.context_length
    return json.dumps(
        [_device_name(spec.device), *kernel_versions(), *heads, model.facts.name, *size, runs_own_code(model.hf)]
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _read(file: Path) -> dict[str, _Seconds]:
    """Return the seconds that a file has, by key. What cannot be read is not known."""
    try:
        with os.fdopen(open_regular(file), "rb") as opened:
            found = json.loads(opened.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    items = found.items() if isinstance(found, dict) else ()
    return {
        key: seconds
        for key, seconds in items
        if isinstance(seconds, dict)
        and {Kernels.TORCH, Kernels.TRITON} <= seconds.keys() <= {*Kernels}
        and all(isinstance(each, float) and math.isfinite(each) for each in seconds.values())
    }


def _write(file: Path, known: Mapping[str, _Seconds]) -> None:
    """Write the newest seconds. Without them, the next process measures again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as opened:
            opened.write(json.dumps(dict([*known.items()][-_MAX_CHOICES:]), indent=1).encode())
    except OSError as error:
        _LOG.info("the choice of kernels cannot be kept: %s", error)
