"""Valid prompts broken in one named way, with the diagnostic that each must get first.

There are three families: selections that break one rule, wrong references and arguments, and wrong structure. Faults of
XML itself are in tests/language/faults.txt only. Places are found in the finished text by expat or by a caret.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TypeAlias, TypeVar
from xml.parsers import expat

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from lxml import etree

from promptcache.language import join_path
from promptcache.language.checked import CheckedSchema
from promptcache.language.rules.rules import Default, Implication, RuleKind
from promptcache.language.syntax.names import ancestors
from promptcache.language.syntax.values import refusal
from promptcache.testing.cases import prompt_trees
from promptcache.testing.prompt_xml import PromptChoice, PromptTree, has_tokens, write_prompt
from promptcache.testing.selection import can_be_completed, selections_with
from promptcache.testing.texts import BYTES, Slots, draw_arguments, slots
from promptcache.tokenizer import Tokenizer
from tests.strategies.pieces import Piece, line_and_column, mark, put, read_pieces, take_point

_T = TypeVar("_T")
_NUMBERS = st.integers(0, 2**16)
_MAX_PAIRS = 6  # of modules that are tried together: each asks the solver
MARK = "stray"
"""The word that faults are made of. It may also stand in a valid prompt: modules can have this name."""

_OF_RULES = {
    RuleKind.UNION: ("two members of a union", "PC408"),
    RuleKind.EXCLUDES: ("modules that exclude each other", "PC410"),
    RuleKind.REQUIRED: ("required module missing", "PC406"),
    RuleKind.CHOICE: ("union choice missing", "PC407"),
    RuleKind.REQUIRES: ("requires broken", "PC409"),
    RuleKind.AFTER: ("after broken", "PC414"),
    RuleKind.REQUIRE: ("require broken", "PC418"),
    RuleKind.EXCLUDE: ("exclude broken", "PC418"),
    RuleKind.ASSERT: ("assert broken", "PC418"),
    RuleKind.CHOOSE: ("wrong number chosen", "PC419"),
}
_OF_REFERENCES = {
    "another document": "PC107",
    "another schema": "PC413",
    "another version": "PC421",
    "argument missing": "PC404",
    "empty prompt": "PC506",
    "given twice": "PC403",
    "named twice": "PC405",
    "no schema": "PC104",
    "no value of the type": "PC420",
    "required argument empty": "PC420",
    "too long": "PC501",
    "typo": "PC401",
    "unknown arg": "PC402",
    "unknown argument": "PC402",
    "wrong parent": "PC401",
}
_PIECES = (
    *read_pieces(
        "inside",
        """
PC102 element of a schema        | <‸doc/>
PC103 unknown attribute          | <arg name="stray-arg" ‸stray=""/>
PC104 argument without name      | <‸arg/>
PC104 use without module         | <‸use/>
PC207 malformed path             | <use module="‸stray//stray"/>
PC412 text between references    | ‸stray
""",
    ),
    *read_pieces(
        "at the end",
        """
PC415 reference behind a turn    | <user/><‸use module="stray"/>
PC416 bare text behind a turn    | <user>a</user>‸stray
""",
    ),
)
CODE_OF = {
    **dict(_OF_RULES.values()),
    "default breaks a rule": "PC411",
    "modules that cannot be used together": "PC417",
    **_OF_REFERENCES,
    **{piece.name: piece.code for piece in _PIECES},
}
"""The code that each fault gets first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidPrompt:
    """A prompt with one fault, and the code and place of the diagnostic that it must get first."""

    xml: str
    code: str  # PC5xx is found when the prompt is planned, all others before
    mutation: str  # the fault that was put into a valid prompt, in a few words
    line: int  # from 1
    column: int


Spot: TypeAlias = tuple[etree._Element, str]
"""An element and what of it is pointed at: "" the tag, "name", "@x" an attribute, "=x" the value of an attribute."""

Way: TypeAlias = Callable[[], Spot]
"""Breaks a tree when it is called."""


