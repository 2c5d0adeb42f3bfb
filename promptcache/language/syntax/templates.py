"""Templates of schemas and prompts: a Jinja2 file and plain data to the XML text of a document.

Comes in: the text of a `*.xml.j2` file and a context. Goes out: a document; values in it are escaped, so that data
never becomes markup. This file does not read the document. The limits keep accidents small: templates from strangers
belong into a process of their own all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from types import CodeType, TracebackType
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, UndefinedError, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from promptcache.diagnostics import Diagnostic, LanguageError, Span
from promptcache.language.syntax.source import MAX_BYTES, Origin, Piece, Source, decode
from promptcache.language.syntax.template_limits import (
    ALLOWED_NODES,
    ALLOWED_TESTS,
    MAX_SOURCE,
    MAX_TAG,
    MAX_TAGS,
    METHODS,
    Budget,
    TemplateLimitError,
    plain,
    written,
)

_FILE = "<template>"
_PIECE = "piece of text"
_SECTION = re.compile(r"<!--.*?(?:-->|\Z)|<!\[CDATA\[(.*?)(?:\]\]>|\Z)", re.DOTALL)
_TAG = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)


def render_template(
    text: str | bytes, context: Mapping[str, object] | None, source: str, error: type[LanguageError]
) -> Source:
    """Return the document that a template makes; its spans are places in the template.

    Args:
        context: The names that it may use: text, numbers, truth values, None, and lists and mappings of these.
        source: Its name in diagnostics.

    Raises:
        LanguageError: of the class `error`, at the template's line, PC601 to PC606.
    """
    written_as = decode(text, source, error)
    budget = Budget()
    environment = _Environment(budget)
    template: Template | None = None
    try:
        _check_size(written_as.text)
        data = plain(dict(context or {}))
        assert isinstance(data, dict), "a mapping stays one"
        template = Template.from_code(environment, _compile(environment, written_as.text), {})
        rendered, pieces = _collect(template, data, environment)
        document = decode(rendered, source, error)
        return replace(document, origin=Origin(template=written_as, pieces=pieces)) if pieces else document
    except TemplateSyntaxError as fault:
        found = ("PC601", str(fault.message), fault.lineno)
    except TemplateLimitError as fault:
        found = (fault.code, str(fault), getattr(fault, "line", 0) or _line(template, fault.__traceback__))
    except UndefinedError as fault:
        found = ("PC603", str(fault.message), _line(template, fault.__traceback__))
    except SecurityError as fault:
        found = ("PC602", str(fault.message), _line(template, fault.__traceback__))
    except RecursionError:
        found = ("PC604", "the template is nested too deeply", 1)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, SyntaxError) as fault:
        found = ("PC606", f"the template fails: {fault}", _line(template, fault.__traceback__))
    code, message, line = found
    raise error([Diagnostic(code=code, message=message, span=Span(source, line, 1, line, 1, written_as))])


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox with nothing in it but what the limits allow."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: Budget) -> None:
        super().__init__(autoescape=True, undefined=StrictUndefined, optimized=False, keep_trailing_newline=True,
                         finalize=written, cache_size=0)  # fmt: skip
        self.globals = {}
        self.filters = {**budget.filters(), _PIECE: self._note}
        self.tests = {name: test for name, test in self.tests.items() if name in ALLOWED_TESTS}
        self.budget = budget
        self.number = 0  # of the piece that was computed last, among the texts and values of the template
        self.places: list[tuple[int, int, bool]] = []

    @pass_context  # and so never computed ahead
    def _note(self, _context: Context, value: Any, number: int) -> Any:
        self.number = number
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.budget.operate(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _check_size(text: str) -> None:
    tags = _TAG.findall(text) if len(text) <= MAX_SOURCE else []
    if len(text) > MAX_SOURCE or len(tags) > MAX_TAGS or any(len(tag) > MAX_TAG for tag in tags):
        limits = f"{MAX_SOURCE} characters and {MAX_TAGS} tags of {MAX_TAG} characters"
        raise TemplateLimitError(f"a template has at most {limits}")


def _compile(environment: _Environment, text: str) -> CodeType:
    tree = environment.parse(text)
    _check_nodes(tree)
    for loop in tree.find_all(nodes.For):
        loop.iter = _filtered(loop.iter, "counted items")
    environment.places = list(_places(environment, text))
    _number_pieces(tree)
    return environment.compile(_without_concat(tree), name=_FILE, filename=_FILE)  # type: ignore[no-any-return,call-overload]


def _check_nodes(tree: nodes.Node) -> None:
    """Refuse constructs that are not for templates of documents."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.iter_child_nodes())
        what = type(node).__name__.lower()
        if isinstance(node, nodes.For) and node.recursive:
            what = "a recursive loop"
        elif isinstance(node, nodes.Call) and not _is_method(node.node):
            what = "this call"
        elif isinstance(node, nodes.List | nodes.Tuple) and not all(
            isinstance(item, nodes.Const | nodes.Name) and getattr(item, "ctx", "store") == "store"
            for item in node.items
        ):
            what = "a list of anything but constants"
        elif isinstance(node, ALLOWED_NODES):
            continue
        fault = TemplateLimitError(f"{what} is not available in templates of documents", "PC602")
        fault.line = node.lineno  # type: ignore[attr-defined]
        raise fault


