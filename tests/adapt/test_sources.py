"""Prompts to learn from: held-out ones are others, and none comes from the question sets that measure a training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from benchmarks.quality.documents import QuizSlot, QuizTurn
from benchmarks.quality.sets import FORM_SETS, LANGUAGE_SETS, WORK_SETS, draw_quizzes
from promptcache import Engine
from promptcache.adapt.sources import SchemaPrompts, TextPrompts, read_texts
from promptcache.adapt.synthetic import draw_document
from promptcache.diagnostics import InvalidValue
from promptcache.language import Sees, check_schema, parse_schema
from tests.adapt.conftest import NOTES, SCHEMA

MEASURED = sorted({**LANGUAGE_SETS, **WORK_SETS, **FORM_SETS})


def sentences(text: str) -> set[str]:
    """The sentences of a text with at least 4 words, in small letters and without digits."""
    found = re.split(r"[.!?:;,\n|{}]+", re.sub(r"\d+", "", text.lower()))
    return {" ".join(each.split()) for each in found if len(each.split()) >= 4}


def measured_texts() -> Iterator[str]:
    for name in MEASURED:
        for quiz in draw_quizzes(name, 1, 40, num_absent=4):
            for piece in (piece for module in quiz.modules for piece in module):
                yield (
                    piece.value if isinstance(piece, QuizSlot) else piece.text if isinstance(piece, QuizTurn) else piece
                )
            yield from (quiz.instruction, *(each.text for each in quiz.questions))


def test_synthetic_documents_are_not_those_that_are_measured() -> None:
    """Synthetic documents share no sentence with the question sets."""
    measured = {each for text in measured_texts() for each in sentences(text)}
    drawn = [draw_document(Random(number)) for number in range(2000)]
    texts = (text for each in drawn for text in (each.introduction, *each.modules, each.question))
    learned = {each for text in texts for each in sentences(text)}

    assert len(measured) > 1000 < len(learned)
    assert learned & measured == set()


def test_synthetic_documents_are_whole() -> None:
    """A document has at least one module that the prompt selects, in order, and a question."""
    for number in range(300):
        document = draw_document(Random(number))
        assert [*document.selected] == sorted(set(document.selected))
        assert document.selected
        assert max(document.selected) < len(document.modules)
        assert all(each.strip() for each in (*document.modules, document.question))
        assert (
            re.search(r"\{\w*\}", "".join((*document.modules, document.question))) is None
        )  # a field that is not filled


def test_held_out_combinations_are_not_learned_from(engine: Engine) -> None:
    """No combination of a schema is in both parts."""
    optional = "".join(f'<module name="m{index}">Text {index}.</module>' for index in range(5))
    schema = check_schema(parse_schema(f'<schema name="many" sees="stand-ins">{optional}</schema>'))
    source, rng = SchemaPrompts(engine, schema, 0), Random(0)

    parts = [
        {frozenset(drawn.selection.modules) for _ in range(200) if (drawn := source.draw(rng, held_out=held_out))}
        for held_out in (False, True)
    ]

    assert parts[0] & parts[1] == set()
    assert len(parts[0]) + len(parts[1]) == 26  # all but the empty one and single modules, which are exact


@pytest.mark.parametrize(("limits", "counts"), [('min="1" max="3"', {2, 3}), ('min="3"', {3, 4}), ("", {2, 3, 4})])
def test_members_are_drawn_as_collections_allow(engine: Engine, limits: str, counts: set[int]) -> None:
    """Drawn prompts name members in random order, as many as the collection allows; a seed draws the same again."""
    schema = check_schema(parse_schema(NOTES.replace('min="2" max="3"', limits)))

    def drawn(seed: int, *, held_out: bool) -> list[tuple[str, ...]]:
        source, rng = SchemaPrompts(engine, schema, seed), Random(0)
        prompts = [source.draw(rng, held_out=held_out) for _ in range(100)]
        return [tuple(each.selection.members) for each in prompts if each is not None]

    taught, held_out = drawn(0, held_out=False), drawn(0, held_out=True)
    assert {len(each) for each in taught} == counts  # of one member alone there is nothing to learn
    assert {*taught} & {*held_out} == set()
    assert any([*each] != sorted(each) for each in taught)
    assert taught == drawn(0, held_out=False) != drawn(1, held_out=False)


def test_drawn_members_keep_rules(engine: Engine) -> None:
    """Members that a rule excludes are not drawn together."""
    rule = '<rules><exclude modules="notes/ann notes/bob"/></rules></schema>'
    source, rng = SchemaPrompts(engine, check_schema(parse_schema(NOTES.replace("</schema>", rule))), 0), Random(0)

    drawn = [each.selection.members.keys() for _ in range(100) if (each := source.draw(rng, held_out=False))]

    assert drawn
    assert not any({"notes/ann", "notes/bob"} <= each for each in drawn)
    assert any("notes/ann" in each for each in drawn)


def test_examples_and_slots_of_a_schema_are_learned_from(engine: Engine) -> None:
    """Prompts are examples of the schema too, and have texts for its slots."""
    source, rng = SchemaPrompts(engine, check_schema(parse_schema(SCHEMA)), 0), Random(0)
    drawn = [source.draw(rng, held_out=False) for _ in range(100)]

    questions = {each.text for found in drawn if found is not None for each in found.selection.messages}
    assert "Who likes milk?" in questions
    assert len(questions) > 3


def test_held_out_parts_of_texts_are_not_learned_from(engine: Engine) -> None:
    """No paragraph of a text is in both parts, and long paragraphs are cut."""
    paragraphs = [" ".join(f"word{number}x{index}" for index in range(12)) for number in range(60)]
    paragraphs.append(" ".join(f"long{index}" for index in range(500)))
    source, rng = TextPrompts(engine, ["\n\n".join(paragraphs)], Sees.STAND_INS), Random(0)

    parts = []
    for held_out in (False, True):
        drawn = [source.draw(rng, held_out=held_out) for _ in range(100)]
        texts = [piece for each in drawn for piece in _texts(each.state.schema.modules.values())]
        parts.append({word for text in texts for word in text.split()})
        assert max(len(text.split()) for text in texts) <= 80

    assert parts[0] & parts[1] == set()
    assert all(parts)


def _texts(modules: object) -> Iterator[str]:
    for module in modules:  # type: ignore[attr-defined] # checked modules
        yield from (each.text for each in module.children if hasattr(each, "text"))


def test_too_little_text_is_refused(engine: Engine, tmp_path: Path) -> None:
    """Texts without enough paragraphs, and folders without texts, are refused with what is needed."""
    with pytest.raises(InvalidValue, match=r"at least 6 paragraphs of 8 words.*there are 0 paragraphs in 1 text"):
        TextPrompts(engine, ["Short."], Sees.STAND_INS)
    with pytest.raises(InvalidValue, match=r"has no files with names in \.md, \.rst, \.txt"):
        read_texts(tmp_path)


def test_texts_are_read_from_files_and_folders(tmp_path: Path) -> None:
    """A folder gives its text files by name; a file is read whatever its name is, even with bytes that are no UTF-8."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.MD").write_bytes(b"two \xff")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "c.bin").write_text("three")

    assert read_texts(tmp_path) == ("one", "two �")
    assert read_texts(tmp_path / "c.bin") == ("three",)


