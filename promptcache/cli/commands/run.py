"""`promptcache run`: the command and its options."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import click

from promptcache.cli.exits import UsageMistake, ending
from promptcache.cli.model_folder import Dtype
from promptcache.cli.options import (
    arguments_option,
    context_option,
    json_option,
    keep_option,
    limit_option,
    model_option,
    prompt_argument,
    schemas_option,
    store_option,
)


@click.command("run")
@prompt_argument
@schemas_option
@model_option()
@click.option("--device", help="cpu, cuda, cuda:1, ...; default: a GPU where there is one.")
@click.option(
    "--dtype",
    type=click.Choice([*map(str, Dtype)]),
    default="auto",
    help="Of the weights; auto is the checkpoint's own.",
)
@click.option("--max-new-tokens", metavar="N", type=click.IntRange(min=1), help="Tokens of the answer, at most.")
@arguments_option
@click.option(
    "--seed", metavar="N", type=click.IntRange(0, 2**63 - 1), help="Of the random numbers that sampling draws."
)
@click.option(
    "--temperature",
    metavar="T",
    type=click.FloatRange(min=0.0),
    help="0 takes the likeliest token; default: as the model declares.",
)
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
        from promptcache.cli.request import RunOptions
        from promptcache.cli.run import run_prompt

        if temperature is not None and not isfinite(temperature):
            raise UsageMistake(f"--temperature {temperature}: not a finite number")
        if limit is not None and store is None:
            raise UsageMistake("--limit is that of a store; say where it is with --store DIR")
        options = RunOptions(
            model=model,
            device=device,
            dtype=Dtype(dtype),
            max_new_tokens=max_new_tokens,
            seed=seed,
            temperature=temperature,
            warm=warm,
            store=store,
            limit=limit,
            keep=keep,
        )
        run_prompt(prompt, schema, arg, options, sources, as_json=as_json)
