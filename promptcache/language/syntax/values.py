"""Check the types of parameters, and check texts against these types."""

from __future__ import annotations

import re
from collections.abc import Iterator

from promptcache.diagnostics import Diagnostic, did_you_mean
from promptcache.language.syntax.names import argument_form, few, quoted
from promptcache.language.syntax.nodes import Parameter, ParameterType, place
from promptcache.language.syntax.patterns import MAX_TEXT, PatternError, read_pattern
from promptcache.language.syntax.source import diagnostic

_INT = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WIDER = {
    ParameterType.TEXT: {ParameterType.TEXT},
    ParameterType.LINE: {ParameterType.LINE, ParameterType.TEXT},
    ParameterType.NUMBER: {ParameterType.NUMBER, ParameterType.LINE, ParameterType.TEXT},
    ParameterType.INT: {ParameterType.INT, ParameterType.NUMBER, ParameterType.LINE, ParameterType.TEXT},
}
"""Types that accept every text of a type; choices are compared one by one."""
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def refusal(parameter: Parameter, text: str) -> tuple[str, str | None] | None:
    """Return the reason why a parameter rejects an argument, with help, or None if it accepts the argument.

    A required parameter rejects empty text. Whitespace is not empty text.
    """
    if parameter.required and not text:
        return "it is required, but the text is empty", f"write {argument_form(parameter.name)} with text"
    return _not_of_type(parameter, text)


def _not_of_type(parameter: Parameter, text: str) -> tuple[str, str | None] | None:
    match parameter.type:
        case ParameterType.LINE if any(character in text for character in _BREAKS):
            return "it takes one line, but the text has several", "remove the line breaks"
        case ParameterType.INT if not _INT.fullmatch(text):
            return "it takes a whole number, such as 12 or -3", None
        case ParameterType.NUMBER if not _NUMBER.fullmatch(text):
            return "it takes a number, such as 12, -0.5 or 1e6", None
        case ParameterType.CHOICE if text not in parameter.choices:
            return f"it takes one of: {few(parameter.choices)}", did_you_mean(text, parameter.choices)
    if parameter.pattern is not None:
        if len(text) > MAX_TEXT:
            return f"the text has {len(text)} characters, and a pattern is matched with at most {MAX_TEXT}", None
        if not read_pattern(parameter.pattern).matches(text):
            return parameter.message or f"it takes text that matches {parameter.pattern}", None
    return None


def accepts_all(parameter: Parameter, old: Parameter) -> bool:
    """Return whether the type and pattern of a parameter surely accept all texts that those of `old` accept."""
    if old.type is ParameterType.CHOICE:
        return all(_not_of_type(old, text) or not _not_of_type(parameter, text) for text in old.choices)
    return parameter.type in _WIDER[old.type] and parameter.pattern in {None, old.pattern}


def check_type(parameter: Parameter) -> Iterator[Diagnostic]:
    """Yield diagnostics for the type of a parameter, or for its default and placeholder if the type is correct."""
    faults = tuple(_declaration(parameter))
    yield from faults
    if faults:
        return
    for attribute, text in (("default", parameter.default), ("placeholder", parameter.placeholder)):
        if text is not None and (found := _not_of_type(parameter, text)):
            message = f"the {attribute} {quoted(text)} is not a valid value of parameter '{parameter.name}': {found[0]}"
            yield diagnostic("PC216", message, place(parameter, attribute), found[1])


def _declaration(parameter: Parameter) -> Iterator[Diagnostic]:
    if parameter.choices and parameter.type is not ParameterType.CHOICE:
        message = 'only parameters with type="choice" have choices'
        yield diagnostic("PC105", message, place(parameter, "choices"), 'add type="choice"')
    if parameter.type is ParameterType.CHOICE and not parameter.choices:
        message = "a parameter with type=\"choice\" needs the attribute 'choices'"
        yield diagnostic("PC104", message, place(parameter, "type"), 'add choices="one|two"')
    if parameter.message is not None and parameter.pattern is None:
        message = "only parameters with a pattern have a message"
        yield diagnostic("PC105", message, place(parameter, "message"), 'add pattern="…"')
    if parameter.pattern is not None:
        try:
            read_pattern(parameter.pattern)
        except PatternError as fault:
            span = place(parameter, "pattern", fault.position)
            message = f"pattern={quoted(parameter.pattern)} at character {fault.position + 1}: {fault.message}"
            yield diagnostic("PC215", message, span, fault.help)
