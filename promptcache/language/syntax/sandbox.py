"""Jinja2 environment for templates: the constructs, filters and methods that they may use, and their limits.

Jinja2's sandbox keeps Python's internals out of reach. This module limits the time of loops and the size of products.
The limits protect against mistakes; run untrusted templates in a separate process.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, MappingView
from functools import partial, wraps
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, filters, nodes, pass_context
from jinja2.lexer import Lexer
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing
from jinja2.visitor import NodeTransformer
from markupsafe import escape

from promptcache.diagnostics import did_you_mean
from promptcache.language.limits import MAX_BYTES, MAX_RENDER_S

_MAX_BITS = 4_000  # of a whole number; Python writes none that is larger
_CONSTRUCTS = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.Operand),
    *(nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Compare, nodes.CondExpr, nodes.Keyword),
    *(nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos, nodes.Concat, nodes.Filter, nodes.Test, nodes.Call),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.List, nodes.Tuple),
)
"""Node types of text, values, `for`, `if` and `set`. Macros, blocks, imports and includes are not allowed."""

_METHODS = ("items", "keys", "values", "get", "upper", "lower", "strip", "startswith", "endswith", "split")
_TEXT_FILTERS = frozenset({"upper", "lower", "title", "capitalize", "trim", "escape", "e", "string"})
_FILTERS = (
    *(*_TEXT_FILTERS, "default", "d", "length", "count", "first", "last", "abs", "float", "int", "sum", "min", "max"),
    *("sort", "unique", "dictsort", "reverse", "items", "list", "map", "select", "reject", "selectattr", "rejectattr"),
)

PIECE, _COUNTED = "write a piece", "count items"
"""Internal filters. Templates cannot name them."""


class TemplateFault(Exception):
    """Error for a template that exceeds a limit or is not allowed. `offset` is set if the template never ran."""

    def __init__(self, message: str, code: str = "PC604", advice: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.code, self.help, self.offset = code, advice, offset


class NoValueError(Exception):
    """Error for a variable without a value, or for an attribute or item that `owner` does not have.

    `known` are the names that `owner` has.
    """

    def __init__(self, name: object, owner: object) -> None:
        super().__init__(f"'{name}' has no value" if isinstance(name, str) else f"there is no item {name}")
        self.name = str(name)
        self.is_variable = owner is missing
        self.known: Iterable[str] = owner if isinstance(owner, dict) else _METHODS if isinstance(owner, str) else ()


class _Undefined(StrictUndefined):
    @property
    def _undefined_message(self) -> str:
        """Raise `NoValueError`, which has the name. Jinja2 reads this message just before it raises an error."""
        if self._undefined_hint is None:
            raise NoValueError(self._undefined_name, self._undefined_obj)
        return super()._undefined_message


class PlacedLexer(Lexer):
    """Lexer whose "line numbers" are offsets, so that the positions that Jinja2 reports are exact to the character.

    `pieces` lists the texts and values of the template: the start and stop of each, and whether it is a text.
    """

    def __init__(self, environment: Sandbox) -> None:
        super().__init__(environment)
        self.pieces: list[tuple[int, int, bool]] = []

    def tokeniter(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> Iterator[tuple[int, str, str]]:
        """Yield the offset, kind and text of every token; offsets count from 1."""
        stop = begin = 0
        try:
            for _, kind, text in super().tokeniter(source, name, filename, state):
                start = source.index(text, stop)
                stop = start + len(text)
                if kind == "variable_begin":
                    begin = start
                elif kind == "variable_end":
                    self.pieces.append((begin, stop, False))
                elif kind == "data" and text:
                    self.pieces.append((start, stop, True))
                yield start + 1, kind, text
        except TemplateSyntaxError as fault:
            raise TemplateSyntaxError(re.sub(r" at \d+$", "", fault.message or ""), stop + 1) from None


class Sandbox(ImmutableSandboxedEnvironment):
    """Sandbox that enforces the limits. One sandbox renders one template, once."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(autoescape=True, undefined=_Undefined, optimized=False, keep_trailing_newline=True,
                         finalize=written, cache_size=0)  # fmt: skip
        self._stop = time.thread_time() + MAX_RENDER_S
        self._lexer = PlacedLexer(self)
        self.piece = 0  # index of the text or value that was computed last
        self.globals = {}
        self.filters = {name: filters.FILTERS[name] for name in _FILTERS}
        self.filters |= {name: _of_text(filters.FILTERS[name]) for name in _TEXT_FILTERS}
        self.filters |= {"join": _join, "tojson": partial(json.dumps, ensure_ascii=False)}
        self.filters |= {_COUNTED: self._counted, PIECE: self._note}

    @property
    def lexer(self) -> PlacedLexer:
        return self._lexer

    def check_time(self) -> None:
        """Raise an error if the template has taken longer than it may. The clock is that of this thread."""
        if time.thread_time() > self._stop:
            raise TemplateFault(f"the template takes more than {MAX_RENDER_S:g} seconds")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operation. Large products and powers and `%` on text raise an error."""
        if operator == "%" and isinstance(left, str):
            raise TemplateFault("'%' does not format text in a template", "PC602")
        if operator != "%" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise TemplateFault(f"this gives a number of more than {_MAX_BITS} bits")
        for many, times in ((left, right), (right, left)) if operator == "*" else ():
            if isinstance(many, str | list | tuple) and isinstance(times, int) and len(many) * times > MAX_BYTES:
                raise TemplateFault(f"this gives more than {MAX_BYTES} characters or items")
        return super().call_binop(context, operator, left, right)

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.check_time()
            yield item

    @pass_context  # so that Jinja2 never evaluates the filter at compile time
    def _note(self, _context: Context, value: Any, number: int) -> Any:
        self.piece = number
        return value


def _of_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter of texts so that it refuses lists and mappings."""

    @wraps(function)
    def filtered(value: Any, *args: Any) -> Any:
        return function(written(value), *args)

    return filtered


