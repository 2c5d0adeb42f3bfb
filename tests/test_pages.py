"""The pages of the documentation: their links, the site that is made of them, its pictures, and the tutorial."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lxml import html

import promptcache
import promptcache.testing
from promptcache.cli.app import COMMANDS
from tests.tutorial import PAGE, follow
from tools import pictures, site

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
_FENCE = re.compile(r"```.*?```", re.DOTALL)


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


def test_links_lead_somewhere() -> None:
    """Every link of a page to a file or heading of this repository has a target."""
    assert [(page.name, target) for page in PAGES for target in _broken_links(page)] == []


@pytest.mark.process
def test_the_site_has_every_public_name_command_and_schema(tmp_path: Path) -> None:
    """It builds without faults, and none of what it is made from is left out."""
    pytest.importorskip("zensical")
    site.build(tmp_path)

    def anchors(*pages: str) -> set[str]:
        found = (html.parse(tmp_path / "docs" / f"{page}.html").xpath("//@id") for page in pages)
        return {str(each) for ids in found for each in ids}

    assert anchors("api", "api-errors") >= {f"promptcache.{name}" for name in promptcache.__all__}
    assert anchors("api-testing") >= {f"promptcache.testing.{name}" for name in promptcache.testing.__all__}
    assert anchors("commands") >= {*COMMANDS}
    gallery = {path.stem for path in (tmp_path / "gallery").glob("*.html")} - {"index"}
    assert gallery == {path.stem for path in (site.ROOT / "schemas").glob("*.xml")}
    assert "The best dish of Miami is stone crab." in (tmp_path / "gallery/travel.html").read_text(encoding="utf-8")


def test_pictures_have_the_figures_of_the_pages() -> None:
    """Pictures are what their script draws from plans and tables; if not, run `python -m tools.pictures`."""
    drawn = pictures.pictures()

    assert drawn == {name: (pictures.IMAGES / name).read_text(encoding="utf-8") for name in drawn}


def test_faults_of_a_site_are_found(tmp_path: Path) -> None:
    """Files and anchors that do not exist, and what comes from another host; links to other hosts are none."""
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a><a href="b.html#there">2</a><a href="https://example.org">3</a>'
        '<a href="#nowhere">4</a><a href="b.html#here">5</a><a href="c.html">6</a><img src="d.svg">'
        '<script src="https://example.org/e.js"></script><img src="//example.org/f.png"><a href="/b.html">7</a></p>'
    )
    (tmp_path / "b.html").write_text('<h1 id="there">B</h1>')
    (tmp_path / "g.css").write_text('@import "//example.org/h.css"; a { background: url("local.png") }')

    assert sorted(site.faults(tmp_path)) == [
        "a.html loads //example.org/f.png",
        "a.html loads https://example.org/e.js",
        "a.html: there is no anchor #nowhere",
        "a.html: there is no anchor b.html#here",
        "a.html: there is no c.html",
        "a.html: there is no d.svg",
        "g.css loads //example.org/h.css",
    ]


def test_the_tutorial_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and code print what the page shows; if not, run `python -m tests.tutorial`."""
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")

    assert follow(page) == page
