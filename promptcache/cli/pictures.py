"""The picture of a layout as a file: `promptcache layout --svg` and `--html`.

Comes in: what was laid out, perhaps the plan of a prompt. Goes out: files. This file does not know what a picture looks
like.
"""

from __future__ import annotations

from pathlib import Path

from promptcache.cli.files import files_read, parsed_prompt, read, write_made
from promptcache.cli.layout import LaidOut
from promptcache.cli.sources import Sources
from promptcache.language import resolve_prompt
from promptcache.layout import Plan, layout_html, layout_svg, make_plan


def write_pictures(shown: LaidOut, prompt: str | None, svg: Path | None, html: Path | None, sources: Sources) -> None:
    """Draw a layout into the files that are wanted.

    Args:
        shown: What `show_layout` returned.
        prompt: A prompt file for that schema: the pictures show what it reuses and what is new.

    Raises:
        PromptError: every fault of the prompt, an argument longer than its slot among them.
    """
    plan = None if prompt is None else _plan(shown, prompt, sources)
    token_bytes = shown.view.model.token_bytes
    pictures = {
        path: draw(shown.layout, shown.states, plan=plan, token_bytes=token_bytes)
        for path, draw in ((svg, layout_svg), (html, layout_html))
        if path is not None
    }
    write_made(pictures, files_read(sources, shown.layout.schema))


def _plan(shown: LaidOut, file: str, sources: Sources) -> Plan:
    prompt = parsed_prompt(read(file, sources))
    selection = resolve_prompt(prompt, shown.layout.schema)
    return make_plan(selection, shown.layout, shown.states, shown.tokenizer)
