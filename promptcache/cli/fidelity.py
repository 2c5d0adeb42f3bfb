"""`promptcache fidelity`: how far reuse is from ordinary prefill over a schema's prompts, and which settings to use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from promptcache.cli.console import print_lines, progress, stdout
from promptcache.cli.documents import (
    InputDocument,
    Sources,
    check_target,
    checked_schema,
    files_read,
    read,
    replace_file,
)
from promptcache.cli.exits import EnvironmentMissing, ExitCode, UsageMistake
from promptcache.cli.options import GroupedCommand, Output, context_option, output_file, schema_argument, with_json
from promptcache.cli.output import plain, tell
from promptcache.cli.settings import OF_ENCODINGS, EngineOptions, Value, collected, engine_options
from promptcache.cli.test import find_hypothesis
from promptcache.diagnostics import counted, millinats_text, number, size_text, whole
from promptcache.language import as_name, is_template, with_root_attribute
from promptcache.timing import hardware

if TYPE_CHECKING:
    from promptcache.fidelity import Fidelity, SettingFidelity


@click.command("fidelity", cls=GroupedCommand)
@schema_argument
@collected("engine", engine_options(has_store=False, only=OF_ENCODINGS), EngineOptions.of)
@click.option(
    "--prompts",
    metavar="N",
    type=Value(whole(0), "prompts"),
    default=8,
    help="Random valid prompts beside the schema's examples; 0 takes the examples only.",
)
@click.option(
    "--seed", metavar="N", type=Value(whole(0, 2**63 - 1), "seed"), default=0, help="Seed of the random prompts."
)
@click.option(
    "--max-new-tokens",
    metavar="N",
    type=Value(whole(1, unit="tokens"), "max-new-tokens"),
    default=32,
    help="Maximum number of tokens of each answer to compare.",
)
@click.option(
    "--setting",
    "settings",
    metavar="SETTING",
    multiple=True,
    help="Compare only this, such as context=guaranteed, repair=first-8 or promoted; may be given several times.",
)
@click.option(
    "--max-kl",
    metavar="MILLINATS",
    type=Value(number(0), "max-kl"),
    help="Highest mean KL divergence that is good enough, in thousandths of a nat; exit with 1 if the schema has more.",
)
@click.option("--write", "write", is_flag=True, help="Write the recommended attribute into the schema file.")
@output_file("--svg", words="Where KL divergence is drawn over TTFT, with matplotlib; default: NAME-fidelity.svg.")
@context_option
@with_json
def command(
    sources: Sources,
    schema: str,
    engine: EngineOptions,
    prompts: int,
    seed: int,
    max_new_tokens: int,
    settings: tuple[str, ...],
    max_kl: float | None,
    write: bool,
    svg: Path | None,
) -> Output:
    """Show how far a schema's cached requests are from ordinary prefill, and which settings to use.

    SCHEMA is a schema file; - is standard input.

    Example: promptcache fidelity helpdesk.xml --model FOLDER --max-kl 5
    """
    document = read(schema, sources)
    if write and document.path is None:
        raise UsageMistake("--write changes a schema file, and this schema is standard input: write it to a file first")
    if write and is_template(document.name):
        raise UsageMistake(f"--write: {document.name} is a template; write the attribute into it by hand")
    checked = checked_schema(document)
    if svg is not None:
        check_target(svg, files_read(sources, checked))
        if find_spec("matplotlib") is None:
            raise EnvironmentMissing("--svg needs matplotlib: pip install 'promptcache[plot]'")
    if prompts:
        find_hypothesis("random prompts need Hypothesis", "--prompts 0 to take the examples only")
    loaded = engine.load()
    from promptcache.fidelity import SETTINGS, Setting, measure_fidelity

    with progress() as show:
        fidelity = measure_fidelity(
            loaded,
            checked,
            num_prompts=prompts,
            seed=seed,
            max_new_tokens=max_new_tokens,
            settings=tuple(map(Setting.named, dict.fromkeys(settings))) or SETTINGS,
            keep=engine.keep,
            progress=show,
        )
    limit = None if max_kl is None else max_kl / 1000
    recommended = fidelity.recommend(limit)
    written = write and _write(document, recommended)

    def draw(path: Path) -> None:
        from promptcache.fidelity.plot import plot_fidelity

        shape = loaded.model.shape
        facts = {"model": engine.model, "dtype": str(shape.dtype).removeprefix("torch."), "device": str(shape.device)}
        plot_fidelity(fidelity, path, model=facts, hardware=hardware())

    if svg is not None:
        draw(svg)
    failed = limit is not None and fidelity.as_it_is.divergence.value > limit and not written

    def show_result() -> None:
        stdout().print(_table(fidelity))
        print_lines(_verdict(fidelity, recommended, limit, written=written, failed=failed))
        if svg is None and find_spec("matplotlib") is not None:
            path = Path(f"{as_name(fidelity.schema)}-fidelity.svg")
            with suppress(OSError):  # it was not asked for
                draw(path)
                tell(f"wrote {path}")

    data = {
        **plain(fidelity),
        "settings": [{**plain(each), "setting": each.name} for each in fidelity.settings],
        "refused": [{"setting": name, "reason": reason} for name, reason in fidelity.refused],
        "schema": {"name": fidelity.schema, "file": document.name},
        "model": engine.model,
        "recommended": recommended and recommended.name,
        "max_kl": limit,
        "written": written,
        "passed": not failed,
    }
    return Output(data=data, text=show_result, code=ExitCode.FINDINGS if failed else ExitCode.OK)


def _write(document: InputDocument, recommended: SettingFidelity | None) -> bool:
    """Write the recommended attribute into the root element; return whether there is one."""
    if document.path is None or recommended is None or not recommended.setting.attribute:
        return False
    if document.path.read_bytes() != document.data:
        raise UsageMistake(f"--write: {document.name} was changed while it was measured; nothing was written")
    setting = recommended.setting
    replace_file(document.path, with_root_attribute(document.data, setting.attribute, setting.value))
    return True


def _table(fidelity: Fidelity) -> Table:
    title = f"{fidelity.schema}: {counted(len(fidelity.prompts), 'prompt')} beside ordinary prefill (95 % intervals)"
    heads = ("setting", "KL divergence, millinats", "same token, %", "same answer, %", "exact, %", "TTFT, %", "stored")
    table = Table(*heads, title=title)
    for each in fidelity.settings:
        value, low, high = map(millinats_text, (each.divergence.value, each.divergence.low, each.divergence.high))
        shares = (each.agreement, each.same_answer, each.exact, each.relative_ttft)
        percents = (f"{100 * share:.0f}" for share in shares)
        table.add_row(each.name, f"{value} ({low} to {high})", *percents, size_text(each.nbytes))
    return table


def _verdict(
    fidelity: Fidelity, recommended: SettingFidelity | None, limit: float | None, *, written: bool, failed: bool
) -> Iterator[Text]:
    """Yield the furthest prompt, what was left out, whether the schema is near enough, and the recommended setting."""
    worst = max(fidelity.prompts, key=lambda each: each.divergence)
    yield Text(f"\nfurthest prompt: {worst.name}, {millinats_text(worst.divergence)} millinats")
    for name, reason in fidelity.refused:
        yield Text(f"left out: {name}: {reason}", style="dim")
    here = fidelity.as_it_is.divergence.value
    if limit is not None and here > limit:
        above = f"{millinats_text(here - limit)} above the limit of {millinats_text(limit)}"
        yield Text(f"the schema as it is: {millinats_text(here)} millinats, {above}", style="red" if failed else "")
    if recommended is None:
        nearest = min(fidelity.settings, key=lambda each: each.divergence.value)
        yield Text(
            f"no setting that can be recommended is near enough; the nearest is {nearest.name} with {_cost(nearest)}"
        )
    elif recommended is fidelity.as_it_is:
        yield Text("recommended: keep the schema as it is", style="bold")
    else:
        done = "written into the root element" if written else "in the root element; --write writes it"
        yield Text.assemble(
            ("recommended: ", "bold"), (recommended.setting.xml, "bold"), f" {done} ({_cost(recommended)})"
        )


def _cost(each: SettingFidelity) -> str:
    share = f"{100 * each.relative_ttft:.0f} % of ordinary prefill"
    return f"{millinats_text(each.divergence.value)} millinats, TTFT {share}"