def _is_method(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Getattr) and node.attr in METHODS


def _without_concat(node: nodes.Node) -> nodes.Node:
    """Put our own joining of texts in the place of every `~`."""
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(node, field, _without_concat(value))
        elif isinstance(value, list):
            setattr(node, field, [_without_concat(item) if isinstance(item, nodes.Node) else item for item in value])
    if isinstance(node, nodes.Concat):
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "joined text")
    return node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr), "only values are filtered"
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _number_pieces(tree: nodes.Node) -> None:
    """Let every text and value of a template say which one it is when it is written."""
    number = 0
    for output in list(tree.find_all(nodes.Output)):
        for index, child in enumerate(output.nodes):
            numbered = _filtered(child, _PIECE)
            numbered.args.append(nodes.Const(number, lineno=child.lineno))
            output.nodes[index] = numbered
            number += 1


def _places(environment: _Environment, text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield where each text and value of a template stands, and whether it is a text."""
    position = begin = 0
    for _, kind, token in environment.lex(text):
        start = text.index(token, position)
        position = start + len(token)
        if kind == "variable_begin":
            begin = start
        elif kind == "variable_end":
            yield begin, position, False
        elif kind == "data" and token:
            yield start, position, True


def _collect(template: Template, data: dict[str, Any], environment: _Environment) -> tuple[str, tuple[Piece, ...]]:
    texts: list[str] = []
    places: list[tuple[int, int, bool]] = []
    size = 0
    for text in template.root_render_func(template.new_context(data)):
        environment.budget.spend()
        places.append(environment.places[environment.number])
        texts.append(text.replace("\r\n", "\n").replace("\r", "\n"))
        size += len(text)
        if size > MAX_BYTES:
            raise TemplateLimitError(f"the template writes more than {MAX_BYTES} characters")
    texts = _outside_sections(texts, [verbatim for _, _, verbatim in places])
    starts = accumulate(map(len, texts), initial=0)
    pieces = (Piece(start, *place) for start, place, text in zip(starts, places, texts, strict=False) if text)
    return "".join(texts), tuple(pieces)


def _outside_sections(texts: list[str], verbatim: list[bool]) -> list[str]:
    """Close a CDATA section before each value in it, and open it again behind: values are escaped, which it is not.

    Only what the template says itself begins and ends sections and comments: here each value counts as one character.
    """
    said = [text if own else "." for text, own in zip(texts, verbatim, strict=True)]
    sections = (match.span(1) for match in _SECTION.finditer("".join(said)) if match[1] is not None)
    start, section = 0, next(sections, None)
    for number, text in enumerate(said):
        while section is not None and section[1] <= start:
            section = next(sections, None)
        if not verbatim[number] and section is not None and section[0] <= start:
            texts[number] = f"]]>{texts[number]}<![CDATA["
        start += len(text)
    return texts


def _line(template: Template | None, trace: TracebackType | None) -> int:
    """Return the innermost line of the template that a fault passed."""
    line = 1
    while trace is not None:
        if template is not None and trace.tb_frame.f_code.co_filename == _FILE:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line
