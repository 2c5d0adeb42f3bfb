"""Logits processors and stopping criteria of transformers, for the options that rows do not implement themselves.

The processors are those of transformers' `generate` for these options, in its order. They serve one row, and get all
tokens of the prompt and its answer in position order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from transformers import LogitsProcessorList, MaxTimeCriteria

from promptcache.diagnostics import InvalidGeneration, first_line
from promptcache.model.model import Model, token_tensor
from promptcache.model.options import FORCED
from promptcache.options import OPTIONS, Options

_NO_TEXT = b"\xff"  # does not occur in UTF-8


def logits_processors(
    options: Options, model: Model, prompt_ids: Sequence[int], max_new_tokens: int
) -> LogitsProcessorList:
    """Return the processors that options ask for; samplers' filters included.

    Each takes tokens `[1, T]` and scores `[1, V]`, and returns scores.

    Args:
        prompt_ids: All tokens of the prompt.
        max_new_tokens: Maximum number of tokens of the answer.

    Raises:
        InvalidGeneration: transformers does not take the options.
    """
    named = {name: getattr(options, name) for name, option in OPTIONS.items() if option.is_configured}
    chosen = {name: value for name, value in named.items() if value is not None}
    if not options.is_sampled:  # transformers refuses a temperature of 0
        chosen |= {"do_sample": False, "temperature": 1.0}
    chosen |= {**FORCED, "stop_strings": None, "eos_token_id": list(options.end_ids) or None}
    chosen |= {"max_new_tokens": max_new_tokens, "max_length": len(prompt_ids) + max_new_tokens}
    hf: Any = model.hf
    prompt = token_tensor(prompt_ids, model.device)
    try:
        config, _ = hf._prepare_generation_config(None, **chosen)
        hf._prepare_special_tokens(config, True, device=model.device)
        made: LogitsProcessorList = hf._get_logits_processor(
            generation_config=config,
            input_ids_seq_length=len(prompt_ids),
            encoder_input_ids=prompt,
            prefix_allowed_tokens_fn=options.prefix_allowed_tokens_fn,
            logits_processor=LogitsProcessorList(options.logits_processor),
            device=model.device,
            model_kwargs={"attention_mask": torch.ones_like(prompt)},
        )
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        message = f"transformers does not take these options of generate(): {first_line(error)}"
        raise InvalidGeneration(message) from error
    return made


class StopStrings:
    """A stopping criterion: a row stops when a stop string ends inside its last token.

    It stops at the same tokens as `StopStringCriteria` of transformers, which reads the whole vocabulary first.
    """

    def __init__(self, stop_strings: str | Sequence[str], token_bytes: Callable[[int], bytes]) -> None:
        """Create a criterion of one text or several; `token_bytes` is that of a `Tokenizer`."""
        strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings
        self._stop_strings = [each.encode() for each in strings]
        self._longest = max(map(len, self._stop_strings))
        self._bytes = cache(token_bytes)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return for each row whether a stop string ends inside its last token."""
        ended = [self._has_ended(row) for row in input_ids[:, -self._longest :].tolist()]
        return torch.tensor(ended, device=input_ids.device)

    def _has_ended(self, token_ids: Sequence[int]) -> bool:
        *others, last = (self._bytes(token_id) or _NO_TEXT for token_id in token_ids)
        before = b"".join(others)
        text = before + last
        return any(text.find(each, max(0, len(before) - len(each) + 1)) >= 0 for each in self._stop_strings)


def stopping_criteria(options: Options, token_bytes: Callable[[int], bytes]) -> list[Callable[..., Any]]:
    """Return the stopping criteria of options, with those for `stop_strings` and `max_time`, whose time begins now."""
    criteria = list(options.stopping_criteria)
    if options.max_time is not None:
        criteria.append(MaxTimeCriteria(options.max_time))
    if options.stop_strings:
        criteria.append(StopStrings(options.stop_strings, token_bytes))
    return criteria
