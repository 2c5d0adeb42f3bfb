"""Render templates of schemas and prompts: a Jinja2 file and plain data give the XML text of a document.

Values are escaped, so data never becomes markup. The spans of diagnostics are in the template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from traceback import walk_tb
from types import FrameType
from typing import TypeAlias

from jinja2 import Template, TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.parser import Parser
from jinja2.utils import missing

from promptcache.diagnostics import LanguageError, diagnostic, did_you_mean
from promptcache.language.limits import MAX_BYTES, MAX_DEPTH
from promptcache.language.syntax.names import few
from promptcache.language.syntax.sandbox import NoValueError, Sandbox, TemplateFault, prepare
from promptcache.language.syntax.source import RenderedPiece, Source, decode, source_of

Plain: TypeAlias = str | int | float | bool | list["Plain"] | dict[str, "Plain"] | None
"""Values that a context may contain: the types of JSON."""

_FILE = "<template>"
_SECTION = re.compile(r"<!--.*?(?:-->|\Z)|<!\[CDATA\[(.*?)(?:\]\]>|\Z)", re.DOTALL)
_VARIABLE = re.compile(r"l_\d+_(?!loop$)(.+)")  # the names that Jinja2 gives to the variables of a template
_BLOCK = re.compile(r"\{%[-+]?\s*((?:end)?(?:for|if))\b")
_TAGS = ("for", "if", "set", "elif", "else", "endfor", "endif")
_DUE = re.compile(r"following tags: '(\w+)'")
_NO_TAG = re.compile(r"unknown tag '(\w+)'")
_NO_FILTER = re.compile(r"No (filter|test) named '(.*)'\.")


def render_template(
    text: str | bytes, context: Mapping[str, object] | None, source: str, error: type[LanguageError]
) -> Source:
    """Render a template and return the document. The spans of the document are in the template.

    Args:
        context: Values that the template may use: text, numbers, booleans, None, and lists and mappings of these.
        source: Name of the template in diagnostics.

    Raises:
        LanguageError: Of the class `error`, with a code from PC601 to PC606, or from `decode`.
    """
    template = decode(text, source, error)
    rendering = _Rendering(template.text, context)
    try:
        rendered, pieces = rendering.run()
    except _CAUGHT as fault:
        code, message, advice = rendering.explain(fault)
        start, stop = rendering.place(fault)
        raise error([diagnostic(code, message, template.span(start, stop), advice)]) from None
    return replace(source_of(rendered, source), template=template, pieces=pieces)


_CAUGHT = (
    *(TemplateFault, NoValueError, TemplateError, RecursionError, SyntaxError),
    *(TypeError, ValueError, ArithmeticError, LookupError, AttributeError),
)


class _Rendering:
    def __init__(self, text: str, context: Mapping[str, object] | None) -> None:
        self._text = text
        self._context = context
        self._sandbox = Sandbox()
        self._template: Template | None = None

    def run(self) -> tuple[str, tuple[RenderedPiece, ...]]:
        """Return the text of the document, and the pieces that map it to the template."""
        data = plain(dict(self._context or {}))
        assert isinstance(data, dict), "a mapping stays one"
        tree = prepare(Parser(self._sandbox, self._text).parse(), self._sandbox)
        code = self._sandbox.compile(tree, name=_FILE, filename=_FILE)
        self._template = Template.from_code(self._sandbox, code, {})
        texts: list[str] = []
        places: list[tuple[int, int, bool]] = []
        size = 0
        for text in self._template.root_render_func(self._template.new_context(data)):
            self._sandbox.check_time()
            places.append(self._sandbox.lexer.pieces[self._sandbox.piece])
            texts.append(text.replace("\r\n", "\n").replace("\r", "\n"))
            size += len(text.encode())
            if size > MAX_BYTES:
                raise TemplateFault(f"the template writes more than {MAX_BYTES} bytes")
        texts = _outside_sections(texts, [verbatim for _, _, verbatim in places])
        starts = accumulate(map(len, texts), initial=0)
        pieces = tuple(RenderedPiece(start, *place) for start, place in zip(starts, places, strict=False))
        return "".join(texts), pieces or (RenderedPiece(0, 0, 0, True),)

    def explain(self, fault: Exception) -> tuple[str, str, str | None]:
        """Return the code, message and help for the exception that stopped the rendering."""
        match fault:
            case TemplateFault():
                return fault.code, str(fault), fault.help
            case NoValueError():
                return "PC603", str(fault), self._with_value(fault)
            case TemplateSyntaxError() if (block := self._unclosed(fault)) is not None:
                return "PC601", f"'{block[1]}' has no end", f"add {{% end{block[1]} %}}"
            case TemplateSyntaxError():
                return "PC601", *_syntax_fault(str(fault.message))
            case ValueError() if "to unpack" in str(fault):
                advice = "the keys and values of a mapping are written as {% for key, value in it|items %}"
                return "PC606", f"the template fails: {fault}", advice
            case UndefinedError():
                return "PC603", str(fault.message), None
            case SecurityError():
                return "PC602", str(fault.message), None
            case RecursionError():
                return "PC604", "the template is nested too deeply", None
            case UnicodeEncodeError():
                return "PC006", "this value has a lone surrogate, which UTF-8 cannot represent", None
            case TemplateError() if found := _NO_FILTER.match(str(fault)):
                known = self._sandbox.filters if found[1] == "filter" else self._sandbox.tests
                message = f"the {found[1]} '{found[2]}' is not available in templates of documents"
                return "PC601", message, did_you_mean(found[2], known)
        return "PC606", f"the template fails: {fault}", None

    def _with_value(self, fault: NoValueError) -> str | None:
        values = [value for frame, _ in _frames(fault) for value in frame.f_locals.items()]
        found = {name[1] for key, value in values if value is not missing and (name := _VARIABLE.fullmatch(key))}
        known = sorted(found | {*(self._context or ())} if fault.is_variable else fault.known)
        if near := did_you_mean(fault.name, known):
            return near
        if self._context is None and fault.is_variable:
            return "give --context FILE, or context={…} in Python"
        return f"available: {few(known)}" if known else None

    def place(self, fault: Exception) -> tuple[int, int]:
        """Return the range of a fault in the template.

        It is a name, or an expression up to the end of its tag or line. A fault of what was written last has its tag.
        """
        frames = _frames(fault)
        if self._template is not None and not frames:
            return self._sandbox.lexer.pieces[self._sandbox.piece][:2]
        offset = 0
        if isinstance(fault, TemplateSyntaxError):
            block = self._unclosed(fault)
            offset = fault.lineno - 1 if block is None else block.start(1)
        elif isinstance(fault, TemplateFault) and fault.offset is not None:
            offset = fault.offset
        elif self._template is not None:
            _, line = frames[-1]
            offset = self._template.get_corresponding_lineno(line) - 1  # the lexer counts offsets as lines
        blank = len(self._text) - len(self._text[offset:].lstrip())
        start = min(max(offset, blank), max(len(self._text) - 1, 0))
        ends = (self._text.find(end, start) for end in ("}}", "%}", "\n"))
        stop = min((end for end in ends if end >= 0), default=len(self._text))
        if isinstance(fault, NoValueError):
            dot = "" if fault.is_variable else r"(?<=\.)\s*"
            if name := re.compile(rf"{dot}\b{re.escape(fault.name)}\b").search(self._text, start, stop):
                return name.span()
        return start, start + len(self._text[start:stop].rstrip(" -+"))

    def _unclosed(self, fault: TemplateSyntaxError) -> re.Match[str] | None:
        """Return the innermost `for` or `if` without an end, if that is the fault."""
        stack: list[re.Match[str]] = []
        for block in _BLOCK.finditer(self._text) if "Unexpected end of template" in str(fault.message) else ():
            if not block[1].startswith("end"):
                stack.append(block)
            elif stack:
                stack.pop()
        return stack[-1] if stack else None


def _frames(fault: Exception) -> list[tuple[FrameType, int]]:
    """Return the frames of an exception that are in the template, outermost first, with their line numbers."""
    return [(frame, line) for frame, line in walk_tb(fault.__traceback__) if frame.f_code.co_filename == _FILE]


def _outside_sections(texts: list[str], verbatim: list[bool]) -> list[str]:
    """Close CDATA sections before each value in them, and open them again after the value.

    CDATA sections cannot contain escaped text. Only the text of the template itself begins and ends sections and
    comments, so the search for sections replaces each value with one character.
    """
    shown = [text if own else "." for text, own in zip(texts, verbatim, strict=True)]
    sections = (match.span(1) for match in _SECTION.finditer("".join(shown)) if match[1] is not None)
    start, section = 0, next(sections, None)
    for number, text in enumerate(shown):
        while section is not None and section[1] <= start:
            section = next(sections, None)
        if not verbatim[number] and section is not None and section[0] <= start:
            texts[number] = f"]]>{texts[number]}<![CDATA["
        start += len(text)
    return texts


def plain(value: object, where: str = "context", depth: int = 0) -> Plain:
    """Return a copy of plain data.

    Raises:
        TemplateFault: The data has another type, such as a callable, or is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise TemplateFault(f"{where[:80]} is nested more than {MAX_DEPTH} deep", "PC605")
    if type(value) in {str, int, float, bool, type(None)}:
        return value  # type: ignore[return-value]  # checked by the exact type: a subclass could run code
    if isinstance(value, list | tuple) and type(value) in {list, tuple}:
        return [  # the place of an item costs more than its check, and texts need none
            item if type(item) is str else plain(item, f"{where}[{number}]", depth + 1)
            for number, item in enumerate(value)
        ]
    if isinstance(value, Mapping) and type(value) is dict and all(type(name) is str for name in value):
        return {name: plain(item, f"{where}.{name}", depth + 1) for name, item in value.items()}
    allowed = "only text, numbers, truth values, None, lists and mappings are allowed"
    message = f"{where[:80]} is of type {type(value).__name__}: {allowed}"
    raise TemplateFault(message, "PC605")


def _syntax_fault(message: str) -> tuple[str, str | None]:
    tag, due = _NO_TAG.search(message), _DUE.search(message)
    if tag and tag[1] in _TAGS:
        return f"'{tag[1]}' has no beginning", None
    if tag and tag[1] == "end" and due:
        return "there is no tag 'end'", f"write {{% {due[1]} %}}"
    advice = did_you_mean(tag[1], _TAGS) if tag else None
    return message, "write }}" if message == "unexpected '}'" else advice
