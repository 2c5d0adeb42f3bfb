"""What a request gives back: the answer, what it cost, and how sure it is.

Comes in: nothing; the engine builds these. Goes out: to the caller. This file knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from promptcache.diagnostics import Short
from promptcache.kv import Tier
from promptcache.layout import Level, Plan


class FinishReason(StrEnum):
    """Why generation ended: the model (or a stopping criterion) ended it, or the number of tokens did."""

    STOP = "stop"
    LENGTH = "length"


class Source(StrEnum):
    """Where a module's KV came from in one request: from memory, from a slower tier, or it had to be encoded first."""

    HIT = "hit"
    LOAD = "load"
    MISS = "miss"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModuleUsage(Short):
    """One module's part in a request; `module` "" is the anonymous text of the schema, BOS included.

    `tier` is the slowest that any of it was found in; None if some of it had to be encoded.
    """

    module: str
    source: Source
    num_tokens: int
    tier: Tier | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Usage(Short):
    """Tokens and bytes of one request.

    Attributes:
        num_reused_tokens: Prompt tokens whose KV came from the store.
        num_new_tokens: Prompt tokens that were prefilled.
        num_generated_tokens: Tokens of the answer (of all returned sequences), the end of sequence included.
        num_encoded_tokens: Tokens of modules that had to be encoded first; 0 once a schema is warm.
        copied_bytes: KV copied to link it: small segments that were coalesced, or everything where a model is linked by
            concatenation. What several requests of a batch share counts for the first of them.
        moved_bytes: KV that stores copied from slower tiers.
        modules: The modules in use that have cached text, in document order.
        faults: What went wrong in stores and was made good, one sentence each.
    """

    num_reused_tokens: int
    num_new_tokens: int
    num_generated_tokens: int
    num_encoded_tokens: int
    copied_bytes: int
    moved_bytes: int
    modules: tuple[ModuleUsage, ...]
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Timing(Short):
    """Seconds of one request, in order: parse, check and plan; fetch KV (encoding what is missing); link; prefill;
    decode.

    `ttft_s` is the time from the call to the first token.
    """

    plan_s: float
    fetch_s: float
    link_s: float
    prefill_s: float
    decode_s: float

    @property
    def ttft_s(self) -> float:
        """Seconds from the call to the first token of the answer."""
        return self.plan_s + self.fetch_s + self.link_s + self.prefill_s


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Completion(Short):
    """The answer to one prompt.

    Attributes:
        text: The answer, without control tokens.
        token_ids: As generated, the end of sequence included.
        finish_reason: Why it ended.
        level: How it relates to an answer without cache.
        lossy: Whether KV was used that had been kept quantized; `level` says what the answer would be but for that.
        alternatives: Texts of the further sequences where several were asked for (`num_return_sequences`).
        output: The output object of transformers' `generate`, where `output_scores`, `output_logits`,
            `output_hidden_states` or `return_dict_in_generate` asked for it: `scores` and `logits` have a tensor
            `[B, V]` for each step. Its `sequences` hold new tokens only; it has no cache.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    level: Level
    lossy: bool
    usage: Usage
    timing: Timing
    plan: Plan = field(repr=False)
    alternatives: tuple[str, ...] = ()
    output: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WarmReport(Short):
    """What `Engine.warm` did for one schema.

    Attributes:
        num_encodings: Encodings that the schema has.
        num_encoded: Of these, the ones that had to be computed.
        num_encoded_tokens: Their tokens.
        nbytes: Bytes of all of the schema's encodings, as their codec keeps them.
        seconds: Time taken.
        found: How many of the others each tier had.
        not_kept: How many of its encodings each folder or URL of the store does not hold in the end, by its name.
        faults: What went wrong in stores, one sentence each; the last ones say what is not kept, and why.
    """

    schema: str
    num_encodings: int
    num_encoded: int
    num_encoded_tokens: int
    nbytes: int
    seconds: float
    found: Mapping[Tier, int]
    not_kept: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
