"""Automatic promotion: an answer is the modular or the exact one, says which, and no request waits for a promotion."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import law_examples
from tests.engine.promoting import PromotingEngine


@pytest.mark.law
def test_promotions_change_no_answer_but_from_modular_to_exact() -> None:
    """Whatever is asked, promoted, interrupted, evicted, replaced and changed, answers are right."""
    run_state_machine_as_test(
        PromotingEngine, settings=settings(max_examples=law_examples(0.2), stateful_step_count=20)
    )
