"""Write the RELAX NG grammar of the prompts for a schema, for completion and validation in XML editors.

The grammar covers the tree of the schema: nesting, required references, alternatives of a union, and arguments.
RELAX NG cannot express rules across the tree (`requires`, `excludes`, `rules`), so only `resolve_prompt` is
complete.

Each module has two patterns. The strict pattern is for references in element form. The loose pattern has no
required modules: it is used inside an element with a `<use>`, which may name any of them. The content of a `<use>`
only has to be known somewhere in the schema.

RELAX NG cannot count elements of one name in any order. For up to `MAX_EXACT` parameters, the grammar lists every
combination: each parameter once, as an attribute or as an element. For more parameters, any `<arg>` replaces a
missing attribute, and a repeated argument is not detected.

A name that no tag can have is known as the content of a `module` or `name` attribute only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import islice, permutations

from lxml import etree
from lxml.builder import ElementMaker

from promptcache.language.checked import CheckedItem, CheckedModule, CheckedSchema, CheckedTurn, CheckedUnion
from promptcache.language.syntax.elements import ATTRIBUTES
from promptcache.language.syntax.names import is_tag
from promptcache.language.syntax.nodes import Doc, Parameter, ParameterType, Role, Whitespace, walk
from promptcache.language.syntax.whitespace import finish

_NAMESPACE = "http://relaxng.org/ns/structure/1.0"
MAX_EXACT = 3
_MAX_MEMBERS = 100

_DATATYPES = "http://www.w3.org/2001/XMLSchema-datatypes"
_NOTES = "http://relaxng.org/ns/compatibility/annotations/1.0"

RNG = ElementMaker(namespace=_NAMESPACE, nsmap={None: _NAMESPACE, "a": _NOTES})
"""Factory for the elements of a grammar."""


def prompt_grammar(schema: CheckedSchema) -> str:
    """Return the RELAX NG grammar of the prompts that can be written against `schema`."""
    grammar = RNG.grammar(RNG.start(RNG.ref(name="prompt")))
    grammar.extend(_Writer(schema).definitions())
    etree.indent(grammar)
    return etree.tostring(grammar, encoding="unicode") + "\n"


class _Writer:
    """Writer of the definitions of one grammar."""

    def __init__(self, schema: CheckedSchema) -> None:
        self._schema = schema
        self._has_collections = _has_collections(schema)
        self._number = {path: number for number, path in enumerate(("", *schema.modules))}
        self._doc = dict(module_docs(schema))
        self._below: dict[str, list[str]] = {path: [] for path in ("", *schema.modules)}
        for path in schema.modules:
            for index in _slashes(path):
                self._below[path[:index]].append(path[index:].removeprefix("/"))

    def definitions(self) -> Iterator[etree._Element]:
        """Yield the definitions of the prompt, of every module in its forms, and of the shared patterns."""
        yield _define("prompt", self._prompt())
        for path, parameters in self._schema.parameters.items():
            if parameters:
                yield _define(f"a{self._number[path]}", _arguments(parameters.values()))
        for module in self._schema.modules.values():
            if not is_tag(_last(module)):
                continue
            yield _define(f"m{self._number[module.path]}", self._module(module, "strict"))
            if self._below[module.path]:
                yield _define(f"l{self._number[module.path]}", self._module(module, "loose"))
        yield from _shared(self._schema)

    def _prompt(self) -> etree._Element:
        element = RNG.element(name="prompt")
        _documented(element, self._doc.get(""))
        element.append(RNG.attribute(RNG.value(self._schema.name, type="string"), name="schema"))
        element.append(RNG.optional(RNG.attribute(RNG.text(), name="version")))
        naming = self._content("", self._schema.children, "strict")
        words, turns = RNG.ref(name="words"), RNG.zeroOrMore(RNG.ref(name="turn"))
        added = (words, turns) if self._schema.has_open_turn else (RNG.choice(turns, words),)
        element.append(RNG.group(RNG.interleave(naming, RNG.optional(RNG.ref(name="answer"))), *added))
        return element

    def _module(self, module: CheckedModule, form: str) -> etree._Element:
        element = RNG.element(name=_last(module))
        _documented(element, self._doc.get(module.path))
        element.append(self._content(module.path, module.children, form))
        return element

    def _content(self, path: str, items: Sequence[CheckedItem], form: str) -> etree._Element:
        """Return the content of a reference element: arguments and references, in any order.

        That of a collection is members of any name, because an engine can have others than the schema declares. The
        first declared ones are named for completion.
        """
        collection = self._schema.modules[path].collection if path else None
        if collection is not None:
            known = islice(filter(is_tag, collection.members), _MAX_MEMBERS)
            named = RNG.optional(RNG.attribute(RNG.text(), name="module"))  # as an element, or by <use module="…"/>
            return RNG.zeroOrMore(RNG.element(RNG.choice(*map(RNG.name, known), RNG.anyName()), named))
        given = [RNG.ref(name=f"a{self._number[path]}")] if self._schema.parameters[path] else []
        loose = _interleave([*deepcopy(given), *self._uses(path, form), *self._references(items, "loose")])
        if form == "loose" or not self._below[path]:
            return loose
        strict = [*given, *self._references(items, "strict")]
        return RNG.choice(_interleave(strict), loose)

    def _uses(self, path: str, form: str) -> list[etree._Element]:
        """Return the pattern of the `<use>` references in a module; the strict form demands at least one."""
        if not self._schema.modules:
            return []
        if not self._below[path]:
            return [RNG.zeroOrMore(RNG.ref(name="use"))]
        known = [RNG.value(below, type="string") for below in self._below[path]]
        names = RNG.choice(*known, RNG.ref(name="from-root"))
        module = RNG.attribute(RNG.text() if self._has_collections else names, name="module")
        use = RNG.element(module, RNG.ref(name="anything"), name="use")
        return [RNG.oneOrMore(use) if form == "strict" else RNG.zeroOrMore(use)]

    def _references(self, items: Iterable[CheckedItem], form: str) -> Iterator[etree._Element]:
        """Yield a pattern for each module and union among `items`; a turn is not a step of a path.

        A required module whose name no tag can have is `notAllowed`.
        """
        strict = form == "strict"
        for item in items:
            match item:
                case CheckedModule():
                    yield from self._one_of([item], form, needed=strict and item.required)
                case CheckedUnion():
                    needed = [member for member in item.members if member.required and strict]
                    exactly_one = bool(needed) or (item.required and item.default is None)
                    yield from self._one_of(needed or item.members, form, needed=strict and exactly_one)
                case CheckedTurn():
                    yield from self._references(item.children, form)

    def _one_of(self, modules: Iterable[CheckedModule], form: str, *, needed: bool) -> Iterator[etree._Element]:
        refs = []
        for module in modules:
            if is_tag(_last(module)):
                letter = "l" if form == "loose" and self._below[module.path] else "m"
                refs.append(RNG.ref(name=f"{letter}{self._number[module.path]}"))
        if refs or needed:
            yield _optional(RNG.choice(*refs), needed=needed) if refs else RNG.notAllowed()


def _shared(schema: CheckedSchema) -> Iterator[etree._Element]:
    """Yield the definitions that all prompts share, and the content of a `<use>`."""
    exact = RNG.element(RNG.text(), name="text")
    yield _define("words", RNG.mixed(RNG.zeroOrMore(exact)))
    turns = (RNG.element(RNG.ref(name="words"), name=role.value) for role in Role)
    yield _define("turn", RNG.choice(*turns))
    yield _define("answer", RNG.element(*map(_answer_attribute, ATTRIBUTES["answer"]), name="answer"))
    if not schema.modules:
        return
    yield _define("from-root", RNG.choice(*(RNG.value(f"/{path}", type="string") for path in schema.modules)))
    parameters = sorted({name for known in schema.parameters.values() for name in known})
    steps = sorted(filter(is_tag, {_last(module) for module in schema.modules.values()}))
    ends = {path[index:].removeprefix("/") for path in schema.modules for index in _slashes(path)}
    any_name = RNG.text() if _has_collections(schema) else None
    from_root = RNG.attribute(RNG.ref(name="from-root") if any_name is None else any_name, name="module")
    yield _define("use", RNG.element(from_root, RNG.ref(name="anything"), name="use"))
    inside: list[etree._Element] = []
    if steps:
        names = RNG.anyName() if any_name is not None else RNG.choice(*(RNG.name(step) for step in steps))
        inside.append(RNG.element(names, RNG.ref(name="anything")))
    names = RNG.choice(*(RNG.value(end, type="string") for end in sorted(ends)), RNG.ref(name="from-root"))
    module = RNG.attribute(names if any_name is None else deepcopy(any_name), name="module")
    inside.append(RNG.element(module, RNG.ref(name="anything"), name="use"))
    attributes = []
    if parameters:
        name = RNG.attribute(RNG.choice(*(RNG.value(each, type="string") for each in parameters)), name="name")
        inside.append(RNG.element(name, RNG.text(), name="arg"))
        attributes = [RNG.optional(RNG.attribute(RNG.text(), name=each)) for each in parameters if is_tag(each)]
    yield _define("anything", RNG.group(*attributes, RNG.zeroOrMore(RNG.choice(*inside))))


def _answer_attribute(name: str) -> etree._Element:
    """Return the pattern of an attribute of `answer`; the grammar does not check which of them belong together."""
    types = (RNG.value(each.value, type="string") for each in ParameterType)
    return RNG.optional(RNG.attribute(RNG.choice(*types) if name == "type" else RNG.text(), name=name))


def module_docs(schema: CheckedSchema) -> Iterator[tuple[str, str]]:
    """Yield the path and the first `doc` of each module that has one, as plain lines; "" is the schema itself."""
    seen = set()
    for parent, item in walk(schema.source.children):
        if isinstance(item, Doc) and parent not in seen:
            seen.add(parent)
            yield parent, "".join(text or "" for text in finish([item.text], Whitespace.DEDENT))


def _has_collections(schema: CheckedSchema) -> bool:
    """Whether a prompt can name members, whose names a grammar does not know."""
    return any(module.collection is not None for module in schema.modules.values())


def _last(module: CheckedModule) -> str:
    return module.path.rpartition("/")[2]


def _slashes(path: str) -> Iterator[int]:
    """Yield 0 and the index of every slash of a path; each splits the path into an ancestor and the rest."""
    yield 0
    index = path.find("/")
    while index >= 0:
        yield index
        index = path.find("/", index + 1)


def _interleave(patterns: Sequence[etree._Element]) -> etree._Element:
    if not patterns:
        return RNG.empty()
    return RNG.interleave(*patterns) if len(patterns) > 1 else patterns[0]


def _optional(pattern: etree._Element, *, needed: bool) -> etree._Element:
    return pattern if needed else RNG.optional(pattern)


def _define(name: str, *patterns: etree._Element) -> etree._Element:
    return RNG.define(*patterns, name=name)


def _arguments(parameters: Iterable[Parameter]) -> etree._Element:
    """Return the pattern of the arguments for a module's parameters; there is at least one parameter."""
    known = tuple(parameters)
    if len(known) > MAX_EXACT:
        return _many(known)
    ways = (given for count in range(len(known) + 1) for given in permutations(known, count))
    return _one_way([_way(known, given) for given in ways if all(map(_can_be_left_out, {*known} - {*given}))])


