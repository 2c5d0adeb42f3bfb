"""Valid prompts broken in one named way, with the diagnostic that each must get first.

Comes in: a schema and its valid prompts. Goes out: strategies for `InvalidPrompt`. What is wrong with a document alone
lies in `document_faults`, selections that break a rule in `rule_faults`; this file holds the faults of references and
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from lxml import etree

from promptcache.language.checked import CheckedSchema
from promptcache.language.schema import join_path
from promptcache.language.syntax.names import is_version
from promptcache.language.syntax.values import refusal
from promptcache.testing.choices import BYTES, Slots, draw_arguments, slots
from promptcache.testing.document_faults import reading_faults, structure_faults
from promptcache.testing.faulty import MARK, Fault, InvalidPrompt, Way, at_argument, at_last, at_module, at_name, at_tag
from promptcache.testing.prompt_xml import Choice, PromptTree, write_prompt
from promptcache.testing.rule_faults import BrokenSelection, broken_selections, incompatible_pairs
from promptcache.testing.walk import has_tokens
from promptcache.tokenizer import Tokenizer

_T = TypeVar("_T")
_NUMBERS = st.integers(0, 2**16)

CODE_OF = {
    "after broken": "PC414",
    "assert broken": "PC418",
    "exclude broken": "PC418",
    "require broken": "PC418",
    "wrong number chosen": "PC419",
    "another document": "PC107",
    "another encoding": "PC006",
    "another schema": "PC413",
    "another version": "PC421",
    "argument missing": "PC404",
    "argument without name": "PC104",
    "bare &": "PC001",
    "bare <": "PC001",
    "bare text beside a turn": "PC416",
    "default breaks a rule": "PC411",
    "doctype": "PC002",
    "element of a schema": "PC102",
    "empty prompt": "PC506",
    "given twice": "PC403",
    "malformed path": "PC207",
    "modules that cannot be used together": "PC417",
    "modules that exclude each other": "PC410",
    "named twice": "PC405",
    "namespace": "PC008",
    "nested too deeply": "PC005",
    "no range of versions": "PC105",
    "no value of the type": "PC420",
    "no schema": "PC104",
    "not closed": "PC001",
    "processing instruction": "PC007",
    "reference behind a turn": "PC415",
    "required argument empty": "PC420",
    "required module missing": "PC406",
    "requires broken": "PC409",
    "text between references": "PC412",
    "too long": "PC501",
    "two members of a union": "PC408",
    "typo": "PC401",
    "union choice missing": "PC407",
    "unknown arg": "PC402",
    "unknown argument": "PC402",
    "unknown attribute": "PC103",
    "unknown entity": "PC003",
    "use without module": "PC104",
    "wrong parent": "PC401",
}
"""What was done to a prompt, and the code that it gets first."""


def broken_prompts(
    schema: CheckedSchema,
    trees: SearchStrategy[PromptTree],
    selections: SearchStrategy[frozenset[str]],
    codes: Collection[str] | None = None,
    tokenizer: Tokenizer = BYTES,
) -> SearchStrategy[InvalidPrompt]:
    """Draw one of `trees` and break it in one way, which gets one of `codes`; `tokenizer` measures slots.

    Raises:
        ValueError: no fault that can be made gets any of `codes`.
    """
    wanted = None if codes is None else frozenset(codes)
    if wanted is not None and wanted.isdisjoint(CODE_OF.values()):
        raise ValueError(f"no prompt is drawn that gets {', '.join(sorted(wanted))}")
    known = slots(schema, tokenizer)
    return _broken_prompts(
        _Source(schema=schema, trees=trees, selections=selections, slots=known, codes=wanted, tokenizer=tokenizer)
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Source:
    """What invalid prompts of one schema are made from."""

    schema: CheckedSchema
    trees: SearchStrategy[PromptTree]
    selections: SearchStrategy[frozenset[str]]
    slots: Slots
    codes: frozenset[str] | None
    tokenizer: Tokenizer

    def __repr__(self) -> str:
        return f"schema {self.schema.name!r}"


@st.composite
def _broken_prompts(draw: DrawFn, source: _Source) -> InvalidPrompt:
    """Draw what the fault is about (rules, references, structure, XML), then its kind, then a way to make it."""
    schema, tree = source.schema, draw(source.trees)
    valid, other = tree.choice.modules, draw(source.selections)
    selections = chain(broken_selections(schema, valid, other), incompatible_pairs(schema, valid, other))
    families: list[dict[str, list[Callable[[], InvalidPrompt]]]] = [
        _by_kind((broken.mutation, partial(_write, draw, source, tree, broken)) for broken in selections),
        _by_kind((kind, partial(_break, kind, tree, way)) for kind, way in _reference_faults(tree, source)),
        _by_kind((kind, partial(_break, kind, tree, way)) for kind, way in structure_faults(tree)),
        _by_kind((kind, partial(_break, kind, tree, way)) for kind, way in reading_faults()),
    ]
    if source.codes is not None:
        families = [_with_codes(family, source.codes) for family in families]
    possible = [family for family in families if family]
    if not possible:
        reject()  # this prompt cannot be broken in the ways that are wanted
    kinds = _pick(draw, possible)
    return _pick(draw, kinds[_pick(draw, list(kinds))])()


def _pick(draw: DrawFn, options: Sequence[_T]) -> _T:
    """Draw one of `options`; `sampled_from` would make and check a strategy for each draw."""
    return options[draw(_NUMBERS) % len(options)]


def _by_kind(ways: Iterable[tuple[str, Callable[[], InvalidPrompt]]]) -> dict[str, list[Callable[[], InvalidPrompt]]]:
    kinds: dict[str, list[Callable[[], InvalidPrompt]]] = {}
    for kind, way in ways:
        kinds.setdefault(kind, []).append(way)
    return kinds


def _with_codes(
    family: dict[str, list[Callable[[], InvalidPrompt]]], codes: frozenset[str]
) -> dict[str, list[Callable[[], InvalidPrompt]]]:
    return {kind: ways for kind, ways in family.items() if CODE_OF.get(kind) in codes}


def _break(kind: str, tree: PromptTree, way: Way) -> InvalidPrompt:
    return way().applied(kind, tree)


def _write(draw: DrawFn, source: _Source, tree: PromptTree, broken: BrokenSelection) -> InvalidPrompt:
    """Write a prompt that names what breaks a rule, with all the arguments it needs."""
    filled = draw_arguments(draw, source.slots, broken.named)
    choice = Choice(modules=broken.named, arguments=filled, messages=tree.choice.messages)
    written = write_prompt(draw, source.schema, choice, in_full=True)
    spot = at_last([at_module(written.references[path]) for path in broken.places])
    return Fault(code=broken.code, spot=spot).applied(broken.mutation, written)


def _reference_faults(tree: PromptTree, source: _Source) -> Iterator[tuple[str, Way]]:
    schema = source.schema
    yield from _unknown_modules(tree, schema)
    yield from _references(tree, schema)
    yield from _arguments(tree, source)
    yield "another version", partial(_another_version, tree.root, schema)
    if not schema.has_turns and not has_tokens(schema.children, tree.choice.modules, tree.choice.arguments):
        yield "empty prompt", lambda: Fault(code="PC506", spot=at_tag(tree.root), messages=())


def _another_version(root: etree._Element, schema: CheckedSchema) -> Fault:
    has_version = schema.version is not None and is_version(schema.version)
    root.set("version", f"!={schema.version}" if has_version else "1")
    return Fault(code="PC421", spot=at_tag(root))


def _unknown_modules(tree: PromptTree, schema: CheckedSchema) -> Iterator[tuple[str, Way]]:
    for path, element in tree.references.items():
        if path and f"{path}x" not in schema.modules:
            yield "typo", partial(_typo, element)
        for module in schema.modules:
            name = module.rpartition("/")[2]
            if join_path(path, name) not in schema.modules:
                yield "wrong parent", partial(_misplaced, element, name)


def _typo(element: etree._Element) -> Fault:
    if element.tag == "use":
        element.set("module", f"{element.get('module')}x")
    else:
        element.tag = f"{element.tag!s}x"
    return Fault(code="PC401", spot=at_module(element))


def _misplaced(parent: etree._Element, name: str) -> Fault:
    parent.append(etree.Element(name))
    return Fault(code="PC401", spot=at_name(parent[-1]))


def _references(tree: PromptTree, schema: CheckedSchema) -> Iterator[tuple[str, Way]]:
    for path, element in tree.references.items():
        if path:
            yield "named twice", partial(_named_twice, tree.root, path)
        if MARK not in schema.parameters[path]:
            yield "unknown argument", partial(_unknown_argument, element)
            yield "unknown arg", partial(_unknown_arg, element)


def _named_twice(root: etree._Element, path: str) -> Fault:
    root.append(etree.Element("use", module=f"/{path}"))
    return Fault(code="PC405", spot=at_module(root[-1]))


def _unknown_argument(element: etree._Element) -> Fault:
    element.set(MARK, "")
    return Fault(code="PC402", spot=at_argument(element, MARK))


def _unknown_arg(element: etree._Element) -> Fault:
    element.append(etree.Element("arg", name=MARK))
    return Fault(code="PC402", spot=at_argument(element, MARK))


def _arguments(tree: PromptTree, source: _Source) -> Iterator[tuple[str, Way]]:
    for module, name in tree.choice.arguments:
        element, parameter = tree.references[module], source.schema.parameters[module][name]
        longer = _longer_than(parameter.length, source.tokenizer)
        yield "given twice", partial(_given_twice, element, name)
        if refusal(parameter, MARK):
            yield "no value of the type", partial(_no_value, element, name, MARK)
        elif refusal(parameter, longer) is None:
            yield "too long", partial(_too_long, element, name, longer)
        if parameter.required:
            yield "argument missing", partial(_missing, element, name)
            yield "required argument empty", partial(_no_value, element, name, "")


def _given_twice(element: etree._Element, name: str) -> Fault:
    element.append(etree.Element("arg", name=name))
    return Fault(code="PC403", spot=at_tag(element[-1]))


def _no_value(element: etree._Element, name: str, text: str) -> Fault:
    _put(element, name, text)
    return Fault(code="PC420", spot=at_argument(element, name))


def _too_long(element: etree._Element, name: str, longer: str) -> Fault:
    _put(element, name, longer)
    return Fault(code="PC501", spot=at_argument(element, name))


def _longer_than(num_tokens: int, tokenizer: Tokenizer) -> str:
    """Return a text of more tokens, however many letters make one."""
    text = "x" * (num_tokens + 1)
    while len(tokenizer.tokenize(text)) <= num_tokens:
        text += text
    return text


def _put(element: etree._Element, name: str, text: str) -> None:
    argument = _arg(element, name)
    if argument is None:
        element.set(name, text)
    else:
        argument.text = text


def _missing(element: etree._Element, name: str) -> Fault:
    argument = _arg(element, name)
    if argument is None:
        del element.attrib[name]
    else:
        element.remove(argument)
    return Fault(code="PC404", spot=at_module(element))


def _arg(element: etree._Element, name: str) -> etree._Element | None:
    return next((child for child in element.iterchildren("arg") if child.get("name") == name), None)
