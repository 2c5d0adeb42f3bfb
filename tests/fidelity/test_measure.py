"""Measurements of fidelity: exact settings are ordinary prefill, one prompt is an audit, and equal settings are one."""

from importlib import import_module

import pytest

from promptcache import Engine
from promptcache.diagnostics import InvalidValue
from promptcache.fidelity import Fidelity, Setting, measure_fidelity
from promptcache.fidelity.measure import DEFAULT_QUESTION, random_prompts
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.language.documents import checked


@pytest.fixture(autouse=True)
def _one_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here is about time."""
    monkeypatch.setattr(import_module("promptcache.fidelity.measure"), "MIN_ROUNDS", 1)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """A tiny model with random weights over bytes, in float64."""
    return Engine(tiny_model(), ByteTokenizer())


NOISE = 1e-9  # the tiny model computes in float64
PLACES = 4
PROMPT = '<prompt schema="s"><a/><b/><c/>Well?</prompt>'
MODULES = (
    'Root.<module name="a">alpha</module><module name="b">beta goes</module><module name="c">gamma goes on</module>'
)


def schema(modules: str, *prompts: str, attributes: str = ' repair="slots"') -> str:
    """A schema with prompts as its examples."""
    examples = "".join(f'<example valid="true">{prompt}</example>' for prompt in prompts)
    return f'<schema name="s"{attributes}>{modules}{examples}</schema>'


def measured(engine: Engine, text: str, *names: str, max_new_tokens: int = PLACES) -> Fidelity:
    """Compare the settings of these names over the examples of a schema."""
    chosen = [Setting.named(name) for name in names]
    return measure_fidelity(engine, text, num_prompts=0, max_new_tokens=max_new_tokens, settings=chosen)


def test_exact_settings_are_plain_prefill(engine: Engine) -> None:
    """Computed again or promoted, a prompt has no distance and is exact; as it is, it has one."""
    found = measured(engine, schema(MODULES, PROMPT), "repair=all", "promoted")

    assert [each.name for each in found.settings] == ["as it is", "repair=all", "promoted"]
    assert found.as_it_is.divergence.value > 1e-4
    assert found.as_it_is.exact == 0
    for each in found.settings[1:]:
        assert each.divergence.high < NOISE
        assert (each.exact, each.agreement, each.same_answer) == (1, 1, 1)


def test_plain_prefill_has_no_distance_from_itself(engine: Engine) -> None:
    """A schema that caches nothing is ordinary prefill under every setting: it has no distance, and they are one."""
    uncached = MODULES.replace("<module ", '<module cache="false" ')
    found = measured(engine, schema(uncached, PROMPT), "repair=all")

    assert [each.name for each in found.settings] == ["as it is"]
    assert found.as_it_is.divergence.value < NOISE
    assert found.recommend() is found.as_it_is


def test_one_prompt_is_an_audit(engine: Engine) -> None:
    """The distance of a schema with one prompt is that of `Engine.audit`."""
    text = schema(MODULES, PROMPT)
    found = measured(engine, text)
    engine.add_schema(text)
    audit = engine.audit(PROMPT, max_new_tokens=PLACES)

    assert found.as_it_is.divergence.value == pytest.approx(audit.divergence, abs=NOISE)
    assert found.as_it_is.agreement == audit.agreement
    assert (found.as_it_is.same_answer == 1) is audit.same_answer


def test_stored_bytes_are_those_of_a_warm_schema(engine: Engine) -> None:
    """The stored bytes are those of an engine that is warm and has answered the prompt, also for a changed attribute."""
    compared = measured(engine, schema(MODULES, PROMPT), "context=guaranteed", "promoted", max_new_tokens=1)
    sizes = {each.name: each.nbytes for each in compared.settings}
    for name, attributes in (("as it is", ""), ("context=guaranteed", ' context="guaranteed"')):
        own = Engine(tiny_model(), ByteTokenizer(), history=False)
        own.add_schema(schema(MODULES, attributes=f'{attributes} repair="slots"'))
        own.warm()
        own.generate(PROMPT, max_new_tokens=1)
        found = own.store.get_many(own.store.keys()).values()
        assert sizes[name] == sum(each.kv.nbytes for each in found if each.kv is not None)
    assert sizes["context=guaranteed"] < min(sizes["as it is"], sizes["promoted"])


def test_settings_without_effect_are_left_out(engine: Engine) -> None:
    """What the schema states already, and what changes no encoding and no plan, is not compared."""
    one = '<module name="a" required="true">alpha</module>'
    alone = measure_fidelity(engine, schema(one, '<prompt schema="s"><a/>?</prompt>'), num_prompts=0, max_new_tokens=1)
    stating = schema(MODULES, PROMPT, attributes=' context="guaranteed" repair="first-8"')
    names = ("context=guaranteed", "repair=first-8", "context=previous")
    stated = measured(engine, stating, *names, max_new_tokens=1)

    assert [each.name for each in alone.settings] == ["as it is"]
    assert [each.name for each in stated.settings] == ["as it is", "context=previous"]
    assert {each.repair for each in stated.settings} == {"first-8"}


def test_a_refused_setting_is_left_out_with_its_reason(engine: Engine) -> None:
    """With fixed positions the schema needs more positions than the model has; the rest is measured."""
    modules = MODULES.replace('name="a"', 'name="a" reserve="4090"')
    found = measured(engine, schema(modules, PROMPT), "positions=fixed", "repair=all", max_new_tokens=2)

    assert [name for name, _ in found.refused] == ["positions=fixed"]
    assert "4096" in found.refused[0][1].replace(",", "")
    assert [each.name for each in found.settings] == ["as it is", "repair=all"]


def test_the_engine_keeps_what_it_has() -> None:
    """A measurement adds neither schema nor KV to the engine."""
    own = Engine(tiny_model(), ByteTokenizer())
    before = (tuple(own.store.keys()), own.store.nbytes())

    measure_fidelity(own, schema(MODULES, PROMPT), num_prompts=1, max_new_tokens=1, settings=())

    assert own.schemas == {}
    assert (tuple(own.store.keys()), own.store.nbytes()) == before


def test_random_prompts_follow_their_seed() -> None:
    """Prompts are valid and the same for one seed; required arguments are filled, and texts are those of examples."""
    modules = "".join(
        f'<module name="{name}">x <parameter name="p" length="9" required="true"/></module>' for name in "abcd"
    )
    examples = ['<prompt schema="s">Who?</prompt>', '<prompt schema="s"><user>When?</user></prompt>']
    full, bare = checked(schema(modules, *examples)), checked(schema(modules))

    def drawn(seed: int) -> list[str]:
        return [each.xml for each in random_prompts(full, ByteTokenizer(), 6, seed)]

    assert len(drawn(0)) == 6
    assert drawn(0) == drawn(0) != drawn(1)
    assert {xml.partition("Wh")[2] for xml in drawn(0)} == {"o?</prompt>", "en?</prompt>"}
    assert all(xml.count(" p=") == sum(f"<{name}" in xml for name in "abcd") for xml in drawn(0))
    assert all(DEFAULT_QUESTION in each.xml for each in random_prompts(bare, ByteTokenizer(), 3, 0))


def test_random_prompts_name_members() -> None:
    """Random prompts have members of collections, if only some that a rule needs."""
    members = "".join(f'<module name="m{number}">M{number}</module>' for number in range(60))
    limits, rules = 'min="2" max="3"', '<rules><require if="k" then="k/m0 and k/m1"/></rules>'
    text = schema(f'{MODULES}<collection name="k" {limits}>{members}</collection>')

    for each in (text, text.replace("</schema>", f"{rules}</schema>")):
        drawn = [prompt.selection.members for prompt in random_prompts(checked(each), ByteTokenizer(), 20, 1)]
        assert len(drawn) > 5
        assert all(len(found) in (2, 3) for found in drawn)
        assert ({"k/m0", "k/m1"} <= set.intersection(*map(set, drawn))) is (each is not text)


def test_random_prompts_of_many_modules() -> None:
    """Selections that are too many to be listed are drawn module by module, and are valid and different, too."""
    names = "bcdefghijklmn"  # 2^13 selections without the rule
    modules = "".join(f'<module name="{name}">{name}</module>' for name in names)
    large = checked(schema(f'<module name="a" requires="n">a</module>{modules}'))

    drawn, again = (
        [each.selection.modules for each in random_prompts(large, ByteTokenizer(), 20, 1)] for _ in range(2)
    )

    assert drawn == again
    assert len(set(drawn)) == len(drawn) > 10
    assert all("n" in each for each in drawn if "a" in each)
    assert any("a" in each for each in drawn)


def test_wrong_arguments_are_refused(engine: Engine) -> None:
    """A schema without prompts, and a setting that does not exist, are typed errors."""
    with pytest.raises(InvalidValue, match="no valid example"):
        measure_fidelity(engine, schema(MODULES), num_prompts=0)
    for name in ("context=everything", "repair", "keep=int8", ""):
        with pytest.raises(InvalidValue, match="there is no setting"):
            Setting.named(name)
