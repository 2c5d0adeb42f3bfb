"""`promptcache cache`: look into the folder of a store, verify it, and clean it up.

No command loads weights: each file names its schema and module in its metadata.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from promptcache.cli.console import progress
from promptcache.cli.documents import Sources, read_schemas
from promptcache.cli.exits import EnvironmentMissing, ExitCode, UsageMistake
from promptcache.cli.options import DOCUMENT, Output, context_option, grouped_option, store_option, with_json
from promptcache.cli.output import columns, fact_text
from promptcache.cli.request import TokenLimits, all_encodings
from promptcache.cli.settings import limit_option
from promptcache.codecs import Codec
from promptcache.diagnostics import CorruptEncoding, counted, did_you_mean, size_text
from promptcache.language import Placement
from promptcache.progress import tracked

if TYPE_CHECKING:
    from promptcache.kv import FileTier

_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_SHOWN = 12  # digits of a key

folder_option = store_option("The store's folder.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of a store.

    Attributes:
        used_s: Time of the last use, in seconds since 1970.
        module: Path of the module that it was first made for; "" is the schema's text outside modules.
        model: Name of the model; None in files of an earlier version.
        digest: That of the encoding, without the model.
        fault: Why it cannot be used, as far as its header shows.
    """

    key: str
    nbytes: int
    used_s: float
    schema: str | None = None
    module: str | None = None
    model: str | None = None
    codec: str | None = None
    dtype: str | None = None
    num_tokens: int | None = None
    positions: tuple[int, int] | None = None
    digest: str | None = None
    fingerprint: str | None = None
    fault: str | None = None

    @property
    def name(self) -> str:
        """Schema and module: "travel/miami"."""
        if self.schema is None:
            return "?"
        return f"{self.schema}/{self.module}" if self.module else self.schema


