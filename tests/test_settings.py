"""Settings and options are declared once, and hold in Python, over HTTP, in commands, in the environment and on the page."""

from collections.abc import Callable
from typing import Any, get_type_hints

import click
import pytest
from click.testing import CliRunner

from promptcache.cli.app import app
from promptcache.cli.settings import declared_options, parameter_name, take_declared
from promptcache.declared import declared, defaults
from promptcache.diagnostics import InvalidGeneration, InvalidValue, PromptCacheError
from promptcache.engine import Engine
from promptcache.kv import StoreConfig, StoreSource
from promptcache.options import DEFAULTS, OPTIONS, Body, OptionKeywords, Options, with_sampling
from promptcache.server.bodies import ChatBody, PromptBody, given_options
from promptcache.server.errors import ApiError
from promptcache.server.read_body import checked_body
from promptcache.server.responses import ResponsesBody
from promptcache.settings import EngineKeywords, EngineSettings, ServerSettings
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tools.settings_page import PAGE, page

TAKEN: dict[type, dict[str, tuple[Any, Any]]] = {
    EngineSettings: {
        "context_length": (1000, 0),
        "keep": ("int8", "int2"),
        "repair": ("first-3", "first-101%"),
        "positions": ("fixed", "open"),
        "history": (False, 1),
        "promote": ("auto", True),
        "strict_template": (True, "yes"),
        "pack": (None, "all"),
    },
    StoreConfig: {
        "folder": ("kept", 3),
        "url": ("s3://bucket/kept", "kept"),
        "tier": (None, "kept"),
        "memory_bytes": (0, -1),
        "host_bytes": (0, 1.5),
        "disk_bytes": (None, -1),
        "timeout_s": (0, "1"),
        "url_options": ({"key": "x"}, ["key"]),
    },
    ServerSettings: {
        "served_model_name": ("mine", ""),
        "docs": (False, "yes"),
        "allow_host": (("gpu.example",), "gpu.example"),
        "allow_origin": (("*", "https://app.example:80"), ["https://app.example/"]),
        "max_rows": (3, 0),
        "step_tokens": (2048, 2049),
        "tail_bytes": (2**20, 0),
        "max_waiting": (3, True),
        "max_waiting_tokens": (3, 1.5),
        "queue_timeout_s": (0.5, float("nan")),
        "max_new_tokens": (3, 0),
        "max_connections": (3, 0),
        "max_body_bytes": (2**20, 2**63),
        "request_timeout_s": (0.5, 0),
        "client_timeout_s": (0.5, -1),
        "drain_s": (0.5, float("inf")),
    },
}
"""A value that each setting takes, and one that it refuses. A store is refused when it is opened."""
SETTINGS = [pytest.param(owner, name, *each, id=name) for owner, taken in TAKEN.items() for name, each in taken.items()]
ANSWERS = {"max_new_tokens": (3, 0), "repair": ("first-3", "most"), "seed": (0, -3), "temperature": (0.5, "nan")}
ON_COMMANDS = [each for each in SETTINGS if declared(each.values[0])[each.values[1]].on_command_line]
ON_COMMANDS += [pytest.param(Options, name, *each, id=f"answer {name}") for name, each in ANSWERS.items()]


def test_keywords_are_the_fields() -> None:
    """They have the same names and types, and every setting is tested here."""
    names = {"StoreSource": StoreSource}

    assert get_type_hints(EngineKeywords, localns=names) == get_type_hints(EngineSettings, localns=names)
    assert {owner: [*declared(owner)] for owner in TAKEN} == {
        EngineSettings: ["store", *TAKEN[EngineSettings]],
        StoreConfig: [*TAKEN[StoreConfig]],
        ServerSettings: sorted(TAKEN[ServerSettings], key=[*declared(ServerSettings)].index),
    }


