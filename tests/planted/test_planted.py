"""Mutation test of the engine: every planted fault is detected by its law, over random schemas and prompts.

All models are made before a fault is planted, because the self-test at load is not one of the laws.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from hypothesis.stateful import run_state_machine_as_test

import tests.planted.language_faults
import tests.planted.layout_faults
import tests.planted.runtime_faults  # noqa: F401 # registered where they are defined
from promptcache.demo import MODEL_FOLDER
from promptcache.diagnostics import PromptCacheError
from promptcache.language import CheckedSchema, Placement
from promptcache.model.model import Model
from promptcache.testing import ByteTokenizer, prompts
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import HubTokenizer
from tests import strategies
from tests.engine.changing import ChangingModel, answer_alone
from tests.engine.promoting import PromotingEngine, changing_model
from tests.families import random_model
from tests.laws.checker_laws import FAULT_LAWS, files_are_one_schema
from tests.laws.engine_laws import ENGINE_LAWS, cached_is_reference, models_do_not_mix
from tests.laws.histories import history_machine
from tests.laws.laws import LAWS, Law, check_law, no_control_token_in_text
from tests.laws.service import default_model, serve
from tests.laws.subject import Subject
from tests.model.relocation_law import far_model, moved_keys_are_the_models, texts
from tests.planted.registry import FAULTS, PlantedFault
from tests.requests.answers import model_named, requests_are_the_reference
from tests.requests.workloads import MODELS, Workload, run_over, workloads
from tests.rows.machine import step_machine
from tests.testing.samples import SLOTTED

_CHEAP = 5  # factor of examples for a law that needs no model
_RARE = {"states are right": 4}  # factor for faults that few schemas show: two scaffolds over one module
_MOVING = ("llama, yarn rope", "gemma3, text", "cohere2", "gpt_neox")
Check = Callable[[st.DataObject, CheckedSchema], None]


def make_models() -> None:
    for made in (default_model(), other_model(), family_model("mistral"), family_model("gpt-oss")):
        assert made.can_relocate
    for name in MODELS:
        model_named(name)
    answer_alone()
    changing_model()
    for family in _MOVING:
        far_model(family)


@cache
def other_model() -> Model:
    return tiny_model(seed=1)


@cache
def family_model(family: str) -> Model:
    import torch

    return Model(random_model(family, torch.float64))


def probe(law: str, examples: int) -> None:
    """Run a law by its name; it raises any error that a fault causes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # examples are not shrunk here: their reprs are large
        _probe(law, examples)


