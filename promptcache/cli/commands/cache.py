"""`promptcache cache`: the commands that look into a store's folder, and their options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from promptcache.cli.completion import complete_schemas
from promptcache.cli.exits import ExitCode, UsageMistake, ending
from promptcache.cli.model_folder import Dtype
from promptcache.cli.options import (
    FILE,
    CommandGroup,
    context_option,
    device_option,
    dtype_option,
    json_option,
    keep_option,
    limit_option,
    model_option,
    output_file,
    store_option,
)

store = store_option("The store's folder.")
some = click.argument("what", metavar="WHAT...", nargs=-1, required=True)
perhaps = click.argument("what", metavar="[WHAT]...", nargs=-1)


@click.group("cache", cls=CommandGroup, no_args_is_help=True)
def command() -> None:
    """Look into a store of KV: list, verify, pin, clean up, export, import."""


@command.command("ls")
@perhaps
@store
@json_option
def ls(what: tuple[str, ...], store: str, as_json: bool) -> None:
    """List the encodings of a store.

    WHAT is SCHEMA, SCHEMA/MODULE, or the first digits of a key.
    """
    with ending(as_json=as_json):
        from promptcache.cli.cache import chosen, entries, entries_data, list_text
        from promptcache.cli.stores import open_folder

        found = entries(open_folder(store))
        found = chosen(found, what) if what else found
        _write(entries_data(found), list_text(found), as_json=as_json)


@command.command("info")
@perhaps
@store
@json_option
def info(what: tuple[str, ...], store: str, as_json: bool) -> None:
    """Say what a store holds in all, or everything about some encodings.

    WHAT is SCHEMA, SCHEMA/MODULE, or the first digits of a key.
    """
    with ending(as_json=as_json):
        from promptcache.cli.cache import chosen, entries, entries_data, entry_text, summary_data, summary_text
        from promptcache.cli.stores import open_folder

        tier = open_folder(store)
        found = entries(tier)
        if what:
            found = chosen(found, what)
            _write(entries_data(found), "\n".join(map(entry_text, found)), as_json=as_json)
        else:
            summary = summary_data(tier, found)
            _write(summary, summary_text(summary), as_json=as_json)


@command.command("verify")
@store
@json_option
def verify(store: str, as_json: bool) -> None:
    """Read every file, and say of each whether it may be served; nothing is moved."""
    with ending(as_json=as_json):
        from promptcache.cli.cache import verdicts_text
        from promptcache.cli.console import progress
        from promptcache.cli.stores import open_folder

        shelf = open_folder(store)
        total = len(tuple(shelf.keys()))
        verdicts, done = [], 0
        with progress() as show:
            for verdict in shelf.verify_all():
                verdicts.append(verdict)
                done += not verdict.foreign
                show("files", done, total)
        _write([each._asdict() for each in verdicts], verdicts_text(verdicts), as_json=as_json)
        if any(each.fault is not None for each in verdicts):
            raise click.exceptions.Exit(ExitCode.FINDINGS)


@command.command("gc")
@store
@limit_option
@click.option("--quarantine", is_flag=True, help="Remove the files that were set aside, too.")
@json_option
def gc(store: str, limit: int | None, quarantine: bool, as_json: bool) -> None:
    """Remove what killed processes left, and with --limit what is missed least."""
    with ending(as_json=as_json):
        from promptcache.cli.output import counted
        from promptcache.cli.sizes import size_text
        from promptcache.cli.stores import open_folder

        tier = open_folder(store)
        before, there = tier.nbytes(), set(tier.keys())
        left = tier.gc()
        emptied = tier.empty_quarantine() if quarantine else ()
        if limit is not None:
            open_folder(store, limit).trim()
        evicted = sorted(there - set(tier.keys()))
        freed = before - tier.nbytes()
        data = {"left_by_writers": left, "set_aside": emptied, "evicted": evicted, "evicted_bytes": freed}
        text = f"removed {counted(len(left), 'unfinished file')}, {counted(len(emptied), 'file')} that had been set "
        text += f"aside, {counted(len(evicted), 'encoding')} ({size_text(freed)})\n"
        _write(data, text, as_json=as_json)


@command.command("pin")
@some
@store
@json_option
def pin(what: tuple[str, ...], store: str, as_json: bool) -> None:
    """Keep encodings from eviction.

    WHAT is SCHEMA, SCHEMA/MODULE, or the first digits of a key.
    """
    _each(what, store, "pinned", lambda tier, key: tier.pin(key), as_json=as_json)


@command.command("unpin")
@some
@store
@json_option
def unpin(what: tuple[str, ...], store: str, as_json: bool) -> None:
    """Let encodings be evicted again.

    WHAT is SCHEMA, SCHEMA/MODULE, or the first digits of a key.
    """
    _each(what, store, "unpinned", lambda tier, key: tier.unpin(key), as_json=as_json)


@command.command("rm")
@some
@store
@json_option
def rm(what: tuple[str, ...], store: str, as_json: bool) -> None:
    """Remove encodings, pinned or not; whoever needs them makes them anew.

    WHAT is SCHEMA, SCHEMA/MODULE, or the first digits of a key.
    """
    _each(what, store, "removed", lambda tier, key: tier.delete(key), as_json=as_json)


@command.command("export")
@click.argument("schemas", metavar="SCHEMA...", nargs=-1, required=True, shell_complete=complete_schemas)
@output_file("-o", "--output", required=True, words="The archive to write.")
@model_option()
@device_option
@dtype_option
@keep_option
@store
@context_option
@json_option
def export(
    schemas: tuple[str, ...],
    output: Path,
    model: str,
    device: str | None,
    dtype: str,
    keep: str,
    store: str,
    context: Path | None,
    as_json: bool,
) -> None:
    """Pack the encodings of schemas, as one model computed them, into one archive.

    SCHEMA is a schema file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.files import files_read
        from promptcache.cli.stores import open_folder
        from promptcache.cli.warm import WarmOptions, read_schemas
        from promptcache.cli.written import check_target

        checked = read_schemas(schemas, sources)
        check_target(output, files_read(sources, *checked))
        if output.exists() and not output.is_file():
            raise UsageMistake(f"--output {output}: is a pipe or a device; an archive is a file")
        open_folder(store)
        from promptcache.cli.exporting import export_schemas, exported_text

        options = WarmOptions(model=model, device=device, dtype=Dtype(dtype), store=store, limit=None, keep=keep)
        moved = export_schemas(checked, options, output)
        _write({"archive": str(output), **moved._asdict()}, exported_text(moved, output), as_json=as_json)


