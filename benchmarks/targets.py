"""The targets of `python -m benchmarks serve`: an engine in this process, and servers in processes of their own.

All targets load the same model; llama.cpp loads it from a file of its own. CPU time of a server is that of its process
and its children, without the clients.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from benchmarks.load import AnswerTimes, Ask, LoadRequest, LoadSizes, TargetName, draw_text
from benchmarks.server_process import server_process
from benchmarks.shapes import random_shape
from promptcache.answers import TokenLogprobs
from promptcache.decode import Completion
from promptcache.engine import Engine

SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_p": 0.95}
"""How tokens are drawn if answers are sampled."""

_BATCHES = ("--continuous-batching", "--cb-num-blocks", "256")
"""Without a number of blocks, transformers takes 60 % of the machine's memory."""

_SERVER = ("fastapi", "prometheus_client", "uvicorn")
_SERVING = ("accelerate", "fastapi", "openai", "pydantic", "typer", "uvicorn", "transformers.cli")

_MIN_SHIFTED = 64
"""Tokens in a row that llama.cpp moves at least: fewer than a module has."""

_REQUEST_S = 600.0
_END_TOKEN = "<|endoftext|>"  # transformers adds it to the tokenizers of some model types that lack it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSetup:
    """The model and the schema of all targets.

    Attributes:
        folder: Of the model and its tokenizer.
        modules: Texts of the modules.
        is_sampled: Whether tokens are drawn; otherwise decoding is greedy.
        scratch: An empty folder for files of servers.
        most_clients: The largest number of clients.
        llama: The program `llama-server` and its file of the model; None if they are not given.
    """

    engine: Engine
    folder: Path
    modules: tuple[str, ...]
    sizes: LoadSizes
    is_sampled: bool
    scratch: Path
    most_clients: int
    llama: tuple[Path, Path] | None = None

    @property
    def schema_text(self) -> str:
        """The document of the schema."""
        modules = "".join(f'<module name="m{index}">{text}</module>' for index, text in enumerate(self.modules))
        return f'<schema name="load" separator=" ">{modules}</schema>'

    def prompt_text(self, request: LoadRequest) -> str:
        """Return the prompt document of a request."""
        used = "".join(f"<m{index}/>" for index in request.modules)
        return f'<prompt schema="load">{used}{request.text}</prompt>'

    def plain_text(self, request: LoadRequest) -> str:
        """Return the text of a request, its modules included, as `prompt_text` puts it before the model."""
        modules = (f" {self.modules[index]}" if index else self.modules[index] for index in request.modules)
        return "".join([*modules, f" {request.text}"])


def load_setup(engine: Engine, folder: Path, sizes: LoadSizes, *, seed: int, **others: Any) -> LoadSetup:
    """Return a setup whose modules have random words; add its schema to the engine and encode it."""
    draw = random.Random(seed)
    made = LoadSetup(
        engine=engine,
        folder=folder,
        modules=tuple(
            draw_text(draw, sizes.module_tokens, engine.tokenizer.tokenize) for _ in range(sizes.num_modules)
        ),
        sizes=sizes,
        **others,
    )
    engine.add_schema(made.schema_text)
    engine.warm()
    return made


def save_shape(shape: str, dtype: torch.dtype, folder: Path) -> None:
    """Save a model of a published shape, with random weights and a tokenizer with one token for each character."""
    model = random_shape(shape, dtype, torch.device("cpu"))
    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # transformers does not annotate it
    model.save_pretrained(folder)
    shape_tokenizer(model.config.vocab_size).save_pretrained(folder)