@pytest.mark.parametrize(("owner", "name", "good", "bad"), SETTINGS)
def test_values_are_checked(owner: type, name: str, good: object, bad: object) -> None:
    """A setting takes the values of its kind, and its default; others are refused by name."""
    assert getattr(owner(**{name: good}), name) == good
    assert getattr(owner(), name) == defaults(owner)[name]
    with pytest.raises(PromptCacheError, match=rf"^{name}=.* is expected$"):
        owner(**{name: bad})


def test_an_engine_takes_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine has them, those that were not given too, and wrong ones are refused before a model is loaded."""
    made = Engine(tiny_model(), ByteTokenizer(), keep="int8", positions="fixed")
    made.add_schema('<schema name="s"><module name="a">One text.</module></schema>')
    loaded = Engine.from_pretrained("demo", history=False, context_length=512)
    monkeypatch.setattr("promptcache.engine.load_model", lambda *_, **__: pytest.fail("a model was loaded"))

    assert made.settings == EngineSettings(keep="int8", positions="fixed")
    assert made.generate('<prompt schema="s"><a/>Go</prompt>', max_new_tokens=1).lossy
    assert (loaded.settings.history, loaded.settings.pack, loaded.model.context_length) == (False, None, 512)
    for name, (_, bad) in TAKEN[EngineSettings].items():
        with pytest.raises(InvalidValue, match=f"^{name}="):
            Engine.from_pretrained("demo", **{name: bad})
    with pytest.raises(TypeError, match="promot"):
        Engine(made.model, made.tokenizer, promot="auto")  # type: ignore[call-arg]


@pytest.mark.parametrize(("owner", "name", "good", "bad"), ON_COMMANDS)
def test_options_are_the_settings(owner: type, name: str, good: object, bad: object) -> None:
    """An option takes the values of its field, also from the environment, has its default, and refuses others."""
    found: list[Any] = []

    @click.command(context_settings={"auto_envvar_prefix": "X"})
    def command(**values: Any) -> None:
        found.append(take_declared(owner, values)[name])

    for option in declared_options(owner):
        command = option(command)
    what = declared(owner)[name]
    word = f"--{parameter_name(name, what).replace('_', '-')}"
    written = [word if good is True else f"--no-{word[2:]}"] if what.kind.base is bool else []
    texts = good if isinstance(good, tuple) else (good,)
    written = written or [part for text in texts for part in (word, str(text))]
    variable = {f"X_{parameter_name(name, what).upper()}": " ".join(map(str, texts))}
    for words, environment in ((written, {}), ([], variable), ([], {})):
        result = CliRunner().invoke(command, words, env=environment)
        assert result.exit_code == 0, result.output
    refused = CliRunner().invoke(command, [word, str(bad)])

    assert found[:3] == [good, good, defaults(owner)[name]]
    if what.kind.base is not bool and not isinstance(good, tuple):
        assert refused.exit_code == 2
        assert what.kind.choices or f"'{bad}' is not allowed: {what.kind.words} is expected" in refused.output


@pytest.mark.parametrize("name", ["run", "chat", "serve"])
def test_commands_that_answer_have_the_settings(name: str) -> None:
    """Commands that answer have all settings of an engine, and those of a server or of answers.

    `serve` promotes by default. `run` gives one answer, for which an earlier one cannot matter.
    """
    command = app.get_command(click.Context(app), name)
    assert command is not None
    owners = (EngineSettings, ServerSettings if name == "serve" else Options)
    expected = {
        parameter_name(each, what) for owner in owners for each, what in declared(owner).items() if what.on_command_line
    }

    found = {each.name: each.default for each in command.params}
    assert expected - found.keys() == ({"promote", "history"} if name == "run" else set())
    assert found.get("promote") == {"serve": "auto", "chat": "off"}.get(name)


def test_the_page_is_made_from_the_fields() -> None:
    """`python -m tools.settings_page` writes the page as it is."""
    assert PAGE.read_text(encoding="utf-8") == page()


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


def test_keywords_are_the_options() -> None:
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
