"""Each setting is declared once, and what is declared holds in Python, in commands, in the environment and on the page."""

from __future__ import annotations

from typing import Any, get_type_hints

import click
import pytest
from click.testing import CliRunner

from promptcache.cli.app import app
from promptcache.cli.settings import declared_options, parameter_name, take_declared
from promptcache.declared import declared, defaults
from promptcache.diagnostics import InvalidValue, PromptCacheError
from promptcache.engine import Engine
from promptcache.kv import StoreConfig, StoreSource
from promptcache.options import Options
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
    """An option takes the values of its field, from the environment too, and has its default.

    Others are refused with what is expected.
    """
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
    """Every command that answers prompts has all settings of an engine as options.

    `serve` has those of a server as well, and promotes by default; `run` and `chat` have the options of answers. `run`
    gives one answer, for which an earlier one cannot matter.
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
