"""Builds the documentation as a site: `python -m tools.site`, or `make docs`.

Pages are staged as they lie in the repository, so their links hold. Beside them come the tour, the gallery, and the
references that docstrings and click have. The build fails at a link without a target, at a docstring that cannot
be read, and at a page that loads something from another host.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

import click
from lxml import html

import promptcache
import promptcache.testing
from promptcache.cli.app import GROUPS, app
from promptcache.picture import HTML_STYLE
from tools import gallery

ROOT = Path(__file__).parents[1]
STAGED = ("README.md", "Dockerfile", "docs", "examples", "schemas", "promptcache/demo/model/README.md")
MADE = {
    "begin": ("examples/tour.md",),
    "program": ("docs/api.md", "docs/api-errors.md", "docs/api-testing.md", "docs/api-further.md"),
    "run": ("docs/commands.md",),
}
"""Pages that are written here, by the row of README's table of pages that names their neighbours."""


def build(folder: Path) -> None:
    """Write the site in place of a folder; exit if it has faults."""
    with TemporaryDirectory() as work:
        config, built = Path(work, "mkdocs.yml"), Path(work, "html")
        nav = json.dumps(stage(Path(work, "pages")))  # JSON is YAML
        config.write_text(f"{_beside('.yml')}nav: {nav}\n", encoding="utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
        ran = subprocess.run(command, cwd=ROOT, check=False, stdout=PIPE, stderr=STDOUT, text=True)
        if ran.returncode or "griffe: " in ran.stdout:  # which reads docstrings, and only warns
            sys.exit(ran.stdout)
        if found := list(faults(built)):
            sys.exit("\n".join(found))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(built, folder)


def stage(pages: Path) -> list[Any]:
    """Write all pages, and the files that they name, into a folder; return the navigation."""
    for name in STAGED:
        source, target = ROOT / name, pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    shown = gallery.write(pages)
    tour = json.loads((ROOT / "examples/tour.ipynb").read_text(encoding="utf-8"))
    written = {
        "site.css": _beside(".css") + HTML_STYLE,
        "examples/tour.md": "\n\n".join(_cells(tour, pages)),
        "docs/commands.md": "\n".join(_commands()),
        **{f"docs/{name}.md": text for name, text in _api()},
    }
    for name, old, new in (
        ("README.md", "tour.ipynb)", "tour.md)"),
        ("examples/README.md", "tour.ipynb)", "tour.md)"),
        ("docs/language.md", r"`\|`", "`|`"),  # GitHub needs the escape
    ):
        written[name] = (ROOT / name).read_text(encoding="utf-8").replace(old, new)
    for name, text in written.items():
        (pages / name).write_text(text, encoding="utf-8")

    def entry(name: str) -> dict[str, str]:
        title = re.search(r"^# (.*)$", (pages / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert title is not None, f"{name} has no title"
        return {title[1].partition(": ")[0]: name}

    nav: list[Any] = [entry("README.md")]
    for row, links in re.findall(r"^\| ([\w ]+) \| (\[.*\]\(.*) \|$", written["README.md"], re.MULTILINE):
        names = [*re.findall(r"\]\(([^)]*)\)", links), *MADE.get(row, ())]
        nav.append({row.capitalize(): [entry(name) for name in names]})
    nav.insert(2, {"Gallery": [entry(name) for name in shown]})
    return nav


def faults(site: Path) -> Iterator[str]:
    """Yield what is wrong with built pages: links without a target, and what they load from other hosts."""
    pages = {path: html.parse(path).getroot() for path in site.rglob("*.html")}
    anchors = {path: {*page.xpath("//@id"), *page.xpath("//a/@name"), ""} for path, page in pages.items()}
    for path, page in pages.items():
        for element, _, link, _ in page.iterlinks():
            url = urlsplit(link)
            if url.scheme or url.netloc:
                if element.tag != "a" and url.scheme != "data":
                    yield f"{path.relative_to(site)} loads {link}"
                continue
            start = site if url.path.startswith("/") else path.parent
            target = (start / unquote(url.path).lstrip("/")).resolve() if url.path else path
            if not target.is_file():
                yield f"{path.relative_to(site)}: there is no {link}"
            elif target in pages and unquote(url.fragment) not in anchors[target]:
                yield f"{path.relative_to(site)}: there is no anchor {link}"
    for sheet in site.rglob("*.css"):
        for url in re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text(encoding="utf-8")):
            yield f"{sheet.relative_to(site)} loads {url}"


def _beside(suffix: str) -> str:
    return Path(__file__).with_suffix(suffix).read_text(encoding="utf-8")


def _cells(notebook: dict[str, Any], pages: Path) -> Iterator[str]:
    """Yield the cells of a notebook as Markdown, each with its outputs; pictures are files of its folder."""
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        yield f"```python\n{source}\n```" if cell["cell_type"] == "code" else source
        for output in cell.get("outputs", ()):
            data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            if picture := data.get("image/svg+xml"):
                (pages / f"examples/tour-{number}.svg").write_text(picture, encoding="utf-8")
                yield f"![What the cell draws](tour-{number}.svg)"
            else:
                yield data.get("text/html") or f"```\n{''.join(output['text'])}\n```"


def _commands() -> Iterator[str]:
    """Yield the lines of the reference of commands."""
    context = click.Context(app, info_name="promptcache", **app.context_settings)
    yield "# Commands\n\nThe `--help` of each command. [The command line](cli.md) has tasks.\n"
    for title, names in GROUPS.items():
        yield f"## {title}\n"
        for name in names:
            yield from _command(context, name)


def _command(parent: click.Context, name: str) -> Iterator[str]:
    """Yield the help of a command, and of those inside it."""
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    yield f"### {context.command_path.removeprefix('promptcache ')}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for inside in command.list_commands(context):
            yield from _command(context, inside)


def _api() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page of the API."""
    errors = {name for name in promptcache.__all__ if _is_error(getattr(promptcache, name))}
    others = sorted({*promptcache.__all__} - errors, key=lambda name: (name != "Engine", name))
    testing = promptcache.testing.__all__
    yield "api", f"# promptcache\n\n{_entries('promptcache', others)}"
    yield "api-errors", f"# Errors in Python\n\n{_entries('promptcache', sorted(errors))}"
    yield "api-testing", f"# promptcache.testing\n\n{_entries('promptcache.testing', testing)}"
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    further: dict[str, set[str]] = {}
    for module, names in re.findall(r"^from (promptcache\.(?!testing)[\w.]+) import (.+)$", pages, re.MULTILINE):
        further.setdefault(module, set()).update({*names.split(", ")} - {*promptcache.__all__})
    text = "\n".join(
        f"## {module}\n\n{_entries(module, sorted(further[module]), level=3)}" for module in sorted(further)
    )
    yield "api-further", f"# Further modules\n\nWhat examples of these pages import from them.\n\n{text}"


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _entries(module: str, names: Iterable[str], level: int = 2) -> str:
    """Return the names for mkdocstrings. A function is named within the file that has its name, and would hide it."""
    paths = (f"{name}.{name}" if (ROOT / module.replace(".", "/") / f"{name}.py").exists() else name for name in names)
    return "".join(f"::: {module}.{path}\n    options:\n      heading_level: {level}\n\n" for path in paths)


if __name__ == "__main__":
    build(ROOT / "site")
