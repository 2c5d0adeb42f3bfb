"""What a schema allows and costs, as text.

Comes in: `SchemaFacts`. Goes out: lines on a console. This file only decides how things are written.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from promptcache.cli.explain import ModuleFacts, ParameterFacts, PromptFacts, SchemaFacts
from promptcache.cli.output import counted
from promptcache.cli.parameter_text import accepted

_ROOT = "(root)"
_MAX_BROUGHT = 6
_PRESENCE = {"always": "always there", "never": "can never be used: `promptcache check` says why", "optional": ""}


def print_facts(facts: SchemaFacts, console: Console) -> None:
    """Print modules with their parameters, rules, combinations, and the shortest and longest prompt."""
    for line in _lines(facts):
        console.print(line, soft_wrap=True)


def _lines(facts: SchemaFacts) -> Iterator[Text]:
    yield Text(facts.schema, style="bold").append(f"  tokens as {facts.model} counts them", style="not bold dim")
    yield _head("modules")
    for module in facts.modules:
        yield _module(module)
        yield from (Text(f"    {_parameter(parameter)}", style="magenta") for parameter in module.parameters)
    yield _head("rules" if facts.rules else "no rules")
    for rule in facts.rules:
        yield Text(f"  {rule.text}  ").append(rule.place, style="dim")
    at_least = "" if facts.combinations_exact else "at least "
    yield _head(f"valid combinations: {at_least}{facts.num_combinations:,}")
    yield from _prompt("shortest", facts.shortest, "arguments left out, or as short as can be")
    yield from _prompt("longest", facts.longest, "every slot as full as can be")


def _head(words: str) -> Text:
    return Text(f"\n{words}", style="bold")


def _module(module: ModuleFacts) -> Text:
    words = [
        counted(module.num_tokens, "token"),
        _PRESENCE[module.presence],
        "" if module.cached else "not cached",
        _brought(module),
    ]
    text = Text(f"  {module.path or _ROOT}", style="default" if module.presence != "never" else "red")
    return text.append(f"  {' · '.join(filter(None, words))}", style="dim")


def _brought(module: ModuleFacts) -> str:
    if not module.brings:
        return ""
    more = len(module.brings) - _MAX_BROUGHT
    return f"always with {', '.join(module.brings[:_MAX_BROUGHT])}" + (f" and {more} more" if more > 0 else "")


def _parameter(parameter: ParameterFacts) -> str:
    words = [counted(parameter.length, "position"), *accepted(parameter), "required" if parameter.required else ""]
    words += [f"default {parameter.default!r}" if parameter.default is not None else ""]
    words += [f"placeholder {parameter.placeholder!r}" if parameter.placeholder is not None else ""]
    words += ["" if parameter.fits else "nothing that it takes fits"]
    return f"{parameter.name}  {' · '.join(filter(None, words))}"


def _prompt(kind: str, prompt: PromptFacts, how: str) -> Iterator[Text]:
    about = "" if prompt.exact else "about "
    yield _head(f"{kind} prompt: {about}{counted(prompt.num_tokens, 'token')}").append(f", {how}", style="not bold")
    for line in prompt.xml.rstrip("\n").split("\n"):
        yield Text(f"  {line}", style="cyan")
