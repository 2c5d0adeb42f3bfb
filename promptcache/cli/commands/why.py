"""`promptcache why`: the command and its options."""

from __future__ import annotations

import click

from promptcache.cli.completion import complete_codes
from promptcache.cli.exits import ending
from promptcache.cli.options import json_option


@click.command("why")
@click.argument("code", metavar="[CODE]", required=False, shell_complete=complete_codes)
@json_option
def command(code: str | None, as_json: bool) -> None:
    """Explain a diagnostic code: what it means, an example, and how to mend it.

    CODE is what stands in error[PC401]; without it, all codes are listed.
    """
    with ending(as_json=as_json):
        from promptcache.cli.console import stdout
        from promptcache.cli.explanations import explanation, explanations
        from promptcache.cli.output import write_json
        from promptcache.cli.why import explanation_data, print_codes, print_explanation

        if code is None:
            found = explanations().values()
            if as_json:
                write_json([explanation_data(each) for each in found])
            else:
                print_codes(found, stdout())
        elif as_json:
            write_json(explanation_data(explanation(code)))
        else:
            print_explanation(explanation(code), stdout())
