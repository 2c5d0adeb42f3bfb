"""The model at work for one request.

Comes in: a checked request and what the user asks of the answer. Goes out: the answer in pieces, then an account of it.
This file imports torch, so it is imported last.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from promptcache.cli.exits import EnvironmentMissing, UsageMistake
from promptcache.cli.model_folder import Dtype
from promptcache.cli.output import counted
from promptcache.cli.request import CheckedRequest, RunOptions
from promptcache.cli.stores import store_config
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.runtime import Completion, FinishReason, KVSource, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A completion, and what was fetched and encoded before its clock started: None where nothing was."""

    completion: Completion
    warmed: Usage | None

    @property
    def num_warmed_tokens(self) -> int:
        """Tokens that were encoded before the clock started."""
        return 0 if self.warmed is None else self.warmed.num_encoded_tokens

    @property
    def first(self) -> Usage:
        """The record of the request that met the store as it was."""
        return self.warmed or self.completion.usage

    @property
    def faults(self) -> tuple[str, ...]:
        """What went wrong in stores, and was made good."""
        return tuple(dict.fromkeys((*self.first.faults, *self.completion.usage.faults)))


def load_engine(options: RunOptions) -> Engine:
    """Load the model.

    Raises:
        UsageMistake: no such kind of device.
        EnvironmentMissing: the device is not there.
        ModelError: the model is not there, or cannot be used.
    """
    config = None if options.store is None else store_config(options.store, options.limit)
    return engine_on(options.model, options.device, options.dtype, config)


def engine_on(model: str, device: str | None, dtype: Dtype, store: StoreConfig | None) -> Engine:
    """Load a model over a store; errors are those of `load_engine`, and what cannot be a store."""
    logging.getLogger("promptcache.kv").addHandler(logging.NullHandler())  # usage has it, and commands print that
    return Engine.from_pretrained(model, device=device_named(device), dtype=dtype.value, store=store)


def answer_request(
    engine: Engine, request: CheckedRequest, options: RunOptions, write: Callable[[str], None]
) -> Answered:
    """Answer a checked request, giving its text to `write` piece by piece."""
    generation = _generation(options)
    engine.add_schema(request.schema.source, keep=options.keep)
    warmed = _warm(engine, request, generation) if options.warm else None
    if options.seed is not None:
        torch.manual_seed(options.seed)
    with engine.stream(request.prompt, max_new_tokens=options.max_new_tokens, **generation) as stream:
        for piece in stream:
            write(piece)

    assert stream.completion is not None, "an exhausted stream has its completion"
    return Answered(completion=stream.completion, warmed=warmed)


def usage_line(answered: Answered) -> str:
    """Say in one line what was reused, what was new, and how soon the first token came."""
    completion = answered.completion
    usage = completion.usage
    counts = f"reused {usage.num_reused_tokens:,} tokens, prefilled {usage.num_new_tokens:,}"
    parts = [f"{counts}, generated {usage.num_generated_tokens:,}"]
    if completion.finish_reason is FinishReason.LENGTH:
        parts[0] += " (all that were allowed)"
    level = f"{completion.level}, lossy" if completion.lossy else str(completion.level)
    parts += [f"TTFT {completion.timing.ttft_s * 1000:.1f} ms", level]
    modules = [each for each in answered.first.modules if each.module] or answered.first.modules
    loaded = Counter(each.tier for each in modules if each.source is KVSource.LOAD)
    parts += [f"{counted(number, 'module')} from {tier}" for tier, number in loaded.items()]
    if answered.num_warmed_tokens:
        parts.append(f"encoded {answered.num_warmed_tokens:,} tokens first")
    if usage.num_encoded_tokens:
        parts.append(f"encoded {usage.num_encoded_tokens:,} tokens within TTFT")
    return " · ".join(parts)


def answer_data(answered: Answered, request: CheckedRequest, model: str) -> dict[str, Any]:
    """Return the answer and its account as data; all times in seconds."""
    completion = answered.completion
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "level": completion.level,
        "lossy": completion.lossy,
        "prompt": request.prompt_file,
        "schema": {"name": request.schema.name, "file": request.schema_file},
        "model": model,
        "usage": {**asdict(completion.usage), "num_warmed_tokens": answered.num_warmed_tokens},
        "warmed": None if answered.warmed is None else asdict(answered.warmed),
        "timing": {**asdict(completion.timing), "ttft_s": completion.timing.ttft_s},
    }


def _warm(engine: Engine, request: CheckedRequest, generation: Mapping[str, Any]) -> Usage:
    """Answer up to the first token, outside every clock: what this prompt needs is encoded then, and nothing else."""
    return engine.generate(request.prompt, max_new_tokens=1, **generation).usage


def _generation(options: RunOptions) -> dict[str, Any]:
    if options.temperature is None:
        return {}
    return {"do_sample": True, "temperature": options.temperature} if options.temperature else {"do_sample": False}


def device_named(name: str | None) -> torch.device | None:
    """Return a device by its name; None is left to whoever loads a model.

    Raises:
        UsageMistake: no such kind of device.
        EnvironmentMissing: there is none here.
    """
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageMistake(f"--device {name}: no such kind of device; cpu and cuda are the usual ones") from None
    if device.type == "meta":
        raise UsageMistake("--device meta: it holds no numbers, so that nothing can be computed on it")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise EnvironmentMissing(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices here")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EnvironmentMissing(f"--device {name}: {str(error).partition(chr(10))[0]}") from None
    return device