def _one_way(ways: Sequence[Sequence[etree._Element]]) -> etree._Element:
    """Return the choice of groups. An empty one makes it optional: libxml2 matches no empty group in an interleave."""
    groups = RNG.choice(*(RNG.group(*way, RNG.empty()) for way in ways if way))
    return groups if all(ways) else RNG.optional(groups)


def _can_be_left_out(parameter: Parameter) -> bool:
    """Return whether a parameter that is no element can be an attribute or missing."""
    return is_tag(parameter.name) or not parameter.required


def _documented(pattern: etree._Element, text: str | None) -> None:
    """Add documentation to a pattern; XML editors show it."""
    if text:
        note = etree.Element(f"{{{_NOTES}}}documentation")
        note.text = text
        pattern.insert(0, note)


def _way(known: Sequence[Parameter], given: Sequence[Parameter]) -> list[etree._Element]:
    """Return the patterns with `given` as elements, in this order, and the other parameters as attributes."""
    attributes = [_attribute(each, optional=not each.required) for each in _tags(known) if each not in given]
    return [*attributes, *(_element([each]) for each in given)]


def _many(known: Sequence[Parameter]) -> etree._Element:
    strict = [_attribute(each, optional=not each.required) for each in _tags(known)]
    loose = [*(_attribute(each, optional=True) for each in _tags(known)), RNG.oneOrMore(_element(known))]
    return _one_way([strict, loose] if all(map(_can_be_left_out, known)) else [loose])


