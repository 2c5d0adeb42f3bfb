"""Property testing for schemas and prompts: strategies, coverings, smallest failing prompts and small stand-ins.

    from hypothesis import given
    from promptcache.testing import prompts

    @given(prompts("schemas/support.xml"))
    def test_answer_never_exceeds_the_window(case):
        assert case.plan.stop <= 2048

Names are loaded when they are first used. Most need `promptcache[testing]`. `byte_tokenizer` and `tiny_model` also work
without Hypothesis. Only `tiny_model` and `check_cached` load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from promptcache.lazy import lazy_names

if TYPE_CHECKING:
    from promptcache.testing.byte_tokenizer import ByteTokenizer
    from promptcache.testing.cached import check_cached
    from promptcache.testing.cases import arguments, pairs, prompts, selections
    from promptcache.testing.check import check_prompts
    from promptcache.testing.cover import all_prompts, covering
    from promptcache.testing.subject import PromptCase, Subject

_HOMES = {
    "ByteTokenizer": "promptcache.testing.byte_tokenizer",
    "PromptCase": "promptcache.testing.subject",
    "Subject": "promptcache.testing.subject",
    "all_prompts": "promptcache.testing.cover",
    "arguments": "promptcache.testing.cases",
    "check_cached": "promptcache.testing.cached",
    "check_prompts": "promptcache.testing.check",
    "covering": "promptcache.testing.cover",
    "pairs": "promptcache.testing.cases",
    "prompts": "promptcache.testing.cases",
    "selections": "promptcache.testing.cases",
}

__all__ = [
    "ByteTokenizer",
    "PromptCase",
    "Subject",
    "all_prompts",
    "arguments",
    "check_cached",
    "check_prompts",
    "covering",
    "pairs",
    "prompts",
    "selections",
]


_load, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        fix = f"promptcache.testing.{name} needs Hypothesis: pip install 'promptcache[testing]'"
        raise ModuleNotFoundError(fix, name=error.name) from error
