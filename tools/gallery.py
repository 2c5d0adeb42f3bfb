"""Writes a page of the gallery for each schema of `schemas/`: its pictures, a prompt, and what the prompt prints.

`gallery.toml` has the few words that no file of a schema has.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from lxml import etree, html

from promptcache import Engine, Layout, Plan
from promptcache.language import Doc
from promptcache.picture import html_page, view

ROOT = Path(__file__).parents[1]
FOLDER = "gallery"
HEAD = """# Gallery

The schemas of the package, to start your own from: `promptcache new NAME --from travel` copies one. The demo model
reads facts of the form *The price of the lamp is 40 euros*, and answers questions about them. What needs a larger
model is shown as the model gets it.
"""


def write(pages: Path) -> list[str]:
    """Write the gallery into the folder of all pages; return the names of its pages, the list of them first."""
    folder = pages / FOLDER
    folder.mkdir()
    words = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    engine, entries = Engine.from_pretrained("demo", device="cpu"), [HEAD]
    names = [path.stem for path in sorted((ROOT / "schemas").glob("*.xml"))]
    for name in names:
        schema = engine.add_schema(ROOT / f"schemas/{name}.xml")
        doc = next(" ".join(child.text.split()) for child in schema.source.children if isinstance(child, Doc))
        (folder / f"{name}.md").write_text(_page(engine, name, doc, **words[name]), encoding="utf-8")
        entries.append(f"- [{name}]({name}.md): {doc}")
    (folder / "README.md").write_text("\n".join(entries) + "\n", encoding="utf-8")
    return [f"{FOLDER}/{page}.md" for page in ("README", *names)]


def _page(engine: Engine, name: str, doc: str, *, prompt: str, command: str, change: str) -> str:
    path = ROOT / "examples" / prompt
    shown = engine.generate(path, do_sample=False).text if command == "run" else engine.render(path)
    return f"""# {name.capitalize()}

{doc}

{_picture(engine.layout(name))}

Positions run from left to right, and members of a union begin at the same place. Each line opens.

## A prompt

```xml title="examples/{prompt}"
{path.read_text(encoding="utf-8").strip()}
```

`promptcache {command} examples/{prompt}` prints

```
{shown.strip()}
```

What of it is reused, computed again or new:

{_picture(engine.plan(path))}

## Make it yours

`promptcache new my-{name} --from {name}` copies the schema. {change}

## The schema

```xml title="schemas/{name}.xml"
{(ROOT / f"schemas/{name}.xml").read_text(encoding="utf-8").strip()}
```
"""


def _picture(shown: Layout | Plan) -> str:
    """Return the picture as HTML for a page with the style sheet of pictures."""
    (picture,) = html.fromstring(html_page(view(shown))).find_class("promptcache")
    return etree.tostring(picture, method="html", encoding="unicode").strip()
