"""Names, paths and versions: which are well formed, what a path leads to, and whether a version lies in a range.

A version is numbers joined by dots; `-` and a word mark what comes before that release.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from promptcache.diagnostics import did_you_mean
from promptcache.language.syntax.nodes import join_path

RESERVED_MODULES = frozenset({"prompt", "use", "arg", "text", "doc", "system", "user", "assistant", "tool"})
"""What a module cannot be called: the elements of a prompt document, and one more kind of turn."""

RESERVED_PARAMETERS = frozenset({"schema", "module"})
"""What a parameter cannot be called: the attributes with a meaning of their own in a prompt document."""

RESERVED_OUTSIDE_MODULES = frozenset({"version"})
"""What a parameter outside all modules cannot be called besides: the other attributes of `prompt`."""

MAX_NAME = 200
"""The longest name, in characters."""

_MAX_PATH = 100 * (MAX_NAME + 1)  # elements are not nested deeper

_START = (
    "A-Z_a-z\xc0-\xd6\xd8-\xf6\xf8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef\u3001-\ud7ff"
)
_START += "\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
_NAME = re.compile(f"[{_START}][-.0-9\xb7\u0300-\u036f\u203f\u2040{_START}]*")

_MAX_QUOTED = 80

_VERSION = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9}){0,9})(?:-([0-9A-Za-z.-]{1,50}))?")
_BOUND = re.compile(r"(>=|<=|==|!=|>|<|=)?\s*(\S+)")
_MAX_RANGE = 1_000  # characters
_Key: TypeAlias = tuple[tuple[int, ...], bool, str]

_COMPARE: dict[str, Callable[[_Key, _Key], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "=": operator.eq,
    "": operator.eq,
    "!=": operator.ne,
}

MAX_SUGGESTIONS = 20
"""Suggestions take time to find: later faults of a document get none."""


def is_name(text: str) -> bool:
    """Whether `text` is an XML name without a colon, of at most `MAX_NAME` characters."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def name_help(text: str) -> str:
    """Say how a name can be corrected."""
    if len(text) > MAX_NAME:
        return f"it has {len(text)} characters, and a name has at most {MAX_NAME}"
    return "begin with a letter or _, go on with letters, digits, '.', '-' or '_'"


def is_element(text: str) -> bool:
    """Whether every XML parser takes `text` as the name of an element or attribute of no namespace."""
    return is_name(text) and text.isascii() and not text.lower().startswith("xml")


def is_path(text: str) -> bool:
    """Whether `text` is names joined by slashes, with or without a leading slash, and no longer than paths are."""
    return len(text) <= _MAX_PATH and all(is_name(step) for step in text.removeprefix("/").split("/"))


def absolute(path: str, parent: str) -> str:
    """Return the path from the root that `path` means when it is written relative to `parent`."""
    return path[1:] if path.startswith("/") else join_path(parent, path)


def ancestors(path: str) -> Iterable[str]:
    """Yield the paths of the modules around `path`, the nearest first; the root is not among them."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def quoted(text: str) -> str:
    """Return what a document says in quotes, cut short where it is long."""
    return repr(text) if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]!r}…"


def path_help(text: str) -> str | None:
    """Say how a malformed path can be corrected."""
    if "," in text:
        return "separate paths by spaces"
    if ".." in text.split("/"):
        return "there is no way up in a path: begin at the root with /"
    if text.endswith("/") or "//" in text:
        return "write one slash between names and none at the end"
    return None


def nested(path: str) -> str:
    """Write a module as it is named inside the modules around it."""
    outer, _, inner = path.partition("/")
    return f"<{outer}>{nested(inner)}</{outer}>" if inner else f"<{outer}/>"


def nowhere(path: str, modules: Collection[str], *, in_prompt: bool = False) -> tuple[str, str | None]:
    """Say why `path` leads to no module.

    Args:
        path: From the root.
        modules: The paths of all modules.
        in_prompt: Whether help is for a prompt, where modules are named by elements.

    Returns:
        What is missing, and a suggestion: a similar name in the same place, or the same name elsewhere.
    """
    steps = path.split("/")
    depth = 0
    while "/".join(steps[: depth + 1]) in modules:
        depth += 1
    parent, step = "/".join(steps[:depth]), steps[depth]
    prefix = f"{parent}/" if parent else ""
    here = [known[len(prefix) :] for known in modules if known.startswith(prefix) and "/" not in known[len(prefix) :]]
    message = f"there is no module '{step}' {_place(parent)}"
    elsewhere = [known for known in modules if known.rpartition("/")[2] == steps[-1]]
    if step not in here and elsewhere:
        return message, _elsewhere(elsewhere[:3], prefix) if in_prompt else f"there is one at {_paths(elsewhere[:3])}"
    return message, did_you_mean(step, here, "<{}>" if in_prompt else "'{}'") or _listed(here, parent)


def _paths(modules: Iterable[str]) -> str:
    return " and at ".join(f"/{module}" for module in modules)


def _elsewhere(modules: Sequence[str], prefix: str) -> str:
    """Say how to name modules that are elsewhere; `prefix` leads to where the prompt names them."""
    inner = [module.removeprefix(prefix) for module in modules]
    at_top = " at the top level" if prefix and inner == [*modules] else ""
    return f"there is one at {_paths(modules)}: write {' or '.join(map(nested, inner))}{at_top}"


def _place(parent: str) -> str:
    return f"in '{parent}'" if parent else "at the top level"


def _listed(here: list[str], parent: str) -> str:
    if not here:
        return f"there are no modules {_place(parent)}"
    more = f" and {len(here) - 12} more" if len(here) > 12 else ""
    return f"modules {_place(parent)}: {', '.join(here[:12])}{more}"


def is_version(text: str) -> bool:
    """Whether `text` is a version that can be compared with others."""
    return _VERSION.fullmatch(text) is not None


def is_range(text: str) -> bool:
    """Whether `text` is a list of bounds, separated by commas."""
    if len(text) > _MAX_RANGE:
        return False
    return all((found := _BOUND.fullmatch(bound.strip())) and is_version(found[2]) for bound in text.split(","))


def in_range(version: str, bounds: str) -> bool:
    """Whether a version satisfies every bound of a range."""
    for bound in bounds.split(","):
        found = _BOUND.fullmatch(bound.strip())
        assert found is not None, "the range has been checked"
        if not _COMPARE[found[1] or ""](_key(version), _key(found[2])):
            return False
    return True


def _key(version: str) -> _Key:
    found = _VERSION.fullmatch(version)
    assert found is not None, "the version has been checked"
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), found[2] is None, found[2] or ""
