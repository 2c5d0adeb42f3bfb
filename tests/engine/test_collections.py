"""Collections: members in any order, added and removed while an engine runs."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from promptcache import Engine
from promptcache.diagnostics import ContextLengthExceeded, InvalidValue, PromptError, SchemaError, UnknownSchema
from promptcache.kv import StoreConfig
from promptcache.language import CheckedSchema, Context
from promptcache.layout import Level
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests import strategies
from tests.conftest import law_examples
from tests.engine import asking
from tests.engine.asking import WAYS, answered
from tests.engine.promoting import GREEDY, work
from tests.laws.level_oracle import true_level
from tests.laws.position_oracle import expected_tokens, planned_tokens
from tests.laws.service import serve
from tests.strategies.collections import collection_schemas

COLLECTION = """<collection name="notes" max="4">
    <module name="gate">The gate is blue.</module>
    <module name="cook">The cook is Mara.</module>
    <module name="bus">The bus leaves at nine.</module>
  </collection>"""
SCHEMA = f"""
<schema name="kb">
  Answer from the notes.
  <module name="tone">Be kind.</module>
  {COLLECTION}
  <module name="end">Well:</module>
</schema>"""


def engine_of(**options: Any) -> Engine:
    return asking.engine_of(**{"schema": SCHEMA, **options})


def prompt(*members: str, others: str = "<end/>") -> str:
    return f'<prompt schema="kb"><notes>{"".join(f"<{each}/>" for each in members)}</notes>{others}Who?</prompt>'


@pytest.mark.law
@given(data=st.data(), schema=collection_schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.5))
def test_tokens_and_levels_are_right(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """Members stand where they are named, and a level is `exact` only if every token has seen what it must."""
    selection = data.draw(strategies.prompts(schema))
    plan = serve(schema, tokenizer=tokenizer).plan(selection)

    assert sorted(planned_tokens(plan)) == sorted(expected_tokens(selection, plan.layout, tokenizer, plan.repair))
    assert plan.level is true_level(plan)
    for path in (path for path in selection.modules if path not in selection.members):
        named = [each for each in selection.members if each.rpartition("/")[0] == path]
        behind = selection.modules[selection.modules.index(path) + 1 :]
        assert [*behind[: len(named)]] == named


@pytest.mark.parametrize("bos", [True, False], ids=["BOS", "no BOS"])
@pytest.mark.parametrize(
    "first",
    [
        "",
        "Answer.",
        '<parameter name="p" length="4"/>',
        '<module name="a"/>',
        '<module name="a">Be kind.</module>',
        '<module name="a" cache="false">Be kind.</module>',
        '<union><module name="a">Be kind.</module><module name="b">Be brief.</module></union>',
        '<collection name="a"><module name="b">The lamp is new.</module></collection>',
        "<system>Answer.</system>",
        "<system/>",
    ],
)
def test_a_collection_may_stand_behind_anything(first: str, bos: bool) -> None:
    """Members have the logits of the reference at the beginning of a schema and behind any element, with and without BOS."""
    engine = engine_of(tokenizer=ByteTokenizer(bos=bos), schema=f'<schema name="kb">{first}{COLLECTION}</schema>')
    engine.warm(members=True)

    for members in (("cook",), ("cook", "gate")):
        asked = prompt(*members, others="")
        assert torch.allclose(engine.logits(asked), engine.reference(asked), atol=1e-9)
    assert engine.generate(prompt("bus", others=""), **GREEDY).usage.num_encoded_tokens == 0


ENGINE = engine_of()


def test_a_member_is_one_encoding_in_any_place() -> None:
    """A member of a collection is encoded once, whatever stands before it."""
    engine = engine_of()
    for each in ("gate", "cook", "bus"):
        engine.generate(prompt(each, others=""), **GREEDY)

    for order in (("cook", "gate"), ("gate", "cook", "bus"), ("bus", "gate")):
        assert engine.generate(prompt(*order, others=""), **GREEDY).usage.num_encoded_tokens == 0


DECLARED = {"gate": "The gate is blue.", "cook": "The cook is Mara.", "bus": "The bus leaves at nine."}


class Twin:
    """An engine with a small memory over a folder, whose collection changes, beside a dictionary of its members."""

    def __init__(self, promote: str, context: str, folder: Path) -> None:
        self.schema = SCHEMA.replace('name="notes"', f'name="notes" context="{context}"')
        self.options: dict[str, Any] = {
            "schema": self.schema,
            "promote": promote,
            "store": StoreConfig(folder=folder, disk_bytes=400_000, memory_bytes=60_000),
        }
        self.engine, self.promotes = engine_of(**self.options), promote == "auto"
        self.fresh = engine_of(schema=self.schema, history=False)
        self.texts = {**DECLARED}

    def step(self, chance: random.Random) -> None:
        """Add, replace or remove a member, restart, or compare an answer with that of a fresh engine."""
        action, name = chance.randrange(30) % 8, chance.choice((*DECLARED, "m0", "m1", "m2", "m3"))
        if action == 0:
            self.texts[name] = f"The note {name} says {chance.randrange(3)}."
            self.engine.add_member("kb", "notes", name, self.texts[name])
        elif action == 1 and name in self.texts:
            del self.texts[name]
            self.engine.remove_member("kb", "notes", name)
        elif action == 2:
            self.engine.clear_history()
        elif action == 7:
            if chance.randrange(2):
                self.engine = engine_of(**self.options)
            else:
                self.engine.add_schema(self.schema)
            for each in DECLARED.keys() - self.texts.keys():
                self.engine.remove_member("kb", "notes", each)
            for each, text in self.texts.items():
                self.engine.add_member("kb", "notes", each, text)
        else:
            self.compare(chance.sample(sorted(self.texts), chance.randint(0, min(4, len(self.texts)))))

    def compare(self, names: list[str]) -> None:
        """The answer is that of a fresh engine with the same members; a promoted one is exact."""
        fresh = self.fresh
        fresh.remove_schema("kb")  # and with it all that it has kept
        fresh.add_schema(self.schema)
        for name in names:
            fresh.add_member("kb", "notes", name, self.texts[name])
        asked = prompt(*names)
        answer = self.engine.generate(asked, **GREEDY)
        if answer.level is Level.EXACT:
            expected = fresh.generate(asked, repair="all", **GREEDY)
        else:
            expected = fresh.generate(asked, **GREEDY)
        assert answer.token_ids == expected.token_ids
        if self.promotes:
            work(self.engine)


@pytest.mark.law
@pytest.mark.parametrize("context", ["guaranteed", "previous"])
@pytest.mark.parametrize("promote", ["off", "auto"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=law_examples(0.03), deadline=None)
def test_any_history_of_members_gives_a_fresh_engines_answers(promote: str, context: str, seed: int) -> None:
    """After any additions, replacements, removals, evictions and restarts, answers are those of a new engine."""
    with TemporaryDirectory() as folder:
        twin, chance = Twin(promote, context, Path(folder)), random.Random(seed)
        for _ in range(20):
            twin.step(chance)
        assert dict(twin.engine.members("kb", "notes")) == twin.texts


def test_a_removed_member_is_unknown() -> None:
    """The KV of a member stays for the next prompt; after it was removed, it can be added again."""
    engine = engine_of()
    engine.generate(prompt("cook", "bus"), **GREEDY)
    again = engine.generate(prompt("cook", "bus"), **GREEDY)

    engine.remove_member("kb", "notes", "cook")

    assert again.usage.num_encoded_tokens == 0
    with pytest.raises(PromptError, match="PC401 collection 'notes' has no member 'cook'"):
        engine.plan(prompt("cook", "bus"))
    engine.add_member("kb", "notes", "cook", "The cook is Otto.")
    assert "Otto" in "".join(map(chr, engine.plan(prompt("cook")).tokens.used_ids[1:]))


def test_a_replaced_schema_has_its_own_members() -> None:
    """Members that were added belong to the schema that was there."""
    engine = engine_of()
    engine.add_member("kb", "notes", "lamp", "The lamp is new.")
    engine.generate(prompt("lamp"), **GREEDY)

    engine.add_schema(SCHEMA)

    assert [*engine.members("kb", "notes")] == ["gate", "cook", "bus"]


def test_adding_a_member_and_planning_do_not_depend_on_the_number_of_members() -> None:
    """With 20,000 members, a prompt of three of them is planned as with three."""
    engine = engine_of()
    started = time.process_time()
    for number in range(20_000):
        engine.add_member("kb", "notes", f"n{number}", f"The house {number} is small.")
    adding = time.process_time() - started
    started = time.process_time()
    plan = engine.plan(prompt("n7", "n19999", "n3"))

    assert adding / 20_000 < 2e-3
    assert time.process_time() - started < 0.5
    assert [piece.module for piece in plan.reused].count("notes/n19999") == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("no", "notes", "a", "x"), UnknownSchema, "was not added"),
        (("kb", "note", "a", "x"), InvalidValue, "did you mean 'notes'"),
        (("kb", "tone", "a", "x"), InvalidValue, "has no collection 'tone'"),
        (("kb", "notes", "a b", "x"), InvalidValue, "cannot be the name of a member"),
        (("kb", "notes", 3, "x"), InvalidValue, "a text is expected"),
        (("kb", "notes", "a", "  "), InvalidValue, "is empty"),
        (("kb", "notes", "a", None), InvalidValue, "text=None"),
        (("kb", "notes", "x"), InvalidValue, "has no member 'x'"),
    ],
)
def test_wrong_members_are_refused(arguments: tuple[str, ...], error: type[Exception], message: str) -> None:
    """The error says what is wrong, and nothing is added; a member that is not there cannot be removed."""
    with pytest.raises(error, match=message):
        (ENGINE.add_member if len(arguments) == 4 else ENGINE.remove_member)(*arguments)
    assert len(ENGINE.members("kb", "notes")) == 3


def test_collections_need_closed_positions() -> None:
    """Fixed places cannot hold members in any order."""
    with pytest.raises(SchemaError, match="PC515"):
        ENGINE.add_schema('<schema name="f" positions="fixed"><collection name="c"/></schema>')


@pytest.mark.law
@given(data=st.data(), schema=collection_schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.5))
def test_warming_knows_what_prompts_of_one_member_need(
    data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer
) -> None:
    """What a prompt with at most one member of each collection reuses was encoded by warming."""
    service = serve(schema, tokenizer=tokenizer)
    selection = data.draw(strategies.prompts(schema))
    assume(max(Counter(path.rpartition("/")[0] for path in selection.members).values(), default=0) < 2)

    warmed = {encoding for _, encoding in service.served.member_encodings()}

    plan = service.plan(selection)
    for piece in plan.reused:
        path = piece.run.module
        if not path or selection.module(path).context is not Context.PREVIOUS:  # pairs are warmed apart
            assert piece.source.encoding in {*service.served.encodings, *warmed}


def test_warm_writes_members_to_a_folder(tmp_path: Path) -> None:
    """A process that finds warm members in a folder encodes none of them; without members, each is encoded later."""
    config = StoreConfig(folder=tmp_path)
    names = ("gate", "cook", "bus")
    engine_of(store=config).warm("kb")
    (report,) = engine_of(store=config).warm(members=True)
    assert report.num_encoded == len(names)

    engine = engine_of(store=config)
    found = [engine.generate(prompt(name, others="<tone/>"), max_new_tokens=1).usage for name in names]

    assert [each.num_encoded_tokens for each in found] == [0, 0, 0]


def test_repeated_members_are_promoted() -> None:
    """A combination of members that comes again is exact, in its own order."""
    engine = engine_of(promote="auto")
    for _ in range(2):
        engine.generate(prompt("cook", "gate"), **GREEDY)
    work(engine)

    assert engine.generate(prompt("cook", "gate"), **GREEDY).level is Level.EXACT
    assert engine.generate(prompt("gate", "cook"), **GREEDY).level is Level.MODULAR
    engine.promote(prompt("gate", "cook"))
    assert engine.generate(prompt("gate", "cook"), **GREEDY).level is Level.EXACT


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_asking_takes_members(way: str) -> None:
    """Each gives the logits of the reference."""
    engine = engine_of()
    asked = prompt("cook", "gate").replace("Who?", "<user>Who?</user>")
    found = answered(engine, asked, way, **GREEDY)

    assert found.token_ids == ENGINE.generate(asked, **GREEDY).token_ids
    assert found.usage.num_reused_tokens > len("The cook is Mara.The gate is blue.")
    assert torch.allclose(engine.logits(asked), engine.reference(asked), atol=1e-9)


def test_a_member_that_does_not_fit_the_context_is_refused() -> None:
    """An encoding never needs more positions than the model has. A prompt or warming that does is refused before any work."""
    engine = engine_of(
        model=tiny_model().hf, schema='<schema name="kb">Go.<collection name="notes"/></schema>', context_length=128
    )
    for name, text in (("short", "x"), ("long", "y" * 123), ("longer", "y" * 124)):
        engine.add_member("kb", "notes", name, text)

    plan = engine.plan(prompt("short", "long", others=""))
    assert all(piece.source.encoding.position_ids[-1] < 128 for piece in plan.reused)
    for ask in (lambda: engine.generate(prompt("longer", others=""), **GREEDY), lambda: engine.warm(members=True)):
        with pytest.raises(ContextLengthExceeded, match="member 'notes/longer' needs 129 positions, the model has 128"):
            ask()
    assert [*engine.store.keys()] == []
    engine.remove_member("kb", "notes", "longer")
    (report,) = engine.warm(members=True)
    assert report.num_encoded == report.num_encodings
