"""The self-test at load: does linking reproduce the computation of this model?

It compares linked KV with one forward pass under an explicit mask, on a tiny schema with an argument, a gap, and a
distance beyond the window. A model type that the tests of this library do not cover is confirmed first: in float32, on
a small copy, with a text longer than every window, against the plain forward pass of the model.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from contextlib import suppress

import torch

from promptcache.diagnostics import UnsupportedModel, first_line
from promptcache.encode.executor import Executor
from promptcache.encode.prepare import linked_logits
from promptcache.kv import Store
from promptcache.language import Placement, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Plan, lay_out, make_plan, run_variants
from promptcache.locks import new_lock
from promptcache.model import (
    MODEL_FAULTS,
    NO_INTERFACE,
    Model,
    config_identity,
    is_quantized,
    is_tested,
    longest_window,
    reference_logits,
    small_copy,
    token_tensor,
)
from promptcache.rows import note_attention
from promptcache.tokenizer import PlainTokenizer

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Maximum distance of logits from the reference, |a-b| / |b| in the Euclidean norm; wrong positions give 0.3 and
more.
"""

COPY_TOLERANCE = 1e-5
"""The same for a small copy in float32; a correct one differs by 1e-6."""

_MIN_TOKENS = 192  # of a confirmation
_SPARE_TOKENS = 64

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SCHEMA = """<schema name="self-test">abc
<module name="middle">{text}<parameter name="word" length="{length}" placeholder="{text}"/>hij</module>
<module name="gap" reserve="{gap}">k</module><module name="far">lmno{text}</module></schema>"""
_PROMPT = '<prompt schema="self-test"><middle word="pqr"/><far/>stu{text}</prompt>'


class _LetterTokenizer(PlainTokenizer):
    """A random token for each letter."""

    fingerprint = "self-test"

    def __init__(self, plain_ids: Sequence[int]) -> None:
        self._ids = random.Random(7).choices(plain_ids, k=len(_LETTERS) + 1)

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self._ids[_LETTERS.find(letter)] for letter in text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join((_LETTERS + "\n")[self._ids.index(token_id)] for token_id in token_ids)


_verdicts: dict[tuple[type, str, int], str] = {}
_confirming = new_lock()


def check_linking(model: Model) -> None:
    """Check that linked KV reproduces the reference.

    Raises:
        UnsupportedModel: It does not; names the model and the distance.
    """
    reason = "" if is_tested(model.hf) else _confirm(model)
    reason = reason or _try_linking(model, _plan(model), TOLERANCE.get(model.shape.dtype, 1e-3))
    if reason:
        raise UnsupportedModel(f"{model.facts.name}: {reason}")


def _confirm(model: Model) -> str:
    """Return why the type and configuration of a model are refused, or ""; kept for the next model of the same."""
    config = json.dumps(config_identity(model.hf.config), sort_keys=True, default=str)
    identity = (type(model.hf), config, model.context_length)
    with _confirming:
        if identity not in _verdicts:
            try:
                _verdicts[identity] = _confirm_in_float32(model)
            except UnsupportedModel as refusal:
                _verdicts[identity] = f"in float32: {refusal}"
        return _verdicts[identity]


def _confirm_in_float32(model: Model) -> str:
    """Return the reason from a small copy of a model or, where none can be made, from the model itself."""
    small = small_copy(model.hf, model.context_length)
    if small is not None:
        with suppress(UnsupportedModel):  # the copy is too small; the model itself was not refused
            return _confirm_beyond(Model(small.hf), small.longest_window)
    try:
        window = longest_window(model.hf, model.hf.config, model.context_length)
        if model.hf.dtype == torch.float32:
            return _confirm_beyond(model, window)
        hf = copy.deepcopy(model.hf).float()
    except MODEL_FAULTS as error:
        return f"it cannot be tested in float32: {first_line(error)}"
    return _confirm_beyond(Model(hf, context_length=model.context_length), window)


