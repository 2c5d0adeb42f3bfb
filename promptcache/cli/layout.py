"""`promptcache layout`: show the positions, tokens and KV bytes of a schema, and what a prompt reuses of it.

The command reads the tokenizer and `config.json` of a model. It loads no weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from promptcache.cli.console import NEW, REUSED, plan_line, print_diagnostics, print_lines, stdout
from promptcache.cli.documents import Sources, checked_schema, files_read, parsed_prompt, read, write_made
from promptcache.cli.exits import ExitCode, UsageMistake
from promptcache.cli.options import (
    DOCUMENT,
    Output,
    context_option,
    model_option,
    output_file,
    schema_argument,
    with_json,
)
from promptcache.cli.output import tell
from promptcache.cli.request import LaidOut, TokenLimits, WarmCost, all_encodings
from promptcache.cli.settings import repair_option
from promptcache.diagnostics import ROOT, SchemaError, as_data, counted, size_text
from promptcache.language import Repair, count_combinations, resolve_prompt
from promptcache.layout import Encoding, Plan, Variant, make_plan
from promptcache.picture import Part, PartKind, Use, facts, html_page, svg_picture, title, view
from promptcache.tokenizer import Dtype, ModelFacts, read_facts


@click.command("layout")
@schema_argument
@model_option()
@click.option(
    "--dtype",
    type=click.Choice([*map(str, Dtype)]),
    default="auto",
    help="Dtype of the KV; auto is that of config.json.",
)
@output_file("--svg", words="Draw the layout into an SVG file.")
@output_file("--html", words="Draw the layout into an HTML page.")
@click.option("--prompt", metavar="PROMPT", type=DOCUMENT, help="Show what this prompt reuses.")
@repair_option
@click.option(
    "--against",
    metavar="OLD",
    type=DOCUMENT,
    help="Show only what has changed since this earlier version of the schema: encodings that stay, and those to make.",
)
@context_option
@with_json
def command(
    sources: Sources,
    schema: str,
    model: str,
    dtype: str,
    svg: Path | None,
    html: Path | None,
    prompt: str | None,
    repair: str | None,
    against: str | None,
) -> Output:
    """Show the positions, tokens and KV bytes of a schema, and what each module may see.

    SCHEMA is a schema file; - is standard input.

    Example: promptcache layout helpdesk.xml --model FOLDER --html layout.html
    """
    if svg is not None and svg == html:
        raise UsageMistake(f"--svg and --html both name {svg}")
    if repair is not None and prompt is None:
        raise UsageMistake("--repair is for a prompt; name it with --prompt PROMPT")
    checked = checked_schema(read(schema, sources))
    limits = TokenLimits.of(model)
    model_facts, tokenizer = read_facts(model, limits.folder, Dtype(dtype)), limits.tokenizer
    layout, variants = limits.lay_out(checked, check=False)
    diagnostics, failed = (*checked.warnings, *layout.warnings), False
    try:
        limits.check(layout, variants)
    except SchemaError as error:  # shown with the layout, which says where the positions go
        diagnostics, failed = (*diagnostics, *error.diagnostics), True
    change, changes = None, list[str]()
    if against is not None:
        old = limits.lay_out(checked_schema(read(against, sources)), check=False)
        change, changes = _compare(old, (layout, variants), model_facts.token_bytes)
    plan = None
    if prompt is not None:
        selection = resolve_prompt(parsed_prompt(read(prompt, sources)), checked)
        plan = make_plan(selection, layout, variants, tokenizer, None if repair is None else Repair.parse(repair))
        diagnostics = (*diagnostics, *plan.warnings)
    warmed = () if failed else (each for _, each in all_encodings(checked, layout, tokenizer))
    shown = view_layout((layout, variants), model_facts, plan, warmed)
    drawn = {svg: svg_picture, html: html_page}
    write_made({path: draw(shown.tree) for path, draw in drawn.items() if path}, files_read(sources, checked))

    def show() -> None:
        if change is None:
            print_layout(shown, stdout(), plan)
        else:
            print_lines(changes)
        print_diagnostics(diagnostics, beside=True)
        tell(*(f"note: {note}" for note in tokenizer.warnings))

    found = [as_data(each) for each in diagnostics]
    data = {**asdict(shown), "against": change, "notes": tokenizer.warnings, "diagnostics": found}
    return Output(data=data, text=show, code=ExitCode.FINDINGS if failed else ExitCode.OK)


def _compare(old: LaidOut, new: LaidOut, token_bytes: int) -> tuple[dict[str, Any], list[str]]:
    """Compare a schema with an earlier version of it: what of its KV stays in use, and what has to be encoded.

    Equal encodings have equal digests, and count once. Encodings behind the module before are not compared, because
    prompts decide which of them exist.

    Returns:
        The comparison for JSON, and as text.
    """

    def num_tokens(variants: Iterable[Variant]) -> int:
        return sum(each.encoding.num_tokens for each in variants)

    before, after = dict[str, Variant](), dict[str, Variant]()
    for found, (_, variants) in ((before, old), (after, new)):
        for each in variants:
            found.setdefault(each.encoding.digest, each)
    kept = [each for digest, each in before.items() if digest in after]
    dropped = [each for digest, each in before.items() if digest not in after]
    needed = [each for digest, each in after.items() if digest not in before]
    nbytes = num_tokens(needed) * token_bytes
    made, lines = [], []
    for each in needed:
        module, count = each.module(new[0]), each.encoding.num_tokens
        is_new = module not in old[0].runs_of  # otherwise its text, or what it attends to, has changed
        made.append({"module": module, "scaffolds": each.scaffolds, "num_tokens": count, "is_new": is_new})
        scaffolds = f" in {', '.join(each.scaffolds)}" if each.scaffolds else ""
        why = "new" if is_new else "encoded again"
        lines.append(f"  {module or ROOT}{scaffolds}  {counted(count, 'token')}, {why}")
    head = (
        f"encodings: {len(kept):,} kept ({counted(num_tokens(kept), 'token')}), "
        f"{len(needed):,} to encode ({counted(num_tokens(needed), 'token')}, {size_text(nbytes)}), "
        f"{len(dropped):,} no longer used ({counted(num_tokens(dropped), 'token')})"
    )
    data = {
        "num_kept": len(kept),
        "num_kept_tokens": num_tokens(kept),
        "num_dropped": len(dropped),
        "num_dropped_tokens": num_tokens(dropped),
        "kv_bytes": nbytes,  # of what has to be encoded
        "needed": made,
    }
    return data, [head, *lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutView:
    """Everything that `promptcache layout` says about a schema.

    Attributes:
        num_positions: Of all modules and whole slots, without the text of a prompt.
        num_tokens: All encoded tokens, those of scaffolds included.
        warm: What `warm` encodes, with pairs of modules and members of collections; nothing of a schema that is too
            long.
        num_combinations: Valid sets of modules; more than that where `combinations_exact` is false.
        tree: The schema, or the prompt if there is one.
        prompt: The counts of a plan; None where no prompt was given.
    """

    schema: str
    model: ModelFacts
    num_positions: int
    num_encodings: int
    num_tokens: int
    kv_bytes: int
    warm: WarmCost
    num_combinations: int
    combinations_exact: bool
    tree: Part
    prompt: Mapping[str, Any] | None


def view_layout(
    laid_out: LaidOut, model: ModelFacts, plan: Plan | None = None, warmed: Iterable[Encoding] = ()
) -> LayoutView:
    """Return a schema as it is shown, or with a plan, a prompt of it.

    Args:
        laid_out: The layout and the variants of the schema.
        model: Says what a token costs.
        plan: Of a prompt for this layout.
        warmed: What `warm` encodes.
    """
    layout, variants = laid_out
    num_tokens = sum(each.encoding.num_tokens for each in variants)
    combinations = count_combinations(layout.schema.rules)
    return LayoutView(
        schema=layout.schema.name,
        model=model,
        num_positions=layout.stop,
        num_encodings=len(variants),
        num_tokens=num_tokens,
        kv_bytes=num_tokens * model.token_bytes,
        warm=WarmCost.of(warmed, model),
        num_combinations=combinations.number,
        combinations_exact=combinations.exact,
        tree=view(plan or layout, model.token_bytes),
        prompt=None if plan is None else plan.counts,
    )


_STYLES = {
    PartKind.TEXT: "dim",
    PartKind.SLOT: "magenta",
    PartKind.TURN: "blue",
    PartKind.MODULE: "bold",
    PartKind.UNION: "yellow",
}


def print_layout(shown: LayoutView, console: Console, plan: Plan | None = None) -> None:
    """Print the tree of a schema or prompt, and below it the plan of the prompt and totals."""
    model = shown.model
    head = Text(shown.schema, style="bold").append(f"  positions [0, {shown.tree.stop:,})", style="not bold")
    head.append(f" · {model}", style="not bold dim")
    tree = Tree(head, guide_style="dim")
    _add(tree, shown.tree)
    console.print(tree)
    if plan is not None:
        print_lines([plan_line(plan, "prompt: ", f"{counted(plan.num_reused_tokens, 'token')} reused")], console)
    encodings = counted(shown.num_encodings, "encoding")
    lines = [f"to be encoded: {counted(shown.num_tokens, 'token')} in {encodings} · {size_text(shown.kv_bytes)}"]
    if shown.warm.num_encodings > shown.num_encodings:
        lines.append(f"by warm, with pairs and members: {shown.warm}")
    more = "" if shown.combinations_exact else "more than "
    lines.append(f"valid combinations of modules: {more}{shown.num_combinations:,}")
    of = "" if model.max_positions is None else f" of {model.max_positions:,}"
    lines.append(f"all modules: {shown.num_positions:,}{of} positions, slots whole")
    print_lines(lines, console)


def _add(tree: Tree, part: Part) -> None:
    """Add the parts of a part. The text of a plain module would only repeat its line."""
    children = [child for child in part.children if child.kind is not PartKind.FRAME]
    if [child.kind for child in children] == [PartKind.TEXT] and part.kind is not PartKind.PROMPT:
        return
    for child in children:
        if not child.present:
            style = "dim"
        elif child.tokens.get(Use.REUSED):  # a part of a prompt
            style = REUSED
        else:
            style = NEW if {Use.NEW, Use.REPAIRED} & child.tokens.keys() else _STYLES.get(child.kind, "")
        label = Text(title(child), style=style)
        _add(tree.add(label.append(f"  {' · '.join(facts(child))}", style="not bold")), child)
