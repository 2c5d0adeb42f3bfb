"""`promptcache render`: show exactly what the model will see of a prompt. Needs only the tokenizer of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.text import Text

from promptcache.cli.console import stderr, stdout
from promptcache.cli.options import (
    Output,
    arguments_option,
    context_option,
    model_option,
    prompt_argument,
    repair_option,
    schemas_option,
    with_json,
)
from promptcache.cli.output import repaired_text, write_text
from promptcache.cli.request import CheckedRequest, TokenLimits, plan_request, read_request
from promptcache.cli.sources import Sources
from promptcache.diagnostics import counted, printable
from promptcache.language import Repair
from promptcache.layout import Plan, RenderedPart, Rendering, render
from promptcache.tokenizer import HubTokenizer, model_folder

_REUSED = "green"
_NEW = "bold yellow"
_TOKEN_HEAD = ("position", "token id", "text", "KV", "from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt as the model sees it."""

    request: CheckedRequest
    plan: Plan
    tokenizer: HubTokenizer
    rendering: Rendering


class TokenLine(NamedTuple):
    """A token of a prompt."""

    position: int
    token_id: int
    text: str
    part: RenderedPart


@click.command("render")
@prompt_argument
@schemas_option
@model_option()
@arguments_option
@repair_option
@click.option("--tokens", is_flag=True, help="Print a line for each token instead of the text.")
@context_option
@with_json
def command(
    sources: Sources,
    prompt: str,
    schema: tuple[str, ...],
    model: str,
    arg: tuple[str, ...],
    repair: Repair | None,
    tokens: bool,
) -> Output:
    """Show exactly what the model will see of a prompt, without loading the model.

    PROMPT is a prompt file; - is standard input.
    """
    rendered = render_prompt(prompt, schema, arg, model, sources, repair)

    def show() -> None:
        (_print_tokens if tokens else print_text)(rendered, stdout())
        _print_counts(rendered, stderr())

    return Output(data=_data(rendered, model, with_tokens=tokens), text=show)


def render_prompt(
    file: str,
    schema_files: Sequence[str],
    words: Sequence[str],
    model: str,
    sources: Sources,
    repair: Repair | None = None,
) -> Rendered:
    """Check, plan and render a prompt.

    Raises:
        LanguageError: All faults of the prompt or of its schema.
        PromptCacheError: The schema or the model was not found, or the model has too few positions.
    """
    request = read_request(file, schema_files, words, sources)
    limits = TokenLimits.of(model_folder(model))
    plan = plan_request(request, limits, repair=repair)
    rendering = render(plan, limits.tokenizer)
    return Rendered(request=request, plan=plan, tokenizer=limits.tokenizer, rendering=rendering)


def _token_lines(rendered: Rendered) -> Iterator[TokenLine]:
    for part in rendered.rendering.parts:
        for position, token_id in zip(part.position_ids, part.token_ids, strict=True):
            yield TokenLine(position, token_id, rendered.tokenizer.detokenize((token_id,)), part)


def print_text(rendered: Rendered, console: Console) -> None:
    """Print the text: exactly on a pipe; on a terminal in colour and without control characters."""
    if not console.is_terminal:
        write_text(rendered.rendering.text)
        return
    text = Text()
    for part in rendered.rendering.parts:
        text.append("\n".join(map(printable, part.text.split("\n"))), style=_style(part))
    console.print(text, soft_wrap=True, end="" if text.plain.endswith("\n") else "\n")


def _print_tokens(rendered: Rendered, console: Console) -> None:
    """Print a table of the tokens."""
    lines = list(_token_lines(rendered))
    rows = [_cells(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(_TOKEN_HEAD, *rows, strict=True)]
    console.print(_row(_TOKEN_HEAD, widths, "bold"), soft_wrap=True)
    for line, row in zip(lines, rows, strict=True):
        console.print(_row(row, widths, _style(line.part)), soft_wrap=True)


def _cells(line: TokenLine) -> tuple[str, ...]:
    part = line.part
    kind = "reused" if part.origin is None else f"new: {part.origin}"
    if part.parameter is not None:
        owner = f"{part.module}.{part.parameter}" if part.module else part.parameter
    else:
        owner = "prompt" if part.origin is not None and part.origin.is_added else part.module or "(root)"
    return f"{line.position:,}", f"{line.token_id}", repr(line.text), kind, owner


def _row(cells: Sequence[str], widths: Sequence[int], style: str) -> Text:
    """Align two numbers to the right, and text to the left."""
    numbers = [cell.rjust(width) for cell, width in zip(cells[:2], widths, strict=False)]
    words = [cell.ljust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return Text("  ".join(numbers + words).rstrip(), style=style)


def _style(part: RenderedPart) -> str:
    return _REUSED if part.reused else _NEW


def _print_counts(rendered: Rendered, console: Console) -> None:
    plan = rendered.plan
    text = Text(f"{counted(plan.num_reused_tokens + plan.num_new_tokens, 'token')}: ")
    text.append(f"{plan.num_reused_tokens:,} reused", style=_REUSED).append(", ")
    text.append(f"{plan.num_new_tokens:,} new{repaired_text(plan.num_repaired_tokens)}", style=_NEW)
    text.append(f" · {plan.level} · the answer starts at position {plan.stop:,}")
    console.print(text, soft_wrap=True)


def _data(rendered: Rendered, model: str, *, with_tokens: bool) -> dict[str, Any]:
    plan, request = rendered.plan, rendered.request
    data = {
        "prompt": request.prompt_file,
        "schema": {"name": request.schema.name, "file": request.schema_file},
        "model": model,
        "level": plan.level,
        "num_reused_tokens": plan.num_reused_tokens,
        "num_new_tokens": plan.num_new_tokens,
        "num_repaired_tokens": plan.num_repaired_tokens,
        "repair": str(plan.repair),
        "next_position": plan.stop,
        "text": rendered.rendering.text,
        "parts": [
            {
                **_source(part),
                "start": part.position_ids[0],
                "stop": part.position_ids[-1] + 1,
                "num_tokens": len(part.token_ids),
                "text": part.text,
            }
            for part in rendered.rendering.parts
        ],
    }
    if with_tokens:
        data["tokens"] = [
            {"position": line.position, "token_id": line.token_id, "text": line.text, **_source(line.part)}
            for line in _token_lines(rendered)
        ]
    return data


def _source(part: RenderedPart) -> dict[str, Any]:
    return {"reused": part.reused, "origin": part.origin, "module": part.module, "parameter": part.parameter}
