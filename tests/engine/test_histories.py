"""Law 4: after any history, a request is answered as by a new engine."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from promptcache.language import CheckedSchema, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.testing.cached import distance
from tests.conftest import law_examples
from tests.laws.histories import history_machine
from tests.laws.service import ServedSchema, serve

SCHEMAS = (
    """<schema name="one">Root.<module name="a">Text of a <parameter name="p" length="6" placeholder="filler"/> goes on.
<module name="b">Text of b.</module></module><union name="u"><module name="c">The c.</module><module name="d">Some d.</module>
</union><module name="e" cache="false">Anew.</module></schema>""",
    """<schema name="two">Root.<module name="a">Text of a.</module><module name="x">x x x</module><module name="y">y y</module>
<scaffold modules="x y"/><module name="z" requires="x">z z z z</module></schema>""",
    """<schema name="one">Root.<module name="a">Text of a <parameter name="p" length="6" placeholder="filler"/> goes on.
<module name="b">Another b.</module></module><union name="u"><module name="c">The c.</module><module name="d">Some d.</module>
</union><module name="e" cache="false">Anew.</module></schema>""",
)
PROMPTS = {
    "one": (
        "<a/>",
        '<a p="filler"/>',
        '<a p="other"/><c/>',
        "<a><b/></a><d/>",
        "<e/><c/>",
        '<a p="ab"><b/></a><e/>',
        "<d/>",
    ),
    "two": ("<a/>", "<x/>", "<x/><y/>", "<a/><x/><z/>", "<y/>", "<x/><y/><z/><a/>"),
}


def prompt(schema: CheckedSchema, references: str) -> str:
    """A prompt document with some text of its own."""
    return f'<prompt schema="{schema.name}">{references} And now?</prompt>'


def ask(service: ServedSchema, references: str) -> torch.Tensor:
    """Answer one prompt."""
    schema = service.state.schema
    return service.logits(resolve_prompt(parse_prompt(prompt(schema, references)), schema))


@pytest.mark.law
@pytest.mark.parametrize("seed", range(law_examples() // 200))
def test_two_hundred_requests_answer_like_a_fresh_engine_each(seed: int) -> None:
    """One store under three schemas with random evictions: every answer equals that of a fresh engine."""
    chance = random.Random(seed)
    checked = [check_schema(parse_schema(text)) for text in SCHEMAS]
    store = serve(checked[0]).store
    services = [serve(schema, store=store) for schema in checked]
    fresh = {
        (index, references): ask(serve(schema), references)
        for index, schema in enumerate(checked)
        for references in PROMPTS[schema.name]
    }

    for _ in range(200):
        index, references = chance.choice(sorted(fresh))
        assert distance(ask(services[index], references), fresh[index, references]) < services[index].tolerance
        for key in list(store.keys()):
            if chance.random() < 0.1:
                store.delete(key)


@pytest.mark.law
def test_machine_of_histories() -> None:
    """Warming, asking, generating, evicting, holding, releasing and restarting in any order change no answer."""
    documents = [
        (text, [prompt(check_schema(parse_schema(text)), references) for references in PROMPTS[name]])
        for text, name in zip(SCHEMAS, ("one", "two", "one"), strict=True)
    ]

    run_state_machine_as_test(
        history_machine(documents), settings=settings(max_examples=law_examples(0.1), stateful_step_count=25)
    )


def test_an_evicted_encoding_stays_whole_for_who_holds_it() -> None:
    """A request keeps the KV that it holds while the store evicts it and stores new KV."""
    schema = check_schema(parse_schema(SCHEMAS[0]))
    service = serve(schema)
    service.logits(resolve_prompt(parse_prompt(prompt(schema, "<a><b/></a><d/>")), schema))
    keys = list(service.store.keys())
    held = {key: service.store.get(key).handle for key in keys}
    before = {key: run.keys.clone() for key, run in held.items() if run is not None}

    for key in keys:
        service.store.delete(key)
    for references in PROMPTS["one"]:
        ask(service, references)

    assert all((held[key].keys == before[key]).all() for key in keys)  # type: ignore[union-attr]
