"""The self-test at load: does linking reproduce this model's own computation?

Comes in: a model. Goes out: the model, set to the way of linking that passed, or `UnsupportedModel`. A tiny schema with
an argument in the middle, a gap, and – where the model has windows – a distance beyond the window is encoded and
linked, and compared with one forward pass under an explicit mask.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence

import torch

from promptcache.diagnostics import UnsupportedModel
from promptcache.kv import MemoryStore
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.schema import Role
from promptcache.layout import Plan, RequestTokens, TurnFrame, lay_out, make_plan, run_states
from promptcache.runtime.executor import Executor
from promptcache.runtime.hf.model import Linking, Model
from promptcache.runtime.reference import reference_logits

_log = logging.getLogger(__name__)

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""How far logits may lie from the reference, |a-b| / |b| in the Euclidean norm; wrong positions give 0.3 and more."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SCHEMA = """<schema name="self-test">abc<module name="middle">defg<parameter name="word" length="5"/>hij</module>
<module name="gap" reserve="{gap}">k</module><module name="far">lmno</module></schema>"""
_PROMPT = '<prompt schema="self-test"><middle word="pqr"/><far/>stu</prompt>'


class _LetterTokenizer:
    """One random token for each letter; the self-test uses no turns and no BOS."""

    bos_ids: tuple[int, ...] = ()
    eos_ids: tuple[int, ...] = ()
    control_ids: frozenset[int] = frozenset()
    fingerprint = "self-test"
    warnings: tuple[str, ...] = ()

    def __init__(self, vocabulary: int) -> None:
        self._ids = random.Random(7).choices(range(vocabulary), k=len(_LETTERS) + 1)

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self._ids[_LETTERS.find(letter)] for letter in text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join((_LETTERS + "\n")[self._ids.index(token_id)] for token_id in token_ids)

    def frame(self, role: Role) -> TurnFrame:
        return TurnFrame(header_ids=(), footer_ids=(), header="", footer="")


def choose_linking(model: Model) -> None:
    """Set the way in which `model` links: segmented where that reproduces the reference, else concatenated.

    Raises:
        UnsupportedModel: Neither way does; the message names the model and how far off it is.
    """
    plan = _plan(model)
    tokens = plan.tokens
    if model.facts.learned_positions and plan.stop > model.context_length:
        raise UnsupportedModel(
            f"{model.facts.name} has {model.context_length} positions; {plan.stop} are needed at least"
        )
    expected = reference_logits(tokens, model).double()
    distances: dict[Linking, float] = {}
    for linking in (model.linking, Linking.CONCATENATED):
        if linking in distances:
            continue
        if linking is Linking.CONCATENATED:
            model.use_concatenation()
        distances[linking] = _distance(_cached_logits(tokens, model).double(), expected)
        if distances[linking] <= TOLERANCE.get(model.shape.dtype, 1e-3):
            _tell(model, distances)
            return
    tried = ", ".join(f"{linking}: off by {distance:.2g}" for linking, distance in distances.items())
    raise UnsupportedModel(
        f"{model.facts.name}: linked KV does not reproduce the model's own computation ({tried}); it places or masks "
        "tokens in a way of its own"
    )


def _tell(model: Model, distances: Mapping[Linking, float]) -> None:
    if len(distances) > 1:
        _log.warning(
            "%s: segmented attention is off by %.2g, so stored KV is copied for every request instead of being linked",
            model.facts.name,
            distances[Linking.SEGMENTED],
        )


def _plan(model: Model) -> Plan:
    gap = min((model.facts.window or 0) + 3, max(1, model.context_length - 64))
    schema = check_schema(parse_schema(_SCHEMA.format(gap=gap)))
    vocabulary: int = model.hf.get_input_embeddings().num_embeddings
    tokenizer = _LetterTokenizer(vocabulary)
    layout = lay_out(schema, tokenizer)
    return make_plan(resolve_prompt(parse_prompt(_PROMPT), schema), layout, run_states(layout), tokenizer)


def _cached_logits(tokens: RequestTokens, model: Model) -> torch.Tensor:
    return Executor(model, MemoryStore(model.shape), lambda: "self-test").logits(tokens)


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    distance = float((actual - expected).norm() / expected.norm())
    return distance if distance == distance else float("inf")  # NaN is as far as can be
