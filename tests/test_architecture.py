"""Imports between rooms point in one direction, and rooms are entered by their `__init__` only."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import promptcache

PACKAGE = Path(promptcache.__file__).parent
TESTS = Path(__file__).parent
OUTSIDE = {name: TESTS.parent / name for name in ("benchmarks", "tools")}
"""Packages beside `promptcache` that are no part of the wheel. They may import it, and it never imports them."""

MAY_IMPORT = {
    "atomic": set(),
    "codecs": set(),
    "diagnostics": set(),
    "lazy": set(),
    "locks": set(),
    "progress": set(),
    "timing": set(),
    "declared": {"diagnostics"},
    "structured": {"diagnostics", "locks"},
    "language": {"diagnostics", "lazy", "locks", "structured"},
    "options": {"declared", "diagnostics", "language"},
    "tokenizer": {"diagnostics", "language"},
    "layout": {"diagnostics", "language", "tokenizer"},
    "kv": {"atomic", "codecs", "declared", "diagnostics", "lazy", "locks"},
    "settings": {"codecs", "declared", "diagnostics", "kv", "language"},
    "attention": {"diagnostics", "kv"},
    "model": {
        *("atomic", "declared", "diagnostics", "locks", "options", "settings", "tokenizer", "layout", "kv"),
        "attention",
    },
    "rows": {"atomic", "diagnostics", "locks", "layout", "kv", "attention", "model"},
    "encode": {
        *("diagnostics", "language", "locks", "settings", "tokenizer", "layout", "kv", "attention", "model", "rows"),
    },
    "loops": {"diagnostics", "locks", "layout", "kv", "attention", "model", "rows", "encode"},
    "answers": {"diagnostics", "structured", "tokenizer", "layout", "attention"},
    "planning": {"diagnostics", "language", "locks", "options", "structured", "tokenizer", "layout", "kv", "model"},
    "decode": {
        *("diagnostics", "language", "locks", "options", "settings", "structured", "tokenizer", "layout", "kv"),
        *("attention", "model", "rows", "encode", "answers", "planning"),
    },
    "session": {
        *("atomic", "diagnostics", "language", "options", "structured", "tokenizer", "layout", "kv"),
        *("encode", "answers", "planning", "decode"),
    },
    "engine": {
        *("declared", "diagnostics", "language", "options", "settings", "structured", "tokenizer", "layout", "kv"),
        *("model", "rows", "encode", "loops", "planning", "decode", "session"),
    },
}
"""The rooms that each core room may import. Front ends may import all of them, and no core room imports a front end."""

FRONT_ENDS = {
    "cli": {"bench", "fidelity", "picture", "scale", "server", "testing"},
    "__main__": {"cli"},
    "bench": set(),
    "demo": set(),
    "fidelity": {"testing"},
    "picture": set(),
    "retrieval": set(),
    "scale": {"server"},
    "server": {"picture"},
    "testing": {"demo"},
}
"""The front ends, and the other front ends that each may import."""


def modules() -> Iterator[tuple[str, Path]]:
    """Yield every module of the package with its room."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "schemas" in path.parts:
            continue  # a wheel has copies of the shipped schemas
        inside = path.relative_to(PACKAGE)
        yield inside.parts[0].removesuffix(".py"), path


@cache
def parsed(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported(path: Path) -> set[str]:
    """Every module name that a file imports, at any level of it."""
    names: set[str] = set()
    for node in parsed(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            names.add(node.module or "")
    return names


def test_rooms_import_in_one_direction() -> None:
    """A room imports only the rooms above it in the list, and no core room imports a front end."""
    wrong = []
    for room, path in modules():
        if room == "__init__":
            continue
        ours = {name.split(".")[1] for name in imported(path) if name.startswith("promptcache.")}
        allowed = set(MAY_IMPORT) | FRONT_ENDS[room] if room in FRONT_ENDS else MAY_IMPORT[room]
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in sorted(ours - {room} - allowed)]

    assert not wrong


def barred_from(room: str) -> set[str]:
    """Return the top-level packages that a room may not import."""
    barred = {*OUTSIDE, "tests"}  # a wheel does not have them
    if room not in ("server", "scale"):
        barred |= {"fastapi", "starlette", "uvicorn", "prometheus_client"}
    if room in ("diagnostics", "language", "tokenizer", "layout"):
        barred |= {"torch", "transformers"}
    elif room in {"kv", *RUNTIME} - {"model"}:
        barred.add("transformers")
    return barred


def test_libraries_stay_in_their_rooms() -> None:
    """Light rooms import no torch, the runtime but `model` no transformers, others no web frameworks.

    Benchmarks measure the library as users have it: they import none of its commands and own benchmarks.
    """
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for room, path in modules()
        for name in imported(path)
        if name.split(".")[0] in barred_from(room)
    ]
    wrong += [
        f"{path.name} imports {name}"
        for path in OUTSIDE["benchmarks"].rglob("*.py")
        for name in imported(path)
        if name.startswith(("promptcache.bench", "promptcache.cli", "promptcache.testing"))
    ]

    assert wrong == []


RUNTIME = ("attention", "model", "rows", "encode", "loops", "answers", "planning", "decode", "session")
"""The rooms that work with a model."""

