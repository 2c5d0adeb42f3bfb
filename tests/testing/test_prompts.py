"""Random schemas and prompts: valid, in every form of the language, and simplest when they shrink."""

from collections.abc import Iterable, Iterator

from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st
from lxml import etree

from promptcache.language import (
    CheckedSchema,
    Context,
    Role,
    Selection,
    check_schema,
    parse_prompt,
    parse_schema,
    resolve_prompt,
)
from promptcache.language.checked import CheckedItem, CheckedParameter, FinalText
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.elements import ELEMENTS
from promptcache.layout import lay_out
from promptcache.testing import ByteTokenizer, arguments
from promptcache.testing.selection import distinct_selections, list_selections
from tests import strategies
from tests.conftest import law_examples
from tests.language.documents import checked
from tests.layout.samples import plan_selection
from tests.strategies.schema_faults import WARNINGS_OF_DRAWN
from tests.strategies.schema_xml import MAX_MODULES
from tests.testing.samples import RICH, WIDE, occurring

SEARCH = settings(max_examples=2000, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink])

rich, wide = checked(RICH), checked(WIDE)


@settings(max_examples=law_examples())
@given(data=st.data())
def test_prompts_are_valid(data: st.DataObject) -> None:
    """Every prompt, however it is written, selects one of the valid selections, and holds at least one token."""
    schema = data.draw(strategies.schemas())

    selection = data.draw(strategies.prompts(schema))

    assert frozenset(selection.modules) in (list_selections(schema) or ())
    assert plan_selection(selection).new


def test_every_form_occurs() -> None:
    """Prompts are written in every form, say nothing, bare text or turns, and hold awkward text."""
    wanted = {*PROMPT_FEATURES, "default left out", "ancestor left out", "full slot", "empty argument"}

    def names(document: str) -> Iterator[str]:
        return prompt_features(document, resolve_prompt(parse_prompt(document), rich))

    assert occurring(strategies.prompt_documents(rich), names, wanted) == wanted


def test_all_selections_occur() -> None:
    """No valid selection is out of reach."""
    listed = {" ".join(sorted(modules)) for modules in list_selections(rich) or ()}

    assert occurring(strategies.selections(rich), lambda modules: [" ".join(sorted(modules))], listed) == listed


@settings(max_examples=law_examples(0.5))
@given(data=st.data())
def test_arguments_fit_their_slots(data: st.DataObject) -> None:
    """All required parameters get an argument, and none is longer in bytes than its slot."""
    schema = data.draw(strategies.schemas())
    modules = data.draw(strategies.selections(schema))

    given_texts = data.draw(arguments(schema, modules, ByteTokenizer()))

    present = {owner: schema.parameters[owner] for owner in ("", *modules)}
    required = {(owner, name) for owner in present for name in present[owner] if present[owner][name].required}
    assert required <= given_texts.keys()
    assert all(len(text.encode()) <= present[owner][name].length for (owner, name), text in given_texts.items())


@settings(max_examples=law_examples(0.5))
@given(data=st.data())
def test_pairs_use_different_modules(data: st.DataObject) -> None:
    """Two prompts of a pair differ in as few modules as can be, if there are two selections, and agree in the rest."""
    schema = data.draw(strategies.schemas())

    first, second = data.draw(strategies.pairs(schema))

    assert (first.modules != second.modules) == (len(list_selections(schema) or ()) > 1)
    apart = frozenset(first.modules) ^ frozenset(second.modules)
    others = [frozenset(first.modules) ^ other for other in list_selections(schema) or ()]
    assert len(apart) == min((len(other) for other in others if other), default=0)
    assert [message.text for message in first.messages] == [message.text for message in second.messages]
    texts = [{(slot.module, slot.parameter): slot.text for slot in one.arguments} for one in (first, second)]
    shared = {(owner, name) for owner, name in texts[0] if not owner or owner in second.modules}
    assert all(texts[0][key] == texts[1].get(key) for key in shared)


@settings(max_examples=law_examples(0.2))
@given(pair=distinct_selections(wide))
def test_selections_beyond_listing_are_valid(pair: tuple[frozenset[str], frozenset[str]]) -> None:
    """If there are too many selections to list, the drawn ones break no rule, and pairs still differ."""
    assert list_selections(wide) is None
    assert not any(list(wide.rules.broken({"", *modules})) for modules in pair)
    assert pair[0] != pair[1]


def test_selections_beyond_listing_shrink() -> None:
    """Beyond listing, too, a selection shrinks to the wanted modules and the few that they need."""
    found = find(strategies.selections(wide), lambda selection: "m7" in selection, settings=SEARCH)

    assert found in ({"m7", "one"}, {"m7", "two"})


@settings(max_examples=law_examples())
@given(document=strategies.schema_documents())
@example(document='<schema name="s"><system>\n\u00a0</system></schema>').via("indentation with a no-break space")
def test_documents_are_valid_and_small(document: str) -> None:
    """Every schema checks, each of its modules can be used, and it has at most twelve modules and 250 positions."""
    schema = check_schema(parse_schema(document))

    assert {warning.code for warning in schema.warnings} <= WARNINGS_OF_DRAWN
    assert len(schema.modules) <= MAX_MODULES
    assert lay_out(schema, ByteTokenizer()).stop <= 250


def test_every_element_occurs() -> None:
    """Schemas use every element and attribute of the language, slots in every place of a run, and awkward text."""
    documents = strategies.schema_documents()

    found = occurring(documents, lambda text: schema_features(text, check_schema(parse_schema(text))), SCHEMA_FEATURES)

    assert found >= SCHEMA_FEATURES, SCHEMA_FEATURES - found


