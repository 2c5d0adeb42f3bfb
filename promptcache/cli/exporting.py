"""Archives of encodings: the work of `promptcache cache export` and `import`.

Comes in: checked schemas with a model, or an archive. Goes out: an archive, or encodings in a store's folder. Which
encodings are a schema's the model and its tokenizer say, so exporting loads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from promptcache.cli.answer import engine_on
from promptcache.cli.console import progress, show_loading
from promptcache.cli.exits import EnvironmentMissing, UsageMistake
from promptcache.cli.output import counted
from promptcache.cli.sizes import size_text
from promptcache.cli.stores import open_folder
from promptcache.cli.warm import WarmOptions
from promptcache.kv import ArchiveReport, DiskTier, config_of, read_archive, write_archive
from promptcache.language import CheckedSchema


def export_schemas(schemas: Sequence[CheckedSchema], options: WarmOptions, target: Path) -> ArchiveReport:
    """Pack everything of these schemas.

    Raises:
        EnvironmentMissing: Not all of it is in the store.
        PromptCacheError: The model or the store cannot be used.
    """
    with progress() as show:
        show_loading(show, options.model)
        engine = engine_on(options.model, options.device, options.dtype, None)
        keys: dict[str, None] = {}
        for schema in schemas:
            engine.add_schema(schema.source, keep=options.keep)
            keys |= dict.fromkeys(engine.keys(schema.name))
        tier = open_folder(options.store)
        missing = len(keys.keys() - set(tier.keys()))
        if missing:
            raise EnvironmentMissing(
                f"{missing:,} of {counted(len(keys), 'encoding')} are not in {options.store}; run `promptcache warm` "
                "first, with the same model, dtype and --keep"
            )
        show("packing", 0, None)
        about = {"schemas": ", ".join(schema.name for schema in schemas), "model": options.model, "keep": options.keep}
        return write_archive(tier, tuple(keys), target, about)


def import_archive(source: Path, store: str, limit: int | None) -> ArchiveReport:
    """Put everything that an archive holds into a store's folder, which is made where it is missing."""
    if config_of(store).folder is None:
        raise UsageMistake(f"--store {store}: only folders take archives")
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise UsageMistake(f"{source} is a pipe or a device; an archive is read twice, so that it has to be a file")
    with progress() as show:
        show("verifying and unpacking", 0, None)
        return read_archive(source, DiskTier(store, budget_bytes=limit))


def exported_text(moved: ArchiveReport, target: Path) -> str:
    """Say in a line what was packed."""
    return f"packed {counted(len(moved.keys), 'encoding')}, {size_text(moved.nbytes)}, into {target}\n"


def imported_text(moved: ArchiveReport, store: str) -> str:
    """Say in a line what was unpacked."""
    there = len(moved.keys) - moved.new
    line = f"verified {counted(len(moved.keys), 'encoding')}, {size_text(moved.nbytes)}; put {moved.new:,} into {store}"
    return f"{line}, {there:,} were there\n" if there else f"{line}\n"
