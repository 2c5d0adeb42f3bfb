"""What a shell offers to complete: files of the right kind, parameters of a prompt and their choices, codes.

Comes in: what has been typed so far. Goes out: words with a few words of help. Where nothing can be offered, the shell
is told to complete file names by itself. Every command loads this file, so what does the work is imported when a shell
asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from promptcache.cli.model_folder import DEMO
from promptcache.diagnostics import CODES, PromptCacheError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Items: TypeAlias = list[CompletionItem[str]]

Offer: TypeAlias = tuple[str, str]
"""A word, and what it is."""

_PLAIN = re.compile(r"[\w./-]+")  # whatever else a file or schema is called, a shell might read as its own
_MAX_FILES = 500


def complete_schemas(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer schema files near what has been typed, with the names of their schemas."""
    from promptcache.cli.report import Kind

    return _items(_documents(incomplete, {Kind.SCHEMA}), incomplete, otherwise="file")


def complete_prompts(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer prompt files near what has been typed."""
    from promptcache.cli.report import Kind

    return _items(_documents(incomplete, {Kind.PROMPT}), incomplete, otherwise="file")


def complete_documents(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer schema and prompt files near what has been typed."""
    from promptcache.cli.report import Kind

    return _items(_documents(incomplete, {Kind.SCHEMA, Kind.PROMPT}), incomplete, otherwise="file")


def complete_arguments(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer the parameters of the prompt that the command line names, as `name=`; behind the `=`, their choices."""
    # behind a lone --arg the words before are left unparsed (click 8.5)
    prompt, schemas = ctx.params.get("prompt") or next(iter(ctx.args), "-"), ctx.params.get("schema") or ()
    if prompt == "-":
        return []
    from promptcache.cli.parameter_text import described
    from promptcache.cli.request import open_parameters
    from promptcache.cli.sources import Sources

    try:
        found = open_parameters(prompt, [name for name in schemas if name != "-"], Sources())
    except (PromptCacheError, OSError):
        return []
    if "=" not in incomplete:
        return _items(((f"{name}=", described(parameter)) for name, parameter in found), incomplete)
    named = incomplete.partition("=")[0]
    choices = (choice for name, parameter in found if name == named for choice in parameter.choices)
    return _items(((f"{named}={choice}", "") for choice in choices if _PLAIN.fullmatch(choice)), incomplete)


def complete_codes(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer diagnostic codes with their titles, in the case in which one was begun."""
    codes = ((entry.code.lower() if incomplete.islower() else entry.code, entry.title) for entry in CODES.values())
    return _items(codes, incomplete)


def complete_models(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer the model that ships with the package, else folders."""
    return _items([(DEMO, "the model that ships with promptcache")], incomplete, otherwise="dir")


def complete_starters(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer the schemas that come with the package."""
    from promptcache.cli.starters import shipped_schemas

    return _items(((name, "a schema to start from") for name in shipped_schemas()), incomplete)


def _items(offers: Iterable[Offer], incomplete: str, otherwise: str = "") -> Items:
    """Return the offers that go on as was begun; where there are none, `otherwise` says what the shell completes."""
    from click.shell_completion import CompletionItem

    found = [CompletionItem(word, help=about or None) for word, about in offers if word.startswith(incomplete)]
    return found or ([CompletionItem(incomplete, type=otherwise)] if otherwise else [])


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