@command.command("import")
@click.argument("archive", metavar="ARCHIVE", type=FILE)
@store
@limit_option
@json_option
def import_(archive: Path, store: str, limit: int | None, as_json: bool) -> None:
    """Put the encodings of an archive into a store, once every one of them is verified."""
    with ending(as_json=as_json):
        from promptcache.cli.exporting import import_archive, imported_text

        moved = import_archive(archive, store, limit)
        _write({"archive": str(archive), **moved._asdict()}, imported_text(moved, store), as_json=as_json)


def _each(what: Sequence[str], store: str, done: str, deed: Callable[[Any, str], object], *, as_json: bool) -> None:
    with ending(as_json=as_json):
        from promptcache.cli.cache import chosen, entries
        from promptcache.cli.output import counted
        from promptcache.cli.sizes import size_text
        from promptcache.cli.stores import open_folder

        tier = open_folder(store)
        found = chosen(entries(tier), what)
        for each in found:
            deed(tier, each.key)
        nbytes = sum(each.nbytes for each in found)
        text = f"{done} {counted(len(found), 'encoding')}, {size_text(nbytes)}\n"
        _write({done: [each.key for each in found], "nbytes": nbytes}, text, as_json=as_json)


def _write(data: object, text: str, *, as_json: bool) -> None:
    from promptcache.cli.output import write_json, write_text

    if as_json:
        write_json(data)
    else:
        write_text(text)
