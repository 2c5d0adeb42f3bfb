"""`context="previous"` and collections: which encodings prompts use, what warming encodes of them, and members."""

import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache import Engine
from promptcache.diagnostics import ContextLengthExceeded, InvalidValue, SchemaError, UnknownSchema
from promptcache.kv import StoreConfig
from promptcache.language import CheckedSchema, Context, check_schema
from promptcache.layout import Level, lay_out, make_plan, run_variants
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests import strategies
from tests.conftest import law_examples
from tests.engine import asking
from tests.engine.promoting import GREEDY, work
from tests.laws.level_oracle import true_level, wrong_contexts, wrong_variants
from tests.laws.position_oracle import expected_tokens, planned_tokens
from tests.laws.service import serve
from tests.layout.samples import choose, read
from tests.strategies.collections import collection_schemas

SCHEMA = """
<schema name="s">
  Answer.
  <module name="a">alpha</module>
  <module name="b">beta</module>
  Middle.
  <module name="c">gamma <parameter name="n" length="6"/></module>
  <module name="d" context="own">delta</module>
  <module name="e" cache="false">epsilon</module>
  <module name="f">zeta</module>
  <collection name="notes" context="previous"><module name="x">xi</module><module name="y">ypsilon</module></collection>
</schema>"""


def of_previous(schemas: SearchStrategy[CheckedSchema]) -> SearchStrategy[CheckedSchema]:
    return schemas.map(lambda schema: check_schema(replace(schema.source, context=Context.PREVIOUS)))


_MODULES = [f'<module name="{name}">text {name}</module>' for name in "abcdef"]
MANY = st.just(read(f'<schema name="m">{"".join(_MODULES)}</schema>'))
"""Random schemas seldom have prompts with three modules that see one another."""
SCHEMAS = of_previous(st.one_of(strategies.schemas(includes=False), collection_schemas(), MANY))


