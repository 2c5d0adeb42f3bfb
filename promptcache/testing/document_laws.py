"""Laws of documents: formatted and printed they say the same, and the grammars judge them as the checker does.

Comes in: a schema under test, a case, or an invalid prompt. Goes out: nothing, or `BrokenLaw`. The grammars see the
structure of a document only; the codes of what they see stand here.
"""

from __future__ import annotations

from lxml import etree

from promptcache.diagnostics import LanguageError
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.format.formatter import format_document
from promptcache.language.prompt_grammar import MAX_EXACT
from promptcache.language.schema import Parameter, join_path
from promptcache.testing.comparing import content, printed_again, said, shape, without_places
from promptcache.testing.faulty import InvalidPrompt
from promptcache.testing.law import hold
from promptcache.testing.subject import PromptCase, Subject, published_grammar
from promptcache.testing.written import SchemaFiles

_TEXT_CODES = frozenset({"PC412", "PC415", "PC416"})
"""With PC1xx, what the published grammar sees in a prompt."""

_STRUCTURE = _TEXT_CODES | {
    *("PC101", "PC102", "PC103", "PC104", "PC106", "PC107"),
    *("PC401", "PC402", "PC403", "PC404", "PC405", "PC406", "PC407", "PC408", "PC413"),
}
"""What the grammar of one schema's prompts sees."""

_OF_MANY_ARGUMENTS = frozenset({"PC403", "PC404"})
"""Of these it sees less where a module has more than `MAX_EXACT` parameters; docs/grammar.md says so."""

_REACHING_OUT = etree.XPath("/*/*//use[starts-with(@module, '/')]")
"""References from inside one reference to a module outside it: a grammar that reads from the outside in sees none."""


def prompts_print(case: PromptCase) -> None:
    """A prompt that is printed and read again selects the same, with the same arguments and messages."""
    printed = parse_prompt(case.xml).to_xml()
    again = resolve_prompt(parse_prompt(printed), case.selection.schema)
    hold(said(again) == said(case.selection), f"printed as {printed}", case)


def schemas_print(subject: Subject) -> None:
    """A schema that is printed and read again has the same text, rules, slots, guarantees and examples."""
    printed, again = printed_again(subject.schema, subject.folder)
    hold(shape(again) == shape(subject.schema), f"printed as {printed}", subject)
    same = without_places(again.examples) == without_places(subject.schema.examples)
    hold(same, f"the examples are printed as {printed}", subject)


def formatting_keeps_the_schema(subject: Subject) -> None:
    """Formatting a schema changes neither its tokens nor its rules, and formatting it twice changes nothing more."""
    once = format_document(subject.document, folder=subject.folder)
    again = check_schema(parse_schema(once, folder=subject.folder))
    hold(shape(again) == shape(subject.schema), f"formatted as {once}", subject)
    hold(format_document(once, folder=subject.folder) == once, f"formatted twice, it is no more {once}", subject)


def files_are_one_schema(written: SchemaFiles) -> None:
    """A schema in several files has the tokens, slots, rules and guarantees that it has in one document."""
    divided, whole = written.checked(), check_schema(parse_schema(written.whole))
    hold(content(divided) == content(whole), f"other than {written.whole}", written.report)


def formatting_keeps_prompts(case: PromptCase) -> None:
    """Formatting a prompt changes nothing of what it says, and formatting it twice changes nothing more."""
    once = format_document(case.xml)
    again = resolve_prompt(parse_prompt(once), case.selection.schema)
    hold(said(again) == said(case.selection), f"formatted as {once}", case)
    hold(format_document(once) == once, f"formatted twice, it is no more {once}", case)


def grammar_accepts_the_schema(subject: Subject) -> None:
    """The published grammar accepts the schema."""
    accepted = published_grammar().validate(etree.fromstring(subject.document.encode()))
    hold(accepted, f"the published grammar refuses {subject.document}", subject)


def grammars_accept_prompts(case: PromptCase) -> None:
    """The published grammar and the grammar of the schema's prompts accept every valid prompt."""
    root = etree.fromstring(case.xml.encode())
    hold(published_grammar().validate(root), "the published grammar refuses it", case)
    if not _REACHING_OUT(root):
        hold(case.subject.grammar.validate(root), "the schema's grammar refuses it", case)


def grammars_refuse_faults(subject: Subject, invalid: InvalidPrompt) -> None:
    """Of an invalid prompt, both grammars refuse what the checker refuses for its structure, and nothing else."""
    found = _codes(subject, invalid)
    if not found or min(found) < "PC100":  # no grammar reads what is no XML of ours
        return
    root = etree.fromstring(invalid.xml.encode())
    refused = not published_grammar().validate(root)
    if found != {"PC403"}:  # whoever knows no parameters does not know that two forms name the same
        expected = any(code < "PC200" or code in _TEXT_CODES for code in found)
        hold(refused == expected, f"the published grammar {_verb(refused)} what gets {sorted(found)}", invalid.xml)
    if "<use" not in invalid.xml and not _may_go_unseen(subject, found):
        refused = not subject.grammar.validate(root)
        expected = not found.isdisjoint(_STRUCTURE) or _has_wrong_value(root, subject)
        hold(refused == expected, f"the schema's grammar {_verb(refused)} what gets {sorted(found)}", invalid.xml)


def _may_go_unseen(subject: Subject, found: set[str]) -> bool:
    many = any(len(each) > MAX_EXACT for each in subject.schema.parameters.values())
    return many and bool(found) and found <= _OF_MANY_ARGUMENTS


def _has_wrong_value(element: etree._Element, subject: Subject, path: str = "") -> bool:
    """Whether a reference, or one inside it, gives a parameter what a grammar sees to be no value of it.

    That is what is none of its choices, or empty although it is required.
    """
    parameters = subject.schema.parameters.get(path, {})
    seen = {each.get("name"): each.text or "" for each in element.iterchildren("arg") if len(parameters) <= MAX_EXACT}
    given = {name: seen.get(name, element.get(name)) for name, each in parameters.items()}
    if any(text is not None and _is_wrong(parameters[name], text) for name, text in given.items()):
        return True
    return any(_has_wrong_value(each, subject, join_path(path, str(each.tag))) for each in element.iterchildren("*"))


def _is_wrong(parameter: Parameter, text: str) -> bool:
    return text not in parameter.choices if parameter.choices else parameter.required and not text


def _codes(subject: Subject, invalid: InvalidPrompt) -> set[str]:
    try:
        resolve_prompt(parse_prompt(invalid.xml), subject.schema)
    except LanguageError as error:
        return {diagnostic.code for diagnostic in error.diagnostics}
    return set()


def _verb(refused: bool) -> str:
    return "refuses" if refused else "accepts"
