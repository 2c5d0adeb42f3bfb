"""What `~` means in the path of a folder.

Comes in: a path as a user wrote it. Goes out: one that the system knows. Nothing is looked up but home folders.
"""

from __future__ import annotations

import os
from pathlib import Path

from promptcache.diagnostics import StoreError


def without_tilde(folder: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder that a `~` or `~user` at its beginning stands for.

    Raises:
        StoreError: Nobody is called so here, or it is not known where this user's home is.
    """
    path = Path(folder)
    try:
        return path.expanduser()
    except RuntimeError:
        told = "there is no such user here" if path.parts[0] != "~" else "HOME is not set, and this user has no home"
        raise StoreError(f"store '{path}': {told}; write the folder's whole path") from None
