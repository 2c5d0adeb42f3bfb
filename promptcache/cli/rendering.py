"""What the model will see of a prompt: the work of `promptcache render`.

Comes in: a prompt file and the name of a model. Goes out: the exact text, or its tokens one by one, on a console or as
data. No model is loaded: its tokenizer suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from promptcache.cli.output import counted, write_text
from promptcache.cli.request import CheckedRequest, TokenLimits, plan_request, read_request
from promptcache.cli.sources import Sources
from promptcache.diagnostics import printable
from promptcache.layout import Origin, Plan, RenderedPart, Rendering, render
from promptcache.tokenizer import HubTokenizer, model_folder

_REUSED = "green"
_NEW = "bold yellow"
_ADDED = {Origin.TEXT, Origin.HEADER, Origin.FOOTER}  # by the prompt, after the schema
_TOKEN_HEAD = ("position", "token id", "text", "KV", "from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt as the model sees it, with all that was needed to get there."""

    request: CheckedRequest
    plan: Plan
    tokenizer: HubTokenizer
    rendering: Rendering


class TokenLine(NamedTuple):
    """One token of a prompt."""

    position: int
    token_id: int
    text: str
    part: RenderedPart


def render_prompt(
    file: str, schema_files: Sequence[str], words: Sequence[str], model: str, sources: Sources
) -> Rendered:
    """Check and plan a prompt, and render the plan.

    Raises:
        LanguageError: every fault of the prompt or its schema.
        PromptCacheError: the schema or the model is not there, or positions do not suffice.
    """
    request = read_request(file, schema_files, words, sources)
    limits = TokenLimits.of(model_folder(model))
    plan = plan_request(request, limits)
    rendering = render(plan, limits.tokenizer)
    return Rendered(request=request, plan=plan, tokenizer=limits.tokenizer, rendering=rendering)


def token_lines(rendered: Rendered) -> Iterator[TokenLine]:
    """Yield every token in position order, each with its own text."""
    for part in rendered.rendering.parts:
        for position, token_id in zip(part.position_ids, part.token_ids, strict=True):
            yield TokenLine(position, token_id, rendered.tokenizer.detokenize((token_id,)), part)


def print_text(rendered: Rendered, console: Console, beside: Console) -> None:
    """Print the text: exactly on a pipe, coloured and without what could steer it on a terminal."""
    if not console.is_terminal:
        write_text(rendered.rendering.text)
    else:
        text = Text()
        for part in rendered.rendering.parts:
            text.append("\n".join(map(printable, part.text.split("\n"))), style=_style(part))
        console.print(text, soft_wrap=True, end="" if text.plain.endswith("\n") else "\n")
    _print_counts(rendered, beside)


def print_tokens(rendered: Rendered, console: Console, beside: Console) -> None:
    """Print a line for each token: where it stands, what it is, whether its KV is stored, and whose it is."""
    lines = list(token_lines(rendered))
    rows = [_cells(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(_TOKEN_HEAD, *rows, strict=True)]
    console.print(_row(_TOKEN_HEAD, widths, "bold"), soft_wrap=True)
    for line, row in zip(lines, rows, strict=True):
        console.print(_row(row, widths, _style(line.part)), soft_wrap=True)
    _print_counts(rendered, beside)


def rendered_data(rendered: Rendered, model: str, *, with_tokens: bool) -> dict[str, Any]:
    """Return text, parts and counts as data, with every token if asked for."""
    plan, request = rendered.plan, rendered.request
    data = {
        "prompt": request.prompt_file,
        "schema": {"name": request.schema.name, "file": request.schema_file},
        "model": model,
        "level": plan.level,
        "num_reused_tokens": plan.num_reused_tokens,
        "num_new_tokens": plan.num_new_tokens,
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
            for line in token_lines(rendered)
        ]
    return data


def _source(part: RenderedPart) -> dict[str, Any]:
    return {"reused": part.reused, "origin": part.origin, "module": part.module, "parameter": part.parameter}


def _print_counts(rendered: Rendered, console: Console) -> None:
    plan = rendered.plan
    text = Text(f"{counted(plan.num_reused_tokens + plan.num_new_tokens, 'token')}: ")
    text.append(f"{plan.num_reused_tokens:,} reused", style=_REUSED).append(", ")
    text.append(f"{plan.num_new_tokens:,} new", style=_NEW)
    text.append(f" · {plan.level} · the answer starts at position {plan.stop:,}")
    console.print(text, soft_wrap=True)


def _row(cells: Sequence[str], widths: Sequence[int], style: str) -> Text:
    """Align the two numbers to the right and words to the left."""
    numbers = [cell.rjust(width) for cell, width in zip(cells[:2], widths, strict=False)]
    words = [cell.ljust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return Text("  ".join(numbers + words).rstrip(), style=style)


def _cells(line: TokenLine) -> tuple[str, ...]:
    return f"{line.position:,}", f"{line.token_id}", repr(line.text), _kind(line.part), _owner(line.part)


def _kind(part: RenderedPart) -> str:
    return "reused" if part.origin is None else f"new: {part.origin}"


def _owner(part: RenderedPart) -> str:
    if part.parameter is not None:
        return f"{part.module}.{part.parameter}" if part.module else part.parameter
    return "prompt" if part.origin in _ADDED else part.module or "(root)"


def _style(part: RenderedPart) -> str:
    return _REUSED if part.reused else _NEW
