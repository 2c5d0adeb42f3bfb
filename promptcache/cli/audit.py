"""`promptcache audit`: how far a cached request is from plain prefill, where that comes from, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from promptcache.cli.console import progress, show_loading, stdout
from promptcache.cli.engine import load_engine
from promptcache.cli.exits import ending
from promptcache.cli.files import check_target, files_read, write_made
from promptcache.cli.options import (
    arguments_option,
    context_option,
    device_option,
    dtype_option,
    json_option,
    keep_option,
    model_option,
    output_file,
    prompt_argument,
    repair_option,
    schemas_option,
)
from promptcache.cli.output import write_json
from promptcache.cli.request import read_for_model
from promptcache.diagnostics import LEAST_NATS, counted, millinats_text, shown_millinats
from promptcache.language import Repair
from promptcache.picture import audit_html

if TYPE_CHECKING:
    from promptcache.audit import Audit

_BAR = 24  # columns of the longest bar


@click.command("audit")
@prompt_argument
@schemas_option
@model_option()
@device_option
@dtype_option
@click.option("--max-new-tokens", metavar="N", type=click.IntRange(min=1), help="Maximum number of places to compare.")
@arguments_option
@keep_option
@repair_option
@context_option
@output_file("--html", words="Draw the audit into a page.")
@json_option
def command(
    prompt: str,
    schema: tuple[str, ...],
    model: str,
    device: str | None,
    dtype: str,
    max_new_tokens: int | None,
    arg: tuple[str, ...],
    keep: str,
    repair: Repair | None,
    context: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show how far a cached request is from plain prefill, why, and what would help.

    PROMPT is a prompt file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        request = read_for_model(prompt, schema, arg, sources, model, max_new_tokens=max_new_tokens, repair=repair)
        read = files_read(sources, request.schema)
        if html is not None:
            check_target(html, read)  # before the model runs
        with progress() as show:
            show_loading(show, model)
            engine = load_engine(model, device, dtype)
            engine.add_schema(request.schema.source, keep=keep)
            show("comparing with plain prefill", 0, None)
            options: dict[str, Any] = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
            options["repair"] = None if repair is None else str(repair)
            audit = engine.audit(request.prompt, **options)
        write_made({} if html is None else {html: audit_html(audit)}, read)
        if as_json:
            place = {"prompt": request.prompt_file, "schema": {"name": audit.schema, "file": request.schema_file}}
            write_json(_data(audit) | place | {"model": model})
        else:
            for line in _lines(audit):
                stdout().print(line, soft_wrap=True)


def _data(audit: Audit) -> dict[str, Any]:
    return {**asdict(audit), "same_answer": audit.same_answer}


def _lines(audit: Audit) -> Iterator[Text]:
    num_same = round(audit.agreement * audit.num_places)
    answer = "the same answer as plain prefill" if audit.same_answer else "another answer than plain prefill"
    yield Text.assemble(
        (audit.schema, "bold"),
        f"  {audit.level} · {millinats_text(audit.divergence)} millinats from plain prefill",
        f" · same token at {num_same} of {counted(audit.num_places, 'place')} · {answer}",
    )
    yield Text("\nwhere the distance comes from, in millinats")
    yield from bar_lines([(each.cause.value, each.share, each.cause.meaning) for each in audit.rungs])
    if audit.modules:
        yield Text("\nwhat computing a module again in this prompt would gain")
        yield from bar_lines(
            [(each.module or "(root)", each.gain, counted(each.num_tokens, "token")) for each in audit.modules]
        )
    yield Text("\nwhat helps: tried on this prompt" if audit.advice else "\nnothing that was tried helps")
    for each in audit.advice:
        yield Text(f"  {millinats_text(each.gain):>8}  {each.words}")
        yield Text(f"  {'':8}  price: {each.price}", style="dim")


def bar_lines(rows: Sequence[tuple[str, float, str]]) -> Iterator[Text]:
    """Yield a line for each name with its millinats, its words and a bar, to a scale of at least `LEAST_NATS`."""
    name_columns = max(len(name) for name, _, _ in rows)
    words_columns = max(len(words) for _, _, words in rows)
    most = max(LEAST_NATS, *(value for _, value, _ in rows))
    for name, value, words in rows:
        bar = "█" * round(_BAR * value / most) if shown_millinats(value) > 0 else ""
        text = f"  {name:<{name_columns}}  {millinats_text(value):>8}  {words:<{words_columns}}"
        yield Text(f"{text}  {bar}".rstrip())
