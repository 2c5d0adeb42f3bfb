"""The pages agree with the code: links have targets, public names are documented, tables are right."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path

import pytest

from promptcache import Completion, Engine, Prompt, Store, StoreConfig
from promptcache.audit import Audit
from promptcache.runtime.completion import Timing, Usage, WarmReport
from promptcache.runtime.logprobs import TokenLogprobs
from promptcache.runtime.promotion import Promotion
from promptcache.runtime.serving import Score
from promptcache.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
PYTHON = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
PROSE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
_FENCE = re.compile(r"```.*?```", re.DOTALL)


_PROPERTIES = {Completion: ["warnings"], Timing: ["ttft_s"], Audit: ["same_answer"], Score: ["logprob", "mean_logprob"]}


def _anchor(heading: str) -> str:
    """Return the anchor that readers of Markdown make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _broken_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE) if anchor else ()
        if not file.exists() or (anchor and anchor not in map(_anchor, headings)):
            yield target


def _cells(table: str) -> list[list[str]]:
    """Return the rows of the table of `docs/python.md` whose head begins with this text."""
    rows = PYTHON.partition(f"\n| {table}")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_links_lead_somewhere() -> None:
    """Every link of a page to a file or heading of this repository has a target."""
    assert [(page.name, target) for page in PAGES for target in _broken_links(page)] == []


def test_readme_leads_to_every_page() -> None:
    """The first page leads to all others."""
    found = set(re.findall(r"\(docs/([\w-]+\.md)\)", (ROOT / "README.md").read_text(encoding="utf-8")))

    assert {page.name for page in ROOT.glob("docs/*.md")} - found == set()


@pytest.mark.parametrize("room", ["", ".adapt", ".retrieval", ".fidelity", ".kv", ".layout", ".language", ".testing"])
def test_public_names_are_documented(room: str) -> None:
    """Every public name of a room is on some page."""
    names = import_module(f"promptcache{room}").__all__

    assert [name for name in names if not re.search(rf"\b{name}\b", PROSE)] == []


def test_errors_are_documented() -> None:
    """Every class of the error tree is on the page for programmers."""
    errors = import_module("promptcache.diagnostics.errors")
    names = [name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)]

    assert [name for name in names if f"`{name}`" not in PYTHON and f"`{name}`s" not in PYTHON] == []


@pytest.mark.parametrize(
    "kind",
    [Completion, TokenLogprobs, Usage, Timing, Score, WarmReport, Promotion, Audit, StoreConfig],
    ids=lambda kind: kind.__name__,
)
def test_fields_are_documented(kind: type) -> None:
    """The table of a result or setting has all of its fields, and no other."""
    told = re.findall(r"`(\w+)`", " ".join(row[0] for row in _cells(f"`{kind.__name__}`")))
    there = [each.name for each in fields(kind)]  # type: ignore[arg-type]

    assert set(told) == {*there, *_PROPERTIES.get(kind, [])}


def test_defaults_are_documented() -> None:
    """The defaults in the tables of `StoreConfig` and `from_pretrained` are those of the code."""
    given = {each.name: each.default for each in fields(StoreConfig) if each.default is not MISSING}
    given |= {name: each.default for name, each in inspect.signature(Engine.from_pretrained).parameters.items()}
    rows = [*_cells("`StoreConfig`"), *_cells("`from_pretrained(…)`")]
    told = {name: row[1].strip("`").replace('"', "'") for row in rows for name in re.findall(r"`(\w+)`", row[0])}

    assert {name: default for name, default in told.items() if name in given and repr(given[name]) != default} == {}
    assert set(given) - set(told) == {"options"}


@pytest.mark.parametrize("kind", [Engine, Prompt, Store, Tokenizer], ids=lambda kind: kind.__name__)
def test_methods_are_documented(kind: type) -> None:
    """The page for programmers has every method and property of the types that users call or implement."""
    members = (name for name, each in vars(kind).items() if callable(each) or hasattr(each, "__get__"))
    names = [name for name in members if not name.startswith("_")]

    assert names
    assert [name for name in names if not re.search(rf"`(engine\.|Engine\.)?{name}\b", PYTHON)] == []