def _join(value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    texts = (written(item if attribute is None else item[attribute]) for item in value)
    return escape(written(d)).join(texts)


def prepare(tree: nodes.Template, sandbox: Sandbox) -> nodes.Template:
    """Rewrite a template so that its loops and all that it writes pass through the sandbox.

    Raises:
        TemplateFault: The template uses a construct, filter, test or method that is not allowed.
    """
    for node in (tree, *tree.find_all(nodes.Node)):
        _check(node, sandbox)
    number = 0
    for output in list(tree.find_all(nodes.Output)):
        for index, child in enumerate(output.nodes):
            output.nodes[index] = _filtered(child, PIECE, number)
            if isinstance(child, nodes.Filter | nodes.Test | nodes.Call):  # Jinja2 places it behind its value
                output.nodes[index].lineno = min(each.lineno for each in child.find_all(nodes.Node) if each.lineno)
            number += 1
    prepared = _Rewriter().visit(tree)
    assert isinstance(prepared, nodes.Template), "no rule is for the root"
    return prepared


def _check(node: nodes.Node, sandbox: Sandbox) -> None:
    what, code, advice, offset = type(node).__name__.lower(), "PC602", None, (node.lineno or 1) - 1
    match node:
        case nodes.For(recursive=True):
            what = "a recursive loop"
        case nodes.Call(node=nodes.Getattr(attr=attr)) if attr not in _METHODS:
            what, advice = f"the method '{attr}'", did_you_mean(attr, _METHODS)
            offset = node.node.lineno  # the offset after the dot
        case nodes.Call() if not isinstance(node.node, nodes.Getattr):
            what, offset = "this call", node.node.lineno - 1
            advice = "templates have no functions: give lists in the context"
        case nodes.Filter(name=name) if name not in sandbox.filters:
            what, code, advice = f"the filter '{name}'", "PC601", did_you_mean(name, sandbox.filters)
            advice = advice or "docs/language.md#templates lists the filters"
        case nodes.Test(name=name) if name not in sandbox.tests:
            what, code, advice = f"the test '{name}'", "PC601", did_you_mean(name, sandbox.tests)
        case _ if isinstance(node, _CONSTRUCTS):
            return
        case nodes.Include() | nodes.Import() | nodes.FromImport() | nodes.Extends():
            advice = 'include another document with <include href="…"/>'
        case nodes.Stmt():
            advice = "statements are for, if and set"
    message = f"{what} is not available in templates of documents"
    raise TemplateFault(message, code, advice, offset)


class _Rewriter(NodeTransformer):
    """Transformer that replaces operations that Jinja2 compiles to plain Python with filters of the sandbox."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node)
        match node:
            case nodes.For():
                node.iter = _filtered(node.iter, _COUNTED)
            case nodes.Concat():
                return _filtered(nodes.List(node.nodes, lineno=node.lineno), "join")
        return node


def _filtered(node: nodes.Node, name: str, *arguments: int) -> nodes.Filter:
    assert isinstance(node, nodes.Expr), "only values are filtered"
    constants: list[nodes.Expr] = [nodes.Const(each, lineno=node.lineno) for each in arguments]
    return nodes.Filter(node, name, constants, [], None, None, lineno=node.lineno)


def written(value: Any) -> Any:
    """Return a value for output: text and numbers unchanged, None as empty text. Lists and mappings raise an error."""
    if isinstance(value, Undefined | str | int | float):
        return value
    if value is None:
        return ""
    kind = "list" if isinstance(value, MappingView) else type(value).__name__
    raise TemplateFault(f"a {kind} cannot be written", "PC602", "use a filter, such as join or tojson")
