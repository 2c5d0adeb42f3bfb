"""Names of schemas that a command makes, and of their files.

Comes in: what someone typed. Goes out: the same, or why it cannot be a name. This file writes nothing.
"""

from __future__ import annotations

from pathlib import Path

from promptcache.cli.exits import UsageMistake


def checked_name(name: str, mend: str = "write it as in `promptcache new travel-planner`") -> str:
    """Return a name that a schema can have.

    Raises:
        UsageMistake: it can have none such; `mend` says what to do.
    """
    if not name or any(character.isspace() or not character.isprintable() for character in name):
        raise UsageMistake(f"a schema's name is text without spaces: {mend}")
    return name


def schema_file(name: str) -> Path:
    """Return the file, in the working directory, of a schema called `name`.

    Raises:
        UsageMistake: it would lie elsewhere, or be hidden, or look like an option.
    """
    if Path(name).name != name or name[0] in ".-":
        raise UsageMistake(f"'{name}' cannot be a file's name: say where to write with -o FILE")
    return Path(f"{name}.xml")