def invalid_prompts(schema: CheckedSchema, tokenizer: Tokenizer = BYTES) -> SearchStrategy[InvalidPrompt]:
    """Draw a prompt with one fault, and the diagnostic that it must get first; `tokenizer` measures slots."""
    chosen, known = selections_with(schema, frozenset()), slots(schema, tokenizer)
    trees = prompt_trees(schema, chosen, known)
    return _invalid_prompts(_Source(schema=schema, trees=trees, selections=chosen, slots=known, tokenizer=tokenizer))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Source:
    """The parts from which invalid prompts of one schema are made."""

    schema: CheckedSchema
    trees: SearchStrategy[PromptTree]
    selections: SearchStrategy[frozenset[str]]
    slots: Slots
    tokenizer: Tokenizer

    def __repr__(self) -> str:
        return f"schema {self.schema.name!r}"


@st.composite
def _invalid_prompts(draw: DrawFn, source: _Source) -> InvalidPrompt:
    """Draw the family of the fault, then its kind, then a way to make it."""
    schema, tree = source.schema, draw(source.trees)
    valid, other = tree.choice.modules, draw(source.selections)
    broken = chain(broken_selections(schema, valid, other), incompatible_pairs(schema, valid, other))
    families = [
        _by_kind((each.mutation, partial(_write, draw, source, tree, each)) for each in broken),
        _by_kind((kind, partial(_break, kind, tree, way)) for kind, way in _reference_faults(tree, source)),
        _by_kind((piece.name, partial(_put, piece, tree, to)) for piece, to in _structure_faults(tree)),
    ]
    kinds = _pick(draw, [family for family in families if family])
    return _pick(draw, kinds[_pick(draw, list(kinds))])()


def _pick(draw: DrawFn, options: Sequence[_T]) -> _T:
    """Draw one of `options`; `sampled_from` would make and check a strategy for each draw."""
    return options[draw(_NUMBERS) % len(options)]


def _by_kind(ways: Iterable[tuple[str, Callable[[], InvalidPrompt]]]) -> dict[str, list[Callable[[], InvalidPrompt]]]:
    kinds: dict[str, list[Callable[[], InvalidPrompt]]] = {}
    for kind, way in ways:
        kinds.setdefault(kind, []).append(way)
    return kinds


def _break(kind: str, tree: PromptTree, way: Way) -> InvalidPrompt:
    spots = [way()]
    return _pointing(tree.document(() if kind == "empty prompt" else None), kind, CODE_OF[kind], spots)


def _put(piece: Piece, tree: PromptTree, element: etree._Element) -> InvalidPrompt:
    """Put a piece at the beginning of an element, or in place of the prompt's messages."""
    mark(element, 0 if piece.where == "inside" else len(element))
    messages = None if piece.where == "inside" else ()
    texts, _, line, column = take_point({"": put(tree.document(messages), piece.xml)})
    return InvalidPrompt(xml=texts[""], code=piece.code, mutation=piece.name, line=line, column=column)


def _write(draw: DrawFn, source: _Source, tree: PromptTree, broken: "BrokenSelection") -> InvalidPrompt:
    """Write a prompt that names the modules that break a rule, with all the arguments that they need."""
    filled = draw_arguments(draw, source.slots, broken.named)
    choice = PromptChoice(modules=broken.named, arguments=filled, messages=tree.choice.messages)
    written = write_prompt(draw, source.schema, choice, in_full=True)
    spots = [_at_module(written.references[path]) for path in broken.places]
    return _pointing(written.document(), broken.mutation, broken.code, spots)


def _pointing(document: str, mutation: str, code: str, spots: Iterable[Spot]) -> InvalidPrompt:
    """Return an invalid prompt whose diagnostic points at the last of some spots."""
    offsets: list[int] = []
    data, parser = document.encode(), expat.ParserCreate("utf-8")
    parser.StartElementHandler = lambda *_: offsets.append(len(data[: parser.CurrentByteIndex].decode()))
    parser.Parse(data, True)

    def offset(element: etree._Element, part: str) -> int:
        start = offsets[list(element.getroottree().iter(etree.Element)).index(element)]
        if part[:1] in ("@", "="):
            start = document.index(f' {part[1:]}="', start) + 1
        return start + {"": 0, "@": 0, "n": 1, "=": len(part) + 1}[part[:1]]

    line, column = line_and_column(document, max(offset(*spot) for spot in spots))
    return InvalidPrompt(xml=document, code=code, mutation=mutation, line=line, column=column)


