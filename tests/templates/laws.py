"""Laws of what a model reads: the conversation as its chat template writes it, with the tokens of transformers."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st

from promptcache.diagnostics import PromptError, SchemaError
from promptcache.language import CHAT_SCHEMA, Prompt
from promptcache.layout import Plan
from promptcache.planning.turns import ChatPrompt, ChatTurn
from tests.templates.kinds import MARKERS
from tests.templates.strategies import Answered, Split, Written, answers, chats, checked, drafts, exact, splits, texts
from tests.templates.subjects import REASONING, Chat, Subject, frozen_date, ids_of, messages

NONE: Mapping[str, Any] = {}


def conversation_is_the_templates(
    subject: Subject, chat: Chat, options: Mapping[str, Any], reasoning: str = ""
) -> None:
    """A plain conversation has the token IDs of `apply_chat_template`; one that the template refuses is refused."""
    expected = subject.expected_ids(chat, options, reasoning)
    plan = _planned(subject, chat, options, reasoning)
    if plan is None:
        assert not expected, f"{subject.name}: the prompt is not empty"
        return
    assert expected is not None, f"{subject.name}: a refusal is silent"
    _compare(subject, ids_of(plan), expected, chat)
    assert not plan.warnings, f"{subject.name}: {plan.warnings[0].message}"


def texts_stay_texts(subject: Subject, chat: Chat) -> None:
    """Written forms of control tokens in texts stay text, and the text is still that of the template."""
    expected = subject.expected_text(chat, NONE)
    plan = _planned(subject, chat, NONE)
    if expected is None or plan is None:
        return
    harmless = [(role, _without_forms(text)) for role, text in chat]
    controls = [each for each in subject.expected_ids(harmless, NONE) or () if each in subject.controls]
    found = [each for each in ids_of(plan) if each in subject.controls]
    assert found == controls, f"{subject.name}: {subject.pieces(ids_of(plan))} of {chat}"
    if subject.is_lossless:
        text = _text(subject, plan)
        assert text == _as_decoded(expected), f"{subject.name}: {text!r}, the template writes {expected!r}"


def schema_has_the_tokens(subject: Subject, split: Split, options: Mapping[str, Any]) -> None:
    """Turns of a schema and of a prompt have the IDs of `apply_chat_template`, or a warning and another text."""
    plan = _planned_on(subject, split, options)
    expected = subject.expected_ids(split.chat, options)
    if plan is None:
        assert not expected, f"{subject.name}: the prompt is not empty"
    elif not plan.warnings:
        assert expected is not None, f"{subject.name}: a refusal is silent"
        _compare(subject, ids_of(plan), expected, split.chat)
    elif subject.is_lossless:
        text, expected_text = _text(subject, plan), subject.expected_text(split.chat, options)
        assert expected_text is None or text != _as_decoded(expected_text), f"{subject.name}: a warning for {text!r}"


def differences_are_told(subject: Subject, written: Written, options: Mapping[str, Any]) -> None:
    """The text of a prompt is that of the template, or a warning shows the difference; there is no other warning."""
    plan = _planned_on(subject, written, options)
    expected = subject.expected_text(written.chat, options)
    if plan is None:
        assert not expected, f"{subject.name}: the prompt is not empty"
        return
    text, codes = _text(subject, plan), _codes(plan)
    assert expected is not None, f"{subject.name}: a refusal is silent: {codes}"
    expected = _as_decoded(expected)
    if not subject.is_lossless:
        same = "".join(text.split()) == "".join(expected.split())
        assert same or "<unk>" in text or codes, f"{subject.name}: {text!r} is silent, the template writes {expected!r}"
    elif text == expected:
        assert not codes, f"{subject.name}: {plan.warnings[0].message}, but the text is {text!r}"
    else:
        assert codes in (["PC513"], ["PC514"]), f"{subject.name}: {text!r} is silent, the template writes {expected!r}"
        if codes == ["PC514"]:
            at = next((at for at, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b), None)
            there = expected[len(text) :] if at is None else expected[at:]
            shown = _as_decoded(plan.warnings[0].message)
            assert repr(there[:5])[1:-1] in shown, f"{subject.name}: {shown} does not show {there!r}"


def answers_keep_their_tokens(subject: Subject, answered: Answered) -> None:
    """A generated answer keeps its IDs where the template renders it behind its prompt; the text is the template's."""
    tokenizer, prompt = subject.tokenizer, Prompt(CHAT_SCHEMA)
    chat = list[tuple[str, str]]()
    if answered.system is not None:
        prompt, chat = prompt.system(answered.system), [("system", answered.system)]
    turns: tuple[ChatTurn, ...] = ()
    before, asked = list[int](), ""
    for answer in answered.answers:
        chat.append(("user", answer.question))
        expected = subject.expected_text(chat, NONE)
        if expected == "":
            return
        if expected is None:
            with pytest.raises(PromptError) as refused:
                subject.planner.plan(ChatPrompt(prompt=prompt, turns=turns, question=answer.question))
            assert [each.code for each in refused.value.diagnostics] == ["PC512"]
            return
        plan = subject.planner.plan(ChatPrompt(prompt=prompt, turns=turns, question=answer.question))
        found = ids_of(plan)
        text = _text(subject, plan)
        assert text == _as_decoded(expected), f"{subject.name}: {text!r}, the template writes {expected!r}"
        assert not plan.warnings, f"{subject.name}: {plan.warnings[0].message}"
        if turns and expected.startswith(asked):
            assert found[: len(before)] == before, (
                f"{subject.name}: {subject.pieces(found)} of {subject.pieces(before)}"
            )
        answer_ids = [each for piece in answer.pieces for each in tokenizer.tokenize(piece)]
        end_ids = () if answer.end is None else (tokenizer.eos_ids[answer.end % len(tokenizer.eos_ids)],)
        text = tokenizer.decode(answer_ids)
        turns = (*turns, ChatTurn(question=answer.question, answer=text, token_ids=(*answer_ids, *end_ids)))
        chat.append(("assistant", text))
        before, asked = found + answer_ids, expected + text


