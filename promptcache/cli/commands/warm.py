"""`promptcache warm`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.completion import complete_schemas
from promptcache.cli.exits import ending
from promptcache.cli.model_folder import Dtype
from promptcache.cli.options import (
    context_option,
    device_option,
    dtype_option,
    json_option,
    keep_option,
    limit_option,
    model_option,
    store_option,
)


@click.command("warm")
@click.argument("schemas", metavar="SCHEMA...", nargs=-1, required=True, shell_complete=complete_schemas)
@model_option()
@device_option
@dtype_option
@store_option("Folder or URL to keep KV in.")
@limit_option
@keep_option
@click.option("--budget", is_flag=True, help="Only say what it will take, in tokens and bytes; loads no model.")
@context_option
@json_option
def command(
    schemas: tuple[str, ...],
    model: str,
    device: str | None,
    dtype: str,
    store: str,
    limit: int | None,
    keep: str,
    budget: bool,
    context: Path | None,
    as_json: bool,
) -> None:
    """Encode schemas ahead of time, and keep their KV for every process that comes.

    SCHEMA is a schema file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.output import tell, write_json, write_text
        from promptcache.cli.warm import WarmOptions, estimate_data, estimate_text, estimates, read_schemas

        options = WarmOptions(
            model=model,
            device=device,
            dtype=Dtype(dtype),
            store=store,
            limit=limit,
            keep=keep,
        )
        checked = read_schemas(schemas, sources)
        if budget:
            found = estimates(checked, options)
            if as_json:
                write_json(estimate_data(found, options))
            else:
                write_text(estimate_text(found, options))
            return
        from promptcache.cli.warming import warm_schemas, work_data, work_text

        work = warm_schemas(checked, options)
        for each in work:
            tell(*(f"warning: {' '.join(fault.split())}" for fault in each.report.faults))
        if as_json:
            write_json(work_data(work, options))
        else:
            write_text(work_text(work, options))
