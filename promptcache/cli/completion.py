"""What a shell offers to complete: files of the right kind, parameters of a prompt, codes.

Comes in: what has been typed so far. Goes out: words with a few words of help. What cannot be read offers nothing; the
shell then completes file names by itself. Every command loads this file, so what does the work is imported when a shell
asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import typer

from promptcache.cli.model_folder import DEMO
from promptcache.diagnostics import CODES, PromptCacheError

Offer: TypeAlias = tuple[str, str]
"""A word, and what it is."""

_PLAIN = re.compile(r"[\w./-]+")  # whatever else a file or schema is called, a shell might read as its own
_MAX_FILES = 500


def complete_schemas(incomplete: str) -> list[Offer]:
    """Offer schema files near what has been typed, with the names of their schemas."""
    from promptcache.cli.report import Kind

    return _documents(incomplete, {Kind.SCHEMA})


def complete_prompts(incomplete: str) -> list[Offer]:
    """Offer prompt files near what has been typed."""
    from promptcache.cli.report import Kind

    return _documents(incomplete, {Kind.PROMPT})


def complete_documents(incomplete: str) -> list[Offer]:
    """Offer schema and prompt files near what has been typed."""
    from promptcache.cli.report import Kind

    return _documents(incomplete, {Kind.SCHEMA, Kind.PROMPT})


def complete_arguments(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer the parameters of the prompt that the command line names, each as `name=` or `module/path.name=`."""
    # behind a lone --arg the words before are left unparsed (typer 0.29)
    prompt, schemas = ctx.params.get("prompt") or next(iter(ctx.args), "-"), ctx.params.get("schema") or ()
    if prompt == "-" or "=" in incomplete:
        return []
    from promptcache.cli.request import open_parameters
    from promptcache.cli.sources import Sources

    try:
        found = open_parameters(prompt, [name for name in schemas if name != "-"], Sources())
    except (PromptCacheError, OSError):
        return []
    return _matching(((f"{name}=", about) for name, about in found), incomplete)


def complete_codes(incomplete: str) -> list[Offer]:
    """Offer diagnostic codes with their titles, in the case in which one was begun."""
    codes = ((entry.code.lower() if incomplete.islower() else entry.code, entry.title) for entry in CODES.values())
    return _matching(codes, incomplete)


def complete_models(incomplete: str) -> list[Offer]:
    """Offer the model that ships with the package; folders are completed by the shell."""
    return _matching([(DEMO, "the model that ships with promptcache")], incomplete)


def complete_starters(incomplete: str) -> list[Offer]:
    """Offer the schemas that come with the package."""
    from promptcache.cli.starters import shipped_schemas

    return _matching(((name, "a schema to start from") for name in shipped_schemas()), incomplete)


def _matching(offers: Iterable[Offer], incomplete: str) -> list[Offer]:
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def _documents(incomplete: str, kinds: set[str]) -> list[Offer]:
    """Offer documents in the folder that has been typed so far, and one folder below."""
    from promptcache.cli.files import head_of

    typed = incomplete.rpartition("/")[0] + "/" if "/" in incomplete else ""
    offers: list[Offer] = []
    for path in _files(Path(typed or ".")):
        word = path.as_posix() if typed.startswith("/") or not typed else f"{typed}{path.relative_to(typed).as_posix()}"
        if word.startswith(incomplete) and _PLAIN.fullmatch(word):
            document = head_of(path)
            if document.kind in kinds:
                name = document.schema_name or ""
                offers.append((word, f"schema {name}" if _PLAIN.fullmatch(name) else str(document.kind)))
    return offers


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted([*folder.glob("*.xml"), *folder.glob("*/*.xml")])[:_MAX_FILES]
    except OSError:
        return  # a folder that cannot be listed offers nothing