@settings(max_examples=law_examples(0.5))
@given(schema=strategies.exact_schemas())
def test_exact_schemas_have_one_selection(schema: CheckedSchema) -> None:
    """All modules of an exact schema are always there, cached, and see all that is guaranteed."""
    assert list_selections(schema) == (frozenset(schema.modules),)
    assert all(module.cache and module.context is not Context.OWN for module in schema.modules.values())
    assert not schema.scaffolds


_OTHER_STRATEGIES = ("collection", "include", "@src")  # tests/strategies: collections, schema_files
_SLOTS = {
    "a slot alone": "|s|",
    "first": "|st",
    "in the middle": "tst",
    "last": "ts|",
    "adjacent": "ss",
    "apart": "sts",
}
_WRITTEN = {"comment": "<!--", "CDATA": "<![CDATA[", "control token": "&lt;|end|&gt;", "indented": "\n  <module"}

SCHEMA_FEATURES = {
    *(f"{name}@{attribute.name}" for name, element in ELEMENTS.items() for attribute in attributes_of(element.node)),
    *(f"{name}>{child}" for name, element in ELEMENTS.items() for child in element.children if child in ("module", "union", "parameter", *Role)),
    *(*_SLOTS, *_WRITTEN, "unicode", "open turn", "scaffold of three", "nested modules in a scaffold", "two paths", "/path"),
    *("text", "doc", "scaffold", "rules", "example", "answer", "module>module>module", "union>module>union"),
}  # fmt: skip
"""Every attribute, every element in every parent, the places of slots in runs, and awkward texts."""
SCHEMA_FEATURES -= {name for name in SCHEMA_FEATURES if any(other in name for other in _OTHER_STRATEGIES)}
SCHEMA_FEATURES -= {f"{outer}>{inner}" for outer in Role for inner in Role}  # a turn has no turns


def schema_features(document: str, schema: CheckedSchema) -> Iterator[str]:
    """Yield what occurs in a schema."""
    for element in etree.fromstring(document).iter(etree.Element):
        path = [str(each.tag) for each in (*reversed([*element.iterancestors()]), element)]
        yield from (">".join(path[-size:]) for size in (1, 2, 3))
        yield from (f"{element.tag}@{name}" for name in element.attrib)
        paths = [
            path for name in ("requires", "excludes", "modules") for path in [element.get(name, "").split()] if path
        ]
        yield from ("two paths" for each in paths if len(each) > 1)
        yield from ("/path" for each in paths for path in each if path.startswith("/"))
    yield from (name for name, form in _WRITTEN.items() if form in document)
    yield from ("unicode" for _ in range(not document.isascii()))
    yield from ("open turn" for item in schema.children if getattr(item, "open", False))
    for scaffold in schema.scaffolds:
        yield from ("scaffold of three" for _ in range(len(scaffold.members) > 2))
        nested = any(inner.startswith(f"{outer}/") for outer in scaffold.members for inner in scaffold.members)
        yield from ("nested modules in a scaffold" for _ in range(nested))
    yield from (name for run in _runs(schema.children) for name, form in _SLOTS.items() if form in run)


def _runs(items: Iterable[CheckedItem]) -> Iterator[str]:
    """Yield the runs of an item and of those inside as words of t (text) and s (slot), between bars."""
    items = tuple(items)
    letters = {FinalText: "t", CheckedParameter: "s"}
    yield f"|{''.join(letters.get(type(item), '|') for item in items)}|"
    for item in items:
        yield from _runs(getattr(item, "children", ()) or getattr(item, "members", ()))


PROMPT_FEATURES = {
    "element": "//*[self::plan or self::cities]",
    "use": "//use",
    "path of several steps": "//use[contains(substring(@module, 2), '/')]",
    "absolute path": "//use[starts-with(@module, '/')]",
    "nested": "/*/*[self::plan or self::cities or self::use]/*[not(self::arg)]",
    "argument as an element": "//arg",
    "argument as an attribute": "//plan/@days",
    "argument of the prompt": "/*/@note",
    "version": "/*/@version",
    "format of the answer": "/*/answer",
    "reordered": "//plan[preceding-sibling::cities]",
    "indented": "self::*[starts-with(text(), '\n  ')]",
    "nothing said": "self::*[not(user or assistant or system) and not(normalize-space())]",
    "bare text": "/*/*/following-sibling::text()[normalize-space()]",
    "text element": "//text",
    **{role.value: f"/*/{role}" for role in Role},
    "control token": "//text()[contains(., '<|end|>')]",
    "markup": "//text()[contains(., '<b>')]",
    "unicode": "//text()[contains(., 'é') or contains(., '日')] | //@*[contains(., 'é') or contains(., '日')]",
}
"""The forms in which a prompt of the schema RICH is written, as paths of XPath."""


def prompt_features(document: str, selection: Selection) -> Iterator[str]:
    """Yield the forms in which a prompt of the schema RICH is written, and how full its slots are."""
    root = etree.fromstring(document)
    yield from (name for name, path in PROMPT_FEATURES.items() if root.xpath(path))
    yield from ("default left out" for _ in range("calm" in selection.modules and "calm" not in document))
    yield from ("ancestor left out" for _ in range("cities" in selection.modules and not root.xpath("//cities|//use[@module='cities' or @module='/cities']")))  # fmt: skip
    for slot in selection.arguments:
        length = selection.schema.parameters[slot.module][slot.parameter].length
        yield from ("full slot" for _ in range(len(slot.text.encode()) == length))
        yield from ("empty argument" for _ in range(not slot.text))
