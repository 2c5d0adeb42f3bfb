"""Seeds for requests that transformers samples. It draws from torch's random state, which all threads share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from promptcache.runtime.serving.job import Job
from promptcache.runtime.serving.sampling import draw


def draws_of(job: Job) -> AbstractContextManager[Any]:
    """Return the context in which transformers answers a job: it draws from the generator of a seeded one."""
    return nullcontext() if job.request.seed is None else SeededDraws(job.generator)


class SeededDraws(TorchFunctionMode):
    """Context in which transformers draws tokens from a generator. The random state of torch is neither read nor set.

    The context applies to the calling thread only. Each draw takes one number from the generator, as each token of a
    row in a batch does.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, with a generator if it draws."""
        named = dict(kwargs or {})
        if func is torch.multinomial:
            named["generator"] = self._seeded(args[0].device)
        elif func is torch.rand_like:  # older versions of torch give it no generator
            (like,) = args
            return torch.rand(like.shape, generator=self._seeded(like.device), dtype=like.dtype, device=like.device)
        return func(*args, **named)

    def _seeded(self, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(int(draw(self._generator) * 2**53))
