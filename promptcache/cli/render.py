"""`promptcache render`: show exactly what the model will see of a prompt. Needs only the tokenizer of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.text import Text

from promptcache.cli.console import NEW, REUSED, plan_line, print_lines, stderr, stdout
from promptcache.cli.documents import Sources
from promptcache.cli.options import (
    Output,
    arguments_option,
    context_option,
    model_option,
    prompt_argument,
    schemas_option,
    with_json,
)
from promptcache.cli.output import columns, slot_name, warn, write_text
from promptcache.cli.request import CheckedRequest, TokenLimits, plan_request, read_request
from promptcache.cli.settings import repair_option
from promptcache.diagnostics import ROOT, as_data, counted, printable
from promptcache.layout import Piece, Plan, piece_texts
from promptcache.tokenizer import HubTokenizer

_TOKEN_HEAD = ("position", "token id", "text", "KV", "from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt as the model sees it."""

    request: CheckedRequest
    plan: Plan
    tokenizer: HubTokenizer
    text: str
    parts: tuple[tuple[Piece, str], ...]


class TokenLine(NamedTuple):
    """A token of a prompt."""

    position: int
    token_id: int
    text: str
    piece: Piece


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
    repair: str | None,
    tokens: bool,
) -> Output:
    """Show exactly what the model will see of a prompt, without loading the model.

    PROMPT is a prompt file; - is standard input.

    Example: promptcache render prompt.xml --tokens
    """
    rendered = render_prompt(prompt, schema, arg, model, sources, repair)

    def show() -> None:
        (_print_tokens if tokens else print_text)(rendered, stdout())
        plan = rendered.plan
        total = counted(plan.num_reused_tokens + plan.num_new_tokens, "token")
        warn(*(f"{each.code}: {each.message}" for each in plan.warnings))
        print_lines([plan_line(plan, f"{total}: ", f"{plan.num_reused_tokens:,} reused")], stderr())

    return Output(data=_data(rendered, model, with_tokens=tokens), text=show)


def render_prompt(
    file: str,
    schema_files: Sequence[str],
    words: Sequence[str],
    model: str,
    sources: Sources,
    repair: str | None = None,
) -> Rendered:
    """Check, plan and render a prompt.

    Raises:
        LanguageError: All faults of the prompt or of its schema.
        PromptCacheError: The schema or the model was not found, or the model has too few positions.
    """
    request = read_request(file, schema_files, words, sources)
    limits = TokenLimits.of(model)
    plan = plan_request(request, limits, repair=repair)
    texts = piece_texts(plan, limits.tokenizer)
    parts = tuple(zip(plan.pieces, texts, strict=True))
    return Rendered(request=request, plan=plan, tokenizer=limits.tokenizer, text="".join(texts), parts=parts)


def _token_lines(rendered: Rendered) -> Iterator[TokenLine]:
    for piece in rendered.plan.pieces:
        for position, token_id in zip(piece.position_ids, piece.token_ids, strict=True):
            yield TokenLine(position, token_id, rendered.tokenizer.detokenize((token_id,)), piece)


def print_text(rendered: Rendered, console: Console) -> None:
    """Print the text: exactly on a pipe; on a terminal in colour and without control characters."""
    if not console.is_terminal:
        write_text(rendered.text)
        return
    text = Text()
    for piece, words in rendered.parts:
        text.append("\n".join(map(printable, words.split("\n"))), style=_style(piece))
    console.print(text, soft_wrap=True, end="" if text.plain.endswith("\n") else "\n")


def _print_tokens(rendered: Rendered, console: Console) -> None:
    lines = list(_token_lines(rendered))
    rows = columns([_TOKEN_HEAD, *map(_cells, lines)], right=(0, 1))
    styles = ["bold", *(_style(line.piece) for line in lines)]
    print_lines(map(Text, rows, styles), console)


def _cells(line: TokenLine) -> tuple[str, ...]:
    piece = line.piece
    kind = "reused" if piece.origin is None else f"new: {piece.origin}"
    if piece.parameter is not None:
        owner = slot_name(piece.module, piece.parameter)
    else:
        owner = "prompt" if piece.run is None else piece.module or ROOT
    return f"{line.position:,}", f"{line.token_id}", repr(line.text), kind, owner


def _style(piece: Piece) -> str:
    return NEW if piece.source is None else REUSED


def _data(rendered: Rendered, model: str, *, with_tokens: bool) -> dict[str, Any]:
    data = {
        **rendered.request.data(model),
        **rendered.plan.counts,
        "warnings": [as_data(each) for each in rendered.plan.warnings],
        "text": rendered.text,
        "parts": [
            {
                **_source(piece),
                "start": piece.start,
                "stop": piece.stop,
                "num_tokens": len(piece.token_ids),
                "text": text,
            }
            for piece, text in rendered.parts
        ],
    }
    if with_tokens:
        data["tokens"] = [
            {"position": line.position, "token_id": line.token_id, "text": line.text, **_source(line.piece)}
            for line in _token_lines(rendered)
        ]
    return data


def _source(piece: Piece) -> dict[str, Any]:
    reused = piece.source is not None
    return {"reused": reused, "origin": piece.origin, "module": piece.module, "parameter": piece.parameter}
