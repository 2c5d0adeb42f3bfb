"""Faults of the language: rules, defaults, paths, files, printing, diagnostics, control tokens.

Most are planted at its entry points: in the arguments and results of `check_schema`, `resolve_prompt` and
`print_schema`.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from lxml import etree

from promptcache.diagnostics import PromptError
from promptcache.language import CheckedSchema, absolute
from promptcache.language.rules.rules import RuleKind, Rules
from promptcache.testing import subject
from promptcache.testing.prompt_xml import to_text
from tests.laws import laws
from tests.planted.registry import Plant, fault, module_of, replaced, wrapped
from tests.strategies import split_files

compile_, resolve, prompt = (
    module_of(f"promptcache.language.{name}") for name in ("rules.compile", "resolve", "prompt")
)
TextTokenizer = module_of("promptcache.tokenizer.text_tokenizer").TextTokenizer
Patch = pytest.MonkeyPatch
RULES, FIRST = "rules are as declared", "fault is reported first"


def _without(kind: RuleKind) -> Any:
    def plant(patch: Patch) -> None:
        for name in ("of_module", "of_union"):
            original = getattr(compile_._Compiler, name)

            def of(self: Any, entry: Any, original: Any = original) -> Any:
                return (rule for rule in original(self, entry) if rule.kind is not kind)

            patch.setattr(compile_._Compiler, name, of)

    return plant


for _kind in (RuleKind.EXCLUDES, RuleKind.REQUIRES, RuleKind.AFTER, RuleKind.REQUIRED, RuleKind.CHOICE, RuleKind.UNION):
    fault(f"rules of the kind {_kind.value!r} are ignored", law=RULES)(_without(_kind))


def _without_listed(kind: RuleKind) -> Any:
    def plant(patch: Patch) -> None:
        original = compile_._Compiler.check

        def check(self: Any, rule: Any) -> Any:
            found = original(self, rule)
            return None if found is None or found.kind is kind else found

        patch.setattr(compile_._Compiler, "check", check)

    return plant


for _kind in (RuleKind.REQUIRE, RuleKind.EXCLUDE, RuleKind.CHOOSE, RuleKind.ASSERT):
    fault(f"rules of the element {_kind.value!r} are ignored", law=RULES)(_without_listed(_kind))


def _checking(change: Callable[[CheckedSchema], CheckedSchema]) -> Plant:
    """Return a plant that changes every drawn schema after its check."""

    def plant(patch: Patch) -> None:
        original = split_files.check_schema
        patch.setattr(split_files, "check_schema", lambda schema: change(original(schema)))

    return plant


replaced(
    "a union's default is not taken",
    Rules,
    "complete",
    lambda self, named: {"": None, **dict.fromkeys(named)},
    law=RULES,
)


def _first_default(schema: CheckedSchema) -> CheckedSchema:
    first = {
        member: rule.test.modules[0]  # type: ignore[union-attr]
        for rule in schema.rules.rules
        if rule.kind is RuleKind.UNION
        for member in rule.modules
    }
    defaults = {
        parent: tuple(replace(each, member=first.get(each.member, each.member)) for each in found)
        for parent, found in schema.rules.defaults.items()
    }
    return replace(schema, rules=replace(schema.rules, defaults=defaults))


fault("a union's default is its first member", law=RULES)(_checking(_first_default))


@wrapped("a default is taken beside a named member", Rules, "complete", law=RULES)
def _default_beside(_: Any, self: Any, named: Any) -> Any:
    present = {"": None, **dict.fromkeys(named)}
    waiting = list(present)
    while waiting:
        for default in self.defaults.get(waiting.pop(), ()):
            if default.member not in present:
                present[default.member] = default
                waiting.append(default.member)
    return present


def _guaranteeing(wrong: Callable[[str, Collection[str], CheckedSchema], Collection[str]]) -> Plant:
    return _checking(
        lambda schema: replace(
            schema,
            guaranteed={path: frozenset(wrong(path, those, schema)) for path, those in schema.guaranteed.items()},
        )
    )


fault("too much is guaranteed", law="guarantees hold")(
    _guaranteeing(lambda path, those, schema: {*those, *list(schema.modules)[:1]})
)
fault("only the module itself is guaranteed", law="guarantees hold")(
    _guaranteeing(lambda path, those, schema: {path} - {""})
)


@wrapped("a module named twice is taken once", resolve._Resolver, "follow", law=FIRST)
def _named_twice(original: Any, self: Any, references: Any, parent: str) -> None:
    for reference in references:
        path = reference.path if reference.absolute else absolute(reference.path, parent)
        if path not in self.places:
            original(self, (reference,), parent)


@wrapped("an unknown argument is overlooked", resolve._Resolver, "fill", law=FIRST)
def _unknown_argument(original: Any, self: Any, path: str, arguments: Any) -> None:
    known = self._schema.parameters[path]
    original(self, path, tuple(each for each in arguments if each.name in known))


wrapped("a missing argument is overlooked", resolve, "_incomplete", law=FIRST)(
    lambda original, *args: (fault for fault in original(*args) if fault.code != "PC404")
)


@wrapped("faults are reported one column off", subject, "resolve_prompt", law=FIRST)
def _column_off(original: Any, *args: Any) -> Any:
    try:
        return original(*args)
    except PromptError as error:
        raise PromptError(
            [replace(each, span=replace(each.span, column=each.span.column + 1)) for each in error.diagnostics]
        ) from error


wrapped("another schema's prompt is taken", subject, "resolve_prompt", law=FIRST)(
    lambda original, prompt, schema: original(replace(prompt, schema=schema.name), schema)
)
wrapped("printed prompts lose the arguments of the schema's own slots", prompt.Prompt, "to_xml", law="prompts print")(
    lambda original, self: original(replace(self, arguments=()))
)


def _printing_without(attribute: str) -> Plant:
    def plant(patch: Patch) -> None:
        original = laws.print_schema
        patch.setattr(laws, "print_schema", lambda schema: re.sub(f' {attribute}="[^"]*"', "", original(schema)))

    return plant


fault("printed modules lose their separator", law="schemas print")(_printing_without("separator"))
fault("printed slots lose their placeholder", law="schemas print")(_printing_without("placeholder"))


@wrapped("text becomes control tokens", TextTokenizer, "tokenize", law="no control token in text")
def _control_tokens(_: Any, self: Any, text: str) -> tuple[int, ...]:
    self._backend.encode_special_tokens = False
    return tuple(self._backend.encode(text, add_special_tokens=False).ids)


FILES = "files are one schema"
Documents = dict[str, etree._Element]
"""Documents of a schema by path; "" is the schema itself."""


def _changing(change: Callable[[Documents], None], text: Callable[[str], str] = str) -> Plant:
    """Return a plant that changes the documents, and the texts of `src` files."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = split_files.parse_schema

        def parse_schema(xml: str, *, folder: Mapping[str, str] | None = None) -> object:
            files = {"": xml, **(folder or {})}
            documents = {name: etree.fromstring(each) for name, each in files.items() if not name.endswith(".txt")}
            change(documents)
            texts = {name: text(each) for name, each in files.items() if name.endswith(".txt")}
            texts |= {name: to_text(root) for name, root in documents.items()}
            return original(texts.pop(""), folder=texts or None)

        patch.setattr(split_files, "parse_schema", parse_schema)

    return plant


def _included(documents: Documents) -> list[etree._Element]:
    return [root for name, root in documents.items() if name]


def _without_options(documents: Documents) -> None:
    for root in _included(documents):
        for name in ("whitespace", "separator", "context"):
            root.attrib.pop(name, None)


def _without_rules(documents: Documents) -> None:
    for root in _included(documents):
        for rules in root.findall("rules"):
            root.remove(rules)


def _at_the_end(documents: Documents) -> None:
    for include in documents[""].findall("include"):
        documents[""].append(include)


fault("included modules take the options of their new place", law=FILES)(_changing(_without_options))
fault("rules of an included file stay behind", law=FILES)(_changing(_without_rules))
fault("included modules come last in the schema", law=FILES)(_changing(_at_the_end))
fault("texts from files lose their last newline", law=FILES)(
    _changing(lambda documents: None, text=lambda text: text.removesuffix("\n"))
)