class _Subcommands(click.Group):
    """A group whose help shows the whole first line of each command's help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, (each.help or "").partition("\n")[0]) for name, each in self.commands.items()])


@click.group("cache", cls=_Subcommands, no_args_is_help=True)
def command() -> None:
    """Inspect and clean up a store of KV."""


@command.command("ls")
@click.argument("what", metavar="[WHAT]...", nargs=-1)
@folder_option
@with_json
def ls(_sources: Sources, what: tuple[str, ...], store: str) -> Output:
    """List the encodings of a store.

    WHAT is SCHEMA, SCHEMA/MODULE, or the first digits of a key.
    """
    found = store_entries(open_folder(store))
    found = _chosen(found, what) if what else found
    rows = [("KEY", "KEPT", "TOKENS", "SIZE", "USED", "MODEL", "MADE FOR")]
    for each in found:
        kept = "damaged" if each.fault else f"{each.codec} {each.dtype}"
        tokens = "?" if each.num_tokens is None else f"{each.num_tokens:,}"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used_s))
        names = (fact_text(each.model or "?"), fact_text(each.name))
        rows.append((each.key[:_SHOWN], kept, tokens, size_text(each.nbytes), used, *names))
    lines = columns(rows) if found else []
    total = f"{counted(len(found), 'encoding')}, {size_text(sum(each.nbytes for each in found))}"
    return Output(data=found, text="".join(f"{line}\n" for line in (*lines, total)))


@command.command("verify")
@folder_option
@with_json
def verify(_sources: Sources, store: str) -> Output:
    """Read every file, and report those that are damaged; nothing is removed."""
    tier = open_folder(store)
    with progress() as show:
        verdicts = [*tracked(tier.verify_all(), show, "files", len(tuple(tier.keys())))]
    faults = [str(each.fault) for each in verdicts if each.fault is not None]
    good = [each.nbytes for each in verdicts if each.fault is None]
    files = counted(len(verdicts), "file")
    total = f"{files} read: {len(good):,} good ({size_text(sum(good))}), {len(faults):,} bad"
    text = "".join(f"{line}\n" for line in (*faults, total))
    return Output(data=verdicts, text=text, code=ExitCode.FINDINGS if faults else ExitCode.OK)


@command.command("gc")
@folder_option
@limit_option
@with_json
def gc(_sources: Sources, store: str, limit: int | None) -> Output:
    """Remove unfinished files of killed processes; with --limit, also evict encodings until the store is that small."""
    tier = open_folder(store)
    before, there = tier.nbytes(), set(tier.keys())
    left = tier.gc()
    if limit is not None:
        open_folder(store, limit).gc()
    evicted = sorted(there - set(tier.keys()))
    freed = before - tier.nbytes()
    text = (
        f"removed {counted(len(left), 'unfinished file')}, {counted(len(evicted), 'encoding')} ({size_text(freed)})\n"
    )
    data = {"left_by_writers": left, "evicted": evicted, "evicted_bytes": freed}
    return Output(data=data, text=text)


@command.command("rm")
@click.argument("what", metavar="WHAT...", nargs=-1, required=True)
@folder_option
@with_json
def rm(_sources: Sources, what: tuple[str, ...], store: str) -> Output:
    """Remove encodings.

    WHAT is SCHEMA, SCHEMA/MODULE, or the first digits of a key.
    """
    tier = open_folder(store)
    return _removed(tier, _chosen(store_entries(tier), what))


@command.command("prune")
@grouped_option(
    "Schemas", "--schema", metavar="FILE", multiple=True, required=True, type=DOCUMENT, help="A schema that is in use."
)
@grouped_option(
    "Model",
    "--model",
    metavar="MODEL",
    multiple=True,
    required=True,
    type=DOCUMENT,
    help="A model that is in use: demo, a model's folder, or a hub id.",
)
@context_option
@folder_option
@with_json
def prune(sources: Sources, schema: tuple[str, ...], model: tuple[str, ...], store: str) -> Output:
    """Remove the encodings of schemas that these schemas no longer use with these models.

    They are those of earlier texts, and those for other tokenizers. What other weights with the same tokenizer have
    computed stays. Members that are added at run time are removed, too, and encoded again when a prompt names them.

    Example: promptcache cache prune --schema helpdesk.xml --model FOLDER --store kept
    """
    tier, schemas, used = open_folder(store), read_schemas(schema, sources), set[str]()
    for limits, each, placement in product(map(TokenLimits.of, model), schemas, Placement):
        layout, _ = limits.lay_out(each, placement=placement)
        used.update(made.digest for codec in Codec for _, made in all_encodings(each, layout, limits.tokenizer, codec))
    names = {each.name for each in schemas}
    return _removed(tier, [each for each in store_entries(tier) if each.schema in names and each.digest not in used])


def _removed(tier: FileTier, entries: Sequence[Entry]) -> Output:
    for each in entries:
        tier.delete(each.key)
    nbytes = sum(each.nbytes for each in entries)
    text = f"removed {counted(len(entries), 'encoding')}, {size_text(nbytes)}\n"
    return Output(data={"removed": [each.key for each in entries], "nbytes": nbytes}, text=text)


def open_folder(place: str, limit: int | None = None) -> FileTier:
    """Open the folder of an existing store; a missing folder, and one that is no store, is `EnvironmentMissing`."""
    from promptcache.kv import FileTier, config_of, expand_home

    if config_of(place).folder is None:
        raise UsageMistake(f"--store {place}: only folders can be looked into")
    folder = expand_home(place)
    if not (folder / "encodings").is_dir():
        if folder.exists():
            what = "is no store: it has no folder 'encodings'" if folder.is_dir() else "is not a folder"
        else:
            what = "does not exist"
        raise EnvironmentMissing(f"store '{place}' {what}; `promptcache warm SCHEMA --store {place}` makes one")
    return FileTier(folder, budget_bytes=limit)


def store_entries(tier: FileTier) -> tuple[Entry, ...]:
    """Return the files of a store, by schema, module and position."""
    found = []
    for key, (nbytes, used_s) in tier.files().items():
        facts: dict[str, Any] = {}
        try:
            stored = tier.read_unverified(key)
        except CorruptEncoding as fault:
            stored, facts = None, {"fault": str(fault)}
        if stored is not None:
            recipe = stored.recipe
            facts = {
                **{name: stored.facts.get(name) for name in ("schema", "module", "model")},
                "codec": str(recipe.codec),
                "dtype": str(stored.shape.dtype).removeprefix("torch."),
                "num_tokens": recipe.num_tokens,
                "positions": (recipe.first_position, recipe.last_position),
                "digest": recipe.digest,
                "fingerprint": recipe.fingerprint,
            }
        found.append(Entry(key=key, nbytes=nbytes, used_s=used_s, **facts))
    return tuple(sorted(found, key=lambda each: (each.name, each.codec or "", each.positions or (0, 0), each.key)))


def _chosen(entries: Sequence[Entry], words: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries that words name: SCHEMA, SCHEMA/MODULE with all that is in it, or first digits of a key."""
    chosen: dict[str, Entry] = {}
    for word in words:
        path = word.strip("/")
        named = [each for each in entries if each.schema is not None and f"{each.name}/".startswith(f"{path}/")]
        if not named and _PREFIX.fullmatch(word):
            named = [each for each in entries if each.key.startswith(word)]
        if not named:
            fix = did_you_mean(path, {each.name for each in entries})
            fix = fix or "give a schema, schema/module, or 6 digits of a key or more"
            raise UsageMistake(f"nothing here is called '{word}'; {fix}")
        chosen |= {each.key: each for each in named}
    return tuple(chosen.values())