@torch.no_grad()
def _confirm_beyond(model: Model, window: int) -> str:
    """Test a float32 model beyond `window` tokens: its plain forward pass, and linked KV against the reference."""
    num_tokens = max(_MIN_TOKENS, window + _SPARE_TOKENS)
    token_ids = token_tensor(random.Random(11).choices(_plain_ids(model), k=num_tokens), model.device)
    positions = torch.arange(num_tokens, device=model.device)[None]
    try:
        with model.without_autocast():
            own = model.hf(input_ids=token_ids, use_cache=False).logits[0]
            numbered = model.hf(input_ids=token_ids, position_ids=positions, use_cache=False).logits[0]
        masked = _logits_among_decoys(model, token_ids[0], positions[0])
    except MODEL_FAULTS as error:
        return f"its own forward pass fails: {first_line(error)}"
    if (far := _distance(numbered, own)) > COPY_TOLERANCE:
        return f"its positions are not 0, 1, 2, … (logits differ by {far:.2g})"
    if (far := _distance(masked, own)) > COPY_TOLERANCE:
        return f"its attention is not causal, or counts cache slots instead of positions (logits differ by {far:.2g})"
    return _try_linking(model, _plan(model, num_tokens), COPY_TOLERANCE)


def _logits_among_decoys(model: Model, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the logits of causal attention over tokens `[T]`, with masked decoy tokens between them."""
    num_tokens = len(token_ids)
    total = num_tokens + num_tokens // 2
    slots = torch.tensor(sorted(random.Random(17).sample(range(total), num_tokens)), device=model.device)
    owners = torch.zeros(total, dtype=torch.long, device=model.device)
    owners[slots] = 1
    after = owners.cumsum(0).clamp(max=num_tokens - 1)  # a decoy has the position of the next real token
    all_ids = token_ids[after]
    all_positions = positions[after]
    all_ids[slots], all_positions[slots] = token_ids, positions
    distance = all_positions[:, None] - all_positions[None, :]
    sees = (distance >= 0) & owners.bool()[None, :] & owners.bool()[:, None]
    mask = model.attention_masks(sees.fill_diagonal_(True), distance)
    cache = model.plain_cache(model.shape.num_layers)
    return model.forward(all_ids[None], all_positions[None], cache, mask)[0, slots]


def _try_linking(model: Model, plan: Plan, tolerance: float) -> str:
    """Return why linked KV does not reproduce the reference within `tolerance`; "" if it does."""
    if model.facts.learned_positions and plan.stop > model.context_length:
        return f"it has {model.context_length} positions; {plan.stop} are needed at least"
    try:
        expected = reference_logits(plan.tokens, model).double()
        far = _distance(_cached_logits(plan, model).double(), expected)
    except MODEL_FAULTS as error:
        return f"attention to stored KV fails: {first_line(error)}"
    if far <= tolerance:
        return ""
    if not _calls_interface(model):
        return f"it {NO_INTERFACE}"
    fix = "its positions or masks are not supported"
    if is_quantized(model.hf):
        fix = (
            "it is quantized, and with activations in 8 bits logits depend on the tokens that are computed together: "
            "quantize its weights only, or load it without quantization"
        )
    return f"linked KV does not reproduce the model's own logits (they differ by {far:.2g}); {fix}"


def _calls_interface(model: Model) -> bool:
    """Whether the attention of every layer calls the function that is registered with transformers."""
    windows = list[int | None]()
    note_attention(model, 1, lambda call: windows.append(call.window))
    return len(windows) == model.shape.num_layers


def _plan(model: Model, num_tokens: int = 0) -> Plan:
    """Return the plan of a schema with an argument and a gap beyond the window, over at least `num_tokens` tokens."""
    gap = min((model.facts.window or 0) + 3, max(1, model.context_length - num_tokens - _SPARE_TOKENS))
    text = "".join(random.Random(13).choices(_LETTERS, k=max(4, num_tokens // 3)))
    schema = check_schema(parse_schema(_SCHEMA.format(gap=gap, text=text, length=len(text) + 1)))
    tokenizer = _LetterTokenizer(_plain_ids(model))
    layout = lay_out(schema, tokenizer, placement=Placement.FIXED)
    prompt = parse_prompt(_PROMPT.format(text=text))
    return make_plan(resolve_prompt(prompt, schema), layout, run_variants(layout), tokenizer)


def _plain_ids(model: Model) -> range:
    """Return the token IDs of a model without both ends of its vocabulary, where special tokens usually are."""
    vocabulary: int = model.hf.get_input_embeddings().num_embeddings
    return range(vocabulary // 16, max(1, vocabulary - vocabulary // 16))


def _cached_logits(plan: Plan, model: Model) -> torch.Tensor:
    return linked_logits(plan, Executor(model, Store(model.shape), lambda: "self-test"))


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    distance = float((actual - expected).norm() / expected.norm())
    return distance if distance == distance else float("inf")  # NaN counts as infinitely far
