"""Read a prompt document into nodes with a span on every part, or report all faults of its structure.

`resolve_prompt` checks that the schema has the modules of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from promptcache.diagnostics import (
    MAX_FAULTS,
    Diagnostic,
    FaultList,
    PromptError,
    Span,
    in_order,
)
from promptcache.language.lint import lint_choices, lint_text, lint_value
from promptcache.language.syntax.answers import answer_faults, read_answer, second_answer
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.files import Folder
from promptcache.language.syntax.names import RESERVED_MODULES, is_path, path_help, quoted
from promptcache.language.syntax.nodes import IN_PYTHON, AnswerFormat, Role, Text, Turn, Whitespace
from promptcache.language.syntax.prompt_nodes import (
    Argument,
    Message,
    PromptDocument,
    Reference,
    misplaced_text,
)
from promptcache.language.syntax.read_attributes import read_attributes, wrong_root
from promptcache.language.syntax.source import Source
from promptcache.language.syntax.synonyms import AS_TEXT, HTML, ROLES
from promptcache.language.syntax.whitespace import finish
from promptcache.language.syntax.xml import Attribute, Characters, Element, Node, parse_xml

_Prompt = TypeVar("_Prompt", bound=PromptDocument)

_ROLES = frozenset(Role)
_OF_PROMPT = {each.name for each in attributes_of(PromptDocument)}
_EXACT = Text(text="", span=IN_PYTHON, exact=True)


def read_prompt(source: Source, make: Callable[..., _Prompt], folder: Folder | None = None) -> _Prompt:
    """Read a prompt document.

    Args:
        make: Class of the result.
        folder: Folder of the file that `src` names; None if there is none, and `src` is an error.

    Raises:
        PromptError: all faults of XML or structure, in document order.
    """
    root = parse_xml(source, source.name, PromptError)
    if found := wrong_root(root, "prompt"):
        raise PromptError([found])
    reader = _PromptReader(folder)
    fields = reader.prompt(root)
    if reader.faults:
        raise PromptError(in_order(reader.faults))
    return make(**fields)


class _PromptReader:
    """Converter from elements to the parts of a prompt; appends diagnostics to `faults`."""

    def __init__(self, folder: Folder | None) -> None:
        self._folder = folder
        self.faults = FaultList(PromptError)
        self.warnings: list[Diagnostic] = []

    def prompt(self, root: Element) -> dict[str, Any]:
        """Return the fields of a prompt."""
        fixed = [attribute for attribute in root.attributes if attribute.name in _OF_PROMPT]
        fields = read_attributes(root._replace(attributes=tuple(fixed)), PromptDocument, self.faults)
        own = [attribute for attribute in root.attributes if attribute.name not in _OF_PROMPT]
        naming, text = self._divide(root.children)
        answer = self._answer([node for node in naming if isinstance(node, Element) and node.name == "answer"])
        references = tuple(self._references(naming))
        messages = tuple(self._messages(text))
        self.faults += misplaced_text(messages)
        return {
            "schema": fields["schema"],
            "references": references,
            "arguments": self._arguments(own, naming),
            "messages": messages,
            "version": fields.get("version"),
            "answer_format": answer,
            "span": root.span,
            "warnings": in_order(self.warnings)[:MAX_FAULTS],
        }

    def _answer(self, elements: list[Element]) -> AnswerFormat | None:
        """Return the format of the answer. Only the first element is read: checking a format takes milliseconds."""
        if not elements:
            return None
        element, *others = elements
        for node in element.children:
            if isinstance(node, Element):
                self.faults.add("PC102", f"<{node.name}> is not allowed inside <answer>", node.name_span, "remove it")
            elif not node.blank:
                fix = "its attributes say what the answer must be; a turn is written as <assistant>"
                self.faults.add("PC106", "<answer> cannot contain text", node.span, fix)
        answer = read_answer(element, self._folder, "prompt", self.faults)
        self.faults += answer_faults(answer)
        self.warnings += lint_choices(answer)
        self.faults += (second_answer(each.span, element.span, "prompt") for each in others)
        return answer

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
                self.faults.add("PC415", message, node.name_span, "name modules first, then write turns")
        naming = [node for node in children[:stop] if isinstance(node, Characters) or node.name not in _ROLES]
        return naming, list(children[stop:])

    def _references(self, nodes: Sequence[Node], around: tuple[Element, ...] = ()) -> Iterable[Reference]:
        last = next((node for node in reversed(nodes) if isinstance(node, Element)), None)
        for node in nodes:
            if isinstance(node, Characters) or node.name == "text":
                self._no_text(node, around, last)
            elif node.name == "use":
                yield from self._use(node, around)
            elif node.name in RESERVED_MODULES - {"arg"} and (around or node.name != "answer"):
                self.faults.add("PC102", f"<{node.name}> is not allowed here", node.name_span, _instead(node.name))
            elif node.name not in {"arg", "answer"}:
                yield self._reference(node, node.name, node.name_span, node.attributes, around)

    def _use(self, element: Element, around: tuple[Element, ...]) -> Iterable[Reference]:
        module = next((attribute for attribute in element.attributes if attribute.name == "module"), None)
        others = [attribute for attribute in element.attributes if attribute is not module]
        if module is None:
            path = others[0].value if len(others) == 1 and is_path(others[0].value) else "…"
            fix = f'write <use module="{path}"/>'
            self.faults.add("PC104", "<use> needs the attribute 'module'", element.name_span, fix)
        elif not is_path(module.value):
            message = f"{quoted(module.value)} is not a valid module path"
            self.faults.add("PC207", message, module.value_span, path_help(module.value))
            self._reference(element, module.value, module.value_span, others, around)  # report the faults inside it
        else:
            yield self._reference(element, module.value, module.value_span, others, around)

    def _reference(
        self, element: Element, path: str, span: Span, attributes: Sequence[Attribute], around: tuple[Element, ...]
    ) -> Reference:
        return Reference(
            path=path.removeprefix("/"),
            span=span,
            absolute=path.startswith("/"),
            arguments=self._arguments(attributes, element.children),
            children=tuple(self._references(element.children, (*around, element))),
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
                self.faults.add("PC403", message, argument.span, "remove one of them", related)
        return tuple(first.values())

    def _arg(self, element: Element) -> Iterable[Argument]:
        text = "".join(self._exact(element))
        match element.attributes:
            case (Attribute(name=slot, value=value),) if slot != "name" and not text:
                fix = f'write <arg name="{slot}">{value}</arg>'
                self.faults.add("PC104", "<arg> needs the attribute 'name'", element.name_span, fix)
                return
        name = read_attributes(element, Argument, self.faults)["name"]
        if name is not None:
            yield Argument(name=name, text=text, span=element.span)

    def _messages(self, nodes: list[Node]) -> Iterable[Message]:
        block: list[Node] = []
        for node in nodes:
            if isinstance(node, Element) and node.name in _ROLES:
                yield from self._bare(block)
                block = []
                read_attributes(node, Turn, self.faults)
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
                read_attributes(node, Text, self.faults)
                exact.append("".join(self._exact(node)))
                pieces.append(None)
            else:
                message = f"<{node.name}> is not allowed in the text of a prompt"
                advice = AS_TEXT if node.name in HTML else "name modules before the text; write &lt; for a literal <"
                self.faults.add("PC102", message, node.name_span, advice)
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
                self.faults.add("PC102", message, node.name_span, "write &lt; for a literal <, or use <![CDATA[…]]>")

    def _no_text(self, node: Node, around: tuple[Element, ...], last: Element | None) -> None:
        """Report text where only references are allowed: inside of `around`, or before the last reference."""
        if isinstance(node, Characters) and node.blank:
            return
        if around:
            message = f"<{around[-1].name}> can contain references and arguments, but no text"
            self.faults.add("PC412", message, node.span, _or_as_text(_as_argument(around), around[-1].name))
        else:
            assert last is not None, "without a reference there is nothing before one"
            advice = f"move the text after the last reference, <{last.name}>"
            self.faults.add(
                "PC412", "text is not allowed between references", node.span, _or_as_text(advice, last.name)
            )


def _as_argument(around: tuple[Element, ...]) -> str:
    """Return help for text inside of an element: what it most likely means."""
    inner = around[-1]
    role = next((each.value for each in inner.attributes if each.name == "role"), "")
    if role in _ROLES:
        return f"a turn is written as <{role}>"
    name = next((each.value for each in inner.attributes if each.name == "name"), inner.name)
    if len(around) == 1 and inner.name in ROLES:
        return f"a turn is <system>, <user> or <assistant>: write <{ROLES[inner.name]}>"
    if len(around) > 1:
        return f'an argument of <{around[-2].name}> is written <arg name="{name}">…</arg>, or {name}="…" in its tag'
    return 'write <arg name="…">…</arg> with the name of the slot; text of the prompt follows the last reference'


def _or_as_text(advice: str, name: str) -> str:
    return f"{advice}; {AS_TEXT}" if name in HTML else advice


def _instead(name: str) -> str | None:
    if name in _ROLES:
        return "write turns after the references, not inside them"
    if name == "answer":
        return "write <answer> at the top level of the prompt"
    if name == "tool":
        return "a turn is <system>, <user> or <assistant>"
    return "use an XML comment, <!-- … -->" if name == "doc" else None
