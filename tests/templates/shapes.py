"""Chat templates in the shapes that public models have, written for these tests, one for each habit: shapes.txt.

`habit` is a text of the template, and what stands there in a template without the habit. The laws must fail if the
library had the second template: a test shows that their conversations exercise the habit.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tokenizer.chat_templates import read_templates


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A chat template with a habit, options that a request may set, and special tokens besides `<s>` and `</s>`."""

    source: str
    habit: tuple[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    in_parts: bool = False

    @property
    def without_habit(self) -> str:
        """The template without its habit."""
        return self.source.replace(*self.habit)


def _shape(fields: dict[str, str], source: str) -> Shape:
    habit, _, other = fields["habit"].replace("\\n", "\n").partition(" =>")
    read = {name: json.loads(value) for name, value in fields.items() if name != "habit"}
    return Shape(source=source, habit=(habit, other.removeprefix(" ")), **read)


SHAPES: Mapping[str, Shape] = {
    name: _shape(fields, source) for name, fields, source in read_templates(Path(__file__).with_suffix(".txt"))
}
