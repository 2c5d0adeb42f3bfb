"""The sets of modules that a schema allows, computed from its declaration.

It shares no code with the compiled rules and the solver that it checks.
"""

import re
from collections.abc import Collection, Iterator, Sequence, Set
from itertools import groupby

from promptcache.language import (
    AnswerFormat,
    Assert,
    Choose,
    Combination,
    Doc,
    Example,
    Exclude,
    Module,
    Parameter,
    Require,
    RuleList,
    Scaffold,
    Schema,
    Text,
    Turn,
    Union,
    join_path,
    walk,
)

_KNOWN = (AnswerFormat, Doc, Example, Module, Parameter, RuleList, Scaffold, Text, Turn, Union)


def is_understood(schema: Schema) -> bool:
    """Whether `violations` knows every kind of item that the schema declares."""
    return all(type(item) in _KNOWN for _, item in walk(schema.children))


def completed(schema: Schema, named: Collection[str]) -> frozenset[str]:
    """Return named modules with the defaults of unions without a named member."""
    present = set(named)
    for parent, item in walk(schema.children):  # a union comes after its parent
        if isinstance(item, Union) and item.default is not None and (not parent or parent in present):
            members = {join_path(parent, member.name) for member in item.members}
            if present.isdisjoint(members):
                present.add(join_path(parent, item.default))
    return frozenset(present)


def violations(schema: Schema, present: Set[str]) -> Iterator[str]:
    """Yield the rules that a complete set of modules breaks, in words."""
    for parent, item in walk(schema.children):
        here = not parent or parent in present
        if isinstance(item, Union):
            members = [join_path(parent, member.name) for member in item.members]
            used = [member for member in members if member in present]
            if len(used) > 1:
                yield f"{' and '.join(used)} are members of one union"
            if here and not used and (item.required or item.default is not None):
                yield f"none of {', '.join(members)}"
        elif isinstance(item, Module):
            yield from _module_violations(item, parent, here, present)
        elif isinstance(item, RuleList):
            for rule in item.combinations:
                if not _kept(rule, present):
                    yield rule.message or f"the rule at {rule.span.line}:{rule.span.column} is broken"


def _module_violations(module: Module, parent: str, here: bool, present: Set[str]) -> Iterator[str]:
    path = join_path(parent, module.name)
    if path not in present:
        if here and module.required:
            yield f"{path} is required"
        return
    if not here:
        yield f"{path} without {parent}"
    for other in (*module.requires, *module.after):
        if _absolute(other, parent) not in present:
            yield f"{path} without {other}"
    for other in module.excludes:
        if _absolute(other, parent) in present:
            yield f"{path} with {other}"


def _kept(rule: Combination, present: Set[str]) -> bool:
    match rule:
        case Require():
            return not is_true(rule.condition, present) or is_true(rule.consequence, present)
        case Assert():
            return is_true(rule.test, present)
        case Exclude():
            return _number_of(rule.modules, present) <= 1
        case Choose():
            number, most = _number_of(rule.modules, present), rule.maximum
            return (rule.minimum or 0) <= number and (most is None or number <= most)


def _number_of(paths: Sequence[str], present: Set[str]) -> int:
    return len(present & {_absolute(path, "") for path in paths})


def is_true(condition: str, present: Set[str]) -> bool:
    """Whether a condition holds: innermost parentheses first, then `implies` from the right, `or`, `and`, `not`."""
    return _judged(re.findall(r"[()]|[^()\s]+", condition), present)


def _judged(words: Sequence[str | bool], present: Set[str]) -> bool:
    while ")" in words:
        stop = words.index(")")
        start = max(place for place in range(stop) if words[place] == "(")
        words = [*words[:start], _judged(words[start + 1 : stop], present), *words[stop + 1 :]]
    held = [_any(part, present) for part in _parts(words, "implies")]
    return held[-1] or not all(held[:-1])


def _any(words: Sequence[str | bool], present: Set[str]) -> bool:
    return any(all(_one(each, present) for each in _parts(part, "and")) for part in _parts(words, "or"))


def _one(words: Sequence[str | bool], present: Set[str]) -> bool:
    last = words[-1]
    held = last if isinstance(last, bool) else _absolute(last, "") in present
    return held is (len(words) % 2 == 1)  # every word before the last is a `not`


def _parts(words: Sequence[str | bool], word: str) -> list[list[str | bool]]:
    return [list(part) for is_word, part in groupby(words, lambda each: each == word) if not is_word]


def _absolute(path: str, parent: str) -> str:
    return path[1:] if path.startswith("/") else join_path(parent, path)
