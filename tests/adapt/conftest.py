"""Tiny models over bytes with short trainings."""

from __future__ import annotations

import pytest
import torch

from promptcache import Engine
from promptcache.adapt import AdaptSettings
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = """<schema name="club" sees="stand-ins"><system>Facts.
<module name="ann">Ann likes tea and toast.</module>
<module name="bob">Bob likes milk and rice.</module><module name="cat">The cat likes <parameter name="what" length="8"
default="fish"/>.</module></system><example><prompt schema="club"><ann/><bob/><user>Who likes milk?</user></prompt>
</example></schema>"""

NOTES = """<schema name="kb"><collection name="notes" min="2" max="3"><module name="ann">Ann likes tea and toast.</module>
<module name="bob">Bob likes milk and rice.</module><module name="cat">The cat likes fish.</module>
<module name="dan">Dan likes tea, too.</module></collection></schema>"""
"""Only a collection is modular."""


def new_engine() -> Engine:
    """A tiny model with random weights over bytes, in float32."""
    return Engine(tiny_model(torch.float32), ByteTokenizer())


def short(steps: int, **changes: object) -> AdaptSettings:
    """Settings of a short training that writes a checkpoint after each step."""
    chosen = {"steps": steps, "num_held_out": 3, "max_new_tokens": 4, "rank": 4, "checkpoint_s": 0.0, **changes}
    return AdaptSettings(**chosen)  # type: ignore[arg-type] # their types are those of the tests


@pytest.fixture
def engine() -> Engine:
    """An engine of its own for each test."""
    return new_engine()
