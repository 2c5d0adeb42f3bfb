"""Runs notebooks without Jupyter. `python -m tests.notebook` writes new outputs into examples/tour.ipynb.

Cells run as in Jupyter: in one namespace, and the value of a last expression is shown.
"""

import ast
import io
import json
import os
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

from promptcache.picture.html import VIEWS

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def read(path: Path) -> dict[str, Any]:
    """Read a notebook."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(notebook, dict)
    return notebook


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run the cells of a notebook in the working directory; return the outputs of each code cell."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    return [
        _outputs("".join(cell["source"]), number, namespace)
        for number, cell in enumerate(_code_cells(notebook), start=1)
    ]


def _code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _outputs(source: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell."""
    tree = ast.parse(source, f"cell {number}")
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        data = {name: text.splitlines(keepends=True) for name, text in _shown(value).items()}
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return found


def _shown(value: Any) -> dict[str, str]:
    """Return what a notebook shows of a value, by MIME type."""
    shown = {"text/plain": f"<{type(value).__name__}>"}
    if hasattr(value, "_repr_svg_"):
        shown["image/svg+xml"] = value._repr_svg_()
    if view := VIEWS.get(f"{type(value).__module__}.{type(value).__qualname__}"):
        shown["text/html"] = view(value)
    return shown


def main() -> None:
    """Write the outputs of the tour into its file."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    notebook = read(TOUR)
    with chdir(TOUR.parent):
        new = outputs(notebook)
    for number, (cell, found) in enumerate(zip(_code_cells(notebook), new, strict=True), start=1):
        cell["outputs"], cell["execution_count"] = found, number
    TOUR.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
