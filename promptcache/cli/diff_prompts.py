"""Prompts of one schema that are not valid for another.

Comes in: two checked schemas. Goes out: how many combinations of modules are lost, with a prompt and a reason for some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from promptcache.diagnostics import PromptError
from promptcache.language import CheckedSchema, Combinations, resolve_prompt
from promptcache.language import SlotArguments as Arguments
from promptcache.language import prompt_for as example_prompt

MAX_CHECKED = 10_000
_MAX_EXAMPLES = 5
_MAX_TRIED = 200  # lost prompts that are looked into for examples
_ARGUMENT = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPrompt:
    """A prompt that was valid, and what the new schema has against it."""

    xml: str
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChanges:
    """What becomes of the old schema's prompts, one for each combination of modules with the arguments it needs.

    Attributes:
        all_checked: Whether there were no more combinations than were checked.
        examples: The smallest lost prompts of different reasons.
    """

    num_checked: int
    all_checked: bool
    num_lost: int
    examples: tuple[LostPrompt, ...]


def compare_prompts(old: CheckedSchema, new: CheckedSchema) -> PromptChanges:
    """Check the prompts of `old` against `new`; the schemas' names are not compared."""
    listing = Combinations(old.rules).listing(MAX_CHECKED)
    required = _required(old)
    checker = _Checker(old, new, required)
    lost = [broken for modules in listing.found if (broken := checker.broken(modules)) is not None]
    lost.sort(key=lambda named: (len(named), sorted(named)))
    return PromptChanges(
        num_checked=len(listing.found),
        all_checked=listing.complete,
        num_lost=len(lost),
        examples=tuple(_examples(lost, old, new, required)),
    )


class _Checker:
    """Says quickly whether a combination of the old schema has a prompt that the new one refuses."""

    def __init__(self, old: CheckedSchema, new: CheckedSchema, required: Arguments) -> None:
        self._old = old
        self._new = new
        self._filled: dict[str, set[str]] = {}
        for module, name in required:
            self._filled.setdefault(module, set()).add(name)
        self._choosy = {*self._filled, *(module for module, _ in _required(new))}

    def broken(self, modules: frozenset[str]) -> frozenset[str] | None:
        """Return the modules that such a prompt names – all, or all but those that defaults add – or None."""
        forms = dict.fromkeys((modules, _without_defaults(modules, self._old)))
        return next((named for named in forms if self._breaks(named)), None)

    def _breaks(self, named: frozenset[str]) -> bool:
        if not self._new.modules.keys() >= named:
            return True
        present = self._new.rules.complete(named)
        if any(True for _ in self._new.rules.broken(present.keys())):
            return True
        return any(self._misfilled(module, named) for module in self._choosy if module in present)

    def _misfilled(self, module: str, named: frozenset[str]) -> bool:
        """Whether the arguments that a module had to have are refused, or do not suffice any more."""
        parameters = self._new.parameters.get(module, {})
        filled = self._filled.get(module, set()) if module in named or not module else set()
        return not filled <= parameters.keys() or any(
            parameter.required and name not in filled for name, parameter in parameters.items()
        )


def _required(schema: CheckedSchema) -> Arguments:
    return {
        (module, name): _ARGUMENT
        for module, parameters in schema.parameters.items()
        for name, parameter in parameters.items()
        if parameter.required
    }


def _without_defaults(modules: frozenset[str], schema: CheckedSchema) -> frozenset[str]:
    """Return the smallest set that a prompt can name, without arguments to fill, to select `modules`."""
    if not schema.rules.defaults:
        return modules
    named = set(modules)
    for module in reversed([path for path in schema.modules if path in modules]):
        holds_named = any(path.startswith(f"{module}/") for path in named)
        needs_argument = any(parameter.required for parameter in schema.parameters[module].values())
        if not holds_named and not needs_argument and module in schema.rules.complete(named - {module}):
            named.discard(module)
    return frozenset(named)


def _examples(
    lost: Sequence[frozenset[str]], old: CheckedSchema, new: CheckedSchema, required: Arguments
) -> Iterator[LostPrompt]:
    """Yield the smallest lost prompts with different reasons."""
    seen: set[str] = set()
    for named in lost[:_MAX_TRIED]:
        prompt = example_prompt(old, named, required)
        try:
            resolve_prompt(replace(prompt, schema=new.name), new)
        except PromptError as error:
            first = error.diagnostics[0]
            if first.message not in seen and len(seen) < _MAX_EXAMPLES:
                seen.add(first.message)
                yield LostPrompt(xml=prompt.to_xml(), code=first.code, message=first.message)
