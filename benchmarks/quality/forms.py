"""Argument forms: documents whose facts are arguments, in every place of a text where a slot can be.

A form is one sentence for each module. `[…]` is a slot with its argument: `[value]`, `[value|default=…]`,
`[value|placeholder=…]` or, if the argument fills its slot exactly, `[value|full]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from benchmarks.quality.documents import Contains, Quiz, QuizPiece, QuizQuestion, QuizSlot
from benchmarks.quality.prose import SUBJECTS, SURNAMES, padding_for, towns

NUM_MODULES = 4
NUM_QUESTIONS = 3

_REMARKS = ("as always", "so they say", "since spring", "by tradition", "as you know", "of course", "for now")
_SLOT = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of arguments.

    Attributes:
        sentence: The end of each module, with slots.
        answer: The value that the question asks for.
        subject: What the question asks for; empty for a drawn one.
        asked: Modules that questions are about.
        turns: As for `Quiz`.
    """

    sentence: str
    answer: str = "{value}"
    subject: str = ""
    asked: range = range(NUM_MODULES)
    turns: bool = True


_LINE = "The {subject} of {town} is [{value}]"
_LAST = range(NUM_MODULES - 1, NUM_MODULES)

FORMS = {
    "form-period": Form(sentence="The {subject} of {town} is [{value}]."),
    "form-inside": Form(sentence="The {subject} of {town} is [{value}] and everyone there knows it."),
    "form-module-end": Form(sentence=_LINE, asked=range(NUM_MODULES - 1)),
    "form-footer": Form(sentence=_LINE, asked=_LAST),
    "form-own-text": Form(sentence=_LINE, asked=_LAST, turns=False),
    "form-space": Form(sentence="The mayor of {town} is [{value}] [{surname}].", subject="mayor", answer="{surname}"),
    "form-joined": Form(
        sentence="The code of {town} is [{letter}][{number}].", subject="code", answer="{letter}{number}"
    ),
    "form-comma": Form(sentence="The {subject} of {town} is [{value}], [{remark}]."),
    "form-newline": Form(sentence=f"{_LINE}\nThese were the notes about {{town}}."),
    "form-number": Form(sentence="The size of {town} is [{number}].", subject="size", answer="{number}"),
    "form-quotes": Form(sentence='The {subject} of {town} is "[{value}]".'),
    "form-empty": Form(sentence="The {subject} of {town} is [{value}] [|placeholder={remark}]."),
    "form-full": Form(sentence="The number of {town} is #[{number}|full].", subject="number", answer="{number}"),
    "form-default": Form(sentence="The {subject} of {town} is [{value}|default={value}], [{remark}|default={other}]."),
    "form-placeholder": Form(
        sentence="The {subject} of {town} is [{value}|placeholder={value}], [{remark}|placeholder={other}]."
    ),
}
"""Forms by the name of their set."""


def draw_form(form: Form, rng: Random, module_tokens: int) -> Quiz:
    """Return a document of a form."""
    subject = form.subject or rng.choice(sorted(SUBJECTS))
    words = zip(
        towns(rng, NUM_MODULES),
        rng.sample(SUBJECTS.get(subject, SUBJECTS["mayor"]), NUM_MODULES),
        rng.sample(SURNAMES, NUM_MODULES),
        rng.sample("ABCDEFGHKLMNPRSTVXZ", NUM_MODULES),
        rng.sample(range(1000, 9999), NUM_MODULES),
        strict=True,
    )
    facts = []
    for town, value, surname, letter, number in words:
        remark, other = rng.sample(_REMARKS, 2)
        names = {"subject": subject, "town": town, "value": value, "surname": surname, "letter": letter}
        facts.append({**names, "number": str(number), "remark": remark, "other": other})
    modules = tuple(_module(form, fact, rng, module_tokens) for fact in facts)
    chosen = rng.sample(form.asked, min(NUM_QUESTIONS, len(form.asked)))
    return Quiz(modules=modules, questions=tuple(_question(form, facts[index]) for index in chosen), turns=form.turns)


def _module(form: Form, fact: Mapping[str, str], rng: Random, module_tokens: int) -> tuple[QuizPiece, ...]:
    sentence = form.sentence.format(**fact)
    front = " ".join([*padding_for(rng, sentence, module_tokens), sentence])
    pieces = [
        _slot(text) if number % 2 else text  # the pattern has one group: every other piece is a slot
        for number, text in enumerate(_SLOT.split(front))
    ]
    return tuple(piece for piece in pieces if piece != "")


def _slot(text: str) -> QuizSlot:
    value, _, option = text.partition("|")
    if option == "full":
        return QuizSlot(value=value, length=None)
    name, _, filler = option.partition("=")
    return QuizSlot(value=value, **({name: filler} if name else {}))  # type: ignore[arg-type]  # default or placeholder


def _question(form: Form, fact: Mapping[str, str]) -> QuizQuestion:
    text = f"What is the {fact['subject']} of {fact['town']}?"
    answer = form.answer.format(**fact)
    return QuizQuestion(
        text=text if form.turns else f"Question: {text}\nAnswer:", answer=answer, judge=Contains(values=(answer,))
    )
