"""Paths and URLs as users write them: `~` in a path, credentials in a URL."""

from __future__ import annotations

import os
import re
from pathlib import Path

from promptcache.diagnostics import StoreError


def without_credentials(url: str) -> str:
    """Return a URL as messages show it: without `user:password@`."""
    return re.sub(r"(?<=//)[^/@]*@", "", url)


def expand_home(folder: str | os.PathLike[str]) -> Path:
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
