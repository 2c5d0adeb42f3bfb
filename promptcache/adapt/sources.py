"""Sources of prompts to learn from: the user's schemas, the user's texts, and synthetic documents.

Each source has prompts to learn from and held-out ones, which only the validation uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol
from xml.sax.saxutils import escape

from promptcache.adapt.synthetic import SyntheticDocument, draw_document
from promptcache.diagnostics import InvalidValue, PromptError, counted, listed
from promptcache.engine import Engine
from promptcache.fidelity.prompts import DEFAULT_QUESTION, example_prompts
from promptcache.language import (
    CheckedSchema,
    Context,
    Placement,
    Prompt,
    Role,
    Sees,
    Selection,
    check_schema,
    example_prompt,
    parse_prompt,
    parse_schema,
    resolve_prompt,
)
from promptcache.layout import Level, Plan
from promptcache.runtime import SchemaState, choose_placement, schema_state

if TYPE_CHECKING:
    from promptcache.testing.selection import SelectionSample

QUESTIONS = (
    DEFAULT_QUESTION,
    "Summarize this in one sentence.",
    "List the most important points.",
    "What is said first, and what is said last?",
    "Which names, numbers and places are mentioned?",
    "Explain the second part in simple words.",
    "What should I do now?",
    "Repeat the last sentence.",
)
"""Questions about any text."""

TEXT_SUFFIXES = frozenset({".md", ".rst", ".txt"})
"""Suffixes of the files that are read in a folder of texts."""

_MAX_COMBINATIONS = 1024
_MAX_NAMED = 6
_HELD_OUT_EVERY = 8
_LEAST_WORDS, _MOST_WORDS = 8, 80  # of a module that is cut from a text
_SECTION = 6  # neighbouring modules of a text
_LEAST_SECTION = 3
_CUE_WORDS = 10  # of the text behind the modules, which the question quotes
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class DrawnPrompt(NamedTuple):
    """A prompt, and the state of its schema."""

    state: SchemaState
    selection: Selection


class LessonSource(Protocol):
    """A source of prompts."""

    def draw(self, rng: Random, *, held_out: bool) -> DrawnPrompt | None:
        """Return a random prompt, or None if the combination that was drawn has no valid prompt."""


class SyntheticSource:
    """Prompts of synthetic documents. Each draw is a new document."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def draw(self, rng: Random, *, held_out: bool) -> DrawnPrompt:
        return document_prompt(self._engine, draw_document(rng), rng, Sees.STAND_INS)


class SchemaPrompts:
    """Prompts of a schema of the user: its examples, and random combinations of modules and members with questions."""

    def __init__(self, engine: Engine, schema: CheckedSchema, seed: int) -> None:
        """List the combinations. Needs Hypothesis, like the rest of `promptcache.testing`.

        Raises:
            InvalidValue: All prompts of the schema are exact, or an adapter takes part in none.
            SchemaError: The schema does not fit the model.
        """
        from promptcache.testing.selection import sample_combinations
        from promptcache.testing.subject import Subject

        self._engine = engine
        self._state = state_of(engine, schema)
        self._subject = Subject(schema, engine.tokenizer)
        examples = (DrawnPrompt(self._state, each.selection) for each in example_prompts(schema))
        self._examples = [each for each in examples if has_adapted(plan_of(engine, each))]
        texts = [_question_of(example_prompt(each)) for each in schema.examples if each.valid]
        self._questions = [*dict.fromkeys((*filter(None, texts), *QUESTIONS))]
        drawn = sample_combinations(schema, _MAX_COMBINATIONS, seed)
        prompts = ((each, self._prompt(each, DEFAULT_QUESTION)) for each in drawn)
        plans = [(each, plan_of(engine, prompt)) for each, prompt in prompts if prompt is not None]
        combinations = [each for each, plan in plans if has_adapted(plan)]
        if not combinations:
            raise InvalidValue(f"schema '{schema.name}': {self._why_nothing([plan for _, plan in plans])}")
        self._held_out = combinations[::_HELD_OUT_EVERY]
        self._taught = [each for number, each in enumerate(combinations) if number % _HELD_OUT_EVERY] or self._held_out

    def draw(self, rng: Random, *, held_out: bool) -> DrawnPrompt | None:
        """Return an example, or a combination with a question."""
        if self._examples and not held_out and rng.random() < 1 / _HELD_OUT_EVERY:
            return rng.choice(self._examples)
        return self._prompt(rng.choice(self._held_out if held_out else self._taught), rng.choice(self._questions))

    def _prompt(self, combination: SelectionSample, question: str) -> DrawnPrompt | None:
        from promptcache.testing.cover import plain_case

        modules, members = combination
        try:
            return DrawnPrompt(self._state, plain_case(self._subject, modules, question, dict(members)).selection)
        except (PromptError, ValueError):
            return None  # no plain text fits into a slot

    def _why_nothing(self, plans: Sequence[Plan]) -> str:
        """Return why an adapter learns nothing from prompts with these plans, and what to change."""
        if all(plan.level is Level.EXACT for plan in plans):
            collections = ((path, each.collection) for path, each in self._state.schema.modules.items())
            empty = [path for path, each in collections if each is not None and not each.members]
            advice = f"; put members into {listed(empty, _MAX_NAMED)}" if empty else ""
            return f"every prompt is exact already, so there is nothing to learn{advice}"
        reason = (
            "an adapter changes only modules that are encoded behind one of several others or behind stand-ins, "
            "and no combination has one"
        )
        modules = [each for each in self._state.schema.modules.values() if each.context is Context.GUARANTEED]
        if any(each.sees in (Sees.NOTHING, Sees.EARLIER) for each in modules):
            return f'{reason}; write sees="previous" on the schema'
        is_fixed = self._state.layout.placement is Placement.FIXED
        if is_fixed and any(each.sees is Sees.STAND_INS for each in modules):
            return f"{reason}: with fixed positions there are no stand-ins"
        return reason