@pytest.mark.law
@given(data=st.data(), schema=SCHEMAS | collection_schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples())
def test_variants_and_levels_are_right(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """Each run has seen exactly what the independent reference says, and members stand where they are named."""
    service = serve(schema, tokenizer=tokenizer)
    selection = data.draw(strategies.prompts(schema))
    plan = service.plan(selection)

    assert not [*wrong_contexts(service.served.layout, service.served.variants)]
    assert plan.level is true_level(plan)
    assert sorted(planned_tokens(plan)) == sorted(expected_tokens(selection, plan.layout, tokenizer, plan.repair))
    assert not [*wrong_variants(plan, service.tokenizer)]
    for path in (path for path in selection.modules if path not in selection.members):
        named = [each for each in selection.members if each.rpartition("/")[0] == path]
        behind = selection.modules[selection.modules.index(path) + 1 :]
        assert [*behind[: len(named)]] == named


@pytest.mark.law
@given(data=st.data(), schema=SCHEMAS | collection_schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples())
def test_warming_knows_what_prompts_need(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """Warming with pairs and members encodes what a prompt with one member reuses, but for pairs behind members."""
    service = serve(schema, tokenizer=tokenizer)
    served, selection = service.served, data.draw(strategies.prompts(schema))
    assume(max(Counter(path.rpartition("/")[0] for path in selection.members).values(), default=0) < 2)
    more = served.more_encodings(members=True, pairs=True)
    warmed = {*served.encodings, *(encoding for _, encoding in more)}

    for piece in service.plan(selection).reused:
        is_pair = piece.run.module and selection.module(piece.run.module).context is Context.PREVIOUS
        if not (selection.members and is_pair):
            assert piece.source.encoding in warmed


def test_warmed_pairs_are_not_encoded_again() -> None:
    """Warming leaves pairs out unless they are asked for."""
    engine = asking.engine_of(schema=SCHEMA, history=False)
    (plain,), (pairs,) = engine.warm(), engine.warm(pairs=True)

    assert pairs.nbytes == engine.store.nbytes()
    assert plain.num_encoded == plain.num_encodings < pairs.num_encodings == plain.num_encodings + pairs.num_encoded
    for modules in ("abcdef", "af", "bdf", "acf"):
        prompt = f'<prompt schema="s"><{"/><".join(modules)}/>?</prompt>'
        assert engine.generate(prompt, **GREEDY).usage.num_encoded_tokens == 0


def test_a_pair_that_needs_too_many_positions_is_not_made() -> None:
    """A filler may be longer than what is in the prompt. Then the module is used as if it were the first."""
    filler = f'<parameter name="n" length="40" placeholder="{40 * "n"}"/>'
    schema = read(f'<schema name="s"><module name="a">a{filler}</module><module name="b">{30 * "b"}</module></schema>')
    contexts = []
    for limit in (100, 60):
        layout = lay_out(schema, ByteTokenizer(), max_positions=limit)
        plan = make_plan(
            choose(schema, '<prompt schema="s"><a/><b/></prompt>'), layout, run_variants(layout), ByteTokenizer()
        )
        assert plan.stop < 60
        contexts.append(len(plan.reused[-1].source.encoding.context))

    assert contexts == [2, 1]


KB = """
<schema name="kb">
  Answer from the notes.
  <module name="tone">Be kind.</module>
  <collection name="notes" max="4">
    <module name="gate">The gate is blue.</module>
    <module name="cook">The cook is Mara.</module>
    <module name="bus">The bus leaves at nine.</module>
  </collection>
  <module name="end">Well:</module>
</schema>"""


def engine_of_kb(**options: Any) -> Engine:
    return asking.engine_of(**{"schema": KB, **options})


def naming(*members: str, others: str = "<end/>") -> str:
    return f'<prompt schema="kb"><notes>{"".join(f"<{each}/>" for each in members)}</notes>{others}Who?</prompt>'


ENGINE = engine_of_kb()


DECLARED = {"gate": "The gate is blue.", "cook": "The cook is Mara.", "bus": "The bus leaves at nine."}


class Twin:
    """An engine with a small memory over a folder, whose collection changes, beside a dictionary of its members."""

    def __init__(self, promote: str, context: str, folder: Path) -> None:
        self.schema = KB.replace('name="notes"', f'name="notes" context="{context}"')
        self.options: dict[str, Any] = {
            "schema": self.schema,
            "promote": promote,
            "store": StoreConfig(folder=folder, disk_bytes=400_000, memory_bytes=60_000),
        }
        self.engine, self.promotes = engine_of_kb(**self.options), promote == "auto"
        self.fresh = engine_of_kb(schema=self.schema, history=False)
        self.texts = {**DECLARED}

    def step(self, chance: random.Random) -> None:
        name = chance.choice((*DECLARED, "m0", "m1", "m2", "m3"))
        match chance.randrange(30) % 8:
            case 0:
                self.texts[name] = f"The note {name} says {chance.randrange(3)}."
                self.engine.add_member("kb", "notes", name, self.texts[name])
            case 1 if name in self.texts:
                del self.texts[name]
                self.engine.remove_member("kb", "notes", name)
            case 2:
                self.engine.clear_history()
            case 7:
                if chance.randrange(2):
                    self.engine = engine_of_kb(**self.options)
                else:
                    self.engine.add_schema(self.schema)
                assert dict(self.engine.members("kb", "notes")) == DECLARED
                for each in DECLARED.keys() - self.texts.keys():
                    self.engine.remove_member("kb", "notes", each)
                for each, text in self.texts.items():
                    self.engine.add_member("kb", "notes", each, text)
            case _:
                self.compare(chance.sample(sorted(self.texts), chance.randint(0, min(4, len(self.texts)))))

    def compare(self, names: list[str]) -> None:
        """The answer is that of a fresh engine with the same members; a promoted one is exact."""
        self.fresh.remove_schema("kb")  # and with it all that it has kept
        self.fresh.add_schema(self.schema)
        for name in names:
            self.fresh.add_member("kb", "notes", name, self.texts[name])
        answer = self.engine.generate(naming(*names), **GREEDY)
        repair = "all" if answer.level is Level.EXACT else None
        assert answer.token_ids == self.fresh.generate(naming(*names), repair=repair, **GREEDY).token_ids
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


def test_a_member_is_one_encoding_in_any_place(tmp_path: Path) -> None:
    """It is encoded once, whatever is before it; not by warming, unless this is asked for."""
    config = StoreConfig(folder=tmp_path)
    engine_of_kb(store=config).warm("kb")
    (report,) = engine_of_kb(store=config).warm(members=True)
    engine = engine_of_kb(store=config)

    assert report.num_encoded == len(DECLARED)
    for order in (("gate",), ("cook", "gate"), ("gate", "cook", "bus"), ("bus", "gate")):
        assert engine.generate(naming(*order, others=""), **GREEDY).usage.num_encoded_tokens == 0


def test_adding_a_member_and_planning_do_not_depend_on_the_number_of_members() -> None:
    """With 20,000 members, a prompt of three of them is planned as with three."""
    engine, started = engine_of_kb(), time.process_time()
    for number in range(20_000):
        engine.add_member("kb", "notes", f"n{number}", f"The house {number} is small.")
    added = time.process_time()
    plan = engine.plan(naming("n7", "n19999", "n3"))

    assert time.process_time() - added < 0.5
    assert (added - started) / 20_000 < 2e-3
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


def test_repeated_members_are_promoted() -> None:
    """A combination of members that comes again is exact, in its own order."""
    engine = engine_of_kb(promote="auto")
    engine.generate(naming("cook", "gate"), **GREEDY)
    work(engine)

    assert engine.generate(naming("cook", "gate"), **GREEDY).level is Level.EXACT
    assert engine.generate(naming("gate", "cook"), **GREEDY).level is Level.MODULAR


def test_a_member_that_does_not_fit_the_context_is_refused() -> None:
    """An encoding never needs more positions than the model has. A prompt or warming that does is refused before any work."""
    engine = engine_of_kb(
        model=tiny_model().hf, schema='<schema name="kb">Go.<collection name="notes"/></schema>', context_length=128
    )
    for name, text in (("short", "x"), ("long", "y" * 123), ("longer", "y" * 124)):
        engine.add_member("kb", "notes", name, text)

    plan = engine.plan(naming("short", "long", others=""))
    assert all(piece.source.encoding.position_ids[-1] < 128 for piece in plan.reused)
    for ask in (lambda: engine.generate(naming("longer", others=""), **GREEDY), lambda: engine.warm(members=True)):
        with pytest.raises(ContextLengthExceeded, match="member 'notes/longer' needs 129 positions, the model has 128"):
            ask()
    assert [*engine.store.keys()] == []
    engine.remove_member("kb", "notes", "longer")
    (report,) = engine.warm(members=True)
    assert report.num_encoded == report.num_encodings
