"""The settings of an engine, of a service and of a server. Each is declared here, once.

Keywords of `Engine`, options of commands, the TOML file of `promptcache serve` and docs/settings.md are made from the
fields. A new setting of an engine is a field, with its type in `EngineKeywords`, and the line that uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from promptcache.codecs import Codec
from promptcache.declared import Declared, check_fields, declare
from promptcache.diagnostics import ABOVE_0, BYTES_ABOVE_0, FLAG, SECONDS, TEXT, InvalidValue, Kind, one_of, whole
from promptcache.language import DEFAULT_REPAIR, REPAIR, Placement

if TYPE_CHECKING:
    from promptcache.kv import StoreSource

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[a-z0-9._-]+(:\d+)?")  # as browsers write it

MAX_STEP_TOKENS = 2048
"""Limit of the new tokens in one forward pass, over all rows; limits the memory of activations."""


class PromoteMode(StrEnum):
    """Whether combinations that come again are promoted by themselves."""

    AUTO = "auto"
    OFF = "off"


def setting(kind: Kind, words: str, default: Any, *, group: str = "Options", on_command_line: bool = True) -> Any:
    """Declare a setting."""
    return declare(Declared(kind=kind, words=words, on_command_line=on_command_line, group=group), default)


_of_model = partial(setting, group="Model")
_of_kv = partial(setting, group="Cached KV")
_of_service = partial(setting, group="Requests at the same time")
_of_clients = partial(setting, group="Clients")


CodecName: TypeAlias = Codec | Literal["full", "int8", "int4"]


class EngineKeywords(TypedDict, total=False):
    """The keywords of `Engine`: the fields of `EngineSettings`."""

    store: StoreSource | None
    context_length: int | None
    keep: CodecName
    repair: str
    positions: Placement | Literal["closed", "fixed"] | None
    history: bool
    promote: PromoteMode | Literal["auto", "off"]
    strict_template: bool
    pack: bool | None


class PretrainedKeywords(EngineKeywords, total=False):
    """The keywords of `Engine.from_pretrained`: those of `Engine`, and the usual ones of transformers.

    It passes on others, too. Type checkers do not know them.
    """

    revision: str
    token: str | bool | None
    cache_dir: str | None
    subfolder: str
    local_files_only: bool
    trust_remote_code: bool
    attn_implementation: str
    quantization_config: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings of an engine. Those without an option of their own are not for commands."""

    store: StoreSource | None = _of_kv(
        Kind("a folder, a URL, a StoreConfig, a BlobTier or a Store", lambda _: True),  # opening it checks it
        "Where KV is kept; None: in memory only.",
        None,
        on_command_line=False,
    )
    context_length: int | None = _of_model(
        whole(1, unit="positions") | None, "Maximum positions to use; default: all that the model declares.", None
    )
    keep: CodecName = _of_kv(
        one_of(Codec), "How KV is stored: full is as computed, int8 and int4 are quantized.", Codec.FULL.value
    )
    repair: str = setting(
        REPAIR,
        "Which cached tokens to compute again, if neither the call nor the schema sets it: none, slots, first-16 or "
        "attended-16 (or another number) of each module, all.",
        str(DEFAULT_REPAIR),
        on_command_line=False,
    )
    positions: Placement | Literal["closed", "fixed"] | None = _of_kv(
        one_of(Placement) | None,
        "Positions of cached text, if the schema does not set them: closed has no gaps, fixed is as in the schema; "
        "default: closed where the model allows it.",
        None,
    )
    history: bool = _of_kv(
        FLAG, "Keep KV of the text of requests, too, for later requests that begin with the same text.", True
    )
    promote: PromoteMode | Literal["auto", "off"] = _of_kv(
        one_of(PromoteMode),
        "In idle time, encode modules together that were used together, so that later answers with them are exact.",
        PromoteMode.OFF.value,
    )
    strict_template: bool = _of_model(
        FLAG,
        "Refuse a prompt whose text is not what the chat template of the model writes; otherwise this is a warning.",
        False,
    )
    pack: bool | None = setting(
        FLAG | None,
        "Reorder weights of linear layers for the kernels of a CPU: True all, None where it pays. Packed layers have "
        "no gradients.",
        False,
        on_command_line=False,
    )

    def __post_init__(self) -> None:
        check_fields(self, InvalidValue)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Limits of a service.

    Raises:
        InvalidValue: A limit is not a number of its kind.
    """

    max_rows: int = _of_service(whole(1, unit="rows"), "Maximum number of requests that are computed together.", 32)
    step_tokens: int = _of_service(
        whole(1, MAX_STEP_TOKENS, unit="tokens"),
        "Tokens of prompts in one forward pass; more prefill faster, and delay running answers more.",
        64,
    )
    tail_bytes: int = _of_service(
        BYTES_ABOVE_0,
        "Memory for KV of running requests. Each reserves its whole answer; up to twice as much is allocated.",
        2**30,
    )
    max_waiting: int = _of_service(
        whole(1, unit="requests"), "Maximum number of requests that wait; more get 429.", 256
    )
    max_waiting_tokens: int = _of_service(
        whole(1, unit="tokens"), "Maximum number of tokens of all waiting requests, prompt and answer.", 65_536
    )
    queue_timeout_s: float = _of_service(ABOVE_0._replace(unit="seconds"), "Maximum time that a request waits.", 30.0)

    def __post_init__(self) -> None:
        check_fields(self, InvalidValue)


def _texts(words: str, takes: Callable[[str], object]) -> Kind:
    """Return the kind of a list of texts that `takes` accepts."""
    return Kind(
        f"a list of {words}",
        lambda value: isinstance(value, list | tuple) and all(isinstance(each, str) and takes(each) for each in value),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(ServiceLimits):
    """Settings of a server, and the limits of its service.

    Raises:
        InvalidValue: A setting is not a value of its kind.
    """

    served_model_name: str = _of_clients(
        TEXT._replace(words="text that is not empty", takes=lambda value: TEXT.takes(value) and bool(value)),
        "The name of the model for clients; promptcache serve has that of --model by default.",
        "demo",
    )
    docs: bool | None = _of_clients(
        FLAG | None, "Serve /docs and /openapi.json; default: where no key is needed.", None
    )
    allow_host: Sequence[str] = _of_clients(
        _texts("names of hosts", bool),
        "A name under which a server without keys answers, beside localhost and addresses.",
        (),
    )
    allow_origin: Sequence[str] = _of_clients(
        _texts("'*' or of origins such as 'https://app.example.com'", _ORIGIN.fullmatch),
        "Let pages of this origin read answers in a browser (CORS), or of all with *.",
        (),
    )
    max_new_tokens: int = _of_clients(whole(1, unit="tokens"), "Maximum tokens of one answer.", 1024)
    max_connections: int = _of_clients(
        whole(1, unit="connections"),
        "Maximum number of connections. Above it, those that wait for a request are closed, and new requests get 503.",
        512,
    )
    max_body_bytes: int = _of_clients(BYTES_ABOVE_0, "Maximum size of a request.", 2**20)
    request_timeout_s: float = _of_clients(SECONDS, "Maximum time of a request.", 600.0)
    client_timeout_s: float = _of_clients(
        SECONDS,
        "Maximum time of a client to send the head of a request, to send its body, and to read some of the answer.",
        30.0,
    )
    drain_s: float = _of_clients(SECONDS, "Time that running requests have to finish after SIGTERM.", 30.0)