def text_has_the_tokens(subject: Subject, text: str) -> None:
    """Text without turns has the IDs of `tokenizer(text)`: text of a schema, of its first module, and of a prompt."""
    bare, whole = (subject.reference(text, add_special_tokens=special).input_ids for special in (False, True))
    if not bare:
        return
    start = next(at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
    written = exact(text)
    for xml, prompt in (
        (written, Prompt("s")),
        (f'<module name="m">{written}</module>', Prompt("s").use("m")),
        ('<module name="m">x</module>', Prompt("s").text(text)),
    ):
        plan = subject.planner_of(checked(xml)).plan(prompt)
        _compare(subject, ids_of(plan), whole[: start + len(bare)], [("text", text)])


def _planned(subject: Subject, chat: Chat, options: Mapping[str, Any], reasoning: str = "") -> Plan | None:
    """Return the plan of a plain conversation; None if it is refused: it has no text, or the template refuses it."""
    try:
        return subject.planner.plan(messages(chat, reasoning=reasoning), template_kwargs=dict(options) or None)
    except PromptError as error:
        if [each.code for each in error.diagnostics] not in (["PC506"], ["PC512"]):
            raise
        return None


def _planned_on(subject: Subject, case: Split | Written, options: Mapping[str, Any]) -> Plan | None:
    """Return the plan of a prompt for a schema; None if it is refused as in `_planned`."""
    try:
        return subject.planner_of(case.schema).plan(case.prompt, template_kwargs=dict(options) or None)
    except (PromptError, SchemaError) as error:
        if {each.code for each in error.diagnostics} not in ({"PC506"}, {"PC512"}):
            raise
        return None


def _text(subject: Subject, plan: Plan) -> str:
    return _as_decoded(subject.tokenizer.detokenize(ids_of(plan)))


def _as_decoded(text: str) -> str:
    """Return a text as every tokenizer here decodes it: the sign for a space is one to some of them."""
    return text.replace("▁", " ")


def _codes(plan: Plan) -> list[str]:
    return [each.code for each in plan.warnings]


def _compare(subject: Subject, found: list[int], expected: list[int], chat: Chat) -> None:
    assert found == expected, (
        f"{subject.name}: {subject.pieces(found)}, transformers has {subject.pieces(expected)} for {chat}"
    )


def _without_forms(text: str) -> str:
    for form in sorted((*MARKERS, "<s>", "</s>"), key=len, reverse=True):
        text = text.replace(form, "dog")
    return text


CONVERSATIONS, CONTROLS, SCHEMAS = "conversations", "control tokens", "schemas"
DIFFERENCES, ANSWERS, TEXTS = "differences", "answers", "texts"
Law: TypeAlias = Callable[[Subject, Any, Mapping[str, Any]], None]
"""Checks what is drawn for a subject, with options of its template."""


def _frozen(law: Law) -> Law:
    def check(subject: Subject, drawn: Any, options: Mapping[str, Any]) -> None:
        with frozen_date():
            law(subject, drawn, options)

    return check


LAWS: Mapping[str, tuple[st.SearchStrategy[Any], Law]] = {
    CONVERSATIONS: (
        st.tuples(chats(), st.sampled_from(("", "", REASONING))),
        lambda subject, drawn, options: conversation_is_the_templates(subject, drawn[0], options, drawn[1]),
    ),
    CONTROLS: (chats(forged=True), lambda subject, chat, _: texts_stay_texts(subject, chat)),
    SCHEMAS: (splits(), _frozen(schema_has_the_tokens)),
    DIFFERENCES: (drafts().map(Written), _frozen(differences_are_told)),
    ANSWERS: (answers(), lambda subject, answered, _: answers_keep_their_tokens(subject, answered)),
    TEXTS: (texts(), lambda subject, text, _: text_has_the_tokens(subject, text)),
}
"""What each law is about."""
