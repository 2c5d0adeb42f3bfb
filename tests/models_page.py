"""Writes docs/models.md from a run over every family and a survey of all other types of transformers.

`python -m tests.models_page > docs/models.md`; a minute or two.
"""

from __future__ import annotations

import sys

import torch
import transformers

from promptcache.diagnostics import UnsupportedModel
from promptcache.model.model import Model
from promptcache.model.reference import reference_logits
from tests.families import FAMILIES, REFUSED, random_model
from tests.model.test_families import PROMPT, cached_logits, distance, model_of, plan_for
from tests.models_survey import TYPES, Finding, Outcome, survey

HEAD = """# Models

The library supports causal language models of transformers whose layers call transformers' attention interface, and store plain keys and values, with full
or sliding-window attention. When a model is loaded, a self-test compares linked KV with the model's own computation. A model that does not pass is refused
by name. There are three groups:

1. **Tested** types: every test about models runs on them.
2. **Accepted by the self-test**: all other types, if they pass it.
3. **Refused**, with the reason.

## The self-test

It runs the model itself over texts of up to 72 tokens, which takes SmolLM2-135M one second of a core. These must agree (|a-b| / |b|) within 1e-3 in float32, 0.15 in bfloat16 and 0.05 in
float16; wrong positions give 0.3 and more:

| compared | a difference means |
|---|---|
| linked KV, and the reference, with a gap beyond the window, a filler and an argument | KV cannot be linked |
| the model's plain forward over 48 tokens, and one under an explicit mask with unseen tokens in between | its positions do not start at 0 (RoBERTa: at `pad_token_id + 1`), its attention is not causal (BERT with `is_decoder=False`), or it counts cache slots |

The self-test does not see what begins beyond its texts, such as a window that the configuration does not call `sliding_window`, nor what half precision hides.
The survey below does: it compares tiny models with windows of 12 tokens in float32. So of a type that this page does not list (code of its own, or
a newer transformers), compare answers to long prompts with those of transformers first.

## Tested types

`python -m tests.models_page > docs/models.md` writes this page (torch {torch}, transformers {transformers}). Each row is a tiny random model of
the family with scaled-up weights, and a prompt with an argument in the middle, a union, a gap, an uncached module and a scaffold.
*Distance* is max|a-b| / max|b| between cached logits and the reference, which is one forward pass without cache under an explicit mask.
The law is 1e-5 in float32.

| family | distance, float32 | distance, float64 |
|---|---|---|
"""

TAIL = """
- *pinned*: RoPE frequencies that depend on the length of the input are fixed at those for the engine's context length
  (`context_length=`, by default what the model declares). Otherwise a module's KV would depend on its neighbours.
- An engine sets `return_dict` of the model's configuration to True: in transformers 5.23, most models fail without it.
- The attention of Gemma 2 computes its softmax in float32 even in a float64 model. This is the distance in its last column.
- Sliding windows count positions, not cache slots. With fixed positions the gap of an absent module counts.
- Real weights: SmolLM2-135M-Instruct, a Llama of 135 M parameters, has distances of 1.6e-06 to 2.5e-06 in float32, and of 1.8e-02 to 2.8e-02 in
  bfloat16, on two prompts with `repair` slots, first-4 and all. `make test-real` makes its folder and checks the law. What reuse costs in
  quality on it is in [Fidelity](fidelity.md#measurements).

Refused by the tests, with the reason:

"""

SURVEY = """
## Accepted by the self-test

Types of transformers {transformers} that are not in the list above, each as a tiny random model (`tests/models_survey.py`). *Reference* is
the distance between cached logits and the reference, with a gap, fillers and arguments. *Own* is the distance to the plain forward of
an untouched copy of the model. Both are in float32, where the law is 1e-5.

| type | reference | own |
|---|---|---|
"""

REFUSALS = """
## Refused types

| type | reason |
|---|---|
"""

OTHERS = """
The survey makes no tiny model of these types, because their configuration needs more than smaller sizes. The self-test decides when one
is loaded: {names}.
"""


def main() -> None:
    """Print the page."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    sys.stdout.write(HEAD.format(**versions))
    for family in FAMILIES:
        plan = plan_for(PROMPT, family=family)
        distances = []
        for dtype in (torch.float32, torch.float64):
            model = model_of(family, dtype)
            far = distance(cached_logits(plan, model), reference_logits(plan.tokens, model))
            distances.append(f"{far:.1e}")
        sys.stdout.write(f"| {family} | {' | '.join(distances)} |\n")
    sys.stdout.write(TAIL)
    for family in REFUSED:
        try:
            Model(random_model(family))
        except UnsupportedModel as refusal:
            sys.stdout.write(f"- {family}: `{refusal}`\n")
    write_survey()


def write_survey() -> None:
    """Print what the survey of all other types finds."""
    by_outcome: dict[Outcome, list[Finding]] = {outcome: [] for outcome in Outcome}
    for finding in map(survey, TYPES):
        by_outcome[finding.outcome].append(finding)
    assert not by_outcome[Outcome.WRONG], by_outcome[Outcome.WRONG]
    sys.stdout.write(SURVEY.format(transformers=transformers.__version__))
    for finding in by_outcome[Outcome.RIGHT]:
        distances = f"{finding.reference:.1e} | {finding.own:.1e}"
        sys.stdout.write(f"| {finding.model_type} | {distances} |\n")
    sys.stdout.write(REFUSALS)
    for finding in by_outcome[Outcome.REFUSED]:
        reason = finding.reason.partition(")")[2].lstrip(": ")
        sys.stdout.write(f"| {finding.model_type} | {reason} |\n")
    names = ", ".join(finding.model_type for finding in by_outcome[Outcome.NOT_BUILT])
    sys.stdout.write(OTHERS.format(names=names))


if __name__ == "__main__":
    main()
