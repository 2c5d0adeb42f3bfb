"""The commands and their options.

Comes in: the words of a command line. Goes out: calls of the modules that do the work, and an exit code. This file does
no work itself. Language, tokenizers and torch take from a tenth of a second to several to load; so each command imports
what does its work when it runs, and `check` never waits for a model.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from promptcache.cli.bench import bench
from promptcache.cli.completion import (
    complete_arguments,
    complete_codes,
    complete_documents,
    complete_models,
    complete_prompts,
    complete_schemas,
)
from promptcache.cli.convert import convert
from promptcache.cli.exits import ExitCode, UsageMistake, ending
from promptcache.cli.fmt import fmt
from promptcache.cli.formats import Format, chosen_format, write_report
from promptcache.cli.grammar import grammar
from promptcache.cli.model_folder import DEMO, Dtype
from promptcache.cli.new import new
from promptcache.cli.render import (
    as_data,
    print_diagnostics,
    print_notes,
    stderr,
    stdout,
    write_json,
)
from promptcache.cli.test import run_tests

app = typer.Typer(
    name="promptcache",
    help="Modular prompts whose attention states are computed once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench)

_Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout instead of text.")]
_Schemas = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        help="The prompt's schema; default: one of that name near the prompt.",
        autocompletion=complete_schemas,
    ),
]
_Schema = Annotated[
    str,
    typer.Argument(metavar="SCHEMA", help="A schema file; - is standard input.", autocompletion=complete_schemas),
]
_Prompt = Annotated[
    str,
    typer.Argument(metavar="PROMPT", help="A prompt file; - is standard input.", autocompletion=complete_prompts),
]
_Arguments = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[MODULE.]NAME=VALUE",
        help="Fill a parameter of the prompt, or replace its argument.",
        autocompletion=complete_arguments,
    ),
]
_Folder = Annotated[str, typer.Option(help="demo, or a model's folder.", autocompletion=complete_models)]
_DEVICE_HELP = "cpu, cuda, cuda:1, ...; default: a GPU where there is one."
_TEMPERATURE_HELP = "0 takes the likeliest token; default: as the model declares."


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of a traceback
    app(prog_name="promptcache")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        stdout().print(f"promptcache {version('promptcache')}", markup=False)
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Schemas and prompts; - is standard input.", autocompletion=complete_documents
        ),
    ],
    schema: _Schemas = None,
    form: Annotated[Format | None, typer.Option("--format", help="Default: text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Find mistakes in schemas and prompts, without any model."""
    with ending(as_json=as_json or form is Format.JSON) as sources:
        chosen = chosen_format(form, as_json=as_json)
        from promptcache.cli.check import check_files, report_code

        report = check_files(files, schema or [], sources)
        write_report(report, chosen, sources)
        raise typer.Exit(report_code(report))


@app.command()
def why(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="As in error[PC401]; without it, all.", autocompletion=complete_codes),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Explain a diagnostic code: what it means, an example, and how to mend it."""
    with ending(as_json=as_json):
        from promptcache.cli.explanations import explanation, explanations
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


app.command()(fmt)


@app.command()
def layout(
    schema: _Schema,
    model: _Folder = DEMO,
    dtype: Annotated[Dtype, typer.Option(help="Of the KV; auto is what config.json says.")] = Dtype.AUTO,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the layout into an SVG file.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it into a page, with a slot table.")] = None,
    prompt: Annotated[str | None, typer.Option(metavar="PROMPT", help="Draw what this prompt reuses.")] = None,
    as_json: _Json = False,
) -> None:
    """Show the positions, tokens and KV bytes of a schema, and what each module may see."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.layout import layout_data, show_layout
        from promptcache.cli.layout_tree import print_layout
        from promptcache.cli.pictures import write_pictures

        if prompt is not None and svg is None and html is None:
            raise UsageMistake("--prompt is drawn: say where with --svg FILE or --html FILE")
        shown = show_layout(schema, model, dtype, sources)
        write_pictures(shown, prompt, svg, html, sources)
        if as_json:
            write_json({**layout_data(shown), "diagnostics": [as_data(each) for each in shown.diagnostics]})
        else:
            print_layout(shown.view, stdout())
            print_diagnostics(shown.diagnostics, sources, stderr())
            print_notes(shown.notes, stderr())
        raise typer.Exit(ExitCode.FINDINGS if shown.has_errors else ExitCode.OK)


@app.command()
def render(
    prompt: _Prompt,
    schema: _Schemas = None,
    model: _Folder = DEMO,
    arg: _Arguments = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="One line for each token instead of the text.")] = False,
    as_json: _Json = False,
) -> None:
    """Show exactly what the model will see of a prompt, without loading the model."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.rendered import print_text, print_tokens, render_prompt, rendered_data

        rendered = render_prompt(prompt, schema or [], arg or [], model, sources)
        if as_json:
            write_json(rendered_data(rendered, model, with_tokens=tokens))
        elif tokens:
            print_tokens(rendered, stdout(), stderr())
        else:
            print_text(rendered, stdout(), stderr())


@app.command()
def explain(
    schema: _Schema,
    model: _Folder = DEMO,
    as_json: _Json = False,
) -> None:
    """Show what a schema allows: modules, rules, combinations, the shortest and the longest prompt."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.explain import explain_data, explain_schema
        from promptcache.cli.explain_text import print_facts

        facts = explain_schema(schema, model, sources)
        if as_json:
            write_json(explain_data(facts))
        else:
            print_facts(facts, stdout())


@app.command()
def diff(
    old: Annotated[
        str,
        typer.Argument(metavar="OLD", help="A schema file; - is standard input.", autocompletion=complete_schemas),
    ],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="The same schema after a change.", autocompletion=complete_schemas)
    ],
    model: _Folder = DEMO,
    as_json: _Json = False,
) -> None:
    """Show what a change of a schema costs: slots, encodings, and prompts that stop being valid."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.diff import changes_data, compare_files
        from promptcache.cli.diff_text import print_changes

        changes = compare_files(old, new, model, sources)
        if as_json:
            write_json(changes_data(changes))
        else:
            print_changes(changes, stdout())
        raise typer.Exit(ExitCode.OK if changes.harmless else ExitCode.FINDINGS)


app.command()(grammar)


app.command("test")(run_tests)


app.command()(new)


app.command()(convert)


@app.command()
def run(
    prompt: _Prompt,
    schema: _Schemas = None,
    model: Annotated[
        str, typer.Option(help="demo, a model's folder, or a hub id.", autocompletion=complete_models)
    ] = DEMO,
    device: Annotated[str | None, typer.Option(help=_DEVICE_HELP)] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the weights; auto is the checkpoint's own.")] = Dtype.AUTO,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of the answer, at most.")] = None,
    arg: _Arguments = None,
    seed: Annotated[int | None, typer.Option(help="Of the random numbers that sampling draws.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help=_TEMPERATURE_HELP)] = None,
    warm: Annotated[bool, typer.Option(help="Encode the prompt's modules before the clock of TTFT starts.")] = True,
    as_json: _Json = False,
) -> None:
    """Answer a prompt, and say what was reused."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.request import RunOptions
        from promptcache.cli.run import run_prompt

        options = RunOptions(
            model=model,
            device=device,
            dtype=dtype,
            max_new_tokens=max_new_tokens,
            seed=seed,
            temperature=temperature,
            warm=warm,
        )
        run_prompt(prompt, schema or [], arg or [], options, sources, as_json=as_json)
