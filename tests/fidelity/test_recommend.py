"""The rule of the recommendation, on made-up figures, and intervals by the bootstrap."""

from random import Random

import pytest

from promptcache.fidelity import AS_IT_IS, PROMOTED, Fidelity, Interval, Setting, SettingFidelity, clustered_interval


def figures(name: str, divergence: float, ttft: float, spread: float = 0.0) -> SettingFidelity:
    """A setting with a mean divergence in nats, half the width of its interval, and its TTFT."""
    known = {each.name: each for each in (AS_IT_IS, PROMOTED)}
    return SettingFidelity(
        setting=known.get(name) or Setting.named(name),
        repair=name.partition("=")[2] if name.startswith("repair") else "slots",
        divergence=Interval(value=divergence, low=divergence - spread, high=divergence + spread),
        agreement=1.0,
        same_answer=1.0,
        exact=0.0,
        ttft_s=ttft,
        relative_ttft=ttft,
        nbytes=1,
    )


AS_IS = figures("as it is", 0.050, 0.30)
FIRST = figures("repair=first-8", 0.010, 0.40)
ALL = figures("repair=all", 0.0, 0.9)
BOUND = figures("promoted", 0.0, 0.30)


@pytest.mark.parametrize(
    ("settings", "limit", "expected"),
    [
        ((AS_IS, FIRST, ALL, BOUND), 0.1, "as it is"),  # the fastest of all
        ((AS_IS, FIRST, ALL, BOUND), 0.02, "repair=first-8"),
        ((AS_IS, FIRST, ALL, BOUND), 0.001, "repair=all"),
        ((AS_IS, FIRST, BOUND), 0.001, None),  # a promotion is no attribute
        ((AS_IS, FIRST, ALL), None, "repair=first-8"),  # the nearest of those that take at most half longer
        ((AS_IS, figures("repair=first-8", 0.010, 0.46)), None, "as it is"),  # takes longer
        ((AS_IS, FIRST, figures("repair=all", 0.0, 0.44)), None, "repair=all"),  # where little is cached
        ((AS_IS, figures("repair=first-8", 0.045, 0.40, 0.01), ALL), None, "as it is"),  # within its interval
        (
            (AS_IS, figures("context=guaranteed", 0.010, 0.31)),
            0.1,
            "context=guaranteed",
        ),  # TTFTs are equal, and it is nearer
        ((AS_IS, figures("context=guaranteed", 0.045, 0.31, 0.01)), 0.1, "as it is"),  # no change for noise
        ((figures("as it is", 3e-6, 0.3), figures("repair=first-8", 1e-6, 0.5)), None, "as it is"),  # nor for rounding
    ],
)
def test_the_fastest_setting_that_is_near_enough(
    settings: tuple[SettingFidelity, ...], limit: float | None, expected: str | None
) -> None:
    """Each rule of `recommend` has a case that only this rule decides."""
    measured = Fidelity(schema="s", prompts=(), settings=settings, refused=(), plain_ttft_s=1.0)

    chosen = measured.recommend(limit)

    assert (chosen and chosen.name) == expected


@pytest.mark.long
def test_bootstrap_covers_the_mean_as_often_as_it_says() -> None:
    """Of 200 intervals around means of exponential draws, about 95 % hold the true mean."""
    rng = Random(2)
    intervals = [clustered_interval([[rng.expovariate(1.0)] for _ in range(100)], seed) for seed in range(200)]

    assert 0.88 < sum(low <= 1.0 <= high for _, low, high in intervals) / 200 <= 0.99


@pytest.mark.long
def test_questions_about_one_document_count_together() -> None:
    """If all questions about a document have one outcome, three of them tell no more than one."""
    rng = Random(3)
    alone = [[float(rng.random() < 0.6)] for _ in range(60)]
    repeated = [each * 3 for each in alone]

    assert clustered_interval(repeated) == pytest.approx(clustered_interval(alone))
    wrong = clustered_interval([[each] for document in repeated for each in document])
    assert wrong[2] - wrong[1] < 0.7 * (clustered_interval(alone)[2] - clustered_interval(alone)[1])
