"""Each option is declared once, and what is declared holds in every way of asking: in Python, over HTTP and in commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from promptcache.diagnostics import InvalidGeneration
from promptcache.engine import Engine
from promptcache.options import DEFAULTS, OPTIONS, Body, OptionKeywords, Options, with_sampling
from promptcache.server.bodies import ChatBody, PromptBody, given_options
from promptcache.server.errors import ApiError
from promptcache.server.read_body import checked_body
from promptcache.server.responses import ResponsesBody
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

PROMPT = '<prompt schema="s"><a/>Go on.</prompt>'
ENGINE = Engine(tiny_model(), ByteTokenizer())
ENGINE.add_schema('<schema name="s">Begin.<module name="a">The first text.</module></schema>')

WRONG: dict[str, tuple[Any, ...]] = {
    "max_new_tokens": (0, True, 1.5),
    "repair": ("most", "first-101%", 2),
    "logprobs": (-1, 21, True),
    "seed": (-2, 2**64, 1.5, "1", True),
    "salt": (3, "\ud83d"),
    "template_kwargs": (3, {"messages": []}, {3: 4}),
    "deterministic": ("yes", 1),
    "presence_penalty": ("1", float("inf")),
    "frequency_penalty": (float("nan"), [1]),
    "logit_bias": ([1], {"1": 2}, {1: "2"}),
    "tool_choice": (3,),
    "parallel_tool_calls": (3,),
    "do_sample": (1,),
    "temperature": (-1.0, 1e-300, float("nan"), "0"),
    "top_k": (-2, 1.5),
    "top_p": (-0.1, 1.1),
    "min_p": (-0.1, 1.1),
    "repetition_penalty": (0, 1e-40),
    "min_new_tokens": (-1, 1.5),
    "eos_token_id": (-1, [1, "2"]),
    "stop_strings": ("", ["x", ""], 3),
    "max_time": (-1, "1"),
    "num_return_sequences": (0, 4097),
    "stopping_criteria": (3, [4], len),
    "streamer": (3,),
    "logits_processor": (3, [4]),
    "prefix_allowed_tokens_fn": (3,),
    "no_repeat_ngram_size": (-1,),
    "encoder_no_repeat_ngram_size": (1.5,),
    "bad_words_ids": (5,),
    "sequence_bias": (5,),
}
"""Values that each option refuses. Others take any value here, and are checked where they are used."""


@pytest.fixture(
    scope="module", params=["generate", "generate_batch", "stream", "agenerate", "astream", "chat", "service"]
)
def ask(request: pytest.FixtureRequest) -> Any:
    """A way of asking; it takes options."""
    with ENGINE.service() as service:
        ways: dict[str, Callable[..., object]] = {
            "generate": lambda **options: ENGINE.generate(PROMPT, **options),
            "generate_batch": lambda **options: ENGINE.generate_batch([PROMPT], **options),
            "stream": lambda **options: ENGINE.stream(PROMPT, **options),
            "agenerate": lambda **options: ENGINE.agenerate(PROMPT, **options).send(None),
            "astream": lambda **options: ENGINE.astream(PROMPT, **options),
            "chat": lambda **options: ENGINE.chat(PROMPT).say(**options),
            "service": lambda **options: service.submit(PROMPT, print, **options),
        }
        yield ways[request.param]


def test_keywords_are_the_fields() -> None:
    """They have the same names, and the same types or None; only a configuration is not an option itself."""
    keywords, options = get_type_hints(OptionKeywords), get_type_hints(Options)

    assert keywords.pop("generation_config") is Any
    assert {*keywords} == {*options} == {*OPTIONS}
    assert {name: each for name, each in keywords.items() if each not in (options[name], options[name] | None)} == {}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_in_every_way(ask: Callable[..., object], name: str) -> None:
    """The error names the option, the value and what is expected, before anything is computed."""
    for value in WRONG[name]:
        with pytest.raises(InvalidGeneration, match=rf"'?{name}'?(=.* is not allowed: .* expected| is an option of)"):
            ask(**{name: value})


@pytest.mark.parametrize("name", OPTIONS)
def test_none_is_the_default(name: str) -> None:
    """An option that is None counts as not given, but for the end of an answer: None is no end."""
    found = ENGINE._requests.read({name: None})  # type: ignore[misc]
    expected = ENGINE._requests.read({})

    assert found == (expected if name != "eos_token_id" else ENGINE._requests.read({"eos_token_id": []}))


def test_what_every_option_allows_has_a_wrong_value_here() -> None:
    """An option whose kind refuses some value is tested above."""
    assert {name for name, option in OPTIONS.items() if option.kind.words != "any value"} == WRONG.keys()
    assert all(DEFAULTS[name] in (None, ()) or option.kind.takes(DEFAULTS[name]) for name, option in OPTIONS.items())


ON_WIRE = [(name, option.wire or name) for name, option in OPTIONS.items() if option.body]
BODIES: dict[type, dict[str, Any]] = {
    ChatBody: {"model": "demo", "messages": []},
    PromptBody: {"prompt": "x"},
    ResponsesBody: {"model": "demo", "input": "x"},
}


@pytest.mark.parametrize("kind", BODIES, ids=lambda each: each.__name__)
@pytest.mark.parametrize(("name", "wire"), ON_WIRE)
def test_bodies_have_the_options(kind: Any, name: str, wire: str) -> None:
    """A body takes the values of an option, refuses others by the place, and leaves out what is not set."""
    option, part = OPTIONS[name], OPTIONS[name].body
    nested = part is Body.PROMPT_CACHE and "prompt_cache" in kind.model_fields
    assert part is not None

    def given(value: Any) -> dict[str, Any]:
        field = {wire: value}
        made = checked_body(kind, {**BODIES[kind], **({"prompt_cache": field} if nested else field)})
        return given_options(made.prompt_cache if nested else made, part)

    good = {str: "all", bool: True, int: 3, float: 1.0}[option.kind.base]
    assert given(good) == {name: good}
    assert given(None) == given(option.unset) == {}
    assert option.kind.base is not int or given(3.0) == {name: 3}
    for value in WRONG[name]:
        with pytest.raises(ApiError) as caught:
            given(value)
        assert caught.value.param == (f"prompt_cache.{wire}" if nested else wire)
        assert str(caught.value).endswith(f"{option.kind.words} is expected")


@pytest.mark.parametrize(
    ("given", "samples"),
    [({}, None), ({"temperature": 0}, False), ({"temperature": 0, "top_p": 0.5}, False), ({"top_k": 3}, True)],
)
def test_options_that_need_sampling_ask_for_it(given: dict[str, Any], samples: bool | None) -> None:
    """Where `do_sample` cannot be given: a temperature of 0 is greedy, and without any of them the model decides."""
    assert with_sampling(given).get("do_sample") is samples
