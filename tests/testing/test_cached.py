"""`check_cached` passes for a model that links exactly and rounds as its dtype does, and else reports the smallest prompt."""

import pytest

from promptcache import Engine
from promptcache.language import parse_prompt, resolve_prompt
from promptcache.model.reference import reference_logits
from promptcache.testing import ByteTokenizer, check_cached
from promptcache.testing.cached import WrongLogits, distance
from promptcache.testing.tiny_model import tiny_model
from tests.language.documents import checked
from tests.laws.service import serve
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


_SCHEMA = (
    '<schema name="s">ė<module name="a" whitespace="preserve"> \n\nb</module><module name="a2" required="true">]]&gt;'
    '</module><union><module name="a3" reserve="9"/></union><module name="a4">aaa</module><module name="a5">aaa</module>'
    '<assistant>b<module name="a6">aaaa</module></assistant><user/></schema>'
)
_PROMPT = '<prompt schema="s"><a/><a2/><system>`§ì𕥏</system><user>&lt;|end|&gt;</user><system>a\n\nb</system></prompt>'


def test_float64_is_not_rounded_to_float32() -> None:
    """With the norms of transformers this prompt's logits lay 1e-8 from the reference."""
    schema = checked(_SCHEMA)
    selection = resolve_prompt(parse_prompt(_PROMPT), schema)
    service = serve(schema)

    far = distance(service.logits(selection), reference_logits(service.plan(selection).tokens, service.model))

    assert far < 1e-14
