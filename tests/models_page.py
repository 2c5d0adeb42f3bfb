"""Writes docs/models.md from a run over every family: `python -m tests.models_page > docs/models.md`."""

from __future__ import annotations

import sys

import torch
import transformers

from promptcache.diagnostics import UnsupportedModel
from promptcache.runtime.generate import request_logits
from promptcache.runtime.hf.model import Model
from promptcache.runtime.reference import reference_logits
from tests.families import FAMILIES, REFUSED, random_model
from tests.runtime.test_families import PROMPT, distance, linked, model_of, plan_for

HEAD = """# Models

Any causal language model of transformers whose layers keep plain keys and values, with full or sliding-window attention. A self-test
when the model is loaded compares linked KV with the model's own computation and chooses the way of linking; a model that passes
neither is refused by name.

The table is made by `python -m tests.models_page > docs/models.md` (torch {torch}, transformers {transformers}): a random tiny model of
each family, weights scaled up, and a prompt with an argument in the middle, a union, a gap, an uncached module and a scaffold.
*Distance* is max|a-b| / max|b| between cached logits and the reference, which is one forward pass without cache under an explicit mask.
The law is 1e-5 in float32.

| family | linking | distance, float32 | distance, float64 |
|---|---|---|---|
"""

TAIL = """
- *segmented*: stored KV is read in place; nothing is copied. *concatenated*: the model is outside transformers' attention interface,
  and KV is copied into a plain cache for each request.
- *pinned*: RoPE frequencies that depend on the length of the input are fixed at those for the engine's context length
  (`context_length=`, by default what the model declares); otherwise a module's KV would depend on its neighbours.
- Gemma 2's own attention computes its softmax in float32 even in a float64 model: that is the distance in its last column.
- Sliding windows count positions, not cache slots: a module that is left out leaves a gap that counts.

Refused, with the reason:

"""


def main() -> None:
    """Print the page."""
    sys.stdout.write(HEAD.format(torch=torch.__version__, transformers=transformers.__version__))
    plan = plan_for(PROMPT)
    for family in FAMILIES:
        distances = []
        for dtype in (torch.float32, torch.float64):
            model = model_of(family, dtype)
            far = distance(request_logits(model, linked(plan, model)), reference_logits(plan.tokens, model))
            distances.append(f"{far:.1e}")
        linking = model_of(family, torch.float32).linking
        sys.stdout.write(f"| {family.removesuffix(' (concatenated)')} | {linking} | {' | '.join(distances)} |\n")
    sys.stdout.write(TAIL)
    for family in REFUSED:
        try:
            Model(random_model(family))
        except UnsupportedModel as refusal:
            sys.stdout.write(f"- {family}: `{refusal}`\n")


if __name__ == "__main__":
    main()
