"""Write the RELAX NG grammar of the prompts for a schema, for completion and validation in XML editors.

The grammar knows what a prompt can name: the tree of the schema, alternatives of a union, arguments and choices. It
does not know what a prompt must name, because a `<use>` or an `<arg>` elsewhere may do so. Only `resolve_prompt` is
complete.

The content of a `<use>` only has to be known somewhere in the schema. A name that no tag can have is known as the
content of a `module` or `name` attribute only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from lxml import etree

from promptcache.language.checked import CheckedItem, CheckedModule, CheckedSchema, CheckedTurn, CheckedUnion
from promptcache.language.grammar import (
    RNG,
    define,
    documented,
    element_pattern,
    one_of,
    prompt_text,
    ref,
    write_grammar,
)
from promptcache.language.syntax.names import is_tag
from promptcache.language.syntax.nodes import Doc, Parameter, Whitespace, walk
from promptcache.language.syntax.whitespace import finish

_MAX_MEMBERS = 100


def prompt_grammar(schema: CheckedSchema) -> str:
    """Return the RELAX NG grammar of the prompts that can be written against `schema`."""
    return write_grammar(ref("prompt"), _Writer(schema).definitions())


class _Writer:
    def __init__(self, schema: CheckedSchema) -> None:
        self._schema = schema
        self._has_collections = any(module.collection is not None for module in schema.modules.values())
        self._number = {path: number for number, path in enumerate(("", *schema.modules))}
        self._doc = dict(module_docs(schema))
        self._below: dict[str, list[str]] = {path: [] for path in ("", *schema.modules)}
        for path in schema.modules:
            for index in _slashes(path):
                self._below[path[:index]].append(path[index:].removeprefix("/"))

    def definitions(self) -> Iterator[etree._Element]:
        schema = RNG.attribute(one_of([self._schema.name]), name="schema")
        version = RNG.optional(RNG.attribute(RNG.text(), name="version"))
        naming = self._content("", self._schema.children)
        words, turns = ref("words"), RNG.zeroOrMore(ref("turn"))
        added = (words, turns) if self._schema.has_open_turn else (RNG.choice(turns, words),)
        content = RNG.group(RNG.interleave(naming, RNG.optional(ref("answer"))), *added)
        prompt = RNG.element(schema, version, content, name="prompt")
        yield define("prompt", documented(prompt, self._doc.get("")))
        for path, parameters in self._schema.parameters.items():
            if parameters:
                yield define(f"a{self._number[path]}", _arguments(parameters.values()))
        for module in self._schema.modules.values():
            if is_tag(_last(module)):
                pattern = RNG.element(self._content(module.path, module.children), name=_last(module))
                yield define(f"m{self._number[module.path]}", documented(pattern, self._doc.get(module.path)))
        yield from prompt_text()
        yield define("answer", element_pattern("answer"))
        if self._schema.modules:
            yield from self._any_use()

    def _content(self, path: str, items: Sequence[CheckedItem]) -> etree._Element:
        """Return the content of a reference element: arguments and references, in any order.

        That of a collection is members of any name, because an engine can have others than the schema declares. The
        first declared ones are named for completion.
        """
        collection = self._schema.modules[path].collection if path else None
        if collection is not None:
            known = islice(filter(is_tag, collection.members), _MAX_MEMBERS)
            named = RNG.optional(RNG.attribute(RNG.text(), name="module"))  # as an element, or by <use module="…"/>
            member = RNG.element(RNG.choice(*map(RNG.name, known), RNG.anyName()), named)
            return RNG.zeroOrMore(RNG.choice(member, ref("use")))
        parts = [ref(f"a{self._number[path]}")] if self._schema.parameters[path] else []
        if self._schema.modules:
            use = ref("use")
            if self._below[path]:
                names = RNG.choice(one_of(self._below[path]), ref("from-root"))
                module = RNG.attribute(RNG.text() if self._has_collections else names, name="module")
                use = RNG.element(module, ref("anything"), name="use")
            parts.append(RNG.zeroOrMore(use))
        parts += self._references(items)
        return RNG.interleave(*parts) if parts else RNG.empty()

    def _references(self, items: Iterable[CheckedItem]) -> Iterator[etree._Element]:
        """Yield a pattern for each module and union among `items`; a turn is not a step of a path."""
        for item in items:
            if isinstance(item, CheckedTurn):
                yield from self._references(item.children)
            elif isinstance(item, CheckedModule | CheckedUnion):
                modules = item.members if isinstance(item, CheckedUnion) else (item,)
                if refs := [ref(f"m{self._number[each.path]}") for each in modules if is_tag(_last(each))]:
                    yield RNG.optional(RNG.choice(*refs))

    def _any_use(self) -> Iterator[etree._Element]:
        """Yield the definitions of a `<use>` anywhere, and of its content."""
        schema = self._schema
        yield define("from-root", one_of(f"/{path}" for path in schema.modules))
        parameters = sorted({name for known in schema.parameters.values() for name in known})
        steps = sorted(filter(is_tag, {_last(module) for module in schema.modules.values()}))
        ends = {path[index:].removeprefix("/") for path in schema.modules for index in _slashes(path)}
        from_root = RNG.attribute(RNG.text() if self._has_collections else ref("from-root"), name="module")
        yield define("use", RNG.element(from_root, ref("anything"), name="use"))
        inside: list[etree._Element] = []
        if steps:
            names = RNG.anyName() if self._has_collections else RNG.choice(*map(RNG.name, steps))
            inside.append(RNG.element(names, ref("anything")))
        names = RNG.text() if self._has_collections else RNG.choice(one_of(sorted(ends)), ref("from-root"))
        inside.append(RNG.element(RNG.attribute(names, name="module"), ref("anything"), name="use"))
        attributes = []
        if parameters:
            name = RNG.attribute(one_of(parameters), name="name")
            inside.append(RNG.element(name, RNG.text(), name="arg"))
            attributes = [RNG.optional(RNG.attribute(RNG.text(), name=each)) for each in parameters if is_tag(each)]
        yield define("anything", RNG.group(*attributes, RNG.zeroOrMore(RNG.choice(*inside))))


def module_docs(schema: CheckedSchema) -> Iterator[tuple[str, str]]:
    """Yield the path and the first `doc` of each module that has one, as plain lines; "" is the schema itself."""
    seen = set()
    for parent, item in walk(schema.source.children):
        if isinstance(item, Doc) and parent not in seen:
            seen.add(parent)
            yield parent, "".join(text or "" for text in finish([item.text], Whitespace.DEDENT))


def _last(module: CheckedModule) -> str:
    return module.path.rpartition("/")[2]


def _slashes(path: str) -> Iterator[int]:
    """Yield 0 and the index of every slash of a path; each splits the path into an ancestor and the rest."""
    yield 0
    index = path.find("/")
    while index >= 0:
        yield index
        index = path.find("/", index + 1)


def _arguments(parameters: Iterable[Parameter]) -> etree._Element:
    """Return the pattern of the arguments for a module's parameters: attributes, or any number of elements."""
    attributes: list[etree._Element] = []
    words: dict[str, str] = {}
    for each in parameters:
        required = "required, " if each.required else ""
        default = "" if each.default is None else f", by default {each.default!r}"
        words[each.name] = f"{required}at most {each.length} tokens{default}"
        if is_tag(each.name):
            value = one_of(each.choices) if each.choices else RNG.text()
            attributes.append(RNG.optional(documented(RNG.attribute(value, name=each.name), words[each.name])))
    element = RNG.element(RNG.attribute(one_of(words), name="name"), RNG.text(), name="arg")
    description = "\n".join(f"{name}: {text}" for name, text in words.items())
    return RNG.group(*attributes, RNG.zeroOrMore(documented(element, description)))
