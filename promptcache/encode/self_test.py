"""The self-test at load: does linking reproduce the computation of this model?

It compares linked KV with one forward pass under an explicit mask, on a tiny schema with an argument, a gap, and a
distance beyond the window. It also compares such a pass with the model's plain forward, whose positions and mask are
its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from promptcache.diagnostics import UnsupportedModel, first_line
from promptcache.encode.executor import Executor
from promptcache.encode.prepare import linked_logits
from promptcache.kv import Store
from promptcache.language import Placement, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Plan, lay_out, make_plan, run_variants
from promptcache.model import (
    EIGHT_BITS,
    MODEL_FAULTS,
    NO_INTERFACE,
    Model,
    is_quantized,
    reference_logits,
    token_tensor,
)
from promptcache.rows import note_attention
from promptcache.tokenizer import Tokenizer

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Maximum distance of logits from the reference, |a-b| / |b| in the Euclidean norm; wrong positions give 0.3 and
more.
"""

_NUM_TOKENS = 48  # of the plain forward
_SPARE_TOKENS = 64  # for the linked prompt without its gap

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SCHEMA = """<schema name="self-test">abc
<module name="middle">defg<parameter name="word" length="5" placeholder="defg"/>hij</module>
<module name="gap" reserve="{gap}">k</module><module name="far">lmnodefg</module></schema>"""
_PROMPT = '<prompt schema="self-test"><middle word="pqr"/><far/>stuvwxyz</prompt>'


class _LetterTokenizer(Tokenizer):
    """A random token for each letter."""

    fingerprint = "self-test"

    def __init__(self, plain_ids: Sequence[int]) -> None:
        self._ids = random.Random(7).choices(plain_ids, k=len(_LETTERS) + 1)

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self._ids[_LETTERS.find(letter)] for letter in text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join((_LETTERS + "\n")[self._ids.index(token_id)] for token_id in token_ids)


def check_linking(model: Model) -> None:
    """Check that linked KV reproduces the reference, and the reference the model's plain forward.

    Raises:
        UnsupportedModel: It does not; names the model and the distance.
    """
    tolerance = TOLERANCE.get(model.shape.dtype, 1e-3)
    if reason := _try_linking(model, tolerance) or _try_plain_forward(model, tolerance):
        raise UnsupportedModel(f"{model.facts.name}: {reason}")


@torch.no_grad()
def _try_plain_forward(model: Model, tolerance: float) -> str:
    """Return why the plain forward is not causal attention at the positions 0, 1, 2, …; "" if it is."""
    num_tokens = min(_NUM_TOKENS, model.context_length)
    token_ids = token_tensor(random.Random(11).choices(_plain_ids(model), k=num_tokens), model.device)
    try:
        with model.without_autocast():
            plain = model.hf(input_ids=token_ids, use_cache=False).logits[0]
        masked = _logits_among_decoys(model, token_ids[0])
    except MODEL_FAULTS as error:
        return f"its own forward pass fails: {first_line(error)}"
    if (far := _distance(masked, plain)) <= tolerance:
        return ""
    return (
        "its positions are not 0, 1, 2, …, its attention is not causal, or it counts cache slots instead of positions "
        f"(logits differ by {far:.2g})"
    )


def _logits_among_decoys(model: Model, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of causal attention over tokens `[T]`, with masked decoy tokens between them."""
    num_tokens = len(token_ids)
    total = num_tokens + num_tokens // 2
    slots = torch.tensor(sorted(random.Random(17).sample(range(total), num_tokens)), device=model.device)
    is_real = torch.zeros(total, dtype=torch.bool, device=model.device)
    is_real[slots] = True
    positions = (is_real.cumsum(0) - is_real.long()).clamp(max=num_tokens - 1)  # a decoy has that of the next real one
    distance = positions[:, None] - positions[None, :]
    sees = (distance >= 0) & is_real[None, :] & is_real[:, None]
    mask = model.attention_masks(sees.fill_diagonal_(True), distance)
    cache = model.plain_cache(model.shape.num_layers)
    return model.forward(token_ids[positions][None], positions[None], cache, mask)[0, slots]


def _try_linking(model: Model, tolerance: float) -> str:
    """Return why linked KV does not reproduce the reference within `tolerance`; "" if it does."""
    plan = _plan(model)
    if model.facts.learned_positions and plan.stop > model.context_length:
        return f"it has {model.context_length} positions; {plan.stop} are needed at least"
    try:
        expected = reference_logits(plan.tokens, model).double()
        linked = linked_logits(plan, Executor(model, Store(model.shape), lambda: "self-test"))
        far = _distance(linked.double(), expected)
    except MODEL_FAULTS as error:
        return f"attention to stored KV fails: {first_line(error)}"
    if far <= tolerance:
        return ""
    windows = list[int | None]()
    note_attention(model, 1, lambda call: windows.append(call.window))
    if len(windows) != model.shape.num_layers:  # a layer does not call the function registered with transformers
        return f"it {NO_INTERFACE}"
    fix = "its positions or masks are not supported"
    if is_quantized(model.hf):
        fix = f"it is quantized, and {EIGHT_BITS}"
    return f"linked KV does not reproduce the model's own logits (they differ by {far:.2g}); {fix}"


def _plan(model: Model) -> Plan:
    """Return the plan of a schema with an argument and a gap beyond the window."""
    gap = min((model.facts.window or 0) + 3, max(1, model.context_length - _SPARE_TOKENS))
    schema = check_schema(parse_schema(_SCHEMA.format(gap=gap)))
    tokenizer = _LetterTokenizer(_plain_ids(model))
    layout = lay_out(schema, tokenizer, placement=Placement.FIXED)
    return make_plan(resolve_prompt(parse_prompt(_PROMPT), schema), layout, run_variants(layout), tokenizer)


def _plain_ids(model: Model) -> range:
    """Return the token IDs of a model without both ends of its vocabulary, where special tokens usually are."""
    vocabulary: int = model.hf.get_input_embeddings().num_embeddings
    return range(vocabulary // 16, max(1, vocabulary - vocabulary // 16))


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    distance = float((actual - expected).norm() / expected.norm())
    return distance if distance == distance else float("inf")  # NaN counts as infinitely far