def shape_tokenizer(vocab_size: int) -> Any:
    """Return a tokenizer of transformers with one token for each character."""
    characters = (code for code in range(sys.maxunicode) if not 0xD800 <= code < 0xE000)
    vocabulary = {chr(code): index for index, code in zip(range(vocab_size - 1), characters, strict=False)}
    vocabulary[_END_TOKEN] = len(vocabulary)
    tokenizer: Any = Tokenizer(models.WordLevel(vocabulary, unk_token=_END_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast: Any = PreTrainedTokenizerFast  # its methods are not annotated
    return fast(tokenizer_object=tokenizer, eos_token=_END_TOKEN)


class Target(NamedTuple):
    """One way to answer requests.

    Attributes:
        cpu_s: Returns the CPU seconds of the process that computes, up to now.
        forget: Clears the history of earlier rounds. Servers need none: each round has other requests.
    """

    ask: Ask
    cpu_s: Callable[[], float]
    forget: Callable[[], None] = lambda: None


TargetOpener: TypeAlias = Callable[[LoadSetup], AbstractContextManager[Target]]
"""Starts a target, and ends it with the context."""


@contextmanager
def _one_at_a_time(setup: LoadSetup) -> Iterator[Target]:
    """Call `Engine.generate` under a lock, as a program without a scheduler would."""
    engine, options, lock = setup.engine, _options(setup), threading.Lock()

    def ask(request: LoadRequest) -> AnswerTimes:
        streamer = _FirstToken()
        with lock:
            made = engine.generate(setup.prompt_text(request), streamer=streamer, **options)
        return AnswerTimes(streamer.first_token_at, made.usage.num_generated_tokens)

    yield Target(ask, time.process_time, engine.clear_history)


class _FirstToken:
    """A streamer that reads the time of the first generated token. The first call of `put` has the prompt's tokens."""

    def __init__(self) -> None:
        self.first_token_at: float | None = None
        self._prompt_seen = False

    def put(self, _value: torch.Tensor) -> None:
        if self._prompt_seen and self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        self._prompt_seen = True

    def end(self) -> None:
        """Called by `generate` at the end."""


@contextmanager
def _scheduler(setup: LoadSetup) -> Iterator[Target]:
    """Submit requests to `Engine.service`."""
    engine, options = setup.engine, _options(setup)
    service = engine.service()

    def ask(request: LoadRequest) -> AnswerTimes:
        times: list[float] = []
        ended = threading.Event()
        results: list[Completion | BaseException] = []

        def listen(item: int | TokenLogprobs | Completion | BaseException) -> None:
            if isinstance(item, int | TokenLogprobs):
                times.append(time.perf_counter())
            else:
                results.append(item)
                ended.set()

        service.submit(setup.prompt_text(request), listen, seed=request.seed, **options)
        ended.wait()
        (result,) = results
        error = str(result) if isinstance(result, BaseException) else None
        return AnswerTimes(times[0] if times else None, len(times), error)

    try:
        yield Target(ask, time.process_time, engine.clear_history)
    finally:
        service.close()


def _options(setup: LoadSetup) -> dict[str, Any]:
    sampling = {"do_sample": True, **SAMPLING} if setup.is_sampled else {"do_sample": False}
    tokens = setup.sizes.answer_tokens
    return {"max_new_tokens": tokens, "min_new_tokens": tokens, **sampling}


@contextmanager
def _http(setup: LoadSetup, options: Sequence[str] = ()) -> Iterator[Target]:
    """Start `promptcache serve` with its defaults; clients stream the answers."""
    shape = setup.engine.model.shape
    schema = setup.scratch / "load.xml"
    schema.write_text(setup.schema_text, encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "promptcache",
        "serve",
        "--model",
        str(setup.folder),
        "--schema",
        str(schema),
        *options,
    ]
    words += ["--dtype", str(shape.dtype).removeprefix("torch."), "--device", str(shape.device)]
    tokens = setup.sizes.answer_tokens
    fields: dict[str, Any] = {"max_tokens": tokens, "min_tokens": tokens}
    fields |= SAMPLING if setup.is_sampled else {"temperature": 0}
    fields |= {"stream": True, "stream_options": {"include_usage": True}}

    def body(request: LoadRequest) -> dict[str, Any]:
        return {"prompt": setup.prompt_text(request), "seed": request.seed, **fields}

    log = setup.scratch / f"promptcache{''.join(options)}.log"
    with server_process(words, log) as (port, cpu_s):
        yield Target(lambda request: _stream(port, "/v1/prompts", body(request)), cpu_s)


@contextmanager
def _transformers(setup: LoadSetup, options: Sequence[str] = ()) -> Iterator[Target]:
    """Start `transformers serve`; prompts are plain text, with the text of their modules."""
    shape = setup.engine.model.shape
    folder = setup.scratch / f"endless{len(options)}"
    _copy_without_end(setup.folder, folder, {"do_sample": True, **SAMPLING} if setup.is_sampled else {})
    words = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), *options]
    words += ["--dtype", str(shape.dtype).removeprefix("torch."), "--device", str(shape.device)]
    fields = {"model": str(folder), "max_tokens": setup.sizes.answer_tokens, "stream": True}

    def body(request: LoadRequest) -> dict[str, Any]:
        return {"prompt": setup.plain_text(request), **fields}

    with server_process(words, folder.with_suffix(".log")) as (port, cpu_s):
        yield Target(lambda request: _stream(port, "/v1/completions", body(request)), cpu_s)


