"""`promptcache render`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.exits import ending
from promptcache.cli.options import (
    arguments_option,
    context_option,
    json_option,
    model_option,
    prompt_argument,
    schemas_option,
)


@click.command("render")
@prompt_argument
@schemas_option
@model_option()
@arguments_option
@click.option("--tokens", is_flag=True, help="One line for each token instead of the text.")
@context_option
@json_option
def command(
    prompt: str,
    schema: tuple[str, ...],
    model: str,
    arg: tuple[str, ...],
    tokens: bool,
    context: Path | None,
    as_json: bool,
) -> None:
    """Show exactly what the model will see of a prompt, without loading the model.

    PROMPT is a prompt file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.console import stderr, stdout
        from promptcache.cli.output import write_json
        from promptcache.cli.rendering import print_text, print_tokens, render_prompt, rendered_data

        rendered = render_prompt(prompt, schema, arg, model, sources)
        if as_json:
            write_json(rendered_data(rendered, model, with_tokens=tokens))
        elif tokens:
            print_tokens(rendered, stdout(), stderr())
        else:
            print_text(rendered, stdout(), stderr())
