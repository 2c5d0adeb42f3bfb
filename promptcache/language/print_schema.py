"""Print a schema as an XML document; parsing the document gives the same checked content.

Text from a `src` file is not copied: the document refers to the file.
"""

from __future__ import annotations

from itertools import groupby

from promptcache.diagnostics import SchemaError
from promptcache.language.schema import Schema
from promptcache.language.syntax.answers import answer_element
from promptcache.language.syntax.attributes import escape
from promptcache.language.syntax.nodes import (
    AnswerFormat,
    Assert,
    Choose,
    Collection,
    Combination,
    Context,
    Doc,
    Example,
    Exclude,
    Item,
    Module,
    Parameter,
    ParameterType,
    Require,
    RuleList,
    Scaffold,
    Text,
    Turn,
    Union,
    Whitespace,
)
from promptcache.language.syntax.whitespace import is_blank
from promptcache.language.syntax.write_xml import Verbatim, Written, print_document


def print_schema(schema: Schema) -> str:
    """Return a schema as an XML document.

    Raises:
        SchemaError: a text has a character that XML cannot represent.
    """
    attributes = _attributes(
        name=schema.name,
        version=schema.version,
        whitespace=None if schema.whitespace is Whitespace.DEDENT else schema.whitespace,
        separator=None if schema.separator == "\n" else escape(schema.separator),
        context=None if schema.context is Context.PREVIOUS else schema.context,
        repair=schema.repair,
        positions=schema.positions,
    )
    root = Written("schema", attributes, _children(schema.children))
    return print_document(root, schema.span, SchemaError)


def _children(items: tuple[Item, ...]) -> tuple[Written | str, ...]:
    """Return the content of an element; the printer sets the whitespace between blocks, all other text is exact."""
    found: list[Written | str] = []
    for inline, group in groupby(items, key=lambda item: isinstance(item, Text | Parameter)):
        block = list(group)
        if not (inline and all(isinstance(item, Text) and not item.exact and is_blank(item.text) for item in block)):
            found += (_item(item) for item in block)
    return tuple(found)


def _item(item: Item) -> Written | str:
    match item:
        case Text():
            return Written("text", (), (item.text,), inline=True) if item.exact else item.text
        case Doc():
            return Written("doc", (), (item.text,))
        case AnswerFormat():
            return answer_element(item)
        case Turn():
            return Written(item.role.value, (), _children(item.children))
        case Module():
            return _module(item)
        case Union() | Collection():
            return _group(item)
        case Parameter():
            return _parameter(item)
        case Example():
            attributes = _attributes(name=item.name, valid=item.valid, contains=item.contains, answer=item.answer)
            return Written("example", attributes, (Verbatim(item.prompt),))
        case RuleList():
            children = (_rule(child) if not isinstance(child, Doc) else _item(child) for child in item.children)
            return Written("rules", (), tuple(children))
        case Scaffold():
            return Written("scaffold", _attributes(name=item.name, modules=" ".join(item.modules)))


def _module(module: Module) -> Written:
    attributes = _attributes(
        name=module.name,
        required=module.required or None,
        requires=" ".join(module.requires) or None,
        excludes=" ".join(module.excludes) or None,
        after=" ".join(module.after) or None,
        cache=module.cache,
        src=module.src,
        reserve=module.reserve,
        context=module.context,
        whitespace=module.whitespace,
        separator=None if module.separator is None else escape(module.separator),
    )
    children = module.children
    if module.src is not None:
        children = tuple(child for child in children if isinstance(child, Doc))
    return Written("module", attributes, _children(children))


def _group(group: Union | Collection) -> Written:
    if isinstance(group, Union):
        attributes = _attributes(name=group.name, required=group.required or None, default=group.default)
        return Written("union", attributes, _children(group.children))
    attributes = _attributes(
        name=group.name,
        min=group.minimum or None,
        max=group.maximum,
        src=group.src,
        context=None if group.context is Context.GUARANTEED else group.context,
        whitespace=group.whitespace,
        separator=None if group.separator is None else escape(group.separator),
    )
    return Written("collection", attributes, _children(group.children))


def _parameter(parameter: Parameter) -> Written:
    placeholder = "scaffold" if parameter.cut_placeholder else "placeholder"
    attributes = _attributes(
        name=parameter.name,
        length=parameter.length,
        default=parameter.default,
        **{placeholder: parameter.placeholder},
        required=parameter.required or None,
        type=None if parameter.type is ParameterType.TEXT else parameter.type,
        choices="|".join(parameter.choices) or None,
        pattern=parameter.pattern,
        message=parameter.message,
    )
    return Written("parameter", attributes, inline=True)


def _rule(rule: Combination) -> Written:
    attributes: tuple[tuple[str, str], ...]
    match rule:
        case Require():
            attributes = (("if", rule.condition), ("then", rule.consequence))
        case Assert():
            attributes = _attributes(test=rule.test)
        case Exclude():
            attributes = _attributes(modules=" ".join(rule.modules))
        case Choose():
            attributes = _attributes(modules=" ".join(rule.modules), min=rule.minimum, max=rule.maximum)
    return Written(type(rule).__name__.lower(), (*attributes, *_attributes(message=rule.message)))


def _attributes(**values: str | int | None) -> tuple[tuple[str, str], ...]:
    """Return the attributes that have a value; truth values are in lower case."""
    found = ((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in values.items())
    return tuple(pair for pair, value in zip(found, values.values(), strict=True) if value is not None)