def _at_module(element: etree._Element) -> Spot:
    """Return the place where a reference names its module, or the place of the prompt itself."""
    return element, {"prompt": "", "use": "=module"}.get(str(element.tag), "name")


def _structure_faults(tree: PromptTree) -> Iterator[tuple[Piece, etree._Element]]:
    root = tree.root
    for piece in _PIECES:
        if piece.where == "at the end":
            yield piece, root
        else:
            yield from (
                (piece, element)
                for path, element in tree.references.items()
                if path or len(root) or piece.code != "PC412"  # in a prompt without references it is its own text
            )


def _reference_faults(tree: PromptTree, source: _Source) -> Iterator[tuple[str, Way]]:
    schema, root = source.schema, tree.root

    def renamed() -> Spot:
        root.tag = "schema"
        return root, "name"

    def without_schema() -> Spot:
        del root.attrib["schema"]
        return root, "name"

    yield "another document", renamed
    yield "no schema", without_schema
    yield "another schema", partial(_set, root, "schema", f"{root.get('schema')}x", "")
    yield "another version", partial(_set, root, "version", f"{schema.version}x", "")
    for path, element in tree.references.items():
        if path:
            yield "named twice", partial(_added, root, "use", {"module": f"/{path}"}, "=module")
            if f"{path}x" not in schema.modules:
                yield "typo", partial(_typo, element)
        if MARK not in schema.parameters[path]:
            yield "unknown argument", partial(_set, element, MARK, "", f"@{MARK}")
            yield "unknown arg", partial(_added, element, "arg", {"name": MARK}, "")
        for name in (module.rpartition("/")[2] for module in schema.modules):
            if join_path(path, name) not in schema.modules:
                yield "wrong parent", partial(_added, element, name, {}, "name")
    yield from _arguments(tree, source)
    if not schema.has_turns and not has_tokens(
        schema.children, tree.choice.modules, tree.choice.arguments, tree.choice.members
    ):
        yield "empty prompt", lambda: (root, "")


def _set(element: etree._Element, name: str, value: str, part: str) -> Spot:
    element.set(name, value)
    return element, part


def _typo(element: etree._Element) -> Spot:
    if element.tag == "use":
        element.set("module", f"{element.get('module')}x")
    else:
        element.tag = f"{element.tag!s}x"
    return _at_module(element)


def _added(parent: etree._Element, tag: str, attributes: Mapping[str, str], part: str) -> Spot:
    """Add an element and point at a part of it."""
    return etree.SubElement(parent, tag, dict(attributes)), part


def _arguments(tree: PromptTree, source: _Source) -> Iterator[tuple[str, Way]]:
    for module, name in tree.choice.arguments:
        element, parameter = tree.references[module], source.schema.parameters[module][name]
        longer = _longer_than(parameter.num_positions, source.tokenizer)
        yield "given twice", partial(_added, element, "arg", {"name": name}, "")
        if refusal(parameter, MARK):
            yield "no value of the type", partial(_replaced, element, name, MARK)
        elif refusal(parameter, longer) is None:
            yield "too long", partial(_replaced, element, name, longer)
        if parameter.required:
            yield "argument missing", partial(_missing, element, name)
            yield "required argument empty", partial(_replaced, element, name, "")


def _replaced(element: etree._Element, name: str, text: str) -> Spot:
    argument = _arg(element, name)
    if argument is None:
        return _set(element, name, text, f"@{name}")
    argument.text = text
    return argument, ""


