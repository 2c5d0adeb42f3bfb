"""Read the attributes of an element into the fields of its node, with a diagnostic for each that is not allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from promptcache.diagnostics import Diagnostic, FaultList, Span, diagnostic, did_you_mean
from promptcache.language.limits import MAX_PATTERN
from promptcache.language.syntax.attributes import (
    BOOLEAN,
    NUMBER,
    NUMBER_OR_ZERO,
    PATTERN,
    STRING,
    AttributeType,
    ValueKind,
    attributes_of,
)
from promptcache.language.syntax.names import CONTENT, meant, quoted
from promptcache.language.syntax.xml import Attribute, Element

_WRITTEN = re.compile(r"&[^;]*;|.", re.DOTALL)
_DIGITS = re.compile(r"[1-9][0-9]{,8}")
_WITH_TEXT = frozenset({"module", "system", "user", "assistant", "text", "doc", "arg"})
_TRUTH = {
    **dict.fromkeys(("yes", "on", "1", "always"), "true"),
    **dict.fromkeys(("no", "off", "0", "never", "none"), "false"),
}


def read_attributes(element: Element, node: type[Any], faults: FaultList) -> dict[str, Any]:
    """Return the fields of a node that the attributes of an element give, its span and its places.

    A required field is None if its attribute is missing or not allowed. The document is refused then, because each
    fault is added to `faults`.
    """
    declared = {each.name: each for each in attributes_of(node)}
    written = {attribute.name: attribute for attribute in element.attributes}
    places = tuple((name, _words(each, declared.get(name))) for name, each in written.items())
    fields: dict[str, Any] = {"span": element.span, "places": places}
    fixes = {name: _instead(element, each, [*declared]) for name, each in written.items() if name not in declared}
    for name, fix in fixes.items():
        faults.add("PC103", f"<{element.name}> has no attribute '{name}'", written[name].span, fix)
    for each in declared.values():
        attribute, other = written.get(each.name), each.alias_of
        if each.required:
            fields[each.field] = None
        if attribute is None:
            if each.required and f"did you mean '{each.name}'?" not in fixes.values():
                faults.append(missing(element, each.name))
        elif other and other in written:
            message = f"'{each.name}' is another name for '{other}': use only one of them"
            faults.add("PC105", message, attribute.span, f"remove '{each.name}'")
        elif (value := each.kind.read(attribute.value)) is None:
            message = f"{each.name}={quoted(attribute.value)} is not allowed: {each.kind.expected} is expected"
            faults.add("PC105", message, attribute.value_span, _advice(attribute, each.kind))
        elif other:
            fields |= {each.field: True, declared[other].field: value}
        else:
            fields[each.field] = value
    return fields


def wrong_root(root: Element, expected: str) -> Diagnostic:
    """Return the diagnostic for a document that does not begin as a schema or prompt is expected to."""
    message = f"a {expected} document begins with <{expected}>, not <{root.name}>"
    fix = did_you_mean(root.name, [expected])
    name = next((each.value for each in root.attributes if each.name in ("name", "schema")), "…")
    if root.name == "schema":
        fix = f'this is a schema: write a prompt for it, <prompt schema="{name}">…</prompt>'
    elif root.name == "prompt":
        fix = f'this is a prompt: name the file of its schema, <schema name="{name}">'
    return diagnostic("PC107", message, root.name_span, fix)


def missing(element: Element, name: str, message: str = "the attribute '{}'") -> Diagnostic:
    return diagnostic("PC104", f"<{element.name}> needs {message.format(name)}", element.name_span, f'add {name}="…"')


def num_words(element: Element, node: type[Any]) -> int:
    """Count the paths and the words of conditions in the attributes of an element."""
    words = {each.name: each.kind.word for each in attributes_of(node) if each.kind is not PATTERN and each.kind.word}
    listed = (attribute for attribute in element.attributes if attribute.name in words)
    return sum(1 for attribute in listed for _ in words[attribute.name].finditer(attribute.value))


def _instead(element: Element, attribute: Attribute, known: Sequence[str]) -> str:
    if attribute.name in CONTENT and element.name in _WITH_TEXT:
        return f"write the text inside, <{element.name} …>{attribute.value}</{element.name}>"
    allowed = f"allowed attributes: {', '.join(known)}" if known else "it has no attributes"
    return meant(attribute.name, known) or allowed


def _advice(attribute: Attribute, kind: ValueKind) -> str:
    if kind is BOOLEAN and attribute.value in _TRUTH:
        return f'write {attribute.name}="{_TRUTH[attribute.value]}"'
    if kind in {NUMBER, NUMBER_OR_ZERO} and (found := _DIGITS.search(attribute.value)):
        return f'write {attribute.name}="{found[0]}"'
    return meant(attribute.value, kind.values) or f'as in {attribute.name}="{kind.example or kind.values[0]}"'


def _words(attribute: Attribute, declared: AttributeType | None) -> tuple[Span, ...]:
    """Return the span of each word of a value, or that of the value."""
    kind = STRING if declared is None else declared.kind
    if kind.word is None or (kind is PATTERN and len(attribute.value) > MAX_PATTERN):
        return (attribute.value_span,)
    source, start, stop = attribute.source, attribute.value_start, attribute.value_stop
    offsets: Sequence[int] = range(start, stop + 1)  # of each character of the value, and of its end
    if len(attribute.value) != stop - start:  # a reference is one character
        offsets = [*(match.start() for match in _WRITTEN.finditer(source.text, start, stop)), stop]
    found = (source.span(offsets[each.start()], offsets[each.end()]) for each in kind.word.finditer(attribute.value))
    return tuple(found) or (attribute.value_span,)
