"""`check_cached` passes for a model that links exactly, and reports the smallest prompt where it does not."""

from __future__ import annotations

import pytest

from promptcache import Engine
from promptcache.testing import ByteTokenizer, check_cached
from promptcache.testing.cached import WrongLogits
from promptcache.testing.tiny_model import tiny_model
from tests.planted import runtime_faults  # noqa: F401 # registered where they are defined
from tests.planted.registry import FAULTS

pytestmark = pytest.mark.law

SCHEMA = """<schema name="s">Root.<module name="a">Text of a <parameter name="p" length="6"/>.</module>
<union><module name="b">The b.</module><module name="c">Some c.</module></union></schema>"""


def test_cached_logits_are_the_references() -> None:
    """Drawn prompts pass, and the schemas of the engine stay as they are."""
    engine = Engine(tiny_model(), ByteTokenizer())

    check_cached(engine, SCHEMA, max_examples=5)

    assert engine.schemas == {}


def test_a_fault_is_reported_with_the_smallest_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fault planted into the engine, the note of the error is the smallest prompt."""
    engine = Engine(tiny_model(), ByteTokenizer())
    (fault,) = (each for each in FAULTS if each.name == "new tokens stand one position late")
    fault.plant(monkeypatch)

    with pytest.raises(WrongLogits, match=r"from the reference, 1e-10 is rounding") as caught:
        check_cached(engine, SCHEMA, max_examples=5)

    assert caught.value.__notes__[0].startswith('prompt: <prompt schema="s"/>\n')
