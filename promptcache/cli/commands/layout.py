"""`promptcache layout`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.completion import complete_prompts
from promptcache.cli.exits import ExitCode, UsageMistake, ending
from promptcache.cli.options import context_option, json_option, model_option, output_file, schema_argument
from promptcache.tokenizer import Dtype


@click.command("layout")
@schema_argument
@model_option()
@click.option(
    "--dtype", type=click.Choice([*map(str, Dtype)]), default="auto", help="Of the KV; auto is what config.json says."
)
@output_file("--svg", words="Draw the layout into an SVG file.")
@output_file("--html", words="Draw it into a page, with a slot table.")
@click.option("--prompt", metavar="PROMPT", help="Draw what this prompt reuses.", shell_complete=complete_prompts)
@context_option
@json_option
def command(
    schema: str,
    model: str,
    dtype: str,
    svg: Path | None,
    html: Path | None,
    prompt: str | None,
    context: Path | None,
    as_json: bool,
) -> None:
    """Show the positions, tokens and KV bytes of a schema, and what each module may see.

    SCHEMA is a schema file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.console import stdout
        from promptcache.cli.layout import layout_data, show_layout
        from promptcache.cli.layout_tree import print_layout
        from promptcache.cli.output import as_data, print_diagnostics, tell, write_json
        from promptcache.cli.pictures import write_pictures

        if prompt is not None and svg is None and html is None:
            raise UsageMistake("--prompt is drawn: say where with --svg FILE or --html FILE")
        if svg is not None and svg == html:
            raise UsageMistake(f"--svg and --html both name {svg}")
        shown = show_layout(schema, model, Dtype(dtype), sources)
        write_pictures(shown, prompt, svg, html, sources)
        if as_json:
            write_json({**layout_data(shown), "diagnostics": [as_data(each) for each in shown.diagnostics]})
        else:
            print_layout(shown.view, stdout())
            print_diagnostics(shown.diagnostics, beside=True)
            tell(*(f"note: {note}" for note in shown.notes))
        raise click.exceptions.Exit(ExitCode.FINDINGS if shown.has_errors else ExitCode.OK)
