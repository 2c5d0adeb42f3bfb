"""Schemas to start from: a small commented one, and those in `schemas/`.

Comes in: a name for the new schema, and which one to start from. Goes out: files as names and texts. This file writes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import quoteattr

import promptcache
from promptcache.cli.exits import UsageMistake
from promptcache.diagnostics import did_you_mean
from promptcache.language import parse_schema
from promptcache.language.examples import example_prompt
from promptcache.language.format.formatter import format_document

_PACKAGE = Path(promptcache.__file__).parent
FOLDERS = (_PACKAGE / "schemas", _PACKAGE.parent / "schemas")
"""Where the schemas lie when installed (pyproject.toml puts them there), and in a checkout."""

_STARTER = Path(__file__).with_name("starter.xml")
_SOURCE = re.compile(r'\bsrc="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A schema and what belongs to it.

    Attributes:
        schema: The document, under its new name.
        prompt: A prompt for it: its first valid example.
        sources: The files that its modules take their text from, by their path below the schema's folder.
    """

    schema: str
    prompt: str
    sources: Mapping[str, str]


def shipped_schemas() -> Mapping[str, Path]:
    """Return the schemas that come with the package, by name."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.xml"))} if folder else {}


def starter(name: str, origin: str | None) -> Starter:
    """Return a new schema called `name`, after a shipped one or, for None, after the commented starter.

    Raises:
        UsageMistake: nothing is shipped that is called `origin`.
    """
    path = _STARTER if origin is None else _shipped(origin)
    text = path.read_text(encoding="utf-8")
    old, new = f'"{path.stem}"', quoteattr(name)
    text = text.replace(f"<schema name={old}", f"<schema name={new}").replace(
        f"<prompt schema={old}", f"<prompt schema={new}"
    )
    shown = next(each for each in parse_schema(text, folder=path.parent).examples if each.valid)
    return Starter(
        schema=text,
        prompt=format_document(replace(example_prompt(shown), schema=name).to_xml()),
        sources={each: (path.parent / each).read_text(encoding="utf-8") for each in _SOURCE.findall(text)},
    )


def _shipped(origin: str) -> Path:
    schemas = shipped_schemas()
    if origin not in schemas:
        mend = did_you_mean(origin, schemas) or f"there are {', '.join(schemas) or 'none'}"
        raise UsageMistake(f"no schema '{origin}' comes with promptcache; {mend}")
    return schemas[origin]
