"""`--arg`: arguments given on the command line, put into a prompt.

Comes in: a prompt, its checked schema, and words of the form `name=value` or `module/path.name=value`. Goes out: the
prompt with these arguments filled in or replaced. Whether they fit their slots is asked later, as of any argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from promptcache.cli.exits import UsageMistake
from promptcache.diagnostics import did_you_mean
from promptcache.language import CheckedSchema, Prompt
from promptcache.language.prompt import Argument, Reference
from promptcache.language.schema import Parameter
from promptcache.language.syntax.names import absolute, ancestors
from promptcache.language.syntax.source import source_of


class _Target(NamedTuple):
    """A parameter of a module; "" is the schema itself."""

    module: str
    parameter: str

    def __str__(self) -> str:
        return f"{self.module}.{self.parameter}" if self.module else self.parameter


def with_arguments(prompt: Prompt, schema: CheckedSchema, words: Sequence[str]) -> Prompt:
    """Return a prompt with arguments from the command line.

    A prompt that names modules which do not exist is returned as it is: that has to be told first.

    Args:
        words: For each argument, `name=value` or `module/path.name=value`; the last one for a parameter counts.

    Raises:
        UsageMistake: no module of the prompt has such a parameter, or several have and none was named.
    """
    present = _present(prompt, schema)
    if present is None:
        return prompt
    targets = _targets(present, schema)
    for word in words:
        if not word.isprintable() and any("\ud800" <= character <= "\udfff" for character in word):
            raise UsageMistake("--arg: the text is not UTF-8")
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageMistake(f"--arg {word}: write NAME=VALUE")
        target = _choose(name, targets)
        source = f"--arg {name}"
        span = source_of(word, source).span(len(name) + 1, len(word))
        prompt = _fill(prompt, target.module, Argument(name=target.parameter, text=value, span=span))
    return prompt


def parameter_names(prompt: Prompt, schema: CheckedSchema) -> Iterator[tuple[str, Parameter]]:
    """Yield the shortest names by which `--arg` can fill the parameters of a prompt, in document order."""
    targets = _targets(_present(prompt, schema) or (), schema)
    names = Counter(target.parameter for target in targets)
    for target in targets:
        name = target.parameter if names[target.parameter] == 1 else str(target)
        yield name, schema.parameters[target.module][target.parameter]


def _targets(present: Iterable[str], schema: CheckedSchema) -> list[_Target]:
    return [_Target(module, name) for module in present for name in schema.parameters[module]]


def _present(prompt: Prompt, schema: CheckedSchema) -> list[str] | None:
    """Return the modules that a prompt uses, "" first; None if one of those it names does not exist."""
    named = [path for path, _ in _paths(prompt.references, "")]
    if any(path not in schema.modules for path in named):
        return None
    present = schema.rules.complete({each for path in named for each in (path, *ancestors(path))})
    return sorted(present, key=schema.rules.order.__getitem__)


def _paths(references: Iterable[Reference], parent: str) -> Iterator[tuple[str, Reference]]:
    for reference in references:
        path = absolute("/" + reference.path if reference.absolute else reference.path, parent)
        yield path, reference
        yield from _paths(reference.children, path)


def _choose(name: str, targets: Sequence[_Target]) -> _Target:
    """Return the one parameter that a name means, alone or behind its module's path."""
    found = [target for target in targets if name.removeprefix("/") == str(target)]
    found = found or [target for target in targets if name == target.parameter]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageMistake(f"--arg {name}: several modules have it; write {' or '.join(map(str, found))}")
    known = ", ".join(map(str, targets)) or "none"
    mend = did_you_mean(name, [*(target.parameter for target in targets), *map(str, targets)])
    raise UsageMistake(f"--arg {name}: no module of this prompt has it; {mend or f'parameters here: {known}'}")


def _fill(prompt: Prompt, module: str, argument: Argument) -> Prompt:
    """Put an argument where the prompt names the module; one that is only implied becomes named."""
    if not module:
        return replace(prompt, arguments=_replaced(prompt.arguments, argument))
    if any(path == module for path, _ in _paths(prompt.references, "")):
        return replace(prompt, references=tuple(_filled(prompt.references, "", module, argument)))
    named = Reference(path=module, span=argument.span, absolute=True, arguments=(argument,))
    return replace(prompt, references=(*prompt.references, named))


def _filled(references: Iterable[Reference], parent: str, module: str, argument: Argument) -> Iterator[Reference]:
    for reference in references:
        ((path, _),) = list(_paths([replace(reference, children=())], parent))
        children = tuple(_filled(reference.children, path, module, argument))
        arguments = _replaced(reference.arguments, argument) if path == module else reference.arguments
        yield replace(reference, children=children, arguments=arguments)


def _replaced(arguments: tuple[Argument, ...], argument: Argument) -> tuple[Argument, ...]:
    return (*(each for each in arguments if each.name != argument.name), argument)