def _missing(element: etree._Element, name: str) -> Spot:
    argument = _arg(element, name)
    if argument is None:
        del element.attrib[name]
    else:
        element.remove(argument)
    return _at_module(element)


def _arg(element: etree._Element, name: str) -> etree._Element | None:
    return next((child for child in element.iterchildren("arg") if child.get("name") == name), None)


def _longer_than(num_tokens: int, tokenizer: Tokenizer) -> str:
    """Return a text of more tokens."""
    text = "x" * (num_tokens + 1)
    while len(tokenizer.tokenize(text)) <= num_tokens:
        text += text
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenSelection:
    """Modules to name that break one rule, and the places of their diagnostic ("" is the prompt): it gets the last."""

    named: frozenset[str]
    mutation: str
    code: str
    places: tuple[str, ...]


def broken_selections(schema: CheckedSchema, valid: frozenset[str], other: frozenset[str]) -> Iterator[BrokenSelection]:
    """Yield two valid selections with a module left out or added, or joined, where that breaks exactly one rule."""
    for named in dict.fromkeys(_neighbours(schema, valid, other)):
        present = schema.rules.complete(named)
        broken = list(schema.rules.broken(present.keys()))
        if len(broken) == 1 and not _lacks_arguments(schema, named, present.keys()):
            found = _judged(schema, named, present, broken[0])
            if found is not None:
                yield found


def incompatible_pairs(
    schema: CheckedSchema, first: frozenset[str], second: frozenset[str]
) -> Iterator[BrokenSelection]:
    """Yield two modules, one of each valid selection, that no selection holds, although no single rule says so."""
    pairs = ((one, other) for one in _own(schema, first - second) for other in _own(schema, second - first))
    for one, other in islice(pairs, _MAX_PAIRS):
        named = frozenset(path for inner in (one, other) for path in (inner, *ancestors(inner)))
        present = schema.rules.complete(named).keys()
        clashes = (rule for rule in schema.rules.broken(present) if not rule.then)
        if any(True for _ in clashes) or can_be_completed(schema, named):
            continue
        if not _lacks_arguments(schema, named, present):
            mutation = "modules that cannot be used together"
            yield BrokenSelection(named=named, mutation=mutation, code="PC417", places=(one, other))


def _own(schema: CheckedSchema, modules: frozenset[str]) -> list[str]:
    """Return the modules in document order, without those that hold others of them."""
    outer = {path for module in modules for path in ancestors(module)}
    return sorted(modules - outer, key=schema.rules.order.__getitem__)


def _neighbours(schema: CheckedSchema, valid: frozenset[str], other: frozenset[str]) -> Iterator[frozenset[str]]:
    for base in dict.fromkeys((valid, other)):
        for path in schema.modules:
            if path in base:
                yield frozenset(module for module in base if module != path and not module.startswith(f"{path}/"))
            else:
                yield base.union((path, *ancestors(path)))
    yield valid | other


def _lacks_arguments(schema: CheckedSchema, named: Set[str], present: Set[str]) -> bool:
    """Whether a default would add a module without its required arguments: a second fault."""
    return any(
        parameter.required
        for module in present
        if module and module not in named
        for parameter in schema.parameters[module].values()
    )


def _judged(
    schema: CheckedSchema, named: frozenset[str], present: Mapping[str, Default | None], rule: Implication
) -> BrokenSelection | None:
    """Return the diagnostic; None if the named modules cannot be used together anyhow (PC417)."""
    mutation, code = _OF_RULES[rule.kind]
    subjects = rule.when
    if not rule.then and named.issuperset(subjects):
        return BrokenSelection(named=named, mutation=mutation, code=code, places=subjects)
    if not can_be_completed(schema, named):
        return None
    default = next((found for path in subjects if (found := present[path])), None)
    place = subjects[0] if default is None else default.parent
    if place and place not in named:
        return None  # present by default only: the prompt has no reference to point at
    if default is None:
        return BrokenSelection(named=named, mutation=mutation, code=code, places=(place,))
    return BrokenSelection(named=named, mutation="default breaks a rule", code="PC411", places=(place,))
