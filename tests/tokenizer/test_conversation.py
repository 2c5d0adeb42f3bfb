"""Laws of conversations: what the chat template writes around contents, and where it is cut."""

from datetime import datetime

import pytest

from promptcache.diagnostics import TemplateRefusal, UnsupportedModel
from promptcache.language import Role
from promptcache.tokenizer import FROZEN_DATE, Conversations, Frame, HubTokenizer
from promptcache.tokenizer.chat_template import ChatTemplate
from tests.tokenizer import small_tokenizers as small
from tests.tokenizer.chat_templates import CASES, Case

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
S, U, A = Role.SYSTEM, Role.USER, Role.ASSISTANT


def conversations(source: str, date: datetime = FROZEN_DATE) -> Conversations:
    return Conversations(HubTokenizer.from_parts(small.byte_level(), TOKENS, source), date=date)


def roles_of(case: Case) -> tuple[Role, ...]:
    """Return roles that the template renders: with a system turn if it has one, and with a question at the end."""
    return (U, A, U) if case.system is None else (S, U, A, U)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_texts_between_turns_are_cut_where_turns_end_and_begin(case: Case):
    """The text between two contents is cut into the footer of a turn and the header of the next one."""
    made, roles = conversations(case.source), roles_of(case)
    gaps = made.gaps(roles, generation_prompt=True)

    cut = [made.split(*each) for each in zip(gaps[1:], roles, (*roles[1:], A), strict=True)]

    assert cut[-3:] == [
        (case.user[1], case.assistant[0]),
        (case.assistant[1], case.user[0]),
        (case.user[1], case.prompt),
    ]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.system])
def test_a_system_turn_is_cut_from_the_user_turn_behind_it(name: str):
    """A system turn has a header and a footer of its own, or is a part of the user turn behind it."""
    case, made = CASES[name], conversations(CASES[name].source)
    gaps = made.gaps((S, U, A, U), generation_prompt=True)
    header, footer = case.system or ("", "")

    assert made.preamble(gaps[0], S) == (case.bos, header)
    assert made.split(gaps[1], S, U) == (footer, case.user[0] if gaps[1] != footer else "")


@pytest.mark.parametrize("name", [name for name in CASES if "wants a system turn" not in name])
def test_what_begins_a_conversation_is_apart_from_its_first_turn(name: str):
    """BOS and a system text of the template's own come before the header of the first turn."""
    case, made = CASES[name], conversations(CASES[name].source)
    gap = made.gaps((U, A, U), generation_prompt=True)[0]

    assert made.bos == case.bos
    assert made.preamble(gap, U) == (case.preamble, gap.removeprefix(case.preamble))
    assert gap.removeprefix(case.preamble) == case.user[0].lstrip("\n")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_turn_of_a_refused_conversation_is_as_elsewhere(case: Case):
    """The frame of a role, for conversations that the template refuses, is that of a turn in another conversation."""
    made = conversations(case.source)

    assert made.frame(U) == Frame(*case.user)
    assert made.frame(A) == Frame(case.assistant[0], case.ending)


def test_a_refused_system_turn_is_as_a_user_turn():
    made = conversations(CASES["gemma that refuses a system turn"].source)

    assert made.frame(S) == made.frame(U) == Frame("<turn>user\n", "</turn>\n")


def test_a_conversation_that_the_template_does_not_render_is_refused_with_the_reason():
    """Roles that a template refuses, and texts that it leaves out, are a refusal that says why."""
    gemma = CASES["gemma that refuses a system turn"].source

    with pytest.raises(TemplateRefusal, match="no system role"):
        conversations(gemma).gaps((S, U), generation_prompt=True)
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        conversations(gemma).gaps((U, U), generation_prompt=True)
    without_system = small.CHATML.replace("messages %}", "messages if m.role != 'system' %}")
    with pytest.raises(TemplateRefusal, match=r"does not write the text of turn 1 \(system\)"):
        conversations(without_system).gaps((S, U), generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages[-1].content }}", "renders no conversation"),
        ("{% for %}", "not valid Jinja2"),
        ("{{ messages.__class__.__mro__ }}{% for m in messages %}{{ m.content }}{% endfor %}", None),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(source: str, message: str | None):
    """It loses texts, is no template, or reaches for Python's internals, from which a sandbox keeps it."""
    with pytest.raises(UnsupportedModel, match=message):
        conversations(source)


def render(source: str, messages: list[dict[str, str]]) -> str:
    return ChatTemplate(source, {}).render(messages, generation_prompt=False, options={}, date=FROZEN_DATE)


def test_json_in_templates_is_as_transformers_writes_it():
    """The tojson filter escapes neither HTML nor other alphabets."""
    assert render("{{ messages | tojson }}", [{"a": "<é>"}]) == '[{"a": "<é>"}]'
    assert render("{{ 'é' | tojson(ensure_ascii=False) + 'é' | tojson(true) }}", []) == '"é""\\u00e9"'
