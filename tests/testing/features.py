"""The features of a schema or a prompt document, by name, so that tests can state that every feature occurs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lxml import etree

from promptcache.language import CheckedSchema, Context, Module, Parameter, Role, Selection, Union, walk
from promptcache.language.checked import (
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedTurn,
    CheckedUnion,
    FinalText,
)
from promptcache.testing.prompt_xml import walk_checked

SCHEMA_FEATURES = {
    *("module", "nested module", "deep module", "required", "reserve", "uncached", "own context", "name with dot"),
    *("requires", "excludes", "after", "several paths in a rule", "absolute path"),
    *("rules require", "rules exclude", "rules choose", "rules assert", "message"),
    *("union", "union of several", "required union", "default", "union in a module", "module in a member"),
    *("union in a member", "union in a turn"),
    *("scaffold", "named scaffold", "scaffold of three", "two scaffolds", "scaffold of nested modules"),
    *("example", "example that is not valid", "example with contents", "example with an answer"),
    *("system", "user", "assistant", "open turn", "module in a turn", "turn in a module", "slot in a turn"),
    *("slot at the root", "slot alone", "slot first", "slot in the middle", "slot last", "adjacent slots"),
    *("text between slots", "bare slot", "slot with default", "slot with placeholder", "slot with both"),
    *("typed slot", "choice", "pattern", "format of answers"),
    *("required slot", "paper's slot", "paper's union"),
    *("text", "doc", "comment", "cdata", "version", "whitespace", "separator", "control token", "unicode", "indented"),
}

PROMPT_FEATURES = {
    *(
        "element",
        "use",
        "path of several steps",
        "absolute path",
        "nested",
        "arg",
        "attribute",
        "version",
        "format of the answer",
        "reordered",
        "indented",
    ),
    *("nothing said", "bare text", "text element", "user", "system", "assistant", "control token", "markup", "unicode"),
    *("full slot", "empty argument", "default left out", "ancestor left out"),
}


def schema_features(document: str, schema: CheckedSchema) -> Iterator[str]:
    """Yield what occurs in a schema."""
    yield from _written(document)
    yield from _of_modules(schema)
    yield from _of_unions(schema)
    yield from _of_scaffolds(schema)
    yield from _of_turns(schema)
    yield from _of_slots(schema.children, "")


def _written(document: str) -> Iterator[str]:
    root = etree.fromstring(document)
    tags = {element.tag for element in root.iter()}
    yield from (name for name in ("text", "doc") if name in tags)
    yield from (f"rules {rule.tag!s}" for rule in root.iterfind("rules/*"))
    yield from (name for name in ("version", "whitespace", "separator") if root.get(name) is not None)
    checks = {
        "comment": "<!--" in document,
        "typed slot": root.find(".//parameter[@type]") is not None,
        "choice": root.find(".//parameter[@choices]") is not None,
        "pattern": root.find(".//parameter[@pattern]") is not None,
        "example": root.find("example[@valid='true']") is not None,
        "example that is not valid": root.find("example[@valid='false']") is not None,
        "example with contents": root.find("example[@contains]") is not None,
        "example with an answer": root.find("example[@answer]") is not None,
        "format of answers": root.find("answer") is not None,
        "message": root.find("rules/*[@message]") is not None,
        "cdata": "<![CDATA[" in document,
        "control token": "&lt;|end|&gt;" in document,
        "unicode": not document.isascii(),
        "indented": "\n  <module" in document,
        "paper's slot": root.find(".//parameter[@scaffold]") is not None,
        "paper's union": root.find(".//union[@scaffold]") is not None,
        "absolute path": root.xpath("//module[contains(@requires, '/') or contains(@excludes, '/')]"),
        "several paths in a rule": root.xpath("//module[contains(@requires, ' ') or contains(@excludes, ' ')]"),
    }
    yield from (name for name, found in checks.items() if found)


def _of_modules(schema: CheckedSchema) -> Iterator[str]:
    for path, module in schema.modules.items():
        checks = {
            "module": True,
            "nested module": "/" in path,
            "deep module": path.count("/") > 1,
            "name with dot": "." in path,
            "required": module.required,
            "reserve": module.reserve,
            "uncached": not module.cache,
            "own context": module.context is Context.OWN,
        }
        yield from (name for name, found in checks.items() if found)
    for _, item in walk(schema.source.children):
        if isinstance(item, Module):
            yield from (rule for rule in ("requires", "excludes", "after") if getattr(item, rule))


def _of_unions(schema: CheckedSchema) -> Iterator[str]:
    for parent, item in walk(schema.source.children):
        if isinstance(item, Union):
            inside = [child for member in item.members for child in member.children]
            checks = {
                "union": True,
                "union of several": len(item.members) > 1,
                "required union": item.required,
                "default": item.default,
                "union in a module": parent,
                "module in a member": any(isinstance(child, Module) for child in inside),
                "union in a member": any(isinstance(child, Union) for child in inside),
            }
            yield from (name for name, found in checks.items() if found)


def _of_scaffolds(schema: CheckedSchema) -> Iterator[str]:
    if len(schema.scaffolds) > 1:
        yield "two scaffolds"
    for scaffold in schema.scaffolds:
        yield "scaffold"
        if "+" not in scaffold.name:
            yield "named scaffold"
        if len(scaffold.members) > 2:
            yield "scaffold of three"
        if any(inner.startswith(f"{outer}/") for outer in scaffold.members for inner in scaffold.members):
            yield "scaffold of nested modules"


def _of_turns(schema: CheckedSchema) -> Iterator[str]:
    for item in walk_checked(schema.children):
        if isinstance(item, CheckedModule) and any(isinstance(child, CheckedTurn) for child in item.children):
            yield "turn in a module"
        if isinstance(item, CheckedTurn):
            yield item.role.value
            if item.open:
                yield "open turn"
            kinds = {
                CheckedModule: "module in a turn",
                CheckedUnion: "union in a turn",
                CheckedParameter: "slot in a turn",
            }
            yield from (kinds[type(child)] for child in item.children if type(child) in kinds)


def _of_slots(items: Iterable[CheckedItem], owner: str) -> Iterator[str]:
    """Yield the places of slots in runs; a run is written as a word of t (text) and s (slot)."""
    items = tuple(items)
    letters = {FinalText: "t", CheckedParameter: "s"}
    for run in "".join(letters.get(type(item), "|") for item in items).split("|"):
        checks = {
            "slot alone": run == "s",
            "slot first": run.startswith("st"),
            "slot in the middle": "tst" in run,
            "slot last": run.endswith("ts"),
            "adjacent slots": "ss" in run,
            "text between slots": "sts" in run,
            "slot at the root": "s" in run and not owner,
        }
        yield from (name for name, found in checks.items() if found)
    for item in items:
        if isinstance(item, Parameter):
            yield from _of_parameter(item)
        elif isinstance(item, CheckedModule):
            yield from _of_slots(item.children, item.path)
        elif isinstance(item, CheckedTurn):
            yield from _of_slots(item.children, owner)
        elif isinstance(item, CheckedUnion):
            yield from _of_slots(item.members, owner)


def _of_parameter(parameter: Parameter) -> Iterator[str]:
    if parameter.required:
        yield "required slot"
    match parameter.default, parameter.placeholder:
        case None, None:
            yield "bare slot"
        case _, None:
            yield "slot with default"
        case None, _:
            yield "slot with placeholder"
        case _:
            yield "slot with both"


def prompt_features(document: str, schema: CheckedSchema, modules: tuple[str, ...]) -> Iterator[str]:
    """Yield the forms in which a prompt is written."""
    root = etree.fromstring(document)
    references = [element for element in root.iter() if element.tag in _names(schema) | {"use"}]
    texts = "".join(root.itertext())
    roles = {str(element.tag) for element in root} & {role.value for role in Role}
    yield from roles
    named = [path.rpartition("/")[2] for path in modules]
    checks = {
        "element": any(element.tag != "use" for element in references),
        "use": root.find(".//use") is not None,
        "path of several steps": root.xpath("//use[contains(@module, '/')]"),
        "absolute path": root.xpath("//use[starts-with(@module, '/')]"),
        "nested": any(element.getparent() is not root for element in references),
        "arg": root.find(".//arg") is not None,
        "attribute": len(root.attrib) > 1 + ("version" in root.attrib),
        "version": "version" in root.attrib,
        "format of the answer": root.find("answer") is not None,
        "reordered": [element.tag for element in references] != sorted(element.tag for element in references),
        "indented": "\n  <" in document,
        "nothing said": not roles and not texts.strip(),
        "bare text": not roles and texts.strip(),
        "text element": root.find(".//text") is not None,
        "control token": "<|end|>" in texts,
        "markup": "<b>" in texts,
        "unicode": not document.isascii(),
        "default left out": "calm" in named and "calm" not in document,
        "ancestor left out": "cities" in named
        and not root.xpath("//cities | //use[@module='cities' or @module='/cities']"),
    }
    yield from (name for name, found in checks.items() if found)


def argument_features(selection: Selection) -> Iterator[str]:
    """Yield how full a prompt's arguments make their slots."""
    for slot in selection.arguments:
        length = selection.schema.parameters[slot.module][slot.parameter].length
        if len(slot.text.encode()) == length:
            yield "full slot"
        if not slot.text:
            yield "empty argument"


def _names(schema: CheckedSchema) -> set[str]:
    return {path.rpartition("/")[2] for path in schema.modules}
