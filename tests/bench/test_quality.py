"""The quality benchmark compares like with like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch

from promptcache.bench.quality import QualitySettings, compare_quality
from promptcache.bench.quality_answers import Chunk, Outcome, distance, plain_answers, plain_token_ids
from promptcache.bench.quality_documents import CACHED, SETS, Way
from promptcache.demo.questions import draw_cases
from promptcache.engine import Engine

pytestmark = pytest.mark.long

NUM_CASES = 3


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The demo model."""
    return Engine.from_pretrained("demo")


def chunk(
    engine: Engine, name: str, *, num_cases: int = NUM_CASES, seed: int = 0, chosen: Sequence[Way] = CACHED
) -> Chunk:
    return Chunk(
        engine=engine,
        cases=[*draw_cases(SETS[name].questions, seed, num_cases)],
        arguments=SETS[name].arguments,
        instruction="Answer from the facts below.",
        max_new_tokens=40,
        chosen=chosen,
    )


def outcomes(engine: Engine, name: str) -> list[Mapping[Way, Outcome]]:
    return [*chunk(engine, name).outcomes()]


@pytest.mark.parametrize("name", ["facts", "near", "unseen"])
def test_a_scaffold_over_all_is_plain_prefill(engine: Engine, name: str) -> None:
    """If all modules are present, a scaffold over all of them equals plain prefill, up to rounding."""
    for each in outcomes(engine, name):
        assert each[Way.SCAFFOLD].level == "exact"
        assert each[Way.SCAFFOLD].distances[Way.PLAIN].divergence < 1e-6
        assert each[Way.SCAFFOLD].distances[Way.PLAIN].agreement == 1.0
        assert each[Way.SCAFFOLD].right == each[Way.PLAIN].right


def test_modules_that_have_not_seen_each_other_differ(engine: Engine) -> None:
    """The comparison reports a difference if there is one."""
    for each in outcomes(engine, "facts"):
        assert each[Way.GUARANTEED].level == "modular"
        assert each[Way.GUARANTEED].distances[Way.PLAIN].divergence > 1e-6


def test_quantized_kv_is_compared_with_what_it_came_from(engine: Engine) -> None:
    """Quantized KV is compared with plain prefill and with unquantized KV; more bits are nearer to the latter."""
    for each in chunk(engine, "facts", chosen=[Way.INT8, Way.INT4]).outcomes():
        assert list(each) == [Way.PLAIN, Way.GUARANTEED, Way.INT8, Way.INT4]
        near, far = (each[way].distances for way in (Way.INT8, Way.INT4))
        assert set(near) == set(far) == {Way.PLAIN, Way.GUARANTEED}
        assert near[Way.GUARANTEED].divergence < far[Way.GUARANTEED].divergence
        assert near[Way.GUARANTEED].divergence < near[Way.PLAIN].divergence


def test_distances_count_places() -> None:
    """Agreement is the share of places whose likeliest token is the same, divergence the mean over all of them."""
    there = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]).log()
    here = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]).log()

    found = distance(here, there)

    assert (found.num_agreeing, found.num_places, found.agreement) == (1, 2, 0.5)
    assert found.divergence == pytest.approx((0.5 - 0.25) * math.log(2) / 2)


@pytest.mark.parametrize("name", SETS)
def test_every_way_shows_the_same_text(engine: Engine, name: str) -> None:
    """All ways of serving a document give the model the same text, for any arguments and any modules left out."""
    served = chunk(engine, name, num_cases=6, chosen=[*Way])
    served.add_schemas()

    for index in range(6):
        texts = {engine.tokenizer.detokenize(plain_token_ids(engine, served.prompts(way)[index])) for way in Way}
        assert len(texts) == 1


def test_plain_answers_do_not_depend_on_their_company(engine: Engine) -> None:
    """Plain prompts answered together, padded, give what each gives alone."""
    served = chunk(engine, "facts")
    served.add_schemas()
    prompts = served.prompts(Way.PLAIN)

    assert plain_answers(engine, prompts, 40) == [plain_answers(engine, [prompt], 40)[0] for prompt in prompts]


def test_chunks_replace_each_other() -> None:
    """However many questions are asked, the store holds about as many encodings as for one chunk."""
    engine = Engine.from_pretrained("demo")
    held = []
    for seed in range(3):
        served = chunk(engine, "facts", seed=seed)
        list(served.outcomes())
        held.append(len([*engine.store.keys()]))

    assert max(held) < 1.5 * held[0]


def test_report_counts_each_question_in_every_way(engine: Engine) -> None:
    """Each set has a row for each way that is needed, over the same number of questions, and progress reaches the
    count; the table has a line for each comparison."""
    told: list[tuple[str, int, int | None]] = []
    settings = QualitySettings(
        sets=["facts", "arguments"], count=2, seed=5, ways=[Way.OWN, Way.INT8], max_new_tokens=12, repeats=1
    )
    report = compare_quality(engine, settings, lambda *each: told.append(each))

    ways = [Way.PLAIN, Way.GUARANTEED, Way.OWN, Way.INT8]
    beside = [set(), {"plain"}, {"plain"}, {"plain", "guaranteed"}]
    assert [(row["set"], row["way"]) for row in report.rows] == [(s, way) for s in settings.sets for way in ways]
    assert [set(row["beside"]) for row in report.rows] == beside * 2
    assert {row["asked"] for row in report.rows} == {2}
    assert [each for each in told if "TTFT" not in each[0]] == [
        (name, done, 2) for name in ("facts", "arguments") for done in (0, 2)
    ]
    assert all(len(cells) == len(report.columns) for cells in report.cells)
    assert [cells[3] for cells in report.cells] == ["", "plain", "plain", "plain", "guaranteed"] * 2
