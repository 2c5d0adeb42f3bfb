"""The grammar of a schema's prompts, by example; tests/laws/test_laws.py holds it and the checker to each other."""

import time

import pytest
from hypothesis import given, settings
from lxml import etree

from promptcache.diagnostics import LanguageError
from promptcache.language import CheckedSchema, parse_prompt, resolve_prompt
from promptcache.language.prompt_grammar import prompt_grammar
from promptcache.language.syntax.names import is_name, is_tag
from tests import strategies
from tests.conftest import law_examples
from tests.language.documents import checked
from tests.speed import is_within


def oracle(schema: CheckedSchema) -> etree.RelaxNG:
    """Return a validator for a schema's prompts."""
    return etree.RelaxNG(etree.fromstring(prompt_grammar(schema)))


def codes(prompt: str, schema: CheckedSchema) -> set[str]:
    """Return the codes that the checker finds in a prompt."""
    try:
        resolve_prompt(parse_prompt(prompt), schema)
    except LanguageError as error:
        return {diagnostic.code for diagnostic in error.diagnostics}
    return set()


def accepts(grammar: etree.RelaxNG, prompt: str) -> bool:
    return bool(grammar.validate(etree.fromstring(prompt.encode())))


TOWN = checked("""<schema name="town">
  <parameter name="mood" length="4"/>
  <doc>Where to go.</doc>
  <system><module name="base" required="true"><doc>
    What always holds,
      and more.
  </doc>Always.</module></system>
  <module name="trip">
    Go <parameter name="days" length="4" required="true"/> <parameter name="who" length="4"/>
    <union required="true"><module name="sea">Sea.</module><module name="hill" requires="/extra">Hill.</module></union>
    <union default="slow"><module name="slow">Slow.</module><module name="fast">Fast.</module></union>
  </module>
  <module name="extra"><parameter name="a" length="1"/><parameter name="b" length="1"/>
    <parameter name="c" length="1"/><parameter name="d" length="1" required="true"/></module>
  <module name="pace"><parameter name="how" length="2" type="choice" choices="a|b"/></module>
</schema>""")

ACCEPTED = {
    "rules across the tree broken": '<base/><trip days="1"><hill/></trip>',
    "nothing that it needs": "<trip/>",
    "an argument twice": '<base/><trip days="1"><arg name="days"/></trip>',
    "all arguments as elements": '<base/><trip><arg name="who"/><sea/><arg name="days"> </arg></trip>',
    "many arguments": '<base/><extra a="" d="1"><arg name="c"/></extra>',
    "a format of the answer": '<base/><answer type="int" pattern="[1-5]"/><trip days="1"><sea/></trip> How many?',
    "any text as the answer": "<answer/><base/><user>Go.</user>",
    "turns": "<base/> <user>Go. <text/></user><assistant/>",
}
REJECTED = {
    "two formats of the answer": "<answer/><base/><answer/>",
    "a format behind a turn": "<base/><user/><answer/>",
    "a format in a module": "<base><answer/></base>",
    "a type that there is not": '<base/><answer type="bool"/>',
    "text in a format": "<base/><answer>3</answer>",
    "a path from elsewhere": '<base/><trip days="1"><use module="trip/sea"/><sea/></trip>',
    "two members behind a path": '<use module="/base"/><trip days="1"><sea/><hill/></trip>',
    "two members": '<base/><trip days="1"><sea/><hill/></trip>',
    "no choice": '<base/><trip days="1"><sea/></trip><pace how="c"/>',
    "text beside a turn": "<base/>and<user/>",
}
"""What the laws over prompts with one fault in tests/laws do not draw."""


@pytest.mark.parametrize("prompt", ACCEPTED.values(), ids=ACCEPTED)
def test_accepts(prompt):
    """The parts of these prompts are allowed in a prompt."""
    assert accepts(oracle(TOWN), f'<prompt schema="town">{prompt}</prompt>')