def _probe(law: str, examples: int) -> None:
    if law == "histories change nothing":
        chosen = _settings(examples // 4, stateful_step_count=30)
        run_state_machine_as_test(history_machine(HISTORIES), settings=chosen)
    elif law.startswith("steps are the reference"):
        model, tolerance = (family_model("mistral"), 1e-6) if "windows" in law else (default_model(), 1e-10)
        chosen = _settings(examples // 4, stateful_step_count=20)
        run_state_machine_as_test(step_machine(model, tolerance), settings=chosen)
    elif law == "moved keys are the model's":
        drawn = st.tuples(texts(), st.sampled_from(_MOVING))
        _run_over(drawn, lambda pair: moved_keys_are_the_models(far_model(pair[1]), pair[0]), examples)
    elif law == "requests are the reference":
        for seed in range(examples):
            workload: list[Workload] = []
            run_over(workloads(), workload.append, [seed])
            requests_are_the_reference(workload[0])  # not inside of Hypothesis, which would shrink the example
    elif law == "models that change do not mix":
        run_state_machine_as_test(ChangingModel, settings=_settings(examples // 4, stateful_step_count=10))
    elif law == "promotions keep answers":
        run_state_machine_as_test(PromotingEngine, settings=_settings(examples // 10, stateful_step_count=20))
    elif law == "no control token in text":
        tokenizer = HubTokenizer.from_folder(MODEL_FOLDER)  # a new tokenizer, because the fault changes it
        _run_over(prompts(SLOTTED, tokenizer=tokenizer), no_control_token_in_text, examples)
    elif law == "files are one schema":
        _run_over(strategies.schema_files(), files_are_one_schema, _CHEAP * examples)
    else:
        is_cheap = law in {*FAULT_LAWS, *(each.name for each in LAWS)}
        _run(_check_of(law), _CHEAP * _RARE.get(law, 1) * examples if is_cheap else examples)


def _check_of(name: str) -> Check:
    for law in LAWS:
        if law.name == name:
            return lambda data, schema: _put(law, data, schema)
    if name in FAULT_LAWS:
        return lambda data, schema: _put_faults(name, data, schema)
    for engine_law in ENGINE_LAWS:
        if engine_law.name == name:
            return lambda data, schema: engine_law.check(serve(schema), data.draw(strategies.prompts(schema)))
    models = {"windows": "mistral", "sinks": "gpt-oss"}
    kind = name.rpartition(", ")[2]
    if kind in models:
        return lambda data, schema: cached_is_reference(
            serve(schema, family_model(models[kind])), data.draw(strategies.prompts(schema))
        )
    if kind == "fixed":
        return lambda data, schema: cached_is_reference(
            serve(replace(schema, positions=Placement.FIXED)), data.draw(strategies.prompts(schema))
        )
    assert name == "models do not mix"
    return lambda data, schema: models_do_not_mix(
        serve(schema), serve(schema, other_model()), data.draw(strategies.prompts(schema))
    )


def _put(law: Law, data: st.DataObject, schema: CheckedSchema) -> None:
    check_law(law, Subject(schema, ByteTokenizer()), data, num_named=8)  # a set of modules costs less than a schema


def _put_faults(law: str, data: st.DataObject, schema: CheckedSchema) -> None:
    subject = Subject(schema, ByteTokenizer())
    for invalid in data.draw(st.lists(strategies.invalid_prompts(schema), min_size=16, max_size=16)):
        FAULT_LAWS[law](subject, invalid)


def _run(check: Check, examples: int) -> None:
    @_settings(examples)
    @given(data=st.data(), schema=strategies.schemas())
    def run(data: st.DataObject, schema: CheckedSchema) -> None:
        check(data, schema)

    run()


def _run_over(drawn: st.SearchStrategy[Any], check: Callable[[Any], None], examples: int) -> None:
    @_settings(examples)
    @given(case=drawn)
    def run(case: object) -> None:
        check(case)

    run()


def _settings(examples: int, **more: int) -> settings:
    return settings(
        max_examples=examples,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        **more,
    )


_ONE = """<schema name="one">Root.<module name="a">Text of a <parameter name="p" length="6" placeholder="filler"/> goes on.
<module name="b">Text of b.</module></module><union name="u"><module name="c">The c.</module><module name="d">Some d.</module>
</union><module name="e">Same.</module></schema>"""
HISTORIES = [
    (_ONE, ['<prompt schema="one"><a p="ab"><b/></a><c/>Go</prompt>', '<prompt schema="one"><d/><e/>Go</prompt>']),
    (_ONE.replace("Text of b", "Next to b"), ['<prompt schema="one"><a><b/></a><e/>Go</prompt>']),
    (_ONE.replace("Root.", "Tree."), ['<prompt schema="one"><a/><c/><e/>Go</prompt>']),
    (_ONE.replace('name="c"', 'name="c" reserve="20"'), ['<prompt schema="one"><a/><c/><e/>Go</prompt>']),
]
"""One schema in four versions, with equal texts at other positions and in other contexts."""


pytestmark = pytest.mark.long

REDUCED = 1_000
DEFAULT = 2_000
CAUGHT = (AssertionError, LookupError, ValueError, RuntimeError, PromptCacheError, BaseExceptionGroup)
"""Errors of a broken law, or of the broken library on a valid case."""

NAMES = sorted({fault.law for fault in FAULTS})
IS_QUICK = os.environ.get("PROMPTCACHE_EXAMPLES", "default") in ("quick", "default")
IS_SLOW = os.environ.get("PROMPTCACHE_EXAMPLES") == "slow"
EXAMPLES = DEFAULT if IS_SLOW else REDUCED
QUICK = [fault for fault in FAULTS if fault.quick]
COMMON = [fault for fault in FAULTS if not (fault.quick or fault.rare)]
THOROUGH = [fault for law in NAMES for fault in [each for each in COMMON if each.law == law][::2]]
PLANTED = FAULTS if IS_SLOW else QUICK if IS_QUICK else THOROUGH


@pytest.fixture(autouse=True, scope="module")
def _models() -> None:
    make_models()


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patches:
        yield patches


@pytest.mark.law
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_planted_faults_are_caught(fault: PlantedFault, patch: pytest.MonkeyPatch) -> None:
    fault.plant(patch)

    with pytest.raises(CAUGHT):
        probe(fault.law, EXAMPLES)


@pytest.mark.law
@pytest.mark.parametrize("law", NAMES if IS_SLOW else ["schemas print", "generation is the reference"])
def test_laws_hold_where_nothing_is_planted(law: str) -> None:
    """The laws hold in the unchanged library; the probes use fewer examples than the tests of the laws."""
    probe(law, EXAMPLES // 2 if IS_SLOW else EXAMPLES // 100)


def test_there_are_enough() -> None:
    """At least forty faults are planted, each once, at least five of them in every run, and one for each law in CI."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert len(QUICK) >= 5
    assert {fault.law for fault in (*QUICK, *THOROUGH)} == {*NAMES}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_can_be_planted(fault: PlantedFault, patch: pytest.MonkeyPatch) -> None:
    """What each fault replaces exists in the library, also for faults that few runs plant."""
    fault.plant(patch)
