"""Writes docs/models.md from the list of tested families and a survey of all other types of transformers.

`python -m tests.models_page > docs/models.md`; a minute or two.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import transformers

from tests.families import FAMILIES
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
The survey below does: it compares tiny models with windows of 12 tokens in float32. So of a type without a survey (code of its own, a newer
transformers, or the last list of this page), compare answers to long prompts with those of transformers first.

## Tested types

`python -m tests.models_page > docs/models.md` writes this page (torch {torch}, transformers {transformers}). Each family is tested as a tiny random
model with scaled-up weights, and a prompt with an argument in the middle, a union, a gap, an uncached module and a scaffold. Cached logits equal the reference,
which is one forward pass without cache under an explicit mask, within 1e-5 in float32 (max|a-b| / max|b|):

"""

TAIL = """
- *pinned*: RoPE frequencies that depend on the length of the input are fixed at those for the engine's context length
  (`context_length=`, by default what the model declares). Otherwise a module's KV would depend on its neighbours.
- An engine sets `return_dict` of the model's configuration to True: in transformers 5.23, most models fail without it.
- Sliding windows count positions, not cache slots. With fixed positions the gap of an absent module counts.
- Real weights: SmolLM2-135M-Instruct, a Llama of 135 M parameters, has distances of 1.6e-06 to 2.5e-06 in float32, and of 1.8e-02 to 2.8e-02 in
  bfloat16, on two prompts with `repair` slots, first-4 and all. `make test-real` makes its folder and checks the law. What reuse costs in
  quality on it is in [Fidelity](fidelity.md#measurements).

## Accepted by the self-test

Types of transformers {transformers} that are not in the list above. As tiny random models (`tests/models_survey.py`), their cached logits equal the reference
and the plain forward of an untouched copy within 1e-5 in float32:

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
    """Print the page; a type that is accepted and wrong ends it."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    by_outcome: dict[Outcome, list[Finding]] = {outcome: [] for outcome in Outcome}
    for finding in map(survey, TYPES):
        by_outcome[finding.outcome].append(finding)
    assert not by_outcome[Outcome.WRONG], by_outcome[Outcome.WRONG]
    sys.stdout.write(HEAD.format(**versions) + "; ".join(FAMILIES) + ".\n")
    sys.stdout.write(TAIL.format(**versions) + ", ".join(_names(by_outcome[Outcome.RIGHT])) + ".\n")
    sys.stdout.write(REFUSALS)
    for finding in by_outcome[Outcome.REFUSED]:
        reason = finding.reason.partition(")")[2].lstrip(": ")
        sys.stdout.write(f"| {finding.model_type} | {reason} |\n")
    sys.stdout.write(OTHERS.format(names=", ".join(_names(by_outcome[Outcome.NOT_BUILT]))))


def _names(findings: Sequence[Finding]) -> list[str]:
    return [finding.model_type for finding in findings]


if __name__ == "__main__":
    main()