_CODE = (PACKAGE, *OUTSIDE.values())
FACES = {
    "language": _CODE,
    "kv": (*_CODE, TESTS),
    "tokenizer": (*_CODE, TESTS),
    "layout": (*_CODE, TESTS),
    **dict.fromkeys(RUNTIME, _CODE),
}
"""Rooms that code outside imports by their `__init__` only, and where this is checked."""


@pytest.mark.parametrize("room", FACES)
def test_rooms_are_entered_by_their_face(room: str) -> None:
    """Code and tests outside a room import nothing from it but the names of its face, and name no file of it."""
    face = f"promptcache.{room}"
    public = {
        alias.name
        for node in parsed(PACKAGE / room / "__init__.py")
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    outside = [
        path
        for top in FACES[room]
        for path in top.rglob("*.py")
        if not any(map(path.is_relative_to, (PACKAGE / room, TESTS / room, TESTS / "planted")))  # faults patch files
    ]
    past = {
        f"{path.relative_to(PACKAGE.parent)}: {name}"
        for path in outside
        for node in parsed(path)
        for name in names_in(node, face)
        if name not in public
    }

    assert not past


def names_in(node: ast.AST, face: str) -> Iterator[str]:
    """The names that a piece of code takes from a room; files of the room by their whole name."""
    if isinstance(node, ast.ImportFrom) and node.module == face:
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{face}."):
        yield node.module or ""
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith(f"{face}."))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(rf"{face}\.\w+", node.value):
        yield node.value


SUB_ROOMS = {
    "kv/files": "diagnostics locks kv.codec kv.eviction kv.keys kv.store kv.types atomic codecs",
    "language/syntax": "diagnostics language.limits structured",
    "language/rules": "diagnostics locks language.checked language.limits language.syntax",
    "language/format": "diagnostics language.syntax",
}
"""Sub-rooms, and all that each may import of ours beside itself."""


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_sub_rooms_import_only_what_is_below_them(room: str) -> None:
    """Imports within a room point in one direction too."""
    below = tuple(f"promptcache.{name}." for name in (*SUB_ROOMS[room].split(), room.replace("/", ".")))
    for path in sorted((PACKAGE / room).rglob("*.py")):
        ours = {name for name in imported(path) if name.startswith("promptcache.")}
        assert {name for name in ours if not f"{name}.".startswith(below)} == set(), path.name


@pytest.mark.parametrize("room", ["cli", "kv", "language", "layout", "picture", "tokenizer", *RUNTIME])
def test_modules_of_a_room_import_in_one_direction(room: str) -> None:
    """There is no circle of modules, not even one of imports in functions or for types only."""
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (PACKAGE / room).rglob("*.py")
    }
    imports = {
        name: {each for each in paths if each != name and each in {*imported(path), *taken(path)}}
        for name, path in paths.items()
    }

    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def taken(path: Path) -> Iterator[str]:
    """Yield the names that a file takes from modules, with the module: some of them are modules too."""
    for node in parsed(path):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_layout_loads_no_heavy_library() -> None:
    """Importing promptcache.layout loads neither torch nor transformers nor numpy."""
    code = "import sys, promptcache.layout; sys.exit(bool({'torch', 'transformers', 'numpy'} & {*sys.modules}))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_are_there() -> None:
    """Every name in `__all__` can be imported, and no other name is public."""
    assert [name for name in promptcache.__all__ if getattr(promptcache, name).__name__ != name] == []
    assert set(promptcache.__all__) == set(promptcache._HOMES) <= set(dir(promptcache))


def test_every_name_in_all_is_there() -> None:
    """Every name in the `__all__` of a module exists, so that `from … import *` works."""
    missing = []
    for _, path in modules():
        if any(isinstance(node, ast.Name) and node.id == "__all__" for node in parsed(path)):
            inside = path.relative_to(PACKAGE.parent).with_suffix("")
            module = importlib.import_module(".".join(inside.parts).removesuffix(".__init__"))
            missing += [f"{inside}: {name}" for name in module.__all__ if not hasattr(module, name)]

    assert missing == []


def test_each_type_name_is_used_once() -> None:
    """Two types of one name mean two things by one word."""
    homes: dict[str, list[str]] = {}
    for path in (path for folder in _CODE for path in folder.rglob("*.py") if "schemas" not in path.parts):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.name)
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
                homes.setdefault(ast.unparse(node.target), []).append(path.name)

    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def nodes(kind: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """Yield all nodes of a kind in the package, with their places."""
    for _, path in modules():
        for node in parsed(path):
            if isinstance(node, kind):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_identity_is_no_address() -> None:
    """No file calls `id()`: encodings, parts and slabs are identified by digests and handles."""
    assert [place for place, node in nodes(ast.Call) if ast.unparse(node.func) == "id"] == []


def test_locks_are_free_in_forked_processes() -> None:
    """Only `locks.py` makes locks of the standard library: a fork copies a lock that another thread holds."""
    made = [
        place
        for place, node in nodes(ast.Attribute)
        if ast.unparse(node) in {"threading.Lock", "threading.RLock"} and isinstance(node.ctx, ast.Load)
    ]

    assert [place for place in made if not place.startswith("locks.py:")] == []
