"""What a caller may say of generation: checked, and gathered from wherever it stands.

Comes in: keyword options and `GenerationConfig`s, as transformers' `generate` takes them. Goes out: one set of options
that mean for linked KV what they say. This file knows no prompt and runs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import GenerationConfig, StopStringCriteria

from promptcache.diagnostics import PromptCacheError
from promptcache.runtime.hf.model import Model

_OURS = ("input_ids", "inputs", "inputs_embeds", "position_ids", "attention_mask", "past_key_values", "use_cache")

_CACHING = ("use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size")
"""What a configuration says of transformers' own caches: it changes no answer, and the cache here is another."""

_SETTLED: Mapping[str, Any] = {
    "use_cache": True,
    "cache_implementation": None,
    "prefill_chunk_size": None,
    "max_length": None,
    "min_length": 0,
    "token_healing": False,
    "stop_strings": None,
}
"""What a model's own generation configuration must not decide for linked KV; without its cache an answer is wrong."""

_SEES_PADDING = (
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "sequence_bias",
    "prefix_allowed_tokens_fn",
    "logits_processor",
    "watermarking_config",
)
"""What goes by the order of tokens, those included that fill up the shorter rows of a batch."""


class InvalidGeneration(PromptCacheError, TypeError):
    """An option of `generate` that this library sets itself or cannot honour."""


def read_options(given: Mapping[str, Any], max_new_tokens: int | None) -> dict[str, Any]:
    """Return what a caller chose, a `GenerationConfig` taken apart; keywords stand above it, as in transformers.

    Args:
        max_new_tokens: As the caller named it; it is among the result where it, or the configuration, says a number.

    Raises:
        InvalidGeneration: An option that this library sets itself or cannot honour; names it, and what to use instead.
    """
    for name in _OURS:
        if name in given:
            raise InvalidGeneration(f"generate() sets '{name}' itself; the prompt decides it")
    _check_lengths(given)
    for name in ("prefill_chunk_size", "cache_implementation"):
        if given.get(name) is not None:
            raise InvalidGeneration(f"'{name}' does not work here: the stored KV of the prompt is the cache")
    if callable(given.get("stopping_criteria")) and not isinstance(given["stopping_criteria"], list):
        raise InvalidGeneration("'stopping_criteria' is a list of them; put the one into brackets")
    named = {name: value for name, value in given.items() if name != "generation_config"}
    if max_new_tokens is not None:
        named["max_new_tokens"] = max_new_tokens
    options = {**_taken_apart(given.get("generation_config"), "max_new_tokens" in named), **named}
    if options.get("token_healing"):
        raise InvalidGeneration("'token_healing' would change tokens of the prompt, whose positions are planned")
    return options


def check_for_batch(options: Mapping[str, Any], model: Model) -> None:
    """Refuse what works for single prompts only.

    Raises:
        InvalidGeneration: Names the option.
    """
    for name in ("num_beams", "num_return_sequences"):
        if number_of(name, options, model) != 1:
            where = "" if name in options else ", and the model's generation configuration sets it"
            raise InvalidGeneration(f"'{name}' works for single prompts only{where}; use generate() for each")
    for name in ("assistant_model", "prompt_lookup_num_tokens"):
        if options.get(name) is not None:
            raise InvalidGeneration(f"'{name}' works for single prompts only; use generate() for each")
    if "streamer" in options:
        raise InvalidGeneration("a batch cannot be streamed (transformers streams one sequence); use stream() for each")


def check_for_stream(options: Mapping[str, Any]) -> None:
    """Refuse another streamer beside ours.

    Raises:
        InvalidGeneration: There is one.
    """
    if "streamer" in options:
        raise InvalidGeneration("stream() is a streamer itself; give 'streamer' to generate()")


def setting(name: str, options: Mapping[str, Any], model: Model) -> Any:
    """Return what the options say, else what the model's own generation configuration does; None for nothing."""
    value = options.get(name)
    return value if value is not None else getattr(model.hf.generation_config, name, None)


def number_of(name: str, options: Mapping[str, Any], model: Model) -> int:
    """Return a setting that is 1 where nothing is said."""
    value = setting(name, options, model)
    return 1 if value is None else int(value)


def settled(model: Model) -> dict[str, Any]:
    """Return what no configuration may decide; a `min_length` only where the model has one.

    transformers warns of any that is named beside `min_new_tokens` (5.23), 0 included.
    """
    own = setting("min_length", {}, model)
    return {name: value for name, value in _SETTLED.items() if own or name != "min_length"}


def sees_padding(options: Mapping[str, Any], model: Model) -> bool:
    """Whether something that was chosen would answer otherwise in a row that is filled up to the longest."""
    return any(setting(name, options, model) for name in _SEES_PADDING)


def take_criteria(options: dict[str, Any], model: Model) -> list[Callable[..., Any]]:
    """Take the stopping criteria out of the options, and make one of the strings that stop an answer.

    Raises:
        InvalidGeneration: There are such strings, and no tokenizer to know them by.
    """
    criteria = list(options.pop("stopping_criteria", None) or ())
    strings = setting("stop_strings", options, model)
    if strings:
        tokenizer = options.get("tokenizer")
        if tokenizer is None:
            raise InvalidGeneration("'stop_strings' needs a tokenizer of transformers; give tokenizer=…")
        criteria.append(StopStringCriteria(tokenizer, strings))
    return criteria


def _taken_apart(config: Any, has_length: bool) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, GenerationConfig):
        raise InvalidGeneration(f"'generation_config' is a GenerationConfig, not {type(config).__name__}")
    skipped = {"transformers_version", *_CACHING}
    said = {name: value for name, value in vars(config).items() if value is not None and name not in skipped}
    said = {name: value for name, value in said.items() if not name.startswith("_")}
    if has_length or "max_new_tokens" in said:
        said.pop("max_length", None)  # as in transformers, where the number of new tokens wins
    if not said.get("min_length"):
        said.pop("min_length", None)
    _check_lengths(said)
    return said


def _check_lengths(options: Mapping[str, Any]) -> None:
    for name in ("max_length", "min_length"):
        if name in options:
            mend = name.replace("length", "new_tokens")
            raise InvalidGeneration(f"'{name}' would count cached tokens or not, by accident; use '{mend}'")
