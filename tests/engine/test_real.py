"""A real model, SmolLM2-135M-Instruct: `make real-model` makes its folder, and these tests are skipped without it."""

from __future__ import annotations

import pytest

from promptcache import Engine
from promptcache.audit import AdviceKind
from promptcache.testing.cached import distance
from tests.real_model import FOLDER

pytestmark = [pytest.mark.real, pytest.mark.skipif(not FOLDER.is_dir(), reason="make real-model"), pytest.mark.long]

SCHEMA = """<schema name="travel"><system>You answer in one word.
<module name="france">France lies in Europe. Its capital is Paris. </module>
<module name="japan" context="own">Japan is an island country. Its capital is Tokyo. </module>
<module name="wish">I like <parameter name="what" length="4"/>.</module></system></schema>"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The model with one schema."""
    engine = Engine.from_pretrained(str(FOLDER))
    engine.add_schema(SCHEMA)
    return engine


def test_it_answers(engine: Engine) -> None:
    """The answer to a question about a module contains the fact of the module."""
    prompt = '<prompt schema="travel"><france/><user>What is the capital of France?</user></prompt>'

    assert "Paris" in engine.generate(prompt, max_new_tokens=12, do_sample=False).text


FACTS = {
    "quarn": "The town of Quarn has a harbour. Its mayor is Lena Holt. Its oldest building is the lighthouse.",
    "belmor": "The town of Belmor lies in the hills. Its mayor is Tom Reed. Its oldest building is the mill.",
    "istra": "The town of Istra has a famous market. Its mayor is Ada Stone. Its oldest building is the church.",
    "vonde": "The town of Vonde stands at a lake. Its mayor is Carl Webb. Its oldest building is the bridge.",
}
ASKED = ("Who is the mayor of {}?", "What is the oldest building of {}?", "Tell me one fact about {}.")
QUESTIONS = [asked.format(town.title()) for asked in ASKED for town in FACTS]


@pytest.mark.slow
def test_advice_keeps_its_promise_on_other_questions(engine: Engine) -> None:
    """The best advice of an audit gains at least half of its promise on at least 9 of 11 other questions."""
    modules = "".join(f'<module name="{name}">{text} </module>' for name, text in FACTS.items())
    engine.add_schema(f'<schema name="towns"><system>Answer in one sentence.{modules}</system></schema>')
    used = "".join(f"<{name}/>" for name in FACTS)
    first, *others = [f'<prompt schema="towns">{used}<user>{question}</user></prompt>' for question in QUESTIONS]

    best = engine.audit(first, max_new_tokens=24).advice[0]

    assert best.kind is AdviceKind.PROMOTE
    before = [engine.audit(prompt, max_new_tokens=24).divergence for prompt in others]
    engine.promote(first)
    after = [engine.audit(prompt, max_new_tokens=24).divergence for prompt in others]
    gains = [there - here for here, there in zip(after, before, strict=True)]
    assert sum(gain >= best.gain / 2 for gain in gains) >= 9
    assert min(gains) > 0


@pytest.mark.parametrize(
    "modules",
    ["<france/>", "<france/><japan/>", '<japan/><wish what="trains"/>', '<france/><japan/><wish what="tea"/>'],
)
def test_cached_logits_equal_the_reference(engine: Engine, modules: str) -> None:
    """Law 1 holds within its bound for float32."""
    prompt = f'<prompt schema="travel">{modules}<user>Which capital?</user></prompt>'

    assert distance(engine.logits(prompt), engine.reference(prompt)) < 1e-5
