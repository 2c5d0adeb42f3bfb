"""The options of an answer from all their sources: keywords, a `GenerationConfig`, and that of the model.

Options that rows do not implement themselves are logits processors and stopping criteria of transformers. The
processors are those of transformers' `generate` for these options, in its order. They serve one row, and get all tokens
of the prompt and its answer in position order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral, Real
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, MaxTimeCriteria

from promptcache.diagnostics import InvalidGeneration, first_line, instance
from promptcache.layout import RequestTokens
from promptcache.model.model import Model, token_tensor
from promptcache.options import (
    CACHING,
    DEFAULTS,
    OPTIONS,
    OTHER_LOOPS,
    WITHOUT_EFFECT,
    OptionKeywords,
    Options,
    checked_options,
)

_LOG = logging.getLogger(__name__)

_CONFIG = instance("a GenerationConfig", GenerationConfig)
_DEFAULTS = vars(GenerationConfig())  # type: ignore[no-untyped-call] # transformers does not annotate it

FORCED: Mapping[str, Any] = {**OTHER_LOOPS, "use_cache": True, "max_length": None, "min_length": 0}
"""Settings that a model's own generation configuration does not change."""

_UNSET: Mapping[str, Any] = {"top_k": 50}
"""What transformers takes for an option that neither the caller nor the model sets, if that has an effect."""

_NO_TEXT = b"\xff"  # does not occur in UTF-8


def read_options(keywords: OptionKeywords, model: Model, end_ids: Sequence[int] = ()) -> Options:
    """Return all options of an answer. Keywords win over a `GenerationConfig`, and that over the one of the model.

    Args:
        keywords: As the caller gave them.
        end_ids: The tokens that end an answer, if the caller names none.

    Raises:
        InvalidGeneration: An option is not known, not allowed or not supported, or options do not go together.
    """
    given: dict[str, Any] = {}
    for name, value in keywords.items():
        if isinstance(value, Real) and not isinstance(value, bool | int | float):  # a number of numpy
            value = int(value) if isinstance(value, Integral) else float(value)
        given[name] = value
    config = given.pop("generation_config", None)
    if config is not None:
        _CONFIG.check("generation_config", config, InvalidGeneration)
        tell_unused(config, "generation_config")
    named = checked_options(given)
    if "eos_token_id" in named and named["eos_token_id"] is None:
        named["eos_token_id"] = ()  # no end
    from_config = {name: value for name, value in _said(config).items() if name in _DEFAULTS and name not in CACHING}
    if "max_new_tokens" in named or "max_new_tokens" in from_config:
        from_config.pop("max_length", None)  # as in transformers, where the number of new tokens wins
    if not from_config.get("min_length"):
        from_config.pop("min_length", None)
    from_model = _said(model.hf.generation_config)
    made = {"eos_token_id": tuple(end_ids), **_UNSET}
    made |= {name: each for name, each in from_model.items() if name in OPTIONS and OPTIONS[name].is_configured}
    made |= checked_options(from_config)
    made |= {name: value for name, value in named.items() if value is not None}
    options = Options(**made)
    options = replace(options, eos_token_id=options.end_ids)
    if options.num_return_sequences > 1 and not options.is_sampled:
        raise InvalidGeneration("'num_return_sequences' above 1 needs do_sample=True: greedy answers are all equal")
    if options.num_return_sequences > 1 and options.logprobs is not None:
        raise InvalidGeneration("'logprobs' does not work with 'num_return_sequences': leave one of them out")
    wrong = next((token for token in options.logit_bias or () if token >= model.num_known_tokens), None)
    if wrong is not None:
        raise InvalidGeneration(
            f"logit_bias has token {wrong}, and the model has tokens 0 to {model.num_known_tokens - 1}"
        )
    return options


def tell_unused(config: object, whose: str) -> None:
    """Log once which settings of a generation configuration are not used.

    Args:
        config: A `GenerationConfig`; None has no settings.
        whose: Where it is from, for the message.
    """
    names = [
        name
        for name, value in _said(config).items()
        if name in (*CACHING, *FORCED)
        and value not in (_DEFAULTS.get(name), FORCED.get(name))
        and not (value is False and name in OTHER_LOOPS)
    ]
    if names:
        _log_unused(whose, ", ".join(map(repr, sorted(names))))


@cache
def _log_unused(whose: str, names: str) -> None:
    _LOG.warning(
        "%s sets %s, which is not used: the stored KV of a prompt is its cache, and 'max_new_tokens' limits an answer",
        whose,
        names,
    )


def _said(config: object) -> dict[str, Any]:
    """Return the settings of a generation configuration."""
    said = {} if config is None else vars(config)
    return {name: value for name, value in said.items() if value is not None and not name.startswith("_")}


def logits_processors(
    options: Options, model: Model, tokens: RequestTokens, max_new_tokens: int
) -> LogitsProcessorList:
    """Return the processors that options ask for; samplers' filters included.

    There are none if rows implement all options, and this library knows all settings of the model. Each takes tokens
    `[1, T]` and scores `[1, V]`, and returns scores.

    Args:
        tokens: Those of the prompt.
        max_new_tokens: Maximum number of tokens of the answer.

    Raises:
        InvalidGeneration: transformers does not take the options.
    """
    known, said = {*OPTIONS, *WITHOUT_EFFECT, *CACHING, *FORCED}, _said(model.hf.generation_config)
    if not (
        any(option.is_processed and getattr(options, name) != DEFAULTS[name] for name, option in OPTIONS.items())
        or any(name in _DEFAULTS and name not in known and value != _DEFAULTS[name] for name, value in said.items())
    ):
        return LogitsProcessorList()
    named = {name: getattr(options, name) for name, option in OPTIONS.items() if option.is_configured}
    chosen = {name: value for name, value in named.items() if value is not None}
    if not options.is_sampled:  # transformers refuses a temperature of 0
        chosen |= {"do_sample": False, "temperature": 1.0}
    chosen |= {**FORCED, "stop_strings": None, "eos_token_id": list(options.end_ids) or None}
    prompt_ids = tokens.used_ids
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
        ended = []
        for row in input_ids[:, -self._longest :].tolist():
            *others, last = (self._bytes(token_id) or _NO_TEXT for token_id in row)
            before = b"".join(others)
            text = before + last
            ended.append(any(text.find(each, max(0, len(before) - len(each) + 1)) >= 0 for each in self._stop_strings))
        return torch.tensor(ended, device=input_ids.device)


def stopping_criteria(options: Options, token_bytes: Callable[[int], bytes]) -> list[Callable[..., Any]]:
    """Return the stopping criteria of options, with those for `stop_strings` and `max_time`, whose time begins now."""
    criteria = list(options.stopping_criteria)
    if options.max_time is not None:
        criteria.append(MaxTimeCriteria(options.max_time))
    if options.stop_strings:
        criteria.append(StopStrings(options.stop_strings, token_bytes))
    return criteria
