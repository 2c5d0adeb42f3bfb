"""Options of generation: check them, and collect them from keywords and `GenerationConfig`s.

The result is one set of options, which have the same meaning for linked KV. No model is run here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from numbers import Integral
from typing import Any

from transformers import GenerationConfig, GenerationMixin, MaxTimeCriteria

from promptcache.diagnostics import (
    FLAG,
    FUNCTION,
    TEXTS,
    InvalidGeneration,
    Kind,
    did_you_mean,
    first_line,
    instance,
    number,
    shown,
    whole,
)
from promptcache.runtime.hf.model import Model
from promptcache.runtime.hf.stop_strings import StopStrings

_LOG = logging.getLogger(__name__)

_OURS = ("input_ids", "inputs", "inputs_embeds", "position_ids", "attention_mask", "past_key_values", "use_cache")

_CACHING = ("use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size")
"""Settings of transformers' own caches. They change no answer, and linked requests use another cache."""

OTHER_LOOPS: Mapping[str, Any] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "guidance_scale"), 1),
    **dict.fromkeys(
        (
            *("assistant_model", "assistant_tokenizer", "assistant_early_exit", "prompt_lookup_num_tokens", "use_mtp"),
            *("custom_generate", "trust_remote_code", "penalty_alpha", "dola_layers", "constraints", "force_words_ids"),
            *("negative_prompt_ids", "negative_prompt_attention_mask", "token_healing"),
            *("output_scores", "output_logits", "output_hidden_states", "output_attentions"),
            *("return_dict_in_generate", "is_assistant"),
        )
    ),
}
"""Options of loops that are not one token of one row at a time, with the values that are without effect."""

FORCED: Mapping[str, Any] = {**OTHER_LOOPS, "use_cache": True, "max_length": None, "min_length": 0}
"""Settings that a model's own generation configuration does not change."""

_DEFAULTS = vars(GenerationConfig())  # type: ignore[no-untyped-call] # transformers does not annotate it

_KNOWN = frozenset(
    {
        *(name for name in _DEFAULTS if not name.startswith("_")),
        *inspect.signature(GenerationMixin.generate).parameters,
        *("tokenizer", "assistant_tokenizer", "trust_remote_code"),
    }
) - {"self", "kwargs", "is_assistant"}
"""Options of transformers' `generate`, without the one that it sets itself for an assistant."""

_ELSEWHERE = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict"), "max_new_tokens"),
    **dict.fromkeys(("stop", "stop_sequences", "stop_words"), "stop_strings"),
    **dict.fromkeys(("n", "best_of"), "num_return_sequences"),
    **dict.fromkeys(("user", "cache_salt", "prompt_cache_key"), "salt"),
    "min_tokens": "min_new_tokens",
    "repeat_penalty": "repetition_penalty",
    "top_logprobs": "logprobs",
    "random_seed": "seed",
    "stop_token_ids": "eos_token_id",
    "ignore_eos": "eos_token_id=None",
    "stream": "engine.stream(…)",
    "messages": "generate(messages)",
    "enable_thinking": "template_kwargs={'enable_thinking': …}",
}
"""Names of options in other libraries, with ours."""

_SETTINGS = (
    *("repair", "logprobs", "seed", "salt", "template_kwargs", "deterministic", "output"),
    *("presence_penalty", "frequency_penalty", "logit_bias", "tools", "tool_choice", "parallel_tool_calls"),
)
"""Options of our own, for names that are almost these."""

_MAX_SEQUENCES = 4096
"""Limit of sequences of one prompt; each has KV of its own."""

_STREAMER = Kind("a streamer, with put and end,", lambda value: all(hasattr(value, name) for name in ("put", "end")))
_FUNCTIONS = Kind(
    "a list of functions", lambda value: isinstance(value, list | tuple) and all(callable(each) for each in value)
)
_TOKEN = whole(0, 2**63 - 1)
_TOKENS = Kind(
    "a token ID or a list of them",
    lambda value: all(map(_TOKEN.takes, value)) if isinstance(value, list | tuple) else _TOKEN.takes(value),
)
TEMPERATURE = Kind(
    "0, or a finite number from 1e-05 on,", lambda value: number(0, 0).takes(value) or number(1e-5).takes(value)
)


def _are_stop_strings(value: object) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, Collection) and TEXTS.takes(texts) and all(texts)


