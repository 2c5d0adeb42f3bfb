"""Writes docs/settings.md from the fields of the settings: `python -m tools.settings_page`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from textwrap import fill

from promptcache.cli.settings import parameter_name
from promptcache.declared import declared, defaults
from promptcache.diagnostics import size_text
from promptcache.kv import StoreConfig
from promptcache.settings import EngineSettings, ServerSettings, ServiceLimits

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

`python -m tools.settings_page` writes this page from the declarations in `promptcache/settings.py`.

An option has the name of its setting without the unit. `promptcache serve` takes it from the command line
(`--max-body 2MiB`), else from the environment (`PROMPTCACHE_MAX_BODY=2MiB`), else from the TOML file of `--config`
(`max_body = "2 MiB"`). The `args` of the [application of Ray Serve](scaling.md#ray-serve) have the same names.
"""
PARTS = (
    (
        EngineSettings,
        "Of an engine",
        "Keywords of `Engine(model, tokenizer, …)` and `Engine.from_pretrained(…)`, and options of `run`, `chat` and "
        "`serve`; `warm` and `fidelity` have those of encodings. `from_pretrained` has `pack=None`, and `serve` has "
        "`--promote auto`.",
    ),
    (
        StoreConfig,
        "Of a store",
        "Fields of `StoreConfig` for `Engine(store=…)` ([keeping.md](keeping.md)). Commands have `--store`, which is a "
        "folder or a URL, `--limit` for `disk_bytes`, and `serve` has `--memory` for `memory_bytes`.",
    ),
    (ServiceLimits, "Of a service", "Fields of `ServiceLimits` for `engine.service(…)`, and options of `serve`."),
    (
        ServerSettings,
        "Of a server",
        "Further fields of `ServerSettings` for `create_app(engine, …)`, and options of `serve`.",
    ),
)


def page() -> str:
    """Return the page."""
    return HEAD + "".join(_part(*part) for part in PARTS)


def _part(owner: type, title: str, words: str) -> str:
    rows = "".join(f"| {' | '.join(cells)} |\n" for cells in _rows(owner))
    text = fill(words, 120, break_long_words=False, break_on_hyphens=False)
    return f"\n## {title}\n\n{text}\n\n| setting | option | default | |\n|---|---|---|---|\n{rows}"


def _rows(owner: type) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the fields that a dataclass does not inherit."""
    inherited = {each.name for base in owner.__bases__ if base is not object for each in fields(base)}
    for name, what in declared(owner).items():
        if name in inherited:
            continue
        option = f"`--{parameter_name(name, what).replace('_', '-')}`" if what.on_command_line else ""
        default = defaults(owner)[name]
        plain = f"`{default!r}`" if default is None or isinstance(default, str | float | int) else ""
        shown = size_text(default) if default and what.kind.unit == "bytes" else plain
        yield f"`{name}`", option, shown, f"{what.words} Values: {what.kind.words.rstrip(',')}."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
