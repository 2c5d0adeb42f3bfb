"""Parse a prompt document into a `Prompt` with a span on every part, or report all faults of its structure.

`resolve_prompt` checks that the schema has the modules of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from promptcache.diagnostics import PATH, Diagnostic, FaultList, InvalidValue, PromptError, Span, did_you_mean, in_order
from promptcache.language.lint import lint_text, lint_value
from promptcache.language.prompt import Argument, Message, Prompt, Reference, bad_range, misplaced_text
from promptcache.language.syntax.attributes import AttributeReader
from promptcache.language.syntax.files import is_template, no_template, open_document
from promptcache.language.syntax.names import RESERVED_MODULES, is_path, is_range, path_help, quoted
from promptcache.language.syntax.nodes import IN_PYTHON, Role, Text, Whitespace
from promptcache.language.syntax.source import Source, decode, diagnostic, read_document
from promptcache.language.syntax.whitespace import finish
from promptcache.language.syntax.xml import Attribute, Characters, Element, Node, parse_xml

_ROLES = frozenset(Role)
_EXACT = Text(text="", span=IN_PYTHON, exact=True)


def parse_prompt(text: str | bytes, *, source: str = "<prompt>") -> Prompt:
    """Parse a prompt document.

    Args:
        text: The document; bytes must be UTF-8.
        source: Name of the document in diagnostics.

    Raises:
        PromptError: all faults of XML or structure, in document order.
    """
    return _read(decode(text, source, PromptError))


def parse_prompt_at(text: str, span: Span) -> Prompt:
    """Parse a prompt at `span` inside another document; errors are those of `parse_prompt`."""
    return _read(replace(decode(text, span.source, PromptError), first=(span.line, span.column)))


def load_prompt(path: str | Path, *, context: Mapping[str, object] | None = None) -> Prompt:
    """Load a prompt file.

    Args:
        path: A document, or a template of one, `*.xml.j2`.
        context: Values for the template: plain data, as in JSON.

    Raises:
        PromptError: the file cannot be read, or as `parse_prompt`.
    """
    PATH.check("path", path, InvalidValue)
    name = str(path)
    data = read_document(Path(path), PromptError)
    if context is not None and not is_template(name):
        raise PromptError([no_template(name)])
    return _read(open_document(data, name, context, PromptError))


def _read(source: Source) -> Prompt:
    root = parse_xml(source, source.name, PromptError)
    if root.name != "prompt":
        advice = (
            "this document is a schema, but a prompt is expected here"
            if root.name == "schema"
            else did_you_mean(root.name, ["prompt"])
        )
        message = f"a prompt document begins with <prompt>, not <{root.name}>"
        raise PromptError([diagnostic("PC107", message, root.name_span, advice)])
    reader = _PromptReader()
    parts = reader.prompt(root)
    if reader.faults:
        raise PromptError(in_order(reader.faults))
    return parts


class _PromptReader:
    """Converter from elements to the parts of a prompt; appends diagnostics to `faults`."""

    def __init__(self) -> None:
        self.faults = FaultList(PromptError)
        self.warnings: list[Diagnostic] = []

    def prompt(self, root: Element) -> Prompt:
        schema = next((attribute.value for attribute in root.attributes if attribute.name == "schema"), None)
        if schema is None:
            self._fault("PC104", "<prompt> needs the attribute 'schema'", root.name_span, 'add schema="…"')
        own = [attribute for attribute in root.attributes if attribute.name not in {"schema", "version"}]
        version = next((attribute for attribute in root.attributes if attribute.name == "version"), None)
        if version is not None and not is_range(version.value):
            self.faults.append(bad_range(version.value, version.value_span))
        naming, text = self._divide(root.children)
        references = tuple(self._references(naming))
        messages = tuple(self._messages(text))
        self.faults += misplaced_text(messages)
        return Prompt(
            schema or "",
            references=references,
            arguments=self._arguments(own, naming),
            messages=messages if not self.faults else (),
            version=version.value if version is not None and not self.faults else None,
            span=root.span,
            warnings=in_order(self.warnings),
        )

    def _divide(self, children: tuple[Node, ...]) -> tuple[list[Node], list[Node]]:
        """Split a prompt after its last reference or argument; only its own text and turns may follow."""
        stop = 0
        for index, node in enumerate(children):
            if isinstance(node, Element) and node.name not in {"text", *_ROLES}:
                stop = index + 1
        turn = None
        for node in children[:stop]:
            if isinstance(node, Element) and node.name in _ROLES:
                turn = turn or node
            elif isinstance(node, Element) and node.name != "text" and turn is not None:
                message = f"<{node.name}> comes after the turn <{turn.name}> of the prompt"
                self._fault("PC415", message, node.name_span, "name modules first, then write turns")
        naming = [node for node in children[:stop] if isinstance(node, Characters) or node.name not in _ROLES]
        return naming, list(children[stop:])

    def _references(self, nodes: Iterable[Node]) -> Iterable[Reference]:
        for node in nodes:
            if isinstance(node, Characters) or node.name == "text":
                self._no_text(node)
            elif node.name == "use":
                yield from self._use(node)
            elif node.name in RESERVED_MODULES - {"arg"}:
                self._fault("PC102", f"<{node.name}> is not allowed here", node.name_span, _instead(node.name))
            elif node.name != "arg":
                yield self._reference(node, node.name, node.name_span, node.attributes)

    def _use(self, element: Element) -> Iterable[Reference]:
        module = next((attribute for attribute in element.attributes if attribute.name == "module"), None)
        others = [attribute for attribute in element.attributes if attribute is not module]
        if module is None:
            self._fault("PC104", "<use> needs the attribute 'module'", element.name_span, 'add module="…"')
        elif not is_path(module.value):
            message = f"{quoted(module.value)} is not a valid module path"
            self._fault("PC207", message, module.value_span, path_help(module.value))
            self._reference(element, module.value, module.value_span, others)  # report the faults inside it
        else:
            yield self._reference(element, module.value, module.value_span, others)

    def _reference(self, element: Element, path: str, span: Span, attributes: Sequence[Attribute]) -> Reference:
        return Reference(
            path=path.removeprefix("/"),
            span=span,
            absolute=path.startswith("/"),
            arguments=self._arguments(attributes, element.children),
            children=tuple(self._references(element.children)),
        )

    def _arguments(self, attributes: Iterable[Attribute], children: Iterable[Node]) -> tuple[Argument, ...]:
        found: list[Argument] = []
        for item in attributes:
            found.append(Argument(name=item.name, text=item.value, span=item.span))
            self.warnings += lint_value(item.value, item.value_span)
        for node in children:
            if isinstance(node, Element) and node.name == "arg":
                found += self._arg(node)
        first: dict[str, Argument] = {}
        for argument in found:
            if first.setdefault(argument.name, argument) is not argument:
                related = ((first[argument.name].span, "first given here"),)
                message = f"the argument '{argument.name}' is given twice"
                self._fault("PC403", message, argument.span, "remove one of them", related)
        return tuple(first.values())

    def _arg(self, element: Element) -> Iterable[Argument]:
        attributes = AttributeReader(element, ("name",), self.faults)
        text = "".join(self._exact(element))
        name = attributes.needed("name")
        if attributes.text("name") is not None:
            yield Argument(name=name, text=text, span=element.span)

    def _messages(self, nodes: list[Node]) -> Iterable[Message]:
        block: list[Node] = []
        for node in nodes:
            if isinstance(node, Element) and node.name in _ROLES:
                yield from self._bare(block)
                block = []
                AttributeReader(node, (), self.faults)
                yield Message(role=Role(node.name), text=self._text(node.children), span=node.span)
            else:
                block.append(node)
        yield from self._bare(block)

    def _bare(self, block: list[Node]) -> Iterable[Message]:
        if text := self._text(block):
            node = next(node for node in block if isinstance(node, Element) or not node.blank)
            yield Message(role=None, text=text, span=node.span)

    def _text(self, nodes: Sequence[Node]) -> str:
        """Return the text of a turn, or bare text: <text> is exact, other text is dedented."""
        pieces: list[str | None] = []
        exact = []
        for node in nodes:
            if isinstance(node, Characters):
                pieces.append(node.text)
            elif node.name == "text":
                AttributeReader(node, (), self.faults)
                exact.append("".join(self._exact(node)))
                pieces.append(None)
            else:
                message = f"<{node.name}> is not allowed in the text of a prompt"
                self._fault(
                    "PC102", message, node.name_span, "name modules before the text; write &lt; for a literal <"
                )
        block = [Text(text=node.text, span=node.span) if isinstance(node, Characters) else _EXACT for node in nodes]
        self.warnings += lint_text(block)
        remaining = iter(exact)
        return "".join(next(remaining) if piece is None else piece for piece in finish(pieces, Whitespace.DEDENT))

    def _exact(self, element: Element) -> Iterable[str]:
        for node in element.children:
            if isinstance(node, Characters):
                yield node.text
            else:
                message = f"<{element.name}> can contain only text, not <{node.name}>"
                self._fault("PC102", message, node.name_span, "write &lt; for a literal <, or use <![CDATA[…]]>")

    def _no_text(self, node: Node) -> None:
        if isinstance(node, Element) or not node.blank:
            advice = 'move the text after the last reference, or pass it as an argument with <arg name="…">'
            self._fault("PC412", "text is not allowed between references", node.span, advice)

    def _fault(
        self, code: str, message: str, span: Span, advice: str | None, related: tuple[tuple[Span, str], ...] = ()
    ) -> None:
        self.faults.append(diagnostic(code, message, span, advice, related))


def _instead(name: str) -> str | None:
    if name in _ROLES:
        return "write turns after the references, not inside them"
    return "use an XML comment, <!-- … -->" if name == "doc" else None
