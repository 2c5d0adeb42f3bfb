"""Documents with questions for `python -m benchmarks quality`, and their schemas and prompts in every way.

A document is data: modules of texts and slots, and questions with judges. It knows no tokens and no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from xml.sax.saxutils import escape, quoteattr

from benchmarks.quality.ways import Way
from promptcache.language import Role

SLOT_LENGTH = 12
"""Tokens of a slot; values are shorter."""

Judge: TypeAlias = Callable[[str], bool]
"""Whether an answer is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contains:
    """The answer contains all of `values` and none of `others`, as whole words and in any case of letters."""

    values: tuple[str, ...]
    others: tuple[str, ...] = ()

    def __call__(self, answer: str) -> bool:
        """Whether `answer` is right."""
        return all(contains(answer, each) for each in self.values) and not any(
            contains(answer, each) for each in self.others
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The whole answer, without whitespace around it, matches a regular expression."""

    pattern: str

    def __call__(self, answer: str) -> bool:
        """Whether `answer` is right."""
        return re.fullmatch(self.pattern, answer.strip(), re.DOTALL) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """All of `judges` accept the answer. Each looks for one property, such as a value or a form."""

    judges: tuple[Judge, ...]

    def __call__(self, answer: str) -> bool:
        """Whether `answer` is right."""
        return all(judge(answer) for judge in self.judges)


def contains(text: str, value: str) -> bool:
    """Whether `text` contains `value` as whole words, in any case of letters."""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuizSlot:
    """A slot with its argument. A `length` of None is the number of tokens of the argument."""

    value: str
    default: str = ""
    placeholder: str = ""
    length: int | None = SLOT_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class QuizTurn:
    """A turn of an example conversation."""

    role: Role
    text: str


QuizPiece: TypeAlias = str | QuizSlot | QuizTurn
"""A module is texts and slots, or turns only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuizQuestion:
    """A question with one right answer, and the judge of other answers."""

    text: str
    answer: str
    judge: Judge


def question(text: str, value: str, values: Sequence[str]) -> QuizQuestion:
    """Return a question for a value. An answer with another one of `values` is wrong, unless it is in the question."""
    others = tuple(each for each in values if each != value and not contains(text, each))
    return QuizQuestion(text=text, answer=value, judge=Contains(values=(value,), others=others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiz:
    """A document with questions about it.

    Attributes:
        modules: Texts and slots, or turns, by module.
        questions: Each is asked by itself.
        instruction: Text in front of the modules; may be empty.
        absent: Indices of modules that the prompt does not select.
        refers: The module that the text of another one refers to, by the index of the latter.
        turns: Whether the question is a user turn. Then the document is a system turn, but modules of turns follow it.
            Otherwise both are one text without turns, which the model continues.
    """

    modules: tuple[tuple[QuizPiece, ...], ...]
    questions: tuple[QuizQuestion, ...]
    instruction: str = ""
    absent: frozenset[int] = frozenset()
    refers: Mapping[int, int] = field(default_factory=dict)
    turns: bool = True

    @property
    def has_slots(self) -> bool:
        """Whether a module has slots."""
        return any(isinstance(piece, QuizSlot) for module in self.modules for piece in module)

    @property
    def has_turns(self) -> bool:
        """Whether the modules are turns."""
        return any(isinstance(piece, QuizTurn) for module in self.modules for piece in module)

    @property
    def text(self) -> str:
        """The text that the model reads in front of a question. A block starts with a newline, except the first."""
        blocks = [self.instruction] if self.instruction else []
        blocks += ["".join(map(_text, module)) for module in self.modules]
        shown = [each if index == 0 else f"\n{each}" for index, each in enumerate(blocks)]
        first = len(blocks) - len(self.modules)
        return "".join(each for index, each in enumerate(shown) if index - first not in self.absent)

    def beside(self, others: Sequence[tuple[QuizPiece, ...]], places: Sequence[int]) -> Quiz:
        """Return the document with more modules, which no prompt selects, at these indices of the result, in order."""
        modules, absent, refers = [*self.modules], {*self.absent}, dict(self.refers)
        for module, place in zip(others, places, strict=True):
            modules.insert(place, module)
            absent = {index + (index >= place) for index in absent} | {place}
            refers = {index + (index >= place): other + (other >= place) for index, other in refers.items()}
        return replace(self, modules=tuple(modules), absent=frozenset(absent), refers=refers)

    def conversation(self, question: QuizQuestion) -> tuple[tuple[Role, str], ...]:
        """Return the turns that end with a question."""
        last = (Role.USER, question.text)
        if not self.has_turns:
            return (Role.SYSTEM, self.text), last
        used = (self.modules[index] for index in range(len(self.modules)) if index not in self.absent)
        examples = ((piece.role, piece.text) for module in used for piece in module if isinstance(piece, QuizTurn))
        return (Role.SYSTEM, self.instruction), *examples, last

    def own_text(self, question: QuizQuestion) -> str:
        """Return the text without turns behind the document, with its separator; it ends where the answer starts."""
        return "" if self.turns else f"\n{question.text}"


def schema_xml(quiz: Quiz, way: Way, name: str, count_tokens: Callable[[str], int]) -> str:
    """Return the schema of a document, in which every module is optional.

    A system turn belongs to a module too, so a scaffold over the prompt's modules also covers the end of the turn.
    """
    modules = "".join(
        f'<module name="m{index}"{_requires(quiz, index, way)}>{_module_xml(module, way, count_tokens)}</module>'
        for index, module in enumerate(quiz.modules)
    )
    instruction = _text_xml(quiz.instruction)
    content = f"{instruction}{modules}"
    paths = [f"m{index}" for index in _used(quiz)]
    if quiz.turns:
        turns = f"<system>{instruction}</system>{modules}" if quiz.has_turns else f"<system>{content}</system>"
        content = f'<module name="document">{turns}</module>'
        paths = ["document", *(f"document/{each}" for each in paths)]
    scaffold = f'<scaffold modules="{" ".join(paths)}"/>' if way.scaffold else ""
    positions = f' positions="{way.positions}"' if way.positions else ""
    return f'<schema name="{name}" context="{way.context}"{positions}>{content}{scaffold}</schema>'


def prompt_xml(quiz: Quiz, question: QuizQuestion, way: Way, name: str, answer: str | None = None) -> str:
    """Return the prompt: all modules in use, the question, and the beginning of the assistant's `answer` if given."""
    modules = "".join(
        f"<m{index}>{'' if way.text else _arguments_xml(quiz.modules[index])}</m{index}>" for index in _used(quiz)
    )
    if not quiz.turns:
        return f'<prompt schema="{name}">{modules}{_text_xml(question.text + (answer or ""))}</prompt>'
    reply = "" if answer is None else f"<assistant>{_text_xml(answer)}</assistant>"
    turns = f"<user>{_text_xml(question.text)}</user>{reply}"
    return f'<prompt schema="{name}"><document>{modules}</document>{turns}</prompt>'


def _used(quiz: Quiz) -> Sequence[int]:
    return [index for index in range(len(quiz.modules)) if index not in quiz.absent]


def _text(piece: QuizPiece) -> str:
    match piece:
        case QuizSlot():
            return piece.value
        case QuizTurn():
            return f"\n{piece.role}: {piece.text}"
        case _:
            return piece


def _text_xml(text: str) -> str:
    return f"<text>{escape(text)}</text>" if text else ""


def _requires(quiz: Quiz, index: int, way: Way) -> str:
    other = quiz.refers.get(index) if way.requires else None
    return "" if other is None else f' requires="m{other}"'


def _module_xml(module: Sequence[QuizPiece], way: Way, count_tokens: Callable[[str], int]) -> str:
    return "".join(_piece_xml(number, piece, way, count_tokens) for number, piece in enumerate(module))


def _piece_xml(number: int, piece: QuizPiece, way: Way, count_tokens: Callable[[str], int]) -> str:
    match piece:
        case QuizTurn():
            return f"<{piece.role}>{_text_xml(piece.text)}</{piece.role}>"
        case QuizSlot() if not way.text:
            return _slot_xml(number, piece, count_tokens)
        case _:
            return _text_xml(_text(piece))


def _slot_xml(number: int, slot: QuizSlot, count_tokens: Callable[[str], int]) -> str:
    length = count_tokens(slot.value) if slot.length is None else slot.length
    fillers = {"default": slot.default, "placeholder": slot.placeholder}
    written = "".join(f" {name}={quoteattr(text)}" for name, text in fillers.items() if text)
    return f'<parameter name="v{number}" length="{length}"{written}/>'


def _arguments_xml(module: Sequence[QuizPiece]) -> str:
    return "".join(
        f'<arg name="v{number}">{escape(piece.value)}</arg>'
        for number, piece in enumerate(module)
        if isinstance(piece, QuizSlot)
    )
