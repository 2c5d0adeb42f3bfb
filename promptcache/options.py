"""The options of an answer. Each is declared here, once.

A caller gives them as keywords (`OptionKeywords`), and a request holds all of them as `Options`. Bodies of the server
and options of commands are made from the fields of `Options`. A new option is a field, with its type in
`OptionKeywords`, and the line that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

from promptcache.declared import Declared, declare, declared, defaults
from promptcache.diagnostics import (
    FLAG,
    FUNCTION,
    TEXT,
    TEXTS,
    InvalidGeneration,
    Kind,
    did_you_mean,
    instance,
    number,
    shown,
    whole,
)
from promptcache.language import REPAIR

MAX_LOGPROBS = 20
"""Limit of the most probable tokens that an answer has for each of its tokens."""

DEFAULT_NEW_TOKENS = 256
"""Default limit of the tokens of an answer; less if the context ends earlier."""

_MAX_SEQUENCES = 4096
"""Limit of sequences of one prompt; each has KV of its own."""


class Body(StrEnum):
    """The part of a body of the server that has an option, under a name of its own."""

    ANSWER = "answer"
    PROMPT_CACHE = "prompt_cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Declared):
    """An option. A caller may give None, which means the default. `run` and `chat` are the commands that have options.

    Attributes:
        body: The part of a body that has it; None if none has, or in a form of its own.
        wire: Its name there, if that is another one.
        unset: A number that some clients write for "not set".
        is_configured: Whether a generation configuration of transformers may set it.
        is_sampled: Whether rows are sampled by it.
        needs_sampling: Whether it has an effect only if the answer is sampled.
        is_processed: Whether logits processors of transformers implement it.
    """

    group: str = "Answer"
    body: Body | None = None
    wire: str = ""
    unset: float | None = None
    is_configured: bool = False
    is_sampled: bool = False
    needs_sampling: bool = False
    is_processed: bool = False


def _option(kind: Kind, words: str, default: Any = None, **more: Any) -> Any:
    return declare(Option(kind=kind, words=words, **more), default)


def _row(kind: Kind, words: str, default: Any = None, **more: Any) -> Any:
    """Declare an option of transformers that rows implement."""
    return _option(kind, words, default, is_configured=True, **more)


def _drawn(kind: Kind, words: str, default: Any, **more: Any) -> Any:
    """Declare an option of transformers that says how tokens are drawn."""
    return _row(kind, words, default, body=Body.ANSWER, is_sampled=True, needs_sampling=True, **more)


def _processed(words: str, default: Any = None, kind: Kind | None = None) -> Any:
    """Declare an option of transformers that its processors implement. They check the value, if `kind` does not."""
    return _option(kind or _ANY, words, default, is_configured=True, is_processed=True)


_ANY = Kind("any value", lambda _: True)
_PENALTY = number(-1e5, 1e5)
_TOKEN = whole(0, 2**63 - 1)
_TOKENS = Kind(
    "a token ID or a list of them",
    lambda value: all(map(_TOKEN.takes, value)) if isinstance(value, list | tuple) else _TOKEN.takes(value),
)
_LOGIT_BIAS = Kind(
    "a mapping of token IDs to numbers from -1e5 to 1e5",
    lambda value: (
        isinstance(value, Mapping)
        and all(_TOKEN.takes(token) and _PENALTY.takes(bias) for token, bias in value.items())
    ),
)
_TEMPERATURE = Kind(
    "0, or a finite number from 1e-05 on,",
    lambda value: number(0, 0).takes(value) or number(1e-5).takes(value),
    base=float,
)
_STREAMER = Kind("a streamer, with put and end,", lambda value: all(hasattr(value, name) for name in ("put", "end")))
_FUNCTIONS = Kind(
    "a list of functions", lambda value: isinstance(value, list | tuple) and all(callable(each) for each in value)
)
_SET_HERE = frozenset({"messages", "add_generation_prompt", "continue_final_message", "documents"})
_TEMPLATE_KWARGS = Kind(
    "a mapping of variables of the chat template, without messages and add_generation_prompt,",
    lambda value: isinstance(value, Mapping) and all(isinstance(name, str) and name not in _SET_HERE for name in value),
)
_LIST_OR_DICT = instance("a list or a dict", list, tuple, dict)


def _are_stop_strings(value: object) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, Collection) and TEXTS.takes(texts) and all(texts)


_STOP_STRINGS = Kind("text or a list of texts, none of them empty,", _are_stop_strings)


class AnswerKeywords(TypedDict, total=False):
    """The keywords of `Engine.generate` and of the other methods that answer, but for `output`. None means the default.

    They are fields of `Options`, and `generation_config`, whose settings count where a keyword is not given.
    """

    max_new_tokens: int | None
    repair: str | None
    logprobs: int | None
    seed: int | None
    salt: str | None
    template_kwargs: Mapping[str, Any] | None
    deterministic: bool | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | None
    parallel_tool_calls: bool | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    min_new_tokens: int | None
    eos_token_id: int | Sequence[int] | None
    stop_strings: str | Sequence[str] | None
    max_time: float | None
    num_return_sequences: int | None
    stopping_criteria: Sequence[Callable[..., Any]] | None
    streamer: Any
    logits_processor: Sequence[Callable[..., Any]] | None
    prefix_allowed_tokens_fn: Callable[..., Any] | None
    typical_p: float | None
    top_h: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    encoder_repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    bad_words_ids: Sequence[Sequence[int]] | None
    sequence_bias: Any
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    exponential_decay_length_penalty: tuple[int, float] | None
    renormalize_logits: bool | None
    remove_invalid_values: bool | None
    watermarking_config: Any
    generation_config: Any


class OptionKeywords(AnswerKeywords, total=False):
    """All keywords of the methods that answer, for those whose result has not the type of `output`."""

    output: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that a caller may ask of an answer. A default is the value without effect.

    `read_options` makes them: from keywords, a `GenerationConfig`, and the generation configuration of the model.
    """

    max_new_tokens: int | None = _row(
        whole(1, unit="tokens"),
        f"Maximum tokens of the answer; default: {DEFAULT_NEW_TOKENS}, or what is left of the context of the model.",
        on_command_line=True,
    )
    repair: str | None = _option(
        REPAIR,
        "Which cached tokens to compute again: none, slots, first-16 or attended-16 (any number) of each module, "
        "all; default: as the schema says.",
        body=Body.PROMPT_CACHE,
        on_command_line=True,
    )
    logprobs: int | None = _option(
        whole(0, MAX_LOGPROBS),
        "Report the log-probabilities of each token and of so many others, before penalties and temperature.",
    )
    seed: int | None = _option(
        whole(0, 2**64 - 1), "Seed of the random numbers in sampling.", body=Body.ANSWER, unset=-1, on_command_line=True
    )
    salt: str | None = _option(TEXT, "Only requests with the same salt share history, such as those of a user.")
    template_kwargs: Mapping[str, Any] | None = _option(_TEMPLATE_KWARGS, "Variables of the chat template.")
    deterministic: bool = _option(
        FLAG, "The answer does not depend on promotions: it is the modular one.", default=False, body=Body.PROMPT_CACHE
    )
    output: Any = _option(
        _ANY, "A type, a JSON schema, `Choice`, `Regex` or `Grammar`; default: as the prompt or its schema says."
    )
    presence_penalty: float = _option(
        _PENALTY,
        "Subtracted from the logits of tokens that the answer has.",
        default=0.0,
        body=Body.ANSWER,
        is_sampled=True,
    )
    frequency_penalty: float = _option(
        _PENALTY,
        "Subtracted from a logit as often as the answer has it.",
        default=0.0,
        body=Body.ANSWER,
        is_sampled=True,
    )
    logit_bias: Mapping[int, float] | None = _option(
        _LOGIT_BIAS, "Numbers that are added to the logits of tokens, by token ID.", is_sampled=True
    )
    tools: Sequence[Mapping[str, Any]] = _option(
        _ANY, "Tools that the answer may call, in the form of OpenAI.", default=()
    )
    tool_choice: str = _option(
        TEXT, '"auto", "none", "required" (the answer is a call), or the name of the tool to call.', "auto"
    )
    parallel_tool_calls: bool = _option(
        FLAG, "Whether an answer may have several calls.", default=True, body=Body.ANSWER
    )
    do_sample: bool = _row(
        FLAG, "Draw tokens by their probabilities, or take the likeliest.", default=False, is_sampled=True
    )
    temperature: float = _drawn(
        _TEMPERATURE, "0 takes the likeliest token; default: as the model declares.", default=1.0, on_command_line=True
    )
    top_k: int = _drawn(whole(0), "Draw from so many of the most probable tokens; 0 is no limit.", default=0, unset=-1)
    top_p: float = _drawn(
        number(0, 1), "Draw from the most probable tokens with this probability together.", default=1.0
    )
    min_p: float = _drawn(
        number(0, 1), "Leave out tokens below this share of the highest probability.", default=0.0, unset=0
    )
    repetition_penalty: float = _row(
        number(1e-05, 100000.0),
        "Makes tokens of the prompt and the answer less likely, if it is above 1.",
        default=1.0,
        body=Body.ANSWER,
        is_sampled=True,
    )
    min_new_tokens: int = _row(
        whole(0, unit="tokens"),
        "Minimum tokens of the answer.",
        default=0,
        body=Body.ANSWER,
        wire="min_tokens",
        is_sampled=True,
    )
    eos_token_id: int | Sequence[int] = _option(
        _TOKENS,
        "Tokens that end the answer; default: those of the model and its tokenizer.",
        default=(),
        is_sampled=True,
    )
    stop_strings: str | Sequence[str] = _row(_STOP_STRINGS, "Texts that end the answer, which has them.", default=())
    max_time: float | None = _row(number(0), "Seconds after which the answer ends.")
    num_return_sequences: int = _row(whole(1, _MAX_SEQUENCES), "Number of sampled answers.", default=1)
    stopping_criteria: Sequence[Callable[..., Any]] = _option(_FUNCTIONS, "Functions that end the answer.", default=())
    streamer: Any = _option(_STREAMER, "Gets the tokens of the prompt, then each token of the answer.")
    logits_processor: Sequence[Callable[..., Any]] = _option(
        _FUNCTIONS, "Functions that change the scores of the next token.", default=(), is_processed=True
    )
    prefix_allowed_tokens_fn: Callable[..., Any] | None = _option(
        FUNCTION, "Returns the tokens that may come next.", is_processed=True
    )
    typical_p: float = _processed("Draw from the tokens with typical probabilities.", default=1.0)
    top_h: float | None = _processed("Draw from tokens up to this share of the entropy.")
    epsilon_cutoff: float = _processed("Leave out tokens with a smaller probability.", default=0.0)
    eta_cutoff: float = _processed("The same, if the entropy is low.", default=0.0)
    encoder_repetition_penalty: float = _processed(
        "Makes tokens of the prompt more likely, if it is above 1.", default=1.0
    )
    no_repeat_ngram_size: int = _processed("No such sequence comes twice.", kind=whole(0), default=0)
    encoder_no_repeat_ngram_size: int = _processed("No such sequence of the prompt comes.", kind=whole(0), default=0)
    bad_words_ids: Sequence[Sequence[int]] | None = _processed(
        "Sequences of tokens that do not come.", kind=_LIST_OR_DICT
    )
    sequence_bias: Any = _processed("Numbers that are added for sequences of tokens.", kind=_LIST_OR_DICT)
    suppress_tokens: Sequence[int] | None = _processed("Tokens that do not come.")
    begin_suppress_tokens: Sequence[int] | None = _processed("Tokens that do not come first.")
    forced_bos_token_id: int | None = _processed("The first token, after one of the prompt.")
    forced_eos_token_id: int | Sequence[int] | None = _processed("The last token, if the limit is reached.")
    exponential_decay_length_penalty: tuple[int, float] | None = _processed("Makes an end likelier from a length on.")
    renormalize_logits: bool = _processed("Normalize scores after all processors.", default=False)
    remove_invalid_values: bool = _processed("Replace logits that are not finite.", default=False)
    watermarking_config: Any = _processed("Mark the answer.")

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are drawn. A temperature of 0 is greedy decoding."""
        return self.do_sample and self.temperature != 0

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end the answer."""
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)

    @property
    def sampling(self) -> tuple[object, ...]:
        """The values by which rows are sampled. Rows with equal ones are sampled together."""
        values = (getattr(self, name) for name in (_SAMPLED if self.is_sampled else _GREEDY))
        return tuple(tuple(value.items()) if isinstance(value, Mapping) else value for value in values)

    def check_stream(self) -> None:
        """Refuse a second streamer, and several sequences, whose tokens would be mixed."""
        if self.streamer is not None:
            raise InvalidGeneration("stream() is a streamer itself; give 'streamer' to generate()")
        if self.num_return_sequences > 1:
            raise InvalidGeneration(
                "one sequence can be streamed; for 'num_return_sequences' above 1 use generate(), or one stream for "
                "each"
            )