def _question_of(prompt: Prompt) -> str:
    return next((each.text for each in reversed(prompt.messages) if each.role in (None, Role.USER)), "")


class TextPrompts:
    """Prompts of texts of the user: neighbouring parts of a text are modules, and the question is about them."""

    def __init__(self, engine: Engine, texts: Sequence[str], sees: Sees) -> None:
        """Cut texts into modules.

        Args:
            sees: What the modules attend to while they are encoded.

        Raises:
            InvalidValue: There is too little text.
        """
        self._engine, self._sees = engine, sees
        sections = [section for text in texts for section in _sections(text)]
        if len(sections) < 2:
            least = 2 * _LEAST_SECTION
            raise InvalidValue(
                f"texts: at least {least} paragraphs of {_LEAST_WORDS} words are needed to learn from and to validate "
                f"with; there are {counted(sum(map(len, sections)), 'paragraph')} in {counted(len(texts), 'text')}"
            )
        self._held_out = sections[1::_HELD_OUT_EVERY]
        self._taught = [each for number, each in enumerate(sections) if number % _HELD_OUT_EVERY != 1]

    def draw(self, rng: Random, *, held_out: bool) -> DrawnPrompt:
        section = rng.choice(self._held_out if held_out else self._taught)
        stop = rng.randint(2, len(section) - 1)
        start = rng.randint(0, stop - 2)
        cue = " ".join(section[stop].split()[:_CUE_WORDS])
        question = rng.choice((f"Continue the text. The next words are: {cue}", *rng.sample(QUESTIONS, 1)))
        modules = tuple(section[start:stop])
        dropped = rng.randrange(len(modules)) if len(modules) > 2 and rng.random() < 0.5 else None
        document = SyntheticDocument(
            introduction="",
            modules=modules,
            selected=tuple(index for index in range(len(modules)) if index != dropped),
            question=question,
        )
        return document_prompt(self._engine, document, rng, self._sees)


def read_texts(path: Path) -> tuple[str, ...]:
    """Return the texts of a file, or of all text files in a folder and below, by name.

    Raises:
        InvalidValue: The folder has no text files.
        OSError: A file cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.suffix.lower() in TEXT_SUFFIXES and each.is_file())
        if not files:
            raise InvalidValue(f"texts: folder '{path}' has no files with names in {', '.join(sorted(TEXT_SUFFIXES))}")
    return tuple(each.read_text(encoding="utf-8", errors="replace") for each in files)


def _sections(text: str) -> Iterator[list[str]]:
    """Yield neighbouring paragraphs, of `_LEAST_SECTION` to `_SECTION`. Long paragraphs are cut."""
    pieces = []
    for paragraph in re.split(r"\n\s*\n", _NOT_XML.sub(" ", text.replace("\r\n", "\n"))):
        words = paragraph.split()
        pieces += [words[start : start + _MOST_WORDS] for start in range(0, len(words), _MOST_WORDS)]
    parts = [" ".join(words) for words in pieces if len(words) >= _LEAST_WORDS]
    for start in range(0, len(parts), _SECTION):
        if len(section := parts[start : start + _SECTION]) >= _LEAST_SECTION:
            yield section


def document_prompt(engine: Engine, document: SyntheticDocument, rng: Random, sees: Sees) -> DrawnPrompt:
    """Return the prompt of a document in a random form: in the system turn, in the user turn, or without turns."""
    form = rng.choices(("system", "user", "text"), (6, 3, 1))[0]
    separator = rng.choice(("\\n", "\\n", "\\n\\n", " "))
    modules = "".join(
        f'<module name="m{index}">{_text_xml(text)}</module>' for index, text in enumerate(document.modules)
    )
    content = f"{_text_xml(document.introduction)}{modules}"
    used = "".join(f"<m{index}/>" for index in document.selected)
    question = document.question
    if form == "text":
        question = f"\nQuestion: {question}\nAnswer:"
    else:
        content = f"<{form}>{content}</{form}>"
    own = f"<user>{_text_xml(question)}</user>" if form == "system" else _text_xml(question)
    schema = check_schema(
        parse_schema(f'<schema name="lesson" sees="{sees}" separator="{separator}">{content}</schema>')
    )
    selection = resolve_prompt(parse_prompt(f'<prompt schema="lesson">{used}{own}</prompt>'), schema)
    return DrawnPrompt(state_of(engine, schema), selection)


def _text_xml(text: str) -> str:
    return f"<text>{escape(text)}</text>" if text else ""


def state_of(engine: Engine, schema: CheckedSchema) -> SchemaState:
    """Return the state of a schema, as `Engine.add_schema` makes it for a model with an adapter.

    Raises:
        SchemaError: It needs more positions than the model has.
    """
    given = schema.positions
    placement = engine.positions if given is None else choose_placement(engine.model, given)
    return schema_state(schema, engine.tokenizer, engine.model.context_length, placement=placement, adapts_pairs=True)


def plan_of(engine: Engine, drawn: DrawnPrompt) -> Plan:
    """Return the plan of a prompt, as `Engine.plan` makes it.

    Raises:
        PromptError: The prompt does not fit its schema.
    """
    return drawn.state.plan(drawn.selection, engine.tokenizer, drawn.state.schema.repair or engine.repair)


def has_adapted(plan: Plan) -> bool:
    """Whether a prompt has KV in which an adapter takes part."""
    return any(part.encoding.is_adapted for part in plan.tokens.parts)
