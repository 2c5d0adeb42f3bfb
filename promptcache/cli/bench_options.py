"""Options that several benchmarks have.

Comes in: nothing. Goes out: decorators of click. This file knows no benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_ONE = click.IntRange(min=1)


def number(name: str, default: int | None, words: str) -> Callable[[Decorated], Decorated]:
    """Return the option of a number from 1 on."""
    return click.option(name, metavar="N", type=_ONE, default=default, help=words)


def numbers(name: str, default: Sequence[int], words: str) -> Callable[[Decorated], Decorated]:
    """Return the option of such numbers, given once for each."""
    return click.option(name, metavar="N", type=_ONE, multiple=True, default=default, help=words)


def tokens_option(*default: int) -> Callable[[Decorated], Decorated]:
    """Return the option of the tokens in each module."""
    return numbers("--module-tokens", default, "Tokens of each module; give it several times to compare.")


def new_option(*default: int) -> Callable[[Decorated], Decorated]:
    """Return the option of the request's new tokens."""
    return numbers("--new", default, "New tokens of the request; give it several times.")


def modules_option(default: int) -> Callable[[Decorated], Decorated]:
    """Return the option of how many modules a request has."""
    return number("--modules", default, "Modules present in the request.")


def repeats_option(default: int) -> Callable[[Decorated], Decorated]:
    """Return the option of how many rounds count."""
    return number("--repeats", default, "Rounds that count; one more warms up.")


def measured(command: Decorated) -> Decorated:
    """Add the options of what is measured: a model, or a shape, and a dtype."""
    for option in (
        click.option("--dtype", default="float32", help="Of weights and KV: float32, bfloat16 or float16."),
        click.option("--model", help="A model's folder or hub id instead of a shape."),
        click.option("--shape", default="qwen2.5-0.5b", help="A published model shape with random weights."),
    ):
        command = option(command)
    return command


device_option = click.option("--device", default="cpu", help="cpu, cuda, ...")
adjacent_option = click.option(
    "--adjacent/--no-adjacent", default=False, help="Whether the present modules are neighbours."
)
threads_option = number("--threads", None, "Threads of torch.")
decoded_option = number("--tokens", 16, "Tokens decoded after the prompt.")
