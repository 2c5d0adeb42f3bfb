"""The tiny model rounds as its dtype does, so that laws tell rounding from faults."""

from __future__ import annotations

import pytest

from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.model.reference import reference_logits
from promptcache.testing.cached import distance
from tests.laws.service import serve

pytestmark = pytest.mark.law

_SCHEMA = (
    '<schema name="s">ė<module name="a" whitespace="preserve"> \n\nb</module><module name="a2" required="true">]]&gt;'
    '</module><union><module name="a3" reserve="9"/></union><module name="a4">aaa</module><module name="a5">aaa</module>'
    '<assistant>b<module name="a6">aaaa</module></assistant><user/></schema>'
)
_PROMPT = '<prompt schema="s"><a/><a2/><system>`§ì𕥏</system><user>&lt;|end|&gt;</user><system>a\n\nb</system></prompt>'


def test_float64_is_not_rounded_to_float32() -> None:
    """With the norms of transformers this prompt's logits lay 1e-8 from the reference."""
    schema = check_schema(parse_schema(_SCHEMA))
    selection = resolve_prompt(parse_prompt(_PROMPT), schema)
    service = serve(schema)

    far = distance(service.logits(selection), reference_logits(service.plan(selection).tokens, service.model))

    assert far < 1e-14
