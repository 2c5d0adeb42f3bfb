"""Read a prompt document into nodes with a span on every part, or report all faults of its structure.

`resolve_prompt` checks that the schema has the modules of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from promptcache.diagnostics import MAX_FAULTS, Diagnostic, FaultList, PromptError, diagnostic, in_order
from promptcache.language.lint import lint_choices, lint_text, lint_value
from promptcache.language.syntax import nodes
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.files import Folder
from promptcache.language.syntax.names import AS_TEXT, HTML, RESERVED_MODULES, ROLES, is_path, path_help, quoted
from promptcache.language.syntax.read_attributes import read_attributes, wrong_root
from promptcache.language.syntax.source import Source
from promptcache.language.syntax.values import answer_faults, read_answer, second_answer
from promptcache.language.syntax.whitespace import finish
from promptcache.language.syntax.xml import Attribute, Characters, Element, Node, parse_xml

_ROLES = frozenset(nodes.Role)
_OF_PROMPT = {each.name for each in attributes_of(nodes.PromptDocument)}
_INSTEAD = {
    **{str(role): "write turns after the references, not inside them" for role in nodes.Role},
    "answer": "write <answer> at the top level of the prompt",
    "tool": "a turn is <system>, <user> or <assistant>",
    "doc": "use an XML comment, <!-- … -->",
}
"""Fixes for elements that are not allowed inside of a reference."""


def read_prompt(source: Source, folder: Folder | None = None) -> dict[str, Any]:
    """Return the fields of the prompt of a document.

    `folder` is that of the file that `src` names; without one, `src` is an error.

    Raises:
        PromptError: all faults of XML or structure, in document order.
    """
    root = parse_xml(source, source.name, PromptError)
    if root.name != "prompt":
        raise PromptError([wrong_root(root, "prompt")])
    reader = _PromptReader()
    fixed = tuple(attribute for attribute in root.attributes if attribute.name in _OF_PROMPT)
    fields = read_attributes(root._replace(attributes=fixed), nodes.PromptDocument, reader.faults)
    own = [attribute for attribute in root.attributes if attribute.name not in _OF_PROMPT]
    stop = 0  # the end of references and arguments; only the prompt's own text and turns may follow
    turn: Element | None = None
    for number, node in enumerate(root.children, 1):
        if isinstance(node, Element) and node.name in _ROLES:
            turn = turn or node
        elif isinstance(node, Element) and node.name != "text":
            stop = number
            if turn is not None:
                message = f"<{node.name}> comes after the turn <{turn.name}> of the prompt"
                reader.faults.add("PC415", message, node.name_span, "name modules first, then write turns")
    naming = [each for each in root.children[:stop] if isinstance(each, Characters) or each.name not in _ROLES]
    answers = [each for each in naming if isinstance(each, Element) and each.name == "answer"]
    answer = reader.answer(answers, folder) if answers else None
    references = tuple(reader.references(naming))
    messages = tuple(reader.messages(root.children[stop:]))
    reader.faults += misplaced_text(messages)
    arguments = reader.arguments(own, naming)
    if reader.faults:
        raise PromptError(in_order(reader.faults))
    return {
        "schema": fields["schema"],
        "references": references,
        "arguments": arguments,
        "messages": messages,
        "version": fields.get("version"),
        "answer_format": answer,
        "span": root.span,
        "warnings": in_order(reader.warnings)[:MAX_FAULTS],
    }


def misplaced_text(messages: tuple[nodes.Message, ...]) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every bare text that is not the first message."""
    for message in messages[1:]:
        if message.role is None:
            words = "bare text can only come before the turns of a prompt"
            yield diagnostic("PC416", words, message.span, "put the text into a turn, <user>…</user>")


