"""Every causal language model of transformers is right or refused by name."""

import pytest

from tests.models_survey import SAMPLE, TYPES, Finding, Outcome, survey

MIN_TYPES = 100


@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_type_is_right_or_refused(model_type: str) -> None:
    """One type of each kind: cached logits are the reference and the model's own, or the type is refused by name."""
    check(survey(model_type))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of transformers' own code for rare models
def test_every_type_is_right_or_refused() -> None:
    """Every type with a tiny model is right or refused by name, in the installed transformers."""
    findings = [survey(model_type) for model_type in TYPES]

    for finding in findings:
        check(finding, may_fail_to_build=True)
    assert sum(finding.outcome is not Outcome.NOT_BUILT for finding in findings) >= MIN_TYPES


def check(finding: Finding, *, may_fail_to_build: bool = False) -> None:
    """No type is wrong and accepted; a refusal names the type."""
    assert finding.outcome is not Outcome.WRONG, finding
    assert may_fail_to_build or finding.outcome is not Outcome.NOT_BUILT, finding
    if finding.outcome is Outcome.REFUSED:
        assert finding.model_type in finding.reason
