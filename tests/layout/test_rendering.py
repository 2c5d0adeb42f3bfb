"""Laws of the rendered prompt: what the model sees, and where each part of it comes from."""

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Repair,
    Selection,
)
from promptcache.layout import Piece, lay_out, make_plan, piece_texts, run_variants
from promptcache.tokenizer import Frame, HubTokenizer
from tests import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.samples import choose, plan_of, plan_selection, read
from tests.tokenizer.small_tokenizers import byte_level, llama_like, unigram

SCHEMA = (
    '<schema name="s"><system>Be brief.</system><module name="a">Trip of <parameter name="days" length="6" '
    'default="two"/> days.</module><module name="b" cache="false">New.</module></schema>'
)


def rendered(inside: str) -> list[tuple[Piece, str]]:
    """The pieces of a prompt of `SCHEMA` with their texts."""
    plan = plan_of(SCHEMA, f'<prompt schema="s">{inside}</prompt>')
    return [*zip(plan.pieces, piece_texts(plan, ByteTokenizer()), strict=True)]


def written(
    items: Iterable[CheckedItem], selection: Selection, frames: Iterator[Frame], owner: str = ""
) -> Iterator[str]:
    """Yield the texts of a schema in document order, with the contents of its slots and the frames of its turns."""
    arguments = {(each.module, each.parameter): each.text for each in selection.arguments}
    for item in items:
        match item:
            case FinalText():
                yield item.text
            case CheckedParameter():
                yield item.lead + arguments.get((owner, item.name), item.default or "")
            case CheckedModule():
                inside = [*written(item.children, selection, frames, item.path)]  # also reads the frames of absent ones
                yield from inside if item.path in selection.modules else ()
            case CheckedUnion():
                yield from written(item.members, selection, frames)
            case CheckedTurn():
                frame = next(frames)
                yield frame.header
                yield from written(item.children, selection, frames, owner)
                yield "" if item.open else frame.footer


BYTE_LEVEL, LLAMA_LIKE, UNIGRAM = (HubTokenizer.from_parts(each(), {}) for each in (byte_level, llama_like, unigram))


@pytest.mark.law
@pytest.mark.parametrize("repair", ["none", "slots", "all"])
@pytest.mark.parametrize(
    "tokenizer",
    [ByteTokenizer(), ByteTokenizer(bos=False), BYTE_LEVEL, LLAMA_LIKE, UNIGRAM],
    ids=["bytes", "bytes without BOS", "byte-level", "llama", "unigram"],
)
@settings(max_examples=law_examples(0.2))
@given(data=st.data(), schema=strategies.schemas())
def test_text_is_what_the_schema_says(data, schema, tokenizer, repair):
    """Moved spaces and repaired tokens change no character, in the whole text and in its parts."""
    selection = data.draw(strategies.prompts(schema))
    layout = lay_out(schema, tokenizer)
    plan = make_plan(selection, layout, run_variants(layout), tokenizer, Repair.parse(repair))

    made = "".join(piece_texts(plan, tokenizer))

    begin = layout.preamble if schema.has_turns else tokenizer.detokenize(tokenizer.bos_ids)
    begin += "".join(written(schema.children, selection, iter([each.frame for each in layout.turns])))
    bos = tokenizer.bos_form
    text = made if made.startswith(begin) else made.replace(f"{bos} ", bos, 1)  # the tokenizer's own
    added = text.removeprefix(begin)
    assert begin + added == text
    assert made == tokenizer.detokenize([token_id for piece in plan.pieces for token_id in piece.token_ids])
    assert all(message.text in added for message in selection.messages)
    if schema.has_open_turn or not schema.has_turns:
        said = "".join(schema.open_separator + each.text for each in selection.messages if each.role is None)
        assert added.startswith((said, f" {said}"))  # the space is the tokenizer's own


def test_what_is_behind_a_union_is_behind_its_text() -> None:
    """A tokenizer that puts a space at the start of a text puts none behind a union, also if its last member is empty."""
    schema = read(
        """<schema name="s"><union required="true"><module name="a">a</module><module name="b"/></union><user>x</user>
        </schema>"""
    )
    plan = plan_selection(choose(schema, '<prompt schema="s"><a/></prompt>'), LLAMA_LIKE)

    assert "".join(piece_texts(plan, LLAMA_LIKE)) == "<s> aUser:\nx\n\nAssistant:\n"


def test_parts_say_where_they_come_from() -> None:
    made = rendered('<a days="3"/><b/><user>Hi</user>')

    assert [(text, piece.module, piece.origin, piece.parameter) for piece, text in made[2:]] == [
        ("Trip of", "a", None, None),
        (" 3", "a", "argument", "days"),
        (" day", "a", "repaired", None),
        ("s.", "a", None, None),
        ("\nNew.", "b", "uncached", None),
        ("<user>", "", "header", None),
        ("Hi", "", "text", None),
        ("</user>", "", "footer", None),
        ("<assistant>", "", "header", None),
    ]


def test_character_cut_in_two_belongs_to_its_last_token() -> None:
    """If a character's tokens are in two parts, its text is in the later part, and no part has half of it."""
    plan = plan_of('<schema name="s">café</schema>', '<prompt schema="s"/>')

    assert [piece.origin for piece in plan.pieces] == [None, None, "last"]
    assert piece_texts(plan, ByteTokenizer()) == ["<bos>", "caf", "é"]
