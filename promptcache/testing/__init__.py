"""Property testing for schemas and prompts: strategies, laws, coverings, failing stores and small stand-ins.

    from hypothesis import given
    from promptcache.testing import prompts

    @given(prompts("schemas/support.xml"))
    def test_answer_never_exceeds_the_window(case):
        assert case.plan.stop <= 2048

Names are loaded when they are first used. Strategies and laws need `promptcache[testing]`. `byte_tokenizer` and
`tiny_model` also work without Hypothesis. Only `tiny_model`, `service`, `engine_laws`, `histories` and `faults` load
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptcache.testing.byte_tokenizer import ByteTokenizer
    from promptcache.testing.cases import arguments, pairs, prompts, selections
    from promptcache.testing.cover import all_prompts, covering
    from promptcache.testing.subject import PromptCase, Subject

_HOMES = {
    "ByteTokenizer": "promptcache.testing.byte_tokenizer",
    "PromptCase": "promptcache.testing.subject",
    "Subject": "promptcache.testing.subject",
    "all_prompts": "promptcache.testing.cover",
    "arguments": "promptcache.testing.cases",
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
    "covering",
    "pairs",
    "prompts",
    "selections",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'promptcache.testing' has no attribute '{name}'")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        fix = f"promptcache.testing.{name} needs Hypothesis: pip install 'promptcache[testing]'"
        raise ModuleNotFoundError(fix, name=error.name) from error


def __dir__() -> list[str]:
    return list(__all__)