@contextmanager
def _llama(setup: LoadSetup) -> Iterator[Target]:
    """Start the server of llama.cpp with a slot for each client; prompts are the same tokens."""
    assert setup.llama is not None, "otherwise it is missing"
    program, gguf = setup.llama
    sizes, slots, threads = setup.sizes, setup.most_clients, torch.get_num_threads()
    row_tokens = (sizes.num_used or sizes.num_modules) * (sizes.module_tokens + 8) + sizes.new_tokens + 64
    words = [str(program), "--model", str(gguf), "--threads", str(threads), "--parallel", str(slots)]
    words += ["--ctx-size", str(slots * (row_tokens + sizes.answer_tokens)), "--cache-reuse", str(_MIN_SHIFTED)]
    fields: dict[str, Any] = {"max_tokens": sizes.answer_tokens, "ignore_eos": True}
    fields |= {**SAMPLING, "top_k": 0, "min_p": 0} if setup.is_sampled else {"temperature": 0}
    fields |= {"stream": True, "stream_options": {"include_usage": True}}

    def body(request: LoadRequest) -> dict[str, Any]:
        pieces = setup.engine.plan(setup.prompt_text(request)).pieces
        token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
        return {"prompt": token_ids, "seed": request.seed, **fields}

    with server_process(words, setup.scratch / "llama.log") as (port, cpu_s):
        yield Target(lambda request: _stream(port, "/v1/completions", body(request)), cpu_s)


def _copy_without_end(source: Path, folder: Path, generation: Mapping[str, Any]) -> None:
    """Link the files of a model in another folder, with a configuration that has no end tokens."""
    folder.mkdir()
    for each in source.iterdir():
        (folder / each.name).symlink_to(each.resolve())
    for name, more in (("config.json", {}), ("generation_config.json", generation)):
        data = json.loads((source / name).read_bytes()) if (source / name).exists() else {}
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(json.dumps({**data, "eos_token_id": None, **more}), encoding="utf-8")


def _stream(port: int, path: str, body: Mapping[str, Any]) -> AnswerTimes:
    """Send a request on a connection of its own, and read its stream of events."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_REQUEST_S)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            return AnswerTimes(None, 0, f"status {response.status}: {response.read()[:200].decode(errors='replace')}")
        return read_events(response)
    except (OSError, http.client.HTTPException) as error:
        return AnswerTimes(None, 0, f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def read_events(lines: Iterable[bytes]) -> AnswerTimes:
    """Read server-sent events of OpenAI's form: the time of the first text, and the tokens that `usage` counts."""
    first_token_at, num_tokens = None, 0
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            return AnswerTimes(first_token_at, num_tokens, str(event["error"]))
        if first_token_at is None and any(_text(choice) for choice in event["choices"]):
            first_token_at = time.perf_counter()
        if usage := event.get("usage"):
            num_tokens = usage["completion_tokens"]
    return AnswerTimes(first_token_at, num_tokens)


def _text(choice: Mapping[str, Any]) -> str | None:
    text: str | None = choice.get("text") or choice.get("delta", {}).get("content")
    return text


TARGETS: Mapping[TargetName, TargetOpener] = {
    TargetName.ONE_AT_A_TIME: _one_at_a_time,
    TargetName.SCHEDULER: _scheduler,
    TargetName.HTTP: _http,
    TargetName.RAY: partial(_http, options=["--ray"]),
    TargetName.TRANSFORMERS: _transformers,
    TargetName.TRANSFORMERS_BATCHES: partial(_transformers, options=_BATCHES),
    TargetName.LLAMA: _llama,
}
"""All targets, in the order of tables."""

_NEEDED: Mapping[TargetName, tuple[str, tuple[str, ...]]] = {
    TargetName.HTTP: ("promptcache[server]", _SERVER),
    TargetName.RAY: ("promptcache[ray]", (*_SERVER, "ray")),
    TargetName.TRANSFORMERS: ("transformers[serving]", _SERVING),
    TargetName.TRANSFORMERS_BATCHES: ("transformers[serving]", _SERVING),
}
"""For each target, what installs its packages, and these."""


def missing(name: TargetName, *, has_llama: bool = False) -> str | None:
    """Return why a target cannot be measured here, or None."""
    if name is TargetName.LLAMA and not has_llama:
        return "needs --llama-server and --gguf"
    extra, packages = _NEEDED.get(name, ("", ()))
    for package in packages:
        if find_spec(package) is None:
            return f"needs '{package}': pip install '{extra}'"
    if name is TargetName.RAY and torch.get_num_threads() != (num_cores := os.cpu_count() or 1):
        return f"its replica has all {num_cores} cores: --threads {num_cores}"
    return None
