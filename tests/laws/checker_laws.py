"""Laws of the checker: about documents with a fault, and about schemas in several files.

Users need none of them: a schema of theirs cannot break one. The grammars see only the structure of a document; the
codes of what they see are listed here.
"""

from collections.abc import Callable
from dataclasses import replace

from lxml import etree

from promptcache.diagnostics import LanguageError, PromptError
from promptcache.language import CheckedSchema, check_schema, join_path, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.rules.rules import Check, Rule
from tests.laws.laws import BrokenLaw, hold, shape
from tests.laws.subject import Subject, published_grammar
from tests.strategies import InvalidPrompt, SchemaFiles

_TEXT_CODES = frozenset({"PC412", "PC415", "PC416"})
"""With PC1xx, what the published grammar sees in a prompt."""

_STRUCTURE = _TEXT_CODES | {
    *("PC101", "PC102", "PC103", "PC104", "PC106", "PC107"),
    *("PC401", "PC402", "PC405", "PC408", "PC413"),
}
"""What the grammar of one schema's prompts sees."""


def fault_is_reported_first(subject: Subject, invalid: InvalidPrompt) -> None:
    """A prompt with one fault gets that fault's code first, at the line and column where the fault is."""
    try:
        subject.case(invalid.xml)
    except PromptError as error:
        first = error.diagnostics[0]
    else:
        raise BrokenLaw(f"{invalid.mutation} ({invalid.code}) is accepted: {invalid.xml}")
    got = (first.code, first.span.line, first.span.column)
    expected = (invalid.code, invalid.line, invalid.column)
    hold(got == expected, f"{invalid.mutation}: {got} instead of {expected}", invalid.xml)


def grammars_refuse_faults(subject: Subject, invalid: InvalidPrompt) -> None:
    """Of an invalid prompt, both grammars refuse what the checker refuses for its structure, and nothing else."""
    found = _codes(subject, invalid)
    if not found or min(found) < "PC100":  # no grammar reads what is no XML of ours
        return
    root = etree.fromstring(invalid.xml.encode())
    refused = not published_grammar().validate(root)
    if found != {"PC403"}:  # a grammar without parameters cannot know that two forms name the same one
        expected = any(code < "PC200" or code in _TEXT_CODES for code in found)
        hold(refused == expected, f"the published grammar {_verb(refused)} what gets {sorted(found)}", invalid.xml)
    if "<use" not in invalid.xml:
        refused = not subject.grammar.validate(root)
        expected = not found.isdisjoint(_STRUCTURE) or _has_wrong_choice(root, subject)
        hold(refused == expected, f"the schema's grammar {_verb(refused)} what gets {sorted(found)}", invalid.xml)


def files_are_one_schema(written: SchemaFiles) -> None:
    """A schema in several files has the tokens, slots, rules and guarantees that it has in one document."""
    divided, whole = written.checked(), check_schema(parse_schema(written.whole))
    hold(content(divided) == content(whole), f"other than {written.whole}", written.report)


FAULT_LAWS: dict[str, Callable[[Subject, InvalidPrompt], None]] = {
    "fault is reported first": fault_is_reported_first,
    "grammars refuse faults": grammars_refuse_faults,
}
"""The laws of prompts with one fault."""


def content(schema: CheckedSchema) -> tuple[object, ...]:
    """Return the meaning of a checked schema: its shape without the names of scaffolds and the wording of rules."""
    scaffolds = [(each.members, each.guaranteed) for each in schema.scaffolds]
    unnamed = replace(schema, scaffolds=(), rules=replace(schema.rules, rules=()))
    return (shape(unnamed), scaffolds, {_clause(rule) for rule in schema.rules.rules})


def _clause(rule: Rule) -> tuple[object, ...]:
    if isinstance(rule, Check):
        return (rule.kind, rule.test)
    return (rule.kind, frozenset(rule.when), rule.then)


def _has_wrong_choice(element: etree._Element, subject: Subject, path: str = "") -> bool:
    """Whether an attribute of a reference, or of one inside it, is none of the choices of its parameter."""
    for name, parameter in subject.schema.parameters.get(path, {}).items():
        if parameter.choices and element.get(name, parameter.choices[0]) not in parameter.choices:
            return True
    return any(_has_wrong_choice(each, subject, join_path(path, str(each.tag))) for each in element.iterchildren("*"))


def _codes(subject: Subject, invalid: InvalidPrompt) -> set[str]:
    try:
        resolve_prompt(parse_prompt(invalid.xml), subject.schema)
    except LanguageError as error:
        return {diagnostic.code for diagnostic in error.diagnostics}
    return set()


def _verb(refused: bool) -> str:
    return "refuses" if refused else "accepts"
