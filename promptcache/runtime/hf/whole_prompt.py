"""All tokens of a prompt for logits processors, stopping criteria and streamers.

transformers' `generate` gets the own tokens of a request only. Here they get those of cached modules as well,
in position order, as from a model without a cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process

from promptcache.layout import RequestTokens
from promptcache.runtime.hf.model import Model, token_tensor

_READS_TOKENS = tuple(
    getattr(logits_process, name)
    for name in (
        "RepetitionPenaltyLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "EncoderNoRepeatNGramLogitsProcessor",
        "SequenceBiasLogitsProcessor",  # also the base class of that for `bad_words_ids`
        "PrefixConstrainedLogitsProcessor",
        "WatermarkLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor",
    )
)
"""Processors of transformers that read token IDs. The others read the number of own tokens only."""


class WholePrompt:
    """The prompt of one request, for functions that read tokens while transformers' `generate` decodes."""

    def __init__(self, tokens: RequestTokens, model: Model) -> None:
        self._tokens = tokens
        self._model = model

    @cached_property
    def _prompt_ids(self) -> torch.Tensor:
        return token_tensor(self._tokens.used_ids, self._model.device)  # [1, P]

    def ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the tokens `[B, P + n]` of the whole prompt and the answer, for own tokens and answer `[B, N + n]`."""
        answer = input_ids[:, len(self._tokens.token_ids) :]
        return torch.cat([self._prompt_ids.to(input_ids.device).expand(len(input_ids), -1), answer], dim=1)

    def criterion(self, criterion: Callable[..., Any]) -> Callable[..., Any]:
        """Return a stopping criterion that gets all tokens."""
        return lambda input_ids, scores, **kwargs: criterion(self.ids(input_ids), scores, **kwargs)

    def streamer(self, streamer: Any, is_stopped: Callable[..., torch.Tensor] | None) -> Any:
        """Return a streamer whose first tokens are those of the whole prompt.

        Args:
            is_stopped: The stopping criteria, for assisted decoding. It streams a draft before it checks them, so
                tokens after a stop are not passed on.
        """
        return _Streamer(streamer, self, is_stopped)

    def generator(self, hf: Any, first: Sequence[Callable[..., torch.Tensor]]) -> Any:
        """Return a view of a transformers model whose logits processors get all tokens.

        The view shares the weights with the model, which is not changed.

        Args:
            first: Processors to call before all others. They get own tokens only.
        """
        prepare = hf._get_logits_processor

        def prepare_over_prompt(*args: Any, **kwargs: Any) -> LogitsProcessorList:
            given = kwargs.get("logits_processor") or ()
            if kwargs.get("encoder_input_ids") is not None:  # the prompt, for models without an encoder
                kwargs["encoder_input_ids"] = self.ids(kwargs["encoder_input_ids"])
            made = LogitsProcessorList(first)
            for each in prepare(*args, **kwargs):
                reads = isinstance(each, _READS_TOKENS) or any(each is one for one in given)
                made.append(_OverPrompt(each, self) if reads else each)
            return made

        view = copy.copy(hf)
        view._get_logits_processor = prepare_over_prompt
        return view


class _OverPrompt(LogitsProcessor):
    """A logits processor that gets all tokens."""

    def __init__(self, processor: Callable[..., torch.Tensor], prompt: WholePrompt) -> None:
        self._processor = processor
        self._prompt = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self._processor(self._prompt.ids(input_ids), scores)


class _Streamer:
    """Passes tokens on; the first ones are those of the whole prompt."""

    def __init__(self, streamer: Any, prompt: WholePrompt, is_stopped: Callable[..., torch.Tensor] | None) -> None:
        self._streamer = streamer
        self._prompt = prompt
        self._is_stopped = is_stopped
        self._own_ids: torch.Tensor | None = None  # [1, N + n]
        self._has_stopped = False

    def put(self, value: torch.Tensor) -> None:
        if self._own_ids is None:
            self._own_ids = value.reshape(1, -1)
            self._streamer.put(self._prompt.ids(value))
        elif self._is_stopped is None:
            self._streamer.put(value)
        else:
            for token in value.reshape(-1, 1, 1):
                self._put_token(token, self._own_ids, self._is_stopped)

    def _put_token(self, token: torch.Tensor, before: torch.Tensor, is_stopped: Callable[..., torch.Tensor]) -> None:
        if not self._has_stopped:
            self._streamer.put(token.reshape(1))
            self._own_ids = torch.cat([before, token.reshape(1, 1)], dim=1)
            self._has_stopped = bool(is_stopped(self._own_ids, None).all())

    def end(self) -> None:
        self._streamer.end()
