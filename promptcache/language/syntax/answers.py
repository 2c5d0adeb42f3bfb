"""The element `answer`: read and check it, and return the output format that it states.

llguidance is imported with the first answer, because most documents have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from promptcache.diagnostics import Diagnostic, FaultList, InvalidGeneration, Span, diagnostic
from promptcache.language.syntax.files import Folder, read_src
from promptcache.language.syntax.nodes import AnswerFormat, ParameterType, place
from promptcache.language.syntax.patterns import portable_pattern, read_pattern
from promptcache.language.syntax.read_attributes import read_attributes
from promptcache.language.syntax.values import BREAKS, INT, NUMBER, not_of_type, type_faults
from promptcache.language.syntax.xml import Element

if TYPE_CHECKING:
    from promptcache.structured import OutputFormat

_TYPES = {
    ParameterType.LINE: (f"[^{BREAKS}]*", str),
    ParameterType.INT: (INT.pattern, int),
    ParameterType.NUMBER: (NUMBER.pattern, float),
}
"""The pattern of each type that has one, and the function that makes the value of a text."""


def read_answer(element: Element, folder: Folder | None, document: str, faults: FaultList) -> AnswerFormat:
    """Read an `answer` element of a `document`, "schema" or "prompt". Diagnostics are added to `faults`."""
    answer = AnswerFormat(**read_attributes(element, AnswerFormat, faults))
    if answer.src is None:
        return answer
    for attribute in element.attributes:
        if attribute.name in ("type", "choices", "pattern"):
            message = f"an answer with src has no {attribute.name}: the file says what answers are"
            faults.add("PC105", message, attribute.span, f"remove '{attribute.name}', or remove src")
    found = read_src(answer.src, folder, place(answer, "src"), document=document)
    if isinstance(found, Diagnostic):
        faults.append(found)
        return answer
    return replace(answer, schema=found)


def second_answer(span: Span, first: Span, document: str) -> Diagnostic:
    """Return the diagnostic for a second answer of a document, "schema" or "prompt"."""
    related = ((first, "first stated here"),)
    return diagnostic("PC113", f"the {document} has a second <answer>", span, "remove one of them", related)


def output_format(answer: AnswerFormat) -> OutputFormat | None:
    """Return the format that an answer states; None if that is any text.

    Raises:
        InvalidGeneration: It states no possible format.
    """
    from promptcache.structured import Choice, JSONSchema, Regex

    if answer.schema is not None:
        return JSONSchema(answer.schema)
    if answer.type == ParameterType.CHOICE:
        pattern = None if answer.pattern is None else read_pattern(answer.pattern)
        taken = [each for each in answer.choices if pattern is None or pattern.matches(each)]
        if not taken:
            raise InvalidGeneration("the format of the answer cannot be used: no choice matches the pattern")
        return Choice(taken)
    also = None if answer.pattern is None else portable_pattern(answer.pattern)
    if answer.type in _TYPES:
        pattern_of_type, load = _TYPES[answer.type]
        return Regex(pattern_of_type, also=also, load=load)
    return None if also is None else Regex(also)


def answer_faults(answer: AnswerFormat) -> Iterator[Diagnostic]:
    """Yield diagnostics for the type of an answer, or for a format that no model can be held to."""
    faults = tuple(type_faults(answer))
    yield from faults
    if faults:
        return
    try:
        output = output_format(answer)
        if output is not None:
            _check(output)
    except InvalidGeneration as error:
        attribute = next((name for name in ("src", "pattern", "choices") if getattr(answer, name)), "type")
        yield diagnostic("PC227", str(error), place(answer, attribute))


def answer_refusal(answer: AnswerFormat, text: str) -> tuple[str, str | None] | None:
    """Return the reason why a text is no answer of this format, with help, or None if it is one."""
    if found := not_of_type(answer, text):
        return found
    output = output_format(answer)
    if output is None or output.accepts(text):
        return None
    try:
        json.loads(text)
    except ValueError as error:
        return f"it is not JSON: {error}", None
    return "it is not JSON of the schema as models write it, with one space behind ':' and ',' or none", None


@lru_cache(maxsize=64)
def _check(output: OutputFormat) -> None:
    """Refuse a format that llguidance does not support. Formats that it supports are remembered."""
    from promptcache.structured import check_format

    check_format(output)
