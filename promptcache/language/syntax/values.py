"""Types of the texts of parameters and answers: check them and texts of them, and read the element `answer`.

llguidance is imported with the first answer, because most documents have none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from promptcache.diagnostics import Diagnostic, FaultList, InvalidGeneration, Span, diagnostic, did_you_mean
from promptcache.language.syntax.files import Folder, read_src
from promptcache.language.syntax.names import argument_form, few, quoted
from promptcache.language.syntax.nodes import AnswerFormat, Parameter, ParameterType, place
from promptcache.language.syntax.patterns import PatternError, matches, portable_pattern, read_pattern
from promptcache.language.syntax.read_attributes import read_attributes
from promptcache.language.syntax.xml import Element

if TYPE_CHECKING:
    from promptcache.structured import OutputFormat

INT = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_TYPES = {
    ParameterType.LINE: (f"[^{BREAKS}]*", str),
    ParameterType.INT: (INT.pattern, int),
    ParameterType.NUMBER: (NUMBER.pattern, float),
}
"""The pattern of each type that has one, and the function that makes the value of a text."""


def refusal(parameter: Parameter, text: str) -> tuple[str, str | None] | None:
    """Return the reason why a parameter rejects an argument, with help, or None if it accepts the argument.

    A required parameter rejects empty text. Whitespace is not empty text.
    """
    if parameter.required and not text:
        return "it is required, but the text is empty", f"write {argument_form(parameter.name)} with text"
    return not_of_type(parameter, text)


def not_of_type(parameter: Parameter | AnswerFormat, text: str) -> tuple[str, str | None] | None:
    """Return the reason why a text is no value of a type and pattern, with help, or None if it is one."""
    match parameter.type:
        case ParameterType.LINE if any(character in text for character in BREAKS):
            return "it takes one line, but the text has several", "remove the line breaks"
        case ParameterType.INT if not INT.fullmatch(text):
            return "it takes a whole number, such as 12 or -3", "write digits only"
        case ParameterType.NUMBER if not NUMBER.fullmatch(text):
            return "it takes a number, such as 12, -0.5 or 1e6", "write digits, with a point before decimals"
        case ParameterType.CHOICE if text not in parameter.choices:
            advice = separated(parameter) or did_you_mean(text, parameter.choices) or "write one of them"
            return f"it takes one of: {few(parameter.choices)}", advice
    if parameter.pattern is not None and not matches(parameter.pattern, text):
        message = parameter.message if isinstance(parameter, Parameter) else None
        return message or f"it takes text that matches {parameter.pattern}", None
    return None


def separated(parameter: Parameter | AnswerFormat) -> str | None:
    """Return help for a single choice that consists of several, or None."""
    if len(parameter.choices) != 1:
        return None
    choice = parameter.choices[0].strip()
    parts = [part for part in re.split(r"\s*[,;/]\s*", choice) if part]
    meant = "|".join(parts if len(parts) > 1 else choice.split())
    return f'separate choices by |, as in choices="{meant}"' if "|" in meant else None


def check_type(parameter: Parameter) -> Iterator[Diagnostic]:
    """Yield diagnostics for the type of a parameter, or for its default and placeholder if the type is correct."""
    faults = tuple(type_faults(parameter))
    yield from faults
    if faults:
        return
    for attribute, text in (("default", parameter.default), ("placeholder", parameter.placeholder)):
        if text is not None and (found := not_of_type(parameter, text)):
            message = f"the {attribute} {quoted(text)} is not a valid value of parameter '{parameter.name}': {found[0]}"
            yield diagnostic("PC216", message, place(parameter, attribute), found[1])


def type_faults(parameter: Parameter | AnswerFormat) -> Iterator[Diagnostic]:
    """Yield diagnostics for attributes of a type that do not belong together, and for a pattern that cannot be read."""
    what = "a parameter" if isinstance(parameter, Parameter) else "an answer"
    if parameter.choices and parameter.type != ParameterType.CHOICE:
        message = f'only {what} with type="choice" has choices'
        yield diagnostic("PC105", message, place(parameter, "choices"), 'add type="choice"')
    if parameter.type == ParameterType.CHOICE and not parameter.choices:
        message = f"{what} with type=\"choice\" needs the attribute 'choices'"
        yield diagnostic("PC104", message, place(parameter, "type"), 'add choices="one|two"')
    if isinstance(parameter, Parameter) and parameter.message is not None and parameter.pattern is None:
        message = "only a parameter with a pattern has a message"
        yield diagnostic("PC105", message, place(parameter, "message"), 'add pattern="…"')
    if parameter.pattern is not None:
        try:
            read_pattern(parameter.pattern)
        except PatternError as fault:
            span = place(parameter, "pattern", fault.position)
            message = f"pattern={quoted(parameter.pattern)} at character {fault.position + 1}: {fault.message}"
            yield diagnostic("PC215", message, span, fault.help)


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
        taken = [each for each in answer.choices if answer.pattern is None or matches(answer.pattern, each)]
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
