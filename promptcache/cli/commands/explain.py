"""`promptcache explain`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.exits import ending
from promptcache.cli.options import context_option, json_option, model_option, schema_argument


@click.command("explain")
@schema_argument
@model_option()
@context_option
@json_option
def command(schema: str, model: str, context: Path | None, as_json: bool) -> None:
    """Show what a schema allows: modules, rules, combinations, the shortest and the longest prompt.

    SCHEMA is a schema file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.console import stdout
        from promptcache.cli.explain import explain_data, explain_schema
        from promptcache.cli.explain_text import print_facts
        from promptcache.cli.output import write_json

        facts = explain_schema(schema, model, sources)
        if as_json:
            write_json(explain_data(facts))
        else:
            print_facts(facts, stdout())
