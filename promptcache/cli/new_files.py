"""Files that a command makes: where they lie, and writing them without overwriting any.

Comes in: names and texts. Goes out: files. What stands in them is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from promptcache.cli.exits import UsageMistake


def schema_file(name: str) -> Path:
    """Return the file, in the working directory, of a schema called `name`.

    Raises:
        UsageMistake: it would lie elsewhere.
    """
    if Path(name).name != name:
        raise UsageMistake(f"'{name}' cannot be a file's name: say where to write with -o FILE")
    return Path(f"{name}.xml")


def write_new(files: Mapping[Path, str]) -> None:
    """Write files that do not exist yet, and their folders; none if one of them does.

    Raises:
        UsageMistake: one of them exists.
    """
    taken = [str(path) for path in files if path.exists()]
    if taken:
        verb = "exists" if len(taken) == 1 else "exist"
        raise UsageMistake(f"{' and '.join(taken)} {verb} already; nothing was written")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