_KINDS: Mapping[str, Kind] = {
    "max_new_tokens": whole(1, unit="tokens"),
    "min_new_tokens": whole(0, unit="tokens"),
    "num_return_sequences": whole(1, _MAX_SEQUENCES),
    "do_sample": FLAG,
    "max_time": number(0),
    "temperature": TEMPERATURE,
    "top_p": number(0, 1),
    "repetition_penalty": number(1e-5, 1e5),
    **dict.fromkeys(("top_k", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), whole(0)),
    **dict.fromkeys(("eos_token_id", "pad_token_id"), _TOKENS),
    **dict.fromkeys(("bad_words_ids", "sequence_bias"), instance("a list or a dict", list, tuple, dict)),
    "stop_strings": Kind("text or a list of texts, none of them empty,", _are_stop_strings),
    "streamer": _STREAMER,
    "stopping_criteria": _FUNCTIONS,
    "logits_processor": _FUNCTIONS,
    "prefix_allowed_tokens_fn": FUNCTION,
    "generation_config": instance("a GenerationConfig", GenerationConfig),
}
"""Options that transformers checks only while it generates, or never. It checks the others before.

Logits over a smaller temperature or penalty may be infinite, and then no token has a probability.
"""


def read_options(given: Mapping[str, Any], max_new_tokens: int | None) -> dict[str, Any]:
    """Return the options that a caller chose, those of a `GenerationConfig` included.

    Keywords win over a configuration, as in transformers.

    Args:
        max_new_tokens: The caller's limit. The result has one if the caller or the configuration gives one.

    Raises:
        InvalidGeneration: An option that this library sets itself or cannot support; names it and the alternative.
    """
    if max_new_tokens is not None:
        given = {**given, "max_new_tokens": max_new_tokens}
    for name in _OURS:
        if name in given:
            raise InvalidGeneration(f"generate() sets '{name}' itself, from the prompt; remove it")
    _check_lengths(given)
    _check_names(given)
    given = {name: _plain(value) for name, value in given.items()}
    _check_values(given)
    for name in ("prefill_chunk_size", "cache_implementation"):
        if given.get(name) is not None:
            raise InvalidGeneration(f"'{name}' does not work here: the stored KV of the prompt is the cache")
    tell_unused(given.get("generation_config"), "generation_config")
    named = {name: value for name, value in given.items() if name != "generation_config"}
    options = {**_taken_apart(given.get("generation_config"), "max_new_tokens" in named), **named}
    for name, harmless in OTHER_LOOPS.items():
        value = options.pop(name, None)
        is_plain = isinstance(value, bool | int | float | str)
        if value is not None and not (is_plain and value in (False, harmless)):
            raise InvalidGeneration(
                f"'{name}' does not work here: an answer is a row of a shared forward pass. transformers takes it over "
                f"the linked prompt: engine.model.hf.generate(**engine.link(prompt), {name}="
                f"{shown(value) if is_plain else '…'})"
            )
    return options


def check_for_batch(options: Mapping[str, Any]) -> None:
    """Refuse a streamer, which takes the tokens of one answer.

    Raises:
        InvalidGeneration: The options have one.
    """
    if options.get("streamer") is not None:
        raise InvalidGeneration("a streamer takes the tokens of one answer, not of a batch; use stream() for each")


def check_for_logprobs(options: Mapping[str, Any], model: Model) -> None:
    """Refuse several sequences, of which only the first would have log-probabilities.

    Raises:
        InvalidGeneration: The options have several.
    """
    if num_sequences(options, model) > 1:
        raise InvalidGeneration("'logprobs' does not work with 'num_return_sequences': leave one of them out")


def check_for_output(options: Mapping[str, Any], model: Model, reason: str) -> None:
    """Refuse a minimum of new tokens, which a format may not have.

    Args:
        reason: What gives the answer its format.

    Raises:
        InvalidGeneration: The options, or the model's generation configuration, have one.
    """
    if setting("min_new_tokens", options, model):
        where = "" if "min_new_tokens" in options else ", which the model's generation configuration sets"
        raise InvalidGeneration(f"{reason} does not work with 'min_new_tokens'{where}: leave one of them out")


def check_for_stream(options: Mapping[str, Any], model: Model) -> None:
    """Refuse a second streamer, and several sequences, whose tokens would be mixed.

    Raises:
        InvalidGeneration: The options have one of these.
    """
    if options.get("streamer") is not None:
        raise InvalidGeneration("stream() is a streamer itself; give 'streamer' to generate()")
    if num_sequences(options, model) > 1:
        raise InvalidGeneration(
            "one sequence can be streamed; for 'num_return_sequences' above 1 use generate(), or one stream for each"
        )


def setting(name: str, options: Mapping[str, Any], model: Model) -> Any:
    """Return a setting of the options, or else of the model's generation configuration; None if neither has it."""
    value = options.get(name)
    return value if value is not None else getattr(model.hf.generation_config, name, None)


