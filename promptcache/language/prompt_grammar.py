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

MAX_EXACT = 3
_MAX_MEMBERS = 100


def prompt_grammar(schema: CheckedSchema) -> str:
    """Return the RELAX NG grammar of the prompts that can be written against `schema`."""
    return write_grammar(ref("prompt"), _Writer(schema).definitions())


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
        yield define("prompt", self._prompt())
        for path, parameters in self._schema.parameters.items():
            if parameters:
                yield define(f"a{self._number[path]}", _arguments(parameters.values()))
        for module in self._schema.modules.values():
            if not is_tag(_last(module)):
                continue
            yield define(f"m{self._number[module.path]}", self._module(module, "strict"))
            if self._below[module.path]:
                yield define(f"l{self._number[module.path]}", self._module(module, "loose"))
        yield from _shared(self._schema)

    def _prompt(self) -> etree._Element:
        schema = RNG.attribute(one_of([self._schema.name]), name="schema")
        version = RNG.optional(RNG.attribute(RNG.text(), name="version"))
        naming = self._content("", self._schema.children, "strict")
        words, turns = ref("words"), RNG.zeroOrMore(ref("turn"))
        added = (words, turns) if self._schema.has_open_turn else (RNG.choice(turns, words),)
        content = RNG.group(RNG.interleave(naming, RNG.optional(ref("answer"))), *added)
        return documented(RNG.element(schema, version, content, name="prompt"), self._doc.get(""))

    def _module(self, module: CheckedModule, form: str) -> etree._Element:
        content = self._content(module.path, module.children, form)
        return documented(RNG.element(content, name=_last(module)), self._doc.get(module.path))

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
        given = [ref(f"a{self._number[path]}")] if self._schema.parameters[path] else []
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
            return [RNG.zeroOrMore(ref("use"))]
        names = RNG.choice(one_of(self._below[path]), ref("from-root"))
        module = RNG.attribute(RNG.text() if self._has_collections else names, name="module")
        use = RNG.element(module, ref("anything"), name="use")
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
                refs.append(ref(f"{letter}{self._number[module.path]}"))
        if refs or needed:
            yield _optional(RNG.choice(*refs), needed=needed) if refs else RNG.notAllowed()


def _shared(schema: CheckedSchema) -> Iterator[etree._Element]:
    """Yield the definitions that all prompts share, and the content of a `<use>`."""
    yield from prompt_text()
    yield define("answer", element_pattern("answer"))
    if not schema.modules:
        return
    yield define("from-root", one_of(f"/{path}" for path in schema.modules))
    parameters = sorted({name for known in schema.parameters.values() for name in known})
    steps = sorted(filter(is_tag, {_last(module) for module in schema.modules.values()}))
    ends = {path[index:].removeprefix("/") for path in schema.modules for index in _slashes(path)}
    any_name = RNG.text() if _has_collections(schema) else None
    from_root = RNG.attribute(ref("from-root") if any_name is None else any_name, name="module")
    yield define("use", RNG.element(from_root, ref("anything"), name="use"))
    inside: list[etree._Element] = []
    if steps:
        names = RNG.anyName() if any_name is not None else RNG.choice(*(RNG.name(step) for step in steps))
        inside.append(RNG.element(names, ref("anything")))
    names = RNG.choice(one_of(sorted(ends)), ref("from-root"))
    module = RNG.attribute(names if any_name is None else deepcopy(any_name), name="module")
    inside.append(RNG.element(module, ref("anything"), name="use"))
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
    attribute = documented(RNG.attribute(_value(parameter), name=parameter.name), _description(parameter))
    return RNG.optional(attribute) if optional else attribute


def _element(parameters: Sequence[Parameter]) -> etree._Element:
    content = _value(parameters[0]) if len(parameters) == 1 else RNG.text()
    element = RNG.element(RNG.attribute(one_of(each.name for each in parameters), name="name"), content, name="arg")
    return documented(element, "\n".join(f"{each.name}: {_description(each)}" for each in parameters))


def _value(parameter: Parameter) -> etree._Element:
    """Return the pattern of an argument: a choice, or text (not empty if required).

    The grammar does not check other types; `resolve_prompt` does.
    """
    if parameter.required and not parameter.choices:
        return RNG.data(RNG.param("1", name="minLength"), type="string")
    return one_of(parameter.choices) if parameter.choices else RNG.text()


def _description(parameter: Parameter) -> str:
    return ", ".join(_facts(parameter))


def _facts(parameter: Parameter) -> Iterator[str]:
    if parameter.required:
        yield "required"
    yield f"at most {parameter.length} tokens"
    if parameter.default is not None:
        yield f"by default {parameter.default!r}"
