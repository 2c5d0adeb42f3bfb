"""Schemas and prompts for the tests of this folder, and helpers to compare them."""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from promptcache.diagnostics import Diagnostic, LanguageError, Span
from promptcache.language import CheckedSchema, Selection, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.checked import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion, FinalText
from promptcache.language.syntax.attributes import write_attributes

SCHEMAS = Path(__file__).parent / "schemas"
FILES = Path(__file__).parent / "files"
"""What examples of pages name."""

TRAVEL = (SCHEMAS / "travel.xml").read_text(encoding="utf-8")


def checked(text: str, **options: Any) -> CheckedSchema:
    return check_schema(parse_schema(text, **options))


def selected(prompt: str, schema: str = TRAVEL) -> Selection:
    return resolve_prompt(parse_prompt(prompt), checked(schema))


def faults(
    error: type[LanguageError], action: Callable[..., object], *given: Any, **options: Any
) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of the error that a call raises."""
    with pytest.raises(error) as caught:
        action(*given, **options)
    return caught.value.diagnostics


_BOMBED = """
import json, re, sys, time
from promptcache.diagnostics import SchemaError
{setup}
found = []
for bomb in json.loads(sys.stdin.read()):
    start, codes = time.process_time(), None
    try:
        {call}
    except SchemaError as error:
        codes = sorted({{each.code for each in error.diagnostics}})
    found.append((codes, time.process_time() - start))
peak = re.search(r"VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())
print(json.dumps([found, int(peak[1])]))
"""


def bombed(bombs: list[str], setup: str, call: str) -> list[tuple[list[str] | None, float]]:
    """Call with each `bomb` in one process, which may take 200 MB; return the codes and seconds of CPU time of each."""
    program = [sys.executable, "-c", _BOMBED.format(setup=setup, call=call)]
    result = subprocess.run(program, input=json.dumps(bombs), capture_output=True, text=True, check=True)
    found, peak_kib = json.loads(result.stdout)
    assert peak_kib < 200 * 1024
    return found


def codes(diagnostics: Any) -> list[str]:
    return [diagnostic.code for diagnostic in diagnostics]


def examples(text: str) -> list[str]:
    """Return the XML examples of a page; a fragment becomes a schema."""
    blocks = re.findall(r"^```xml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    whole = re.compile(r"<(!|\?|schem|promp)")
    return [block if whole.match(block) else f'<schema name="s">\n{block}</schema>' for block in blocks]


def outline(items: tuple[CheckedItem, ...]) -> list[Any]:
    """Return checked items as lists of texts, parameter names in angle brackets, and nested lists with a label."""
    return [_outline(item) for item in items]


def _outline(item: CheckedItem) -> Any:
    match item:
        case FinalText():
            return item.text
        case CheckedModule():
            return [item.path, *outline(item.children)]
        case CheckedTurn():
            return [f"{item.role}{'…' if item.open else ''}", *outline(item.children)]
        case CheckedUnion():
            return ["union", *outline(item.members)]
        case parameter:
            return f"<{parameter.name}>"


def without_spans(value: Any) -> Any:
    """Return a tree of dataclasses as plain tuples, without spans."""
    if isinstance(value, Span):
        return None
    if dataclasses.is_dataclass(value):
        left_out = {"span", "places", "source", "node"}
        fields = [field.name for field in dataclasses.fields(value) if field.name not in left_out]
        stated = write_attributes(value.node) if isinstance(value, CheckedModule) else ()
        return (type(value).__name__, stated, *(without_spans(getattr(value, name)) for name in fields))
    if isinstance(value, tuple):
        return tuple(without_spans(item) for item in value)
    return value


def spans(value: Any) -> Iterator[tuple[Any, Span]]:
    """Yield every node of a tree of dataclasses that has a span, with the span."""
    if dataclasses.is_dataclass(value) and not isinstance(value, Span):
        if hasattr(value, "span"):
            yield value, value.span
        for field in dataclasses.fields(value):
            yield from spans(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from spans(item)


def cut(text: str, span: Span) -> str:
    """Return the text of a span."""
    lines = text.split("\n")[span.line - 1 : span.stop_line]
    lines[-1] = lines[-1][: span.stop_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return "\n".join(lines)
