"""`promptcache watch`: check, lay out and answer a document again whenever it, or a file that it uses, is saved.

One engine answers all versions, so only what has changed is encoded again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptcache.cli.console import print_diagnostics, progress, show_loading, stdout
from promptcache.cli.documents import DocumentKind, Sources, checked_schema, files_read, read
from promptcache.cli.exits import UsageMistake, ending, show_error
from promptcache.cli.layout import print_layout, view_layout
from promptcache.cli.options import DOCUMENT, model_option, schemas_option
from promptcache.cli.output import tell
from promptcache.cli.request import TokenLimits, all_encodings, read_request
from promptcache.cli.run import print_answer
from promptcache.diagnostics import ContextLengthExceeded, LanguageError
from promptcache.language import CheckedSchema, Prompt, resolve_prompt, walk
from promptcache.tokenizer import Dtype, read_facts

if TYPE_CHECKING:
    from promptcache.engine import Engine

_POLL_S = 0.3


@click.command("watch")
@click.argument("file", metavar="FILE", type=DOCUMENT)
@schemas_option
@model_option()
def command(file: str, schema: tuple[str, ...], model: str) -> None:
    """Check and lay out a document, and answer a prompt, again whenever a file of it is saved.

    FILE is a schema file or a prompt file. Ctrl-C ends.

    Example: promptcache watch prompt.xml --model FOLDER
    """
    with ending(as_json=False):
        if file == "-":
            raise UsageMistake("watch needs a file, and - is standard input")
        watched = _Watched(file, schema, model)
        seen = _stamps({file, *schema})
        while True:
            found = _stamps(watched.show())
            seen = {**found, **seen}  # a file that was saved meanwhile is shown again
            tell("waiting until a file is saved")
            while _stamps(seen) == seen:
                time.sleep(_POLL_S)
            seen = _stamps(seen)


class _Watched:
    """A schema or prompt, and an engine that is loaded for the first valid prompt."""

    def __init__(self, file: str, schema_files: Sequence[str], model: str) -> None:
        self._file, self._schema_files, self._model = file, schema_files, model
        self._limits = TokenLimits.of(model)
        self._engine: Engine | None = None

    def show(self) -> frozenset[str]:
        """Print the faults, or the layout and the answer, and return the names of the files that were used."""
        sources, limits = Sources(), self._limits
        try:
            document = read(self._file, sources)
            prompt = plan = None
            if document.kind is DocumentKind.SCHEMA:
                schema = checked_schema(document)
            else:
                request = read_request(self._file, self._schema_files, (), sources)
                schema, prompt = request.schema, request.prompt
            laid_out = limits.lay_out(schema)
            if prompt is not None:
                plan = limits.plan(resolve_prompt(prompt, schema), laid_out)
            warmed = (each for _, each in all_encodings(schema, laid_out[0], limits.tokenizer))
            facts = read_facts(self._model, limits.folder, Dtype.AUTO)
            print_layout(view_layout(laid_out, facts, plan, warmed), stdout(), plan)
            warnings = (*schema.warnings, *laid_out[0].warnings, *(plan.warnings if plan else ()))
            print_diagnostics(warnings, beside=True)
            if prompt is not None:
                self._answer(schema, prompt)
        except (LanguageError, ContextLengthExceeded) as error:
            show_error(error)
            return frozenset(sources.names)
        used = {*files_read(sources, schema)}
        for _, item in walk(schema.source.children):
            if (src := getattr(item, "src", None)) is not None:
                used.add(str(Path(item.span.source).parent / src))
        return frozenset(used)

    def _answer(self, schema: CheckedSchema, prompt: Prompt) -> None:
        if self._engine is None:
            with progress() as show:
                show_loading(show, self._model)
                from promptcache.engine import Engine

                self._engine = Engine.from_pretrained(self._model)
        self._engine.add_schema(schema)
        print_answer(self._engine.stream(prompt), None)


def _stamps(files: Iterable[str]) -> Mapping[str, tuple[int, int] | None]:
    """Return the time and size of each file, or None if there is none."""
    stamps: dict[str, tuple[int, int] | None] = {}
    for file in files:
        try:
            found = Path(file).stat()
        except OSError:
            stamps[file] = None
        else:
            stamps[file] = found.st_mtime_ns, found.st_size
    return stamps
