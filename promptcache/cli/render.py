"""`promptcache render`: show exactly what the model will see of a prompt. Needs only the tokenizer of the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
from promptcache.cli.request import TokenLimits, read_request
from promptcache.cli.settings import repair_option
from promptcache.diagnostics import ROOT, as_data, counted, printable
from promptcache.layout import Piece, piece_texts


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
    request = read_request(prompt, schema, arg, sources)
    limits = TokenLimits.of(model)
    plan = limits.plan_request(request, repair=repair)
    texts = piece_texts(plan, limits.tokenizer)
    text = "".join(texts)
    parts = [*zip(plan.pieces, texts, strict=True)]
    lines = [
        (position, token_id, limits.tokenizer.detokenize((token_id,)), piece)
        for piece in (plan.pieces if tokens else ())
        for position, token_id in zip(piece.position_ids, piece.token_ids, strict=True)
    ]

    def show() -> None:
        if tokens:
            rows, styles = [("position", "token id", "text", "KV", "from")], ["bold"]
            for position, token_id, words, piece in lines:
                kind = "reused" if piece.origin is None else f"new: {piece.origin}"
                if piece.parameter is not None:
                    owner = slot_name(piece.module, piece.parameter)
                else:
                    owner = "prompt" if piece.run is None else piece.module or ROOT
                rows.append((f"{position:,}", f"{token_id}", repr(words), kind, owner))
                styles.append(_style(piece))
            print_lines(map(Text, columns(rows, right=(0, 1)), styles))
        else:
            print_text(text, parts, stdout())
        total = counted(plan.num_reused_tokens + plan.num_new_tokens, "token")
        warn(*(f"{each.code}: {each.message}" for each in plan.warnings))
        print_lines([plan_line(plan, f"{total}: ", f"{plan.num_reused_tokens:,} reused")], stderr())

    data = {
        **request.data(model),
        **plan.counts,
        "warnings": [as_data(each) for each in plan.warnings],
        "text": text,
        "parts": [
            _source(piece)
            | {"start": piece.start, "stop": piece.stop, "num_tokens": len(piece.token_ids), "text": words}
            for piece, words in parts
        ],
    }
    if tokens:
        data["tokens"] = [
            {"position": position, "token_id": token_id, "text": words, **_source(piece)}
            for position, token_id, words, piece in lines
        ]
    return Output(data=data, text=show)


def print_text(text: str, parts: Iterable[tuple[Piece, str]], console: Console) -> None:
    """Print the text of a prompt: exactly on a pipe; on a terminal in colour and without control characters."""
    if not console.is_terminal:
        write_text(text)
        return
    styled = Text()
    for piece, words in parts:
        styled.append("\n".join(map(printable, words.split("\n"))), style=_style(piece))
    console.print(styled, soft_wrap=True, end="" if styled.plain.endswith("\n") else "\n")


def _style(piece: Piece) -> str:
    return NEW if piece.source is None else REUSED


def _source(piece: Piece) -> dict[str, Any]:
    reused = piece.source is not None
    return {"reused": reused, "origin": piece.origin, "module": piece.module, "parameter": piece.parameter}
