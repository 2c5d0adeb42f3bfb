"""A schema of any size, with rules, for measuring how long documents take.

Comes in: how many modules and rules, and how many bytes. Goes out: its text, the same every time. A prompt may leave
out every module, so that no rule can make the schema impossible.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from promptcache.diagnostics import PromptCacheError
from promptcache.language.syntax.source import MAX_BYTES

_SECTION = 10  # a module, a union of three in it, and six more
_MEMBERS = range(1, 4)
_RELATED = 4  # sections whose modules one rule speaks of
_LEAST_MODULE, _LEAST_RULE = 28, 40  # bytes of markup
_WORDS = (
    "the boat",
    "of",
    "a harbour",
    "leaves",
    "at nine",
    "in summer",
    "and",
    "at ten",
    "when",
    "it rains",
    "there is no wind",
)


def generated_schema(num_modules: int, num_rules: int, nbytes: int) -> str:
    """Return a schema of about so many bytes, in sections of ten modules: nested ones, unions and slots.

    Raises:
        PromptCacheError: there are too few modules for rules, or they do not fit.
    """
    if nbytes > MAX_BYTES:
        raise PromptCacheError(f"--size: a document has at most {MAX_BYTES:,} bytes")
    if num_rules and num_modules < _RELATED * _SECTION:
        raise PromptCacheError(f"rules need at least {_RELATED * _SECTION} modules: give more --modules, or --rules 0")
    markup = num_modules * _LEAST_MODULE + num_rules * _LEAST_RULE
    if markup <= nbytes:
        markup = len(_document(num_modules, num_rules, 0))
    if markup + num_modules > nbytes:
        told = f"{num_modules:,} modules and {num_rules:,} rules do not fit into {nbytes:,} bytes"
        raise PromptCacheError(f"{told}: give a larger --size")
    return _document(num_modules, num_rules, (nbytes - markup) // num_modules)


def _document(num_modules: int, num_rules: int, num_letters: int) -> str:
    draw = random.Random(0)
    sections = (
        _section(draw, first, min(first + _SECTION, num_modules), num_letters)
        for first in range(0, num_modules, _SECTION)
    )
    rules = "".join(f"    {rule}\n" for rule in _rules(random.Random(1), num_modules, num_rules))
    listed = f"  <rules>\n{rules}  </rules>\n" if rules else ""
    return f'<schema name="generated">\n{"".join(sections)}{listed}</schema>\n'


def _section(draw: random.Random, first: int, stop: int, num_letters: int) -> str:
    slot = '<parameter name="when" length="8" default="today"/>'
    inner = [f'<module name="m{index}">{_text(draw, num_letters)}</module>\n' for index in range(first + 1, stop)]
    union = "".join(inner[: len(_MEMBERS)])
    union = f"    <union>\n{union}    </union>\n" if union else ""
    others = "".join(inner[len(_MEMBERS) :])
    return f'  <module name="m{first}">{_text(draw, num_letters)} {slot}\n{union}{others}  </module>\n'


def _text(draw: random.Random, num_letters: int) -> str:
    return " ".join(draw.choices(_WORDS, k=num_letters // 2 + 1))[:num_letters]


def _rules(draw: random.Random, num_modules: int, num_rules: int) -> Iterator[str]:
    forms = (
        '<require if="{0} and {1}" then="{2} or not {3}"/>',
        '<exclude modules="{0} {1}"/>',
        '<choose modules="{0} {1} {2} {3}" max="2"/>',
        '<assert test="{0} implies {1} or {2}" message="Say which."/>',
    )
    for number in range(num_rules):
        sections = draw.sample(range(num_modules // _SECTION), _RELATED)
        inside = [(section * _SECTION, draw.randrange(1, _SECTION)) for section in sections]
        yield forms[number % len(forms)].format(*(f"m{first}/m{first + index}" for first, index in inside))
