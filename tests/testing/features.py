"""The features of a schema or a prompt document, by name, so that tests can state that every feature occurs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lxml import etree

from promptcache.language import CheckedSchema, Role, Selection
from promptcache.language.checked import CheckedItem, CheckedParameter, FinalText
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.elements import ELEMENTS

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