@pytest.mark.parametrize("prompt", REJECTED.values(), ids=REJECTED)
def test_rejects(prompt):
    """Grammar and checker refuse each of these faulty prompts."""
    document = f'<prompt schema="town">{prompt}</prompt>'
    assert not accepts(oracle(TOWN), document)
    assert codes(document, TOWN)
    assert not accepts(oracle(TOWN), '<prompt schema="city"><base/></prompt>')


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(schema=strategies.schemas())
def test_use_accepts_exactly_the_known_paths(schema):
    """<use> takes the path of every module, relative and from the root, and no other."""
    grammar = oracle(schema)
    known = [*schema.modules, *(f"/{path}" for path in schema.modules)]
    for path in known:
        assert accepts(grammar, f'<prompt schema="s"><use module="{path}"/></prompt>')
    for path in [f"{path}x" for path in known] + ["", "/", "none"]:
        assert path in known or not accepts(grammar, f'<prompt schema="s"><use module="{path}"/></prompt>')


def test_documentation_is_there_for_editors():
    """A module carries its `doc`, and a parameter the description of its values."""
    grammar = prompt_grammar(TOWN)
    assert ">What always holds,\n  and more.<" in grammar
    assert ">required, at most 4 tokens<" in grammar


def test_grows_with_the_schema_and_no_faster():
    """Twice the modules make a grammar of twice the size, and 2,000 are written and used within seconds."""
    module = '<module name="m{}"><parameter name="p" length="3"/><module name="x">y</module></module>'
    modules = [module.format(number) for number in range(1_000)]
    half = len(prompt_grammar(checked(f'<schema name="s">{"".join(modules[:500])}</schema>')))
    schema = checked(f'<schema name="s">{"".join(modules)}</schema>')
    start = time.process_time()
    grammar = prompt_grammar(schema)
    prompt = "".join(f'<m{number} p="a"><x/></m{number}>' for number in range(1_000))
    assert accepts(etree.RelaxNG(etree.fromstring(grammar)), f'<prompt schema="s">{prompt}Hello</prompt>')
    assert is_within(time.process_time() - start, 10)
    assert len(grammar) < 2.1 * half


YOUNG = checked("""<schema name="town">
  <parameter name="නම" length="4"/>
  <module name="සිංහල" required="true">Go <parameter name="ද" length="4" required="true"/>
    <module name="sea">Sea.</module></module>
  <union required="true"><module name="ක">One.</module><module name="b">Two.</module></union>
  <union><module name="ග">Three.</module></union>
  <module name="extra"><parameter name="a" length="1"/><parameter name="ච" length="1"/>
    <parameter name="c" length="1"/><parameter name="d" length="1"/></module>
</schema>""")
"""Names that no tag can have."""


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ('<use module="සිංහල"><arg name="ද">x</arg><sea/></use><b/>', ""),
        ('<use module="සිංහල"><arg name="ද">x</arg></use><use module="ක"/><arg name="නම">x</arg>', ""),
        ('<use module="/සිංහල"><arg name="ද">x</arg></use><b/><extra a=""><arg name="ච"/></extra>', ""),
        ('<use module="සිංහල"><arg name="ද">x</arg></use><b/><extra e=""/>', "PC402"),
    ],
)
def test_names_that_no_tag_can_have(prompt: str, code: str) -> None:
    """Grammar and checker agree on modules and parameters that only `module` and `name` attributes can name."""
    document = f'<prompt schema="town">{prompt}</prompt>'
    assert accepts(oracle(YOUNG), document) == (not code)
    assert (code in codes(document, YOUNG)) == bool(code)


def test_every_name_is_a_tag_for_libxml2_and_expat_or_for_neither() -> None:
    """The grammar has an element for each letter that a prompt document can have in a tag."""
    letters = [chr(code) for code in range(0x10000) if is_name(chr(code))]
    differ = [letter for letter in letters if is_tag(letter) != _is_element_of_a_grammar(letter)]
    assert not differ


def _is_element_of_a_grammar(name: str) -> bool:
    start = f'<element name="{name}" xmlns="http://relaxng.org/ns/structure/1.0"><empty/></element>'
    try:
        etree.RelaxNG(etree.fromstring(start))
    except etree.RelaxNGParseError:
        return False
    return True


def test_a_collection_may_hold_the_use_of_any_module() -> None:
    """A `use` inside of a collection may give arguments to a module elsewhere, as one between modules may."""
    schema = checked(
        '<schema name="s"><module name="a"><parameter name="p" length="2"/></module>'
        '<collection name="c"><module name="m">x</module></collection></schema>'
    )
    prompt = '<prompt schema="s"><c><use module="/a" p="y"/><m/></c>?</prompt>'

    assert codes(prompt, schema) == set()
    assert accepts(oracle(schema), prompt)
