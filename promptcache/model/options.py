"""The options of an answer from all their sources: keywords, a `GenerationConfig`, and that of the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral, Real
from typing import Any

from transformers import GenerationConfig

from promptcache.diagnostics import InvalidGeneration, instance
from promptcache.model.model import Model
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


def read_options(keywords: OptionKeywords, model: Model, end_ids: Sequence[int] = ()) -> Options:
    """Return all options of an answer. Keywords win over a `GenerationConfig`, and that over the one of the model.

    Args:
        keywords: As the caller gave them.
        end_ids: The tokens that end an answer, if the caller names none.

    Raises:
        InvalidGeneration: An option is not known, not allowed or not supported, or options do not go together.
    """
    given = {name: _plain(value) for name, value in keywords.items()}
    config = given.pop("generation_config", None)
    if config is not None:
        _CONFIG.check("generation_config", config, InvalidGeneration)
    named = checked_options(given)
    if "eos_token_id" in named and named["eos_token_id"] is None:
        named["eos_token_id"] = ()  # no end
    tell_unused(config, "generation_config")
    made = {"eos_token_id": tuple(end_ids), **_UNSET}
    made |= _configured(model) | checked_options(_settings(config, "max_new_tokens" in named))
    made |= {name: value for name, value in named.items() if value is not None}
    options = Options(**made)
    options = replace(options, eos_token_id=options.end_ids)
    _check_together(options)
    wrong = next((token for token in options.logit_bias or () if token >= model.num_known_tokens), None)
    if wrong is not None:
        raise InvalidGeneration(
            f"logit_bias has token {wrong}, and the model has tokens 0 to {model.num_known_tokens - 1}"
        )
    return options


def needs_processors(options: Options, model: Model) -> bool:
    """Whether an option, or a setting of the model that this library does not know, needs logits processors."""
    if any(option.is_processed and getattr(options, name) != DEFAULTS[name] for name, option in OPTIONS.items()):
        return True
    known = {*OPTIONS, *WITHOUT_EFFECT, *CACHING, *FORCED, "eos_token_id"}
    said = _said(model.hf.generation_config)
    return any(name in _DEFAULTS and name not in known and value != _DEFAULTS[name] for name, value in said.items())


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


def _check_together(options: Options) -> None:
    if options.num_return_sequences > 1 and not options.is_sampled:
        raise InvalidGeneration("'num_return_sequences' above 1 needs do_sample=True: greedy answers are all equal")
    if options.num_return_sequences > 1 and options.logprobs is not None:
        raise InvalidGeneration("'logprobs' does not work with 'num_return_sequences': leave one of them out")


def _configured(model: Model) -> dict[str, Any]:
    """Return the options that the generation configuration of a model sets."""
    found = _said(model.hf.generation_config)
    return {name: value for name, value in found.items() if name in OPTIONS and OPTIONS[name].is_configured}


def _settings(config: object, has_length: bool) -> dict[str, Any]:
    """Return the settings of a configuration that the caller gave, without those of caches."""
    said = {name: value for name, value in _said(config).items() if name in _DEFAULTS and name not in CACHING}
    if has_length or "max_new_tokens" in said:
        said.pop("max_length", None)  # as in transformers, where the number of new tokens wins
    if not said.get("min_length"):
        said.pop("min_length", None)
    return said


def _said(config: object) -> dict[str, Any]:
    """Return the settings of a generation configuration."""
    said = {} if config is None else vars(config)
    return {name: value for name, value in said.items() if value is not None and not name.startswith("_")}


def _plain(value: Any) -> Any:
    """Return numbers of numpy and other libraries as Python's own."""
    if isinstance(value, bool | int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)
