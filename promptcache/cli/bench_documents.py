"""`promptcache bench plan` and `check`: what documents cost before a model computes anything.

Comes in: sizes. Goes out: as for all benchmarks.
"""

from __future__ import annotations

import click

from promptcache.cli.bench_options import Session, benchmark, number, numbers, repeats_option
from promptcache.cli.bench_output import NO_MODEL, Measured
from promptcache.cli.sizes import Size


@click.command()
@numbers("--modules", (10, 100, 1000, 2000, 10000), "Modules of the schema; several times to compare.", most=100_000)
@number("--named", 20, "Modules that the prompt names.")
@repeats_option(20)
@benchmark
def plan(session: Session, modules: tuple[int, ...], named: int, repeats: int) -> Measured:
    """Parsing, checking and planning one prompt, in schemas of different sizes."""
    from promptcache.bench.many import measure_planning
    from promptcache.bench.report import hardware

    report = measure_planning(modules, named, repeats, session.progress)
    return Measured(report=report, subject=NO_MODEL, hardware=hardware())


@click.command()
@number("--modules", 2000, "Modules of the generated schema.")
@click.option("--rules", metavar="N", type=click.IntRange(min=0), default=500, help="Rules of it.")
@click.option("--size", metavar="SIZE", type=Size(), default="1 MB", help="Of its file.")
@repeats_option(5)
@benchmark
def check(session: Session, modules: int, rules: int, size: int, repeats: int) -> Measured:
    """The whole command `promptcache check`, in a process of its own: on the starter schema, and on a generated one."""
    from promptcache.bench.checking import Document, measure_checking
    from promptcache.bench.generated import generated_schema
    from promptcache.bench.report import machine
    from promptcache.cli.starters import starter

    documents = (
        Document(name="starter", text=starter("starter", None).schema),
        Document(
            name=f"{modules:,} modules, {rules:,} rules",
            text=generated_schema(modules, rules, size),
            data={"modules": modules, "rules": rules},
        ),
    )
    report = measure_checking(documents, repeats, session.progress)
    return Measured(report=report, subject=NO_MODEL, hardware=machine())
