"""Shell completion: what each option offers, and the scripts that make a shell ask for it.

Every command loads this file, so each function imports what it needs when a shell asks.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from promptcache.cli.exits import ExitCode, UsageMistake
from promptcache.diagnostics import CODES, PromptCacheError

if TYPE_CHECKING:
    from typing import TypeAlias

    from promptcache.language import Collection

    Items: TypeAlias = list[CompletionItem[str]]

NAME = "promptcache"
COMPLETE = "_PROMPTCACHE_COMPLETE"
"""The environment variable that a shell sets to ask for completions."""

_SHELLS = ("bash", "zsh", "fish", "powershell")
_START_FILES = {"bash": ".bashrc", "zsh": ".zshrc"}
_PLAIN = re.compile(r"[\w./-]+")  # a shell could expand anything else
_MAX_FILES = 500
_MAX_NAMES = 100


def complete_schemas(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer schema files with the names of their schemas."""
    return _documents(incomplete, "schema")


def complete_prompts(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer prompt files."""
    return _documents(incomplete, "prompt")


def complete_documents(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer schema and prompt files."""
    return _documents(incomplete, "schema", "prompt")


def complete_arguments(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer the parameters of the prompt on the command line as `name=`, and after the `=` their choices."""
    # after a lone --arg, click 8.5 leaves the words before it unparsed
    typed = ctx.params.get("prompt") or ctx.params.get("document")
    prompt, schemas = typed or next(iter(ctx.args), "-"), ctx.params.get("schema") or ()
    if prompt == "-":
        return []
    from promptcache.cli.request import described, open_parameters
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


def complete_collections(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer the paths of the collections that have a file, of the schema on the command line."""
    found = _collections(ctx)
    return _items(((path, f"members in {each.src}") for path, each in found.items() if each.src), incomplete)


def complete_members(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer the members in the file of the collection on the command line.

    Of more than `_MAX_NAMES` members only the next character is offered, because shells take long for each word.
    """
    path = ctx.params.get("collection") or next(iter(ctx.args[1:]), "")
    collection = _collections(ctx).get(path.strip("/"))
    if collection is None:
        return []
    names = [each for each in collection.listed if each.startswith(incomplete) and _PLAIN.fullmatch(each)]
    if len(names) > _MAX_NAMES:
        length = len(os.path.commonprefix(names)) + 1  # noqa: RUF071 - characters are meant
        names = [*dict.fromkeys(each[:length] for each in names)]
    return _items(((each, "") for each in sorted(names)), incomplete)


def _collections(ctx: click.Context) -> Mapping[str, Collection]:
    """Return the collections of the schema on the command line, by path; none of a schema with faults."""
    schema = ctx.params.get("schema") or next(iter(ctx.args), "-")  # unparsed, as for --arg
    if schema == "-":
        return {}
    from promptcache.cli.files import read_collections
    from promptcache.cli.sources import Sources

    try:
        return read_collections(schema, Sources())[1]
    except (PromptCacheError, OSError):
        return {}


def complete_codes(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer diagnostic codes with their titles, in the case that the user began with."""
    lower = incomplete.islower()
    return _items(((each.code.lower() if lower else each.code, each.title) for each in CODES.values()), incomplete)


def complete_models(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer the model that ships with the package, otherwise folders."""
    return _items([("demo", "the model that ships with promptcache")], incomplete, otherwise="dir")


def complete_starters(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Offer the schemas that come with the package."""
    from promptcache.cli.files import shipped_schemas

    return _items(((name, "a schema to start from") for name in shipped_schemas()), incomplete)


def _items(offers: Iterable[tuple[str, str]], incomplete: str, otherwise: str = "") -> Items:
    """Return the words that continue `incomplete`. If there are none, the shell completes `otherwise` itself."""
    found = [CompletionItem(word, help=about or None) for word, about in offers if word.startswith(incomplete)]
    return found or ([CompletionItem(incomplete, type=otherwise)] if otherwise else [])


def _documents(incomplete: str, *kinds: str) -> Items:
    """Offer documents in the typed folder and one folder below."""
    from promptcache.cli.files import head_of

    def offers() -> Iterator[tuple[str, str]]:
        typed = incomplete.rpartition("/")[0] + "/" if "/" in incomplete else ""
        for path in _xml_files(Path(typed or ".")):
            word = path.as_posix()
            if typed and not typed.startswith("/"):
                word = f"{typed}{path.relative_to(typed).as_posix()}"
            if word.startswith(incomplete) and _PLAIN.fullmatch(word):
                document = head_of(path)
                if document.kind in kinds:
                    name = document.schema_name or ""
                    yield word, f"schema {name}" if _PLAIN.fullmatch(name) else str(document.kind)

    return _items(offers(), incomplete, otherwise="file")


def _xml_files(folder: Path) -> list[Path]:
    try:
        return sorted([*folder.glob("*.xml"), *folder.glob("*/*.xml")])[:_MAX_FILES]
    except OSError:
        return []


@add_completion_class
class _Bash(BashComplete):
    """Completion for bash, which splits `name=value` into three words and expects the value alone."""

    _typed = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(os.environ["COMP_WORDS"])
        place = int(os.environ["COMP_CWORD"])
        done = [*words[: place + 1], *([""] if place >= len(words) else [])]
        joined = done[:1]
        for before, word in pairwise(done):
            if word and (_is_equals(word) or _is_equals(before)):
                joined[-1] += word
            else:
                joined.append(word)
        self._typed = joined[-1]
        return joined[1:-1], self._typed

    def format_completion(self, item: CompletionItem[Any]) -> str:
        typed, equals, _ = self._typed.rpartition("=")
        return f"{item.type},{str(item.value).removeprefix(typed + equals)}"


def _is_equals(word: str) -> bool:
    return word != "" and not word.strip("=")


def complete(app: click.Command, asked: str) -> NoReturn:
    """Answer a shell that asks for completions, and exit; a call without the shell's variables is a usage error."""
    try:
        sys.exit(shell_complete(app, {}, NAME, COMPLETE, asked))
    except (KeyError, ValueError):
        sys.exit(ExitCode.USAGE)


def script(app: click.Command, shell: str) -> str:
    """Return the script that makes a shell complete our commands.

    Raises:
        UsageMistake: There is no script for this shell.
    """
    found = get_completion_class(shell) if shell in _SHELLS else None
    if found is None:
        raise UsageMistake(f"no completion for the shell '{shell}'; there is one for {', '.join(_SHELLS)}")
    return found(app, {}, NAME, COMPLETE).source()


def install(app: click.Command) -> list[str]:
    """Set up the shell of `$SHELL`, and return what was done. A second call changes nothing.

    Raises:
        UsageMistake: The shell or the home folder is not known.
    """
    shell = Path(os.environ.get("SHELL", "")).name
    if shell != "fish" and shell not in _START_FILES:
        known = f"SHELL is '{shell}'" if shell else "SHELL is not set"
        raise UsageMistake(f"{known}: write what --show-completion SHELL prints into your shell's start file")
    try:
        home = Path.home()
    except RuntimeError:
        fix = "set HOME, or write what --show-completion SHELL prints into your shell's start file"
        raise UsageMistake(f"there is no home folder: {fix}") from None
    if shell == "fish":
        file = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "fish", "completions", f"{NAME}.fish")
    else:
        file = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share", NAME, f"completion.{shell}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script(app, shell), encoding="utf-8")
    done = [f"wrote {file}"]
    if shell in _START_FILES:
        start, line = home / _START_FILES[shell], f"source {shlex.quote(str(file))}"
        if line.encode() not in (start.read_bytes().splitlines() if start.exists() else []):
            with start.open("ab") as opened:
                opened.write(f"\n{line}\n".encode())
            done.append(f"added a line to {start}")
    return [*done, "start a new shell to complete with Tab"]
