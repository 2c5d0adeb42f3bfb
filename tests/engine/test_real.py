"""A real model, SmolLM2-135M-Instruct: `make real-model` makes its folder, and these tests are skipped without it."""

from __future__ import annotations

import pytest

from promptcache import Engine
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


@pytest.mark.parametrize(
    "modules",
    ["<france/>", "<france/><japan/>", '<japan/><wish what="trains"/>', '<france/><japan/><wish what="tea"/>'],
)
def test_cached_logits_equal_the_reference(engine: Engine, modules: str) -> None:
    """Law 1 holds within its bound for float32."""
    prompt = f'<prompt schema="travel">{modules}<user>Which capital?</user></prompt>'

    assert distance(engine.logits(prompt), engine.reference(prompt)) < 1e-5
