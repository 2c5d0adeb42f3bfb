"""The law of cached answers: linked KV gives the logits of the reference, one forward pass under an explicit mask."""

from __future__ import annotations

import torch

from promptcache.engine import Engine
from promptcache.testing.check import check_prompts
from promptcache.testing.subject import PromptCase, SchemaSource, Subject

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float16: 0.1}
"""The largest distance of logits that rounding explains, by the dtype of a model.

In float64 the smallest planted fault gives 1e-4 and rounding 1e-14. In float32 rounding grows with the largest
attention score, to 2^-22 for each unit of it: 8e-5 for the demo model (docs/architecture.md, "Laws").
"""


class WrongLogits(AssertionError):
    """The logits of a cached answer are not those of the reference."""


def check_cached(engine: Engine, source: SchemaSource | Subject, *, max_examples: int = 20) -> None:
    """Check that cached logits equal the reference's, for drawn prompts of a schema.

    Args:
        engine: Its schemas stay as they are.
        source: A path, XML text, or a schema.
        max_examples: The number of prompts to draw.

    Raises:
        WrongLogits: for the smallest prompt found, which is a note of the error.
    """
    subject = source if isinstance(source, Subject) else Subject(source, engine.tokenizer)
    other = Engine(engine.model, engine.tokenizer)
    other.add_schema(subject.schema)
    tolerance = TOLERANCES[other.model.shape.dtype]

    def check(case: PromptCase) -> None:
        far = distance(other.logits(case.xml), other.reference(case.xml))
        if not far < tolerance:
            raise WrongLogits(f"logits lie {far:.2g} from the reference, {tolerance:.2g} is rounding")

    check_prompts(subject, check, max_examples=max_examples)


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return max|a-b| / max|b|; infinite for NaN."""
    far = float((actual - expected).abs().max() / expected.abs().max())
    return far if far == far else float("inf")