def configured_settings(model: Model) -> tuple[str, ...]:
    """Return the names of the settings in which the model's generation configuration differs from the default."""
    configured: object = model.hf.generation_config
    found = {} if configured is None else vars(configured)
    public = {name: value for name, value in found.items() if value is not None and not name.startswith("_")}
    return tuple(name for name, value in public.items() if value != _DEFAULTS.get(name))


def num_sequences(options: Mapping[str, Any], model: Model) -> int:
    """Return the number of answers to one prompt.

    Raises:
        InvalidGeneration: There are several without sampling.
    """
    number = int(setting("num_return_sequences", options, model) or 1)
    if number > 1 and not (setting("do_sample", options, model) and setting("temperature", options, model) != 0):
        raise InvalidGeneration("'num_return_sequences' above 1 needs do_sample=True: greedy answers are all equal")
    return number


def end_ids(options: Mapping[str, Any], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens that end an answer: those of the options, else `eos_ids`."""
    named = options.get("eos_token_id", eos_ids)
    if named is None:
        return ()
    return (named,) if isinstance(named, int) else tuple(named)


def stopping_criteria(options: Mapping[str, Any], model: Model) -> list[Callable[..., Any]]:
    """Return the stopping criteria of the options, with those for `stop_strings` and `max_time`.

    Raises:
        InvalidGeneration: `stop_strings` is set without a tokenizer.
    """
    criteria = list(options.get("stopping_criteria") or ())
    if (max_time := setting("max_time", options, model)) is not None:
        criteria.append(MaxTimeCriteria(max_time))
    strings = setting("stop_strings", options, model)
    if strings:
        tokenizer = options.get("tokenizer")
        if tokenizer is None:
            raise InvalidGeneration("'stop_strings' needs a tokenizer of transformers; pass tokenizer=…")
        criteria.append(StopStrings(tokenizer, strings))
    return criteria


def tell_unused(config: object, whose: str) -> None:
    """Log once which settings of a generation configuration are not used.

    Args:
        config: A `GenerationConfig`; None has no settings.
        whose: Where it is from, for the message.
    """
    said = {} if config is None else vars(config)
    names = [
        name
        for name in dict.fromkeys((*_CACHING, *FORCED))
        if said.get(name) is not None
        and said[name] not in (_DEFAULTS.get(name), FORCED.get(name))
        and not (said[name] is False and name in OTHER_LOOPS)
    ]
    if names:
        _log_unused(whose, ", ".join(map(repr, names)))


@cache
def _log_unused(whose: str, names: str) -> None:
    _LOG.warning(
        "%s sets %s, which is not used: the stored KV of a prompt is its cache, and 'max_new_tokens' limits an answer",
        whose,
        names,
    )


def is_refusal(error: BaseException) -> bool:
    """Whether an error was raised by transformers, or by torch for it, and not by the caller's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return raised_in.partition(".")[0] in ("transformers", "torch", "huggingface_hub")


def refused(error: BaseException) -> InvalidGeneration:
    """Return the error for options that transformers refused before the model ran."""
    return InvalidGeneration(f"transformers does not take these options of generate(): {first_line(error)}")


def _taken_apart(config: Any, has_length: bool) -> dict[str, Any]:
    if config is None:
        return {}
    skipped = {"transformers_version", *_CACHING}
    said = {name: value for name, value in vars(config).items() if value is not None and name not in skipped}
    said = {name: value for name, value in said.items() if not name.startswith("_")}
    if has_length or "max_new_tokens" in said:
        said.pop("max_length", None)  # as in transformers, where the number of new tokens wins
    if not said.get("min_length"):
        said.pop("min_length", None)
    _check_lengths(said)
    _check_values(said)
    return said


def _plain(value: Any) -> Any:
    """Return integers of numpy and other libraries as Python's own."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def _check_values(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name in _KINDS and value is not None:
            _KINDS[name].check(name, value, InvalidGeneration)


def _check_names(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _KNOWN:
            ours = _ELSEWHERE.get(name)
            meant = f"did you mean {ours}?" if ours else did_you_mean(name, sorted({*_KNOWN, *_SETTINGS}), "{}")
            raise InvalidGeneration(
                f"generate() has no option '{name}' ({meant or 'its options are those of transformers'})"
            )


def _check_lengths(options: Mapping[str, Any]) -> None:
    for name in ("max_length", "min_length"):
        if name in options:
            instead = name.replace("length", "new_tokens")
            raise InvalidGeneration(f"'{name}' does not work here: it counts only some cached tokens; use '{instead}'")
