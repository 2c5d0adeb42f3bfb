"""`promptcache run`: answer one prompt. All checks that need no model are made before the model is loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptcache.cli.console import progress, show_loading
from promptcache.cli.engine import load_engine, optional_store, sampling, set_seed
from promptcache.cli.exits import ending
from promptcache.cli.options import (
    arguments_option,
    context_option,
    device_option,
    dtype_option,
    json_option,
    keep_option,
    limit_option,
    max_new_tokens_option,
    model_option,
    prompt_argument,
    repair_option,
    schemas_option,
    seed_option,
    store_option,
    temperature_option,
)
from promptcache.cli.output import repaired_text, tell, write_json, write_text
from promptcache.cli.request import CheckedRequest, read_for_model
from promptcache.diagnostics import as_data, counted

if TYPE_CHECKING:
    from promptcache.language import Repair
    from promptcache.runtime import Completion, Usage


@click.command("run")
@prompt_argument
@schemas_option
@model_option()
@device_option
@dtype_option
@max_new_tokens_option
@arguments_option
@repair_option
@seed_option
@temperature_option
@store_option("Keep KV in this folder or under this URL; default: in memory only.", default=None)
@limit_option
@keep_option
@click.option("--warm/--no-warm", default=True, help="Encode the prompt's modules before the clock of TTFT starts.")
@context_option
@json_option
def command(
    prompt: str,
    schema: tuple[str, ...],
    model: str,
    device: str | None,
    dtype: str,
    max_new_tokens: int | None,
    arg: tuple[str, ...],
    repair: Repair | None,
    seed: int | None,
    temperature: float | None,
    store: str | None,
    limit: int | None,
    keep: str,
    warm: bool,
    context: Path | None,
    as_json: bool,
) -> None:
    """Answer a prompt, and say what was reused.

    PROMPT is a prompt file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        generation = sampling(temperature)
        request = read_for_model(prompt, schema, arg, sources, model, max_new_tokens=max_new_tokens, repair=repair)
        config = optional_store(store, limit)
        with progress() as show:
            show_loading(show, model)
            engine = load_engine(model, device, dtype, config)
        engine.add_schema(request.schema.source, keep=keep)
        generation["repair"] = None if repair is None else str(repair)
        # the first request encodes what the prompt needs, and nothing else
        warmed = engine.generate(request.prompt, max_new_tokens=1, **generation).usage if warm else None
        engine.clear_history()
        set_seed(seed)
        with engine.stream(request.prompt, max_new_tokens=max_new_tokens, **generation) as stream:
            for piece in stream:
                if not as_json:
                    write_text(piece)
        assert stream.completion is not None, "an exhausted stream has its completion"
        if as_json:
            write_json(_data(stream.completion, warmed, request, model))
        else:
            write_text("\n")
            found = (f"{each.code}: {each.message}" for each in stream.completion.warnings)
            faults = dict.fromkeys((*found, *(warmed.faults if warmed else ()), *stream.completion.usage.faults))
            warnings = (f"warning: {' '.join(fault.split())}" for fault in faults)
            tell(*warnings, _usage_line(stream.completion, warmed))


def _usage_line(completion: Completion, warmed: Usage | None) -> str:
    """Describe a request; its modules were loaded by the request that `warmed` belongs to, if there was one."""
    from promptcache.runtime import FinishReason, KVSource

    usage, first = completion.usage, warmed or completion.usage
    counts = f"reused {usage.num_reused_tokens:,} tokens, prefilled {usage.num_new_tokens:,}"
    counts += repaired_text(usage.num_repaired_tokens)
    parts = [f"{counts}, generated {usage.num_generated_tokens:,}"]
    if completion.finish_reason is FinishReason.LENGTH:
        parts[0] += " (all that were allowed)"
    level = f"{completion.level}, lossy" if completion.lossy else str(completion.level)
    parts += [f"TTFT {completion.timing.ttft_s * 1000:.1f} ms", level]
    modules = [each for each in first.modules if each.module] or first.modules
    loaded = Counter(each.tier for each in modules if each.source is KVSource.LOAD)
    parts += [f"{counted(number, 'module')} from {tier}" for tier, number in loaded.items()]
    if warmed is not None and warmed.num_encoded_tokens:
        parts.append(f"encoded {warmed.num_encoded_tokens:,} tokens first")
    if usage.num_encoded_tokens:
        parts.append(f"encoded {usage.num_encoded_tokens:,} tokens within TTFT")
    return " · ".join(parts)


def _data(completion: Completion, warmed: Usage | None, request: CheckedRequest, model: str) -> dict[str, Any]:
    num_warmed = 0 if warmed is None else warmed.num_encoded_tokens
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "level": completion.level,
        "repair": completion.repair,
        "lossy": completion.lossy,
        "warnings": [as_data(each) for each in completion.warnings],
        "prompt": request.prompt_file,
        "schema": {"name": request.schema.name, "file": request.schema_file},
        "model": model,
        "usage": {**asdict(completion.usage), "num_warmed_tokens": num_warmed},
        "warmed": None if warmed is None else asdict(warmed),
        "timing": {**asdict(completion.timing), "ttft_s": completion.timing.ttft_s},
    }