class _PromptReader:
    """Converter from elements to the parts of a prompt; appends diagnostics to `faults` and `warnings`."""

    def __init__(self) -> None:
        self.faults = FaultList(PromptError)
        self.warnings: list[Diagnostic] = []

    def answer(self, elements: Sequence[Element], folder: Folder | None) -> nodes.AnswerFormat:
        """Return the format of the answer. Only the first element is read: checking a format takes milliseconds."""
        element, *others = elements
        for node in element.children:
            if isinstance(node, Element):
                self.faults.add("PC102", f"<{node.name}> is not allowed inside <answer>", node.name_span, "remove it")
            elif not node.blank:
                fix = "its attributes say what the answer must be; a turn is written as <assistant>"
                self.faults.add("PC106", "<answer> cannot contain text", node.span, fix)
        answer = read_answer(element, folder, "prompt", self.faults)
        self.faults += answer_faults(answer)
        self.warnings += lint_choices(answer)
        self.faults += (second_answer(each.span, element.span, "prompt") for each in others)
        return answer

    def references(self, content: Sequence[Node], around: tuple[Element, ...] = ()) -> Iterator[nodes.Reference]:
        last = next((node for node in reversed(content) if isinstance(node, Element)), None)
        for node in content:
            if isinstance(node, Characters) or node.name == "text":
                self._no_text(node, around, last)
            elif node.name in RESERVED_MODULES - {"arg", "use"} and (around or node.name != "answer"):
                fix = _INSTEAD.get(node.name)
                self.faults.add("PC102", f"<{node.name}> is not allowed here", node.name_span, fix)
            elif node.name not in {"arg", "answer"}:
                module = self._module(node) if node.name == "use" else None
                if node.name == "use" and module is None:
                    continue
                path = node.name if module is None else module.value
                reference = nodes.Reference(
                    path=path.removeprefix("/"),
                    span=node.name_span if module is None else module.value_span,
                    absolute=path.startswith("/"),
                    arguments=self.arguments((each for each in node.attributes if each is not module), node.children),
                    children=tuple(self.references(node.children, (*around, node))),
                )
                if module is None or is_path(path):
                    yield reference

    def _module(self, use: Element) -> Attribute | None:
        """Return the attribute with the path of a `<use>`, or None without one; report a path that is not valid."""
        module = next((attribute for attribute in use.attributes if attribute.name == "module"), None)
        if module is None:
            others = [attribute.value for attribute in use.attributes]
            path = others[0] if len(others) == 1 and is_path(others[0]) else "…"
            self.faults.add(
                "PC104", "<use> needs the attribute 'module'", use.name_span, f'write <use module="{path}"/>'
            )
        elif not is_path(module.value):
            message = f"{quoted(module.value)} is not a valid module path"
            self.faults.add("PC207", message, module.value_span, path_help(module.value))
        return module

    def arguments(self, attributes: Iterable[Attribute], children: Iterable[Node]) -> tuple[nodes.Argument, ...]:
        found: list[nodes.Argument] = []
        for item in attributes:
            found.append(nodes.Argument(name=item.name, text=item.value, span=item.span))
            self.warnings += lint_value(item.value, item.value_span)
        for node in children:
            if isinstance(node, Element) and node.name == "arg":
                found += self._arg(node)
        first: dict[str, nodes.Argument] = {}
        for argument in found:
            if first.setdefault(argument.name, argument) is not argument:
                related = ((first[argument.name].span, "first given here"),)
                message = f"the argument '{argument.name}' is given twice"
                self.faults.add("PC403", message, argument.span, "remove one of them", related)
        return tuple(first.values())

    def _arg(self, element: Element) -> Iterator[nodes.Argument]:
        text = self._exact(element)
        match element.attributes:
            case (Attribute(name=slot, value=value),) if slot != "name" and not text:
                fix = f'write <arg name="{slot}">{value}</arg>'
                self.faults.add("PC104", "<arg> needs the attribute 'name'", element.name_span, fix)
                return
        name = read_attributes(element, nodes.Argument, self.faults)["name"]
        if name is not None:
            yield nodes.Argument(name=name, text=text, span=element.span)

    def messages(self, content: Sequence[Node]) -> Iterator[nodes.Message]:
        for is_turn, group in groupby(content, key=lambda node: isinstance(node, Element) and node.name in _ROLES):
            block = [*group]
            for node in block if is_turn else ():
                assert isinstance(node, Element), "a turn is one"
                read_attributes(node, nodes.Turn, self.faults)
                yield nodes.Message(role=nodes.Role(node.name), text=self._text(node.children), span=node.span)
            if not is_turn and (text := self._text(block)):
                first = next(node for node in block if isinstance(node, Element) or not node.blank)
                yield nodes.Message(role=None, text=text, span=first.span)

    def _text(self, content: Sequence[Node]) -> str:
        """Return the text of a turn, or bare text: <text> is exact, other text is dedented."""
        pieces: list[str | None] = []
        exact = []
        for node in content:
            if isinstance(node, Characters):
                pieces.append(node.text)
            elif node.name == "text":
                read_attributes(node, nodes.Text, self.faults)
                exact.append(self._exact(node))
                pieces.append(None)
            else:
                message = f"<{node.name}> is not allowed in the text of a prompt"
                advice = AS_TEXT if node.name in HTML else "name modules before the text; write &lt; for a literal <"
                self.faults.add("PC102", message, node.name_span, advice)
        self.warnings += lint_text([node if isinstance(node, Characters) else None for node in content])
        remaining = iter(exact)
        return "".join(next(remaining) if piece is None else piece for piece in finish(pieces, nodes.Whitespace.DEDENT))

    def _exact(self, element: Element) -> str:
        for node in element.children:
            if isinstance(node, Element):
                message = f"<{element.name}> can contain only text, not <{node.name}>"
                self.faults.add("PC102", message, node.name_span, "write &lt; for a literal <, or use <![CDATA[…]]>")
        return "".join(node.text for node in element.children if isinstance(node, Characters))

    def _no_text(self, node: Node, around: tuple[Element, ...], last: Element | None) -> None:
        """Report text where only references are allowed: inside of `around`, or before the last reference."""
        if isinstance(node, Characters) and node.blank:
            return
        if around:
            name, advice = around[-1].name, _as_argument(around)
            message = f"<{name}> can contain references and arguments, but no text"
        else:
            assert last is not None, "without a reference there is nothing before one"
            name, advice = last.name, f"move the text after the last reference, <{last.name}>"
            message = "text is not allowed between references"
        self.faults.add("PC412", message, node.span, f"{advice}; {AS_TEXT}" if name in HTML else advice)


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
