"""A schema as it is written, in one file or several.

Comes in: texts. Goes out: `SchemaFiles`. This file draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from promptcache.language import CheckedSchema, check_schema, parse_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFiles:
    """A schema as it is written.

    Attributes:
        xml: The document.
        files: What it includes, and the texts that it takes by `src`, by their paths.
        whole: The same schema in one document.
    """

    xml: str
    files: Mapping[str, str]
    whole: str

    @property
    def folder(self) -> Mapping[str, str] | None:
        """The files, as `parse_schema` takes them; None if the schema has none."""
        return self.files or None

    def checked(self) -> CheckedSchema:
        """Read and check the schema."""
        return check_schema(parse_schema(self.xml, folder=self.folder))

    @property
    def report(self) -> str:
        """The document and its files, to be shown."""
        return "\n".join((f"schema: {self.xml}", *(f"file {name}: {text}" for name, text in self.files.items())))