OPTIONS: Mapping[str, Option] = declared(Options)
"""What is known of each option, by name."""

DEFAULTS: Mapping[str, Any] = defaults(Options)
"""The value of each option that has no effect."""

_SAMPLED = tuple(name for name, option in OPTIONS.items() if option.is_sampled)
_GREEDY = tuple(name for name in _SAMPLED if not OPTIONS[name].needs_sampling)

_SET_BY_US = ("input_ids", "inputs", "inputs_embeds", "position_ids", "attention_mask", "past_key_values", "use_cache")

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

CACHING = ("use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size")
"""Settings of transformers' own caches. They change no answer, and linked requests use another cache."""

WITHOUT_EFFECT = frozenset(
    {
        *("pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version", "synced_gpus"),
        *("compile_config", "disable_compile", "continuous_batching_config", "low_memory"),
        *("early_stopping", "length_penalty", "diversity_penalty"),  # of beams
        *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
        *("max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
        "speculation_type",
    }
)
"""Options of transformers that change nothing for a row."""

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


def checked_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options among keywords, or among the settings of a generation configuration, with checked values.

    Raises:
        InvalidGeneration: One is not known, has a wrong value, is set by this library itself, or is not supported;
            names it and the alternative.
    """
    made = dict[str, Any]()
    for name, value in given.items():
        if name in OPTIONS:
            if value is not None:  # the default of every option
                OPTIONS[name].kind.check(name, value, InvalidGeneration)
            made[name] = value
        elif name in OTHER_LOOPS:
            is_plain = isinstance(value, bool | int | float | str)
            if value is not None and not (is_plain and value in (False, OTHER_LOOPS[name])):
                raise InvalidGeneration(
                    f"'{name}' does not work here: an answer is a row of a shared forward pass. transformers takes it "
                    f"over the linked prompt: engine.model.hf.generate(**engine.link(prompt), {name}="
                    f"{shown(value) if is_plain else '…'})"
                )
        elif name in _SET_BY_US:
            raise InvalidGeneration(f"generate() sets '{name}' itself, from the prompt; remove it")
        elif name in ("max_length", "min_length"):
            instead = name.replace("length", "new_tokens")
            raise InvalidGeneration(f"'{name}' does not work here: it counts only some cached tokens; use '{instead}'")
        elif name in CACHING:
            if value is not None:
                raise InvalidGeneration(f"'{name}' does not work here: the stored KV of the prompt is the cache")
        elif name not in WITHOUT_EFFECT:
            ours = _ELSEWHERE.get(name)
            meant = f"did you mean {ours}?" if ours else did_you_mean(name, sorted({*OPTIONS, *OTHER_LOOPS}), "{}")
            raise InvalidGeneration(
                f"generate() has no option '{name}' ({meant or 'its options are those of transformers'})"
            )
    return made


def with_sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with `do_sample`, for callers that cannot give it: what needs sampling asks for it.

    A temperature of 0 is greedy decoding. Without any of these options, the model's generation configuration decides.
    """
    asks = any(OPTIONS[name].needs_sampling for name in given)
    return {**given, **({"do_sample": given.get("temperature") != 0} if asks else {})}
