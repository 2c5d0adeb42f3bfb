"""Logits processors of transformers, for the options that rows do not implement themselves.

The list is that of transformers' `generate` for these options, in its order. It serves one row, and gets all tokens of
the prompt and its answer in position order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList

from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.runtime.hf.options import FORCED, is_refusal, refused, setting

_NO_SETTINGS = frozenset({"logits_processor", "prefix_allowed_tokens_fn", "stopping_criteria", "streamer", "tokenizer"})
"""Arguments of `generate` that are no settings of a generation configuration."""


def logits_processors(
    options: Mapping[str, Any], model: Model, prompt_ids: Sequence[int], ends: Sequence[int], max_new_tokens: int
) -> LogitsProcessorList:
    """Return the processors that options and the model's generation configuration ask for; samplers' filters included.

    Each takes tokens `[1, T]` and scores `[1, V]`, and returns scores.

    Args:
        options: Options of `generate`, as `read_options` returns them.
        prompt_ids: All tokens of the prompt.
        ends: Tokens that end the answer.

    Raises:
        InvalidGeneration: transformers does not take the options.
    """
    chosen = {name: value for name, value in options.items() if name not in _NO_SETTINGS}
    if setting("temperature", options, model) == 0:  # greedy; transformers refuses this temperature
        chosen |= {"do_sample": False, "temperature": 1.0}
    chosen |= {**FORCED, "eos_token_id": list(ends) or None}
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
            prefix_allowed_tokens_fn=options.get("prefix_allowed_tokens_fn"),
            logits_processor=LogitsProcessorList(options.get("logits_processor") or ()),
            device=model.device,
            model_kwargs={"attention_mask": torch.ones_like(prompt)},
        )
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        if not is_refusal(error):
            raise
        raise refused(error) from error
    return made