def test_a_schema_with_exact_prompts_only_is_refused(engine: Engine) -> None:
    """A schema whose modules are all required teaches nothing, and the error says so."""
    schema = '<schema name="whole"><module name="a" required="true">A.</module></schema>'

    with pytest.raises(InvalidValue, match="schema 'whole': every prompt is exact already"):
        SchemaPrompts(engine, check_schema(parse_schema(schema)), 0)


def test_a_collection_without_members_is_refused(engine: Engine) -> None:
    """A schema in which only a collection is modular needs members, and the error names the collection."""
    schema = '<schema name="kb">Hi.<module name="box"><collection name="notes"/></module></schema>'

    with pytest.raises(InvalidValue, match=r"nothing to learn; put members into box/notes$"):
        SchemaPrompts(engine, check_schema(parse_schema(schema)), 0)


@pytest.mark.parametrize(
    ("attributes", "advice"),
    [
        ('sees="nothing"', '; write sees="previous" on the schema'),
        ('sees="earlier"', '; write sees="previous" on the schema'),
        ('sees="stand-ins" positions="fixed"', ": with fixed positions there are no stand-ins"),
        ('sees="stand-ins" context="own"', ""),
    ],
    ids=["nothing", "earlier", "fixed", "own context"],
)
def test_a_schema_in_which_no_adapter_takes_part_is_refused(engine: Engine, attributes: str, advice: str) -> None:
    """A schema in which no adapter takes part teaches nothing, and the error says what to write, if that helps."""
    modules = "".join(f'<module name="m{index}">Text {index}.</module>' for index in range(3))
    schema = check_schema(parse_schema(f'<schema name="open" {attributes}>{modules}</schema>'))

    with pytest.raises(InvalidValue) as refused:
        SchemaPrompts(engine, schema, 0)
    reason = (
        "an adapter changes only modules that are encoded behind one of several others or behind stand-ins, and no "
        "combination has one"
    )
    assert str(refused.value) == f"schema 'open': {reason}{advice}"
