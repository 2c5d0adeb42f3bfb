"""Whole chat templates in the shapes that models come with, with the texts around their turns: chat_templates.txt.

`tests/templates` has one template for each habit.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A template and what must be cut from it.

    Attributes:
        user: Header and footer of a user turn in the middle of a conversation; `assistant` in the same way.
        system: Header and footer of a system turn before a user turn; None if the template does not render it there.
        ending: The text behind an answer at the end.
        prompt: The generation prompt, without the footer of the turn before it.
        bos: BOS, if conversations begin with it.
        preamble: What begins a conversation without a system turn, before the header of its first turn.
    """

    source: str
    system: Pair | None
    user: Pair
    assistant: Pair
    ending: str = ""
    prompt: str = ""
    bos: str = ""
    preamble: str = ""


def read_templates(file: Path) -> Iterator[tuple[str, dict[str, str], str]]:
    for block in re.split("^## ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, *lines = block.rstrip("\n").split("\n")
        yield title, dict(line.split(": ", 1) for line in lines[:-1]), lines[-1].replace("\\n", "\n")


def _case(fields: dict[str, str], source: str) -> Case:
    read = {name: json.loads(value) for name, value in fields.items()}
    pairs = {name: value and tuple(value) for name, value in read.items() if name in ("system", "user", "assistant")}
    return Case(source=source, **read | pairs)


CASES = {name: _case(fields, source) for name, fields, source in read_templates(Path(__file__).with_suffix(".txt"))}