def _tags(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    return (each for each in parameters if is_tag(each.name))


def _attribute(parameter: Parameter, *, optional: bool) -> etree._Element:
    attribute = RNG.attribute(_value(parameter), name=parameter.name)
    _documented(attribute, _description(parameter))
    return RNG.optional(attribute) if optional else attribute


def _element(parameters: Sequence[Parameter]) -> etree._Element:
    names = [RNG.value(each.name, type="string") for each in parameters]
    content = _value(parameters[0]) if len(parameters) == 1 else RNG.text()
    element = RNG.element(RNG.attribute(RNG.choice(*names), name="name"), content, name="arg")
    _documented(element, "\n".join(f"{each.name}: {_description(each)}" for each in parameters))
    return element


def _value(parameter: Parameter) -> etree._Element:
    """Return the pattern of an argument: a choice, or text (not empty if required).

    The grammar does not check other types; `resolve_prompt` does.
    """
    if parameter.required and not parameter.choices:
        return RNG.data(RNG.param("1", name="minLength"), type="string", datatypeLibrary=_DATATYPES)
    if not parameter.choices:
        return RNG.text()
    return RNG.choice(*(RNG.value(each, type="string") for each in parameter.choices))


def _description(parameter: Parameter) -> str:
    return ", ".join(_facts(parameter))


def _facts(parameter: Parameter) -> Iterator[str]:
    if parameter.required:
        yield "required"
    yield f"at most {parameter.length} tokens"
    if parameter.default is not None:
        yield f"by default {parameter.default!r}"
