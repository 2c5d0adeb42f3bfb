"""Logits processors and stopping criteria of transformers, for the options that rows do not implement themselves.

The processors are those of transformers' `generate` for these options, in its order. They serve one row, and get all
tokens of the prompt and its answer in position order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList, MaxTimeCriteria

from promptcache.diagnostics import InvalidGeneration, first_line
from promptcache.model.model import Model, token_tensor
from promptcache.model.options import FORCED
from promptcache.model.stop_strings import StopStrings
from promptcache.options import OPTIONS, Options


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
        if not _is_refusal(error):
            raise
        message = f"transformers does not take these options of generate(): {first_line(error)}"
        raise InvalidGeneration(message) from error
    return made


def stopping_criteria(options: Options) -> list[Callable[..., Any]]:
    """Return the stopping criteria of options, with those for `stop_strings` and `max_time`, whose time begins now."""
    criteria = list(options.stopping_criteria)
    if options.max_time is not None:
        criteria.append(MaxTimeCriteria(options.max_time))
    if options.stop_strings:
        criteria.append(StopStrings(options.tokenizer, options.stop_strings))
    return criteria


def _is_refusal(error: BaseException) -> bool:
    """Whether an error was raised by transformers, or by torch for it, and not by the caller's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return raised_in.partition(".")[0] in ("transformers", "torch", "huggingface_hub")
