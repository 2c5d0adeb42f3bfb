"""A text for which the model computes infinities or NaN ends its own request, and changes no other answer."""

from typing import Any

import pytest
import torch

from promptcache.diagnostics import NotFinite
from promptcache.engine import Engine
from promptcache.loops import PrefixCache
from promptcache.model import Model
from tests.engine import asking
from tests.engine.asking import answered
from tests.families import random_model

SCHEMA = """<schema name="t"><module name="a">The house.</module>
<module name="b" requires="a">The Angel.</module><module name="c">Of the sea.</module></schema>"""
GOOD = '<prompt schema="t"><a/> hi</prompt>'
BAD = '<prompt schema="t"><a/> hA</prompt>'  # shares " h" with the other one
BAD_MODULE = '<prompt schema="t"><a/><b/> hi</prompt>'
OPTIONS: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4, "eos_token_id": []}


def engine_of(value: float, family: str = "llama", dtype: torch.dtype = torch.float64) -> Engine:
    model = random_model(family, dtype)
    with torch.no_grad():
        model.get_input_embeddings().weight[ord("A")] = value
    return asking.engine_of(Model(model), schema=SCHEMA)


@pytest.mark.parametrize("way", ["generate", "batch", "service"])
@pytest.mark.parametrize("bad", [BAD, BAD_MODULE])
@pytest.mark.parametrize(("family", "value"), [("llama", float("nan")), ("mistral", float("inf"))])
def test_a_request_that_is_not_finite_changes_no_other(family: str, value: float, bad: str, way: str) -> None:
    """The request ends with `NotFinite`. What it shares with others, history or modules of one pass, is as before."""
    expected = answered(engine_of(value, family), GOOD, **OPTIONS).token_ids
    engine = engine_of(value, family)

    for _ in range(2):
        with pytest.raises(NotFinite, match="infinities or NaN: check its weights"):
            answered(engine, bad, way, **OPTIONS)
        assert answered(engine, GOOD, way, **OPTIONS).token_ids == expected


def test_only_the_module_that_is_not_finite_is_left_out() -> None:
    """Modules that are encoded in one pass with it are kept, and `warm` names its positions."""
    engine, alone = (engine_of(float("nan")) for _ in range(2))
    prompt = '<prompt schema="t"><a/><c/> hi</prompt>'
    with pytest.raises(NotFinite, match="at positions 11 to 21"):
        engine.warm()

    assert engine.generate(prompt, **OPTIONS).token_ids == alone.generate(prompt, **OPTIONS).token_ids
    held = [engine.store.get(key).kv for key in engine.keys("t")]
    found = [run for run in held if run is not None]
    assert all(run.keys.isfinite().all() and run.values.isfinite().all() for run in found)
    assert len(found) == len(held) - 2  # neither b, nor c alone, which no request uses


def test_a_model_that_overflows_in_float16_says_so() -> None:
    """The error names other dtypes. With `remove_invalid_values` of transformers, the request is answered."""
    engine = engine_of(float("inf"), dtype=torch.float16)

    with pytest.raises(NotFinite, match="load it in bfloat16 or float32, with dtype="):
        engine.generate(BAD, **OPTIONS)
    assert len(engine.generate(BAD, remove_invalid_values=True, **OPTIONS).token_ids) == 4


def test_a_prefix_cache_keeps_no_kv_that_is_not_finite() -> None:
    """Rows that share a beginning with a row that is not finite are as from a fresh cache."""
    engine = engine_of(float("nan"))
    bad, good = (torch.tensor([[*text.encode()]]) for text in ("The house of A", "The house of B"))

    def logits(cache: PrefixCache, ids: torch.Tensor) -> torch.Tensor:
        hit = cache.get(ids)
        with torch.no_grad():
            out = engine.model.hf(**hit.inputs)
        cache.update(hit, out)
        return hit.last_logits(out)[0]

    expected = logits(PrefixCache(engine), good)
    cache = PrefixCache(engine)

    assert logits(cache, bad).isnan().all()
    assert torch.allclose(logits(cache, good), expected, rtol=0, atol=1e-10)
