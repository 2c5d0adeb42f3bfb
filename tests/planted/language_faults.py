"""Faults of the language: rules, defaults, paths, printing, diagnostics, control tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from promptcache.diagnostics import Span
from promptcache.language.rules.rules import RuleKind, Rules
from tests.planted.registry import fault
from tests.planted.targets import module_of

check, compile_, resolve, prompt, print_schema = (
    module_of(f"promptcache.language.{name}")
    for name in ("check", "rules.compile", "resolve", "prompt", "print_schema")
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
    fault(f"rules of the kind {_kind.value!r} are ignored", law=RULES, quick=_kind is RuleKind.EXCLUDES)(
        _without(_kind)
    )


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


@fault("a union's default is not taken", law=RULES)
def _no_default(patch: Patch) -> None:
    patch.setattr(Rules, "complete", lambda self, named: {"": None, **dict.fromkeys(named)})


@fault("a union's default is its first member", law=RULES)
def _first_default(patch: Patch) -> None:
    original = compile_._Compiler.default

    def default(self: Any, entry: Any) -> Any:
        found = original(self, entry)
        return None if found is None else replace(found, member=entry.members[0])

    patch.setattr(compile_._Compiler, "default", default)


@fault("a default is taken beside a named member", law=RULES)
def _default_beside(patch: Patch) -> None:
    def complete(self: Any, named: Any) -> Any:
        present = {"": None, **dict.fromkeys(named)}
        waiting = list(present)
        while waiting:
            for default in self.defaults.get(waiting.pop(), ()):
                if default.member not in present:
                    present[default.member] = default
                    waiting.append(default.member)
        return present

    patch.setattr(Rules, "complete", complete)


@fault("too much is guaranteed", law="guarantees hold")
def _too_much(patch: Patch) -> None:
    original = check.find_backbone

    def backbone(rules: Any, *more: Any) -> Any:
        found = original(rules, *more)
        first = frozenset(list(rules.order)[1:2])
        if found is None:
            return None
        return found._replace(guaranteed={path: those | first for path, those in found.guaranteed.items()})

    patch.setattr(check, "find_backbone", backbone)


@fault("only the module itself is guaranteed", law="guarantees hold")
def _too_little(patch: Patch) -> None:
    original = check.find_backbone

    def backbone(rules: Any, *more: Any) -> Any:
        found = original(rules, *more)
        if found is None:
            return None
        return found._replace(guaranteed={path: frozenset({path} - {""}) for path in found.guaranteed})

    patch.setattr(check, "find_backbone", backbone)


@fault("a module named twice is taken once", law=FIRST)
def _named_twice(patch: Patch) -> None:
    original = resolve._Resolver._enter

    def enter(self: Any, reference: Any, path: str) -> None:
        if path not in self.filled:
            original(self, reference, path)

    patch.setattr(resolve._Resolver, "_enter", enter)


@fault("an unknown argument is overlooked", law=FIRST)
def _unknown_argument(patch: Patch) -> None:
    original = resolve._Resolver.fill

    def fill(self: Any, path: str, arguments: Any) -> None:
        known = self._schema.parameters[path]
        original(self, path, tuple(each for each in arguments if each.name in known))

    patch.setattr(resolve._Resolver, "fill", fill)


@fault("a missing argument is overlooked", law=FIRST)
def _missing_argument(patch: Patch) -> None:
    patch.setattr(resolve, "_unfilled", lambda present, places, filled, schema: iter(()))


@fault("faults are reported one column off", law=FIRST)
def _column_off(patch: Patch) -> None:
    original = resolve._Resolver._fault

    def report(self: Any, code: str, message: str, span: Span, *rest: Any) -> None:
        original(self, code, message, replace(span, column=span.column + 1), *rest)

    patch.setattr(resolve._Resolver, "_fault", report)


@fault("another schema's prompt is taken", law=FIRST)
def _another_schema(patch: Patch) -> None:
    original = resolve.resolve_prompt
    subject = module_of("promptcache.testing.subject")
    patch.setattr(
        subject, "resolve_prompt", lambda prompt, schema: original(replace(prompt, schema=schema.name), schema)
    )


@fault("printed prompts lose the arguments of the schema's own slots", law="prompts print")
def _own_arguments(patch: Patch) -> None:
    original = prompt.Prompt.to_xml
    patch.setattr(prompt.Prompt, "to_xml", lambda self: original(replace(self, arguments=())))


@fault("printed modules lose their separator", law="schemas print")
def _separator(patch: Patch) -> None:
    original = print_schema._module
    patch.setattr(print_schema, "_module", lambda module: original(replace(module, separator=None)))


@fault("printed slots lose their placeholder", law="schemas print")
def _placeholder(patch: Patch) -> None:
    original = print_schema._parameter
    patch.setattr(print_schema, "_parameter", lambda parameter: original(replace(parameter, placeholder=None)))


@fault("text becomes control tokens", law="no control token in text")
def _control_tokens(patch: Patch) -> None:
    def tokenize(self: Any, text: str) -> tuple[int, ...]:
        self._backend.encode_special_tokens = False
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    patch.setattr(TextTokenizer, "tokenize", tokenize)
