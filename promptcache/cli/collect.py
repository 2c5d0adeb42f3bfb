"""`promptcache collect`: write the file of members of a collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from promptcache.cli.console import progress
from promptcache.cli.documents import Sources, checked_schema, read, write_made
from promptcache.cli.exits import UsageMistake
from promptcache.cli.options import DOCUMENT, Output, context_option, schema_argument, with_json
from promptcache.cli.output import tell
from promptcache.diagnostics import LanguageError, did_you_mean
from promptcache.language import (
    MAX_BYTES,
    Collection,
    MemberFields,
    as_name,
    join_path,
    parse_members,
    walk,
    write_members,
)
from promptcache.progress import tracked


@click.command("collect")
@schema_argument
@click.argument("collection", metavar="COLLECTION")
@click.argument("files", metavar="[FILE...]", nargs=-1, type=DOCUMENT)
@click.option("--name-field", metavar="FIELD", help="The field of JSON lines that has the name; default: name.")
@click.option("--text-field", metavar="FIELD", help="The field of JSON lines that has the text; default: text.")
@click.option(
    "--metadata",
    metavar="FIELD",
    multiple=True,
    help="A field of JSON lines that prompts show above the text, as FIELD: value; may be given several times.",
)
@click.option("--remove", metavar="NAME", multiple=True, help="A member to take out; may be given several times.")
@context_option
@with_json
def command(
    sources: Sources,
    schema: str,
    collection: str,
    files: Sequence[str],
    name_field: str | None,
    text_field: str | None,
    metadata: tuple[str, ...],
    remove: Sequence[str],
) -> Output:
    """Put files into a collection of a schema, or take members out.

    SCHEMA is a schema file, and COLLECTION the path of a collection in it with src="…": that file is written.

    FILE is a text, which becomes the member of its name, a folder of texts, or JSON lines (.jsonl) with name and text.

    Example: promptcache collect helpdesk.xml articles texts/
    """
    own = name_field or text_field or metadata
    fields = MemberFields(name_field or "name", text_field or "text", metadata) if own else None
    document = read(schema, sources)
    items = walk(checked_schema(document).source.children)
    known = {join_path(parent, item.name): item for parent, item in items if isinstance(item, Collection)}
    if document.path is None:
        raise UsageMistake("the file of members is in the folder of the schema: name the schema's file")
    found = known.get(collection.strip("/"))
    if found is None:
        fix = did_you_mean(collection, known) or (f"there are {', '.join(known)}" if known else "it has none")
        raise UsageMistake(f"{schema} has no collection '{collection}'; {fix}")
    if found.src is None:
        source = f'src="{found.name}.jsonl"'
        raise UsageMistake(f"collection '{collection}' has no file of members: write {source} in {schema}")
    target = document.folder / found.src
    before = {name: member.text for name, member in found.listed.items()}
    with progress() as show:
        given = _texts(tracked(_files(files), show, "reading files"), fields)
    if clash := next((each.name for each in found.members if each.name in given), None):
        raise UsageMistake(f"the schema itself has a member '{clash}': give the file another name")
    for name in remove:
        if name not in before:
            near = did_you_mean(name, before)
            raise UsageMistake(f"{target} has no member '{name}'{f'; {near}' if near else ''}")
    after = {name: text for name, text in {**before, **given}.items() if name not in remove}
    if after != before:
        write_made({target: "".join(write_members(after))}, frozenset())
    counts = {
        "added": sum(name not in before for name in after),
        "replaced": sum(name in before and text != before[name] for name, text in after.items()),
        "removed": sum(name not in after for name in before),
    }
    words = ", ".join(f"{count} {what}" for what, count in counts.items())
    data = {"file": str(target), **counts, "members": len(after)}
    return Output(data=data, text=partial(tell, f"{target}: {words}; {len(after)} members"))


def _texts(paths: Iterable[Path], fields: MemberFields | None) -> dict[str, str]:
    """Return the texts of files by the names that their members have."""
    texts: dict[str, str] = {}
    origin: dict[str, Path] = {}
    for path in paths:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                members = parse_members(lines, str(path), fields)
            if isinstance(members, list):
                raise LanguageError(members)
            found = {name: member.text for name, member in members.items()}
        else:
            data = path.read_bytes()
            if len(data) > MAX_BYTES:
                raise UsageMistake(f"{path} has more than {MAX_BYTES} bytes, the most that a member can have")
            try:
                found = {as_name(path.stem): data.decode("utf-8-sig").strip()}
            except UnicodeDecodeError as fault:
                where = f"byte 0x{data[fault.start]:02x} at {fault.start}"
                raise UsageMistake(f"{path} is not UTF-8 text: {where}") from None
        for name, own in found.items():
            if not own:
                raise UsageMistake(f"{path} is empty")
            if texts.setdefault(name, own) != own:
                raise UsageMistake(f"{origin[name]} and {path} both give member '{name}': rename one of the files")
            origin[name] = path
    return texts


def _files(names: Iterable[str]) -> Iterator[Path]:
    """Yield files, and the files of folders and of folders in them, but not hidden ones."""
    for name in names:
        path = Path(name)
        if not path.is_dir():
            yield path
            continue
        for each in sorted(path.rglob("*")):
            if each.is_file() and not any(part.startswith(".") for part in each.relative_to(path).parts):
                yield each
