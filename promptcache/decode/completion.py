"""Completions: the answers that an engine returns, with usage and timing. They hold no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, cast

from promptcache.answers import TokenLogprobs
from promptcache.diagnostics import Diagnostic, InvalidOutput, Short
from promptcache.kv import Tier
from promptcache.layout import Level, Plan
from promptcache.structured import OutputFormat, Parsed, ToolCall


class FinishReason(StrEnum):
    """Why generation ended: an end token or a stopping criterion (`stop`), or the limit of new tokens (`length`)."""

    STOP = "stop"
    LENGTH = "length"


class KVSource(StrEnum):
    """Origin of KV in one request: memory (`hit`), a slower tier (`load`), encoded for it (`miss`), or an earlier
    request (`history`).
    """

    HIT = "hit"
    LOAD = "load"
    MISS = "miss"
    HISTORY = "history"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModuleUsage(Short):
    """Use of one module in a request, or of history.

    Attributes:
        module: Its path; "" is the schema's text outside modules, BOS included, and history.
        source: Where its KV came from.
        num_tokens: Reused tokens of the module.
        tier: The slowest tier that held some of it; None if some of it was encoded for this request.
    """

    module: str
    source: KVSource
    num_tokens: int
    tier: Tier | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Usage(Short):
    """Token and byte counts of one request.

    Attributes:
        num_reused_tokens: Prompt tokens of modules whose KV came from the store.
        num_history_tokens: Other prompt tokens whose KV was computed by an earlier request, or ahead of this one.
        num_new_tokens: Prompt tokens that were prefilled.
        num_repaired_tokens: Those of them that are stored, but encoded in another context (`repair`).
        num_generated_tokens: Tokens of all returned sequences, end tokens included.
        num_encoded_tokens: Tokens of modules that were encoded for this request; 0 once a schema is warm.
        copied_bytes: KV that was copied to link it: coalesced small segments. Copies that several requests of a batch
            share count for the first of them.
        kept_bytes: KV that was copied to history.
        moved_bytes: KV that stores copied from slower tiers.
        modules: The modules whose cached text was reused, and where its KV came from; at the end, other tokens that
            history had.
        promoted: Whether the answer is exact because its combination of modules came again (`Engine.promote`).
        faults: Store faults that did not stop the request, one sentence each.
    """

    num_reused_tokens: int
    num_history_tokens: int
    num_new_tokens: int
    num_repaired_tokens: int
    num_generated_tokens: int
    num_encoded_tokens: int
    copied_bytes: int
    kept_bytes: int
    moved_bytes: int
    modules: tuple[ModuleUsage, ...]
    promoted: bool = False
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Timing(Short):
    """Seconds of one request, by step.

    Attributes:
        plan_s: Reading and planning the prompt.
        wait_s: Waiting for other requests.
        refine_s: Changing the plan by the KV that there is, such as that of combinations that came again.
        fetch_s: Looking up and loading KV.
        encode_s: Encoding missing KV.
        choose_s: Finding the cached tokens that the new ones attend to most (`repair="attended-8"`).
        link_s: Linking it.
        prefill_s: Prefilling the new tokens, up to the first generated token.
        decode_s: Generating the others.
    """

    plan_s: float
    wait_s: float
    refine_s: float
    fetch_s: float
    encode_s: float
    choose_s: float
    link_s: float
    prefill_s: float
    decode_s: float

    @property
    def ttft_s(self) -> float:
        """Seconds from the call to the first generated token."""
        before = self.plan_s + self.wait_s + self.refine_s + self.fetch_s + self.encode_s + self.choose_s
        return before + self.link_s + self.prefill_s


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Completion(Short, Generic[Parsed]):
    """The answer to one prompt. `Completion[Trip]` is one with `output=Trip`.

    Attributes:
        text: The answer, without special tokens and without its reasoning.
        token_ids: Generated tokens, the end token included.
        finish_reason: Why generation ended.
        level: How the answer relates to an answer without cache.
        repair: The setting that served, as text such as "slots" or "attended-8".
        lossy: Whether quantized KV was used. `level` describes the answer apart from quantization.
        reasoning: The text of the block of reasoning before the answer; None if there is none.
        alternatives: Texts of the further sequences if several were asked for (`num_return_sequences`).
        logprobs: For each generated token its log-probability and the most probable tokens, if `logprobs` was given.
        output_format: The format that was asked for (`output`).
        tool_calls: The calls of tools in the answer, in order; `text` is without them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    level: Level
    repair: str
    lossy: bool
    usage: Usage
    timing: Timing
    plan: Plan = field(repr=False)
    reasoning: str | None = None
    alternatives: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = field(default=None, repr=False)
    output_format: OutputFormat | None = field(default=None, repr=False, compare=False)
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def parsed(self) -> Parsed:
        """The value of the answer in the format that was asked for, such as an instance of the type.

        None without a format, or if the answer calls tools instead.

        Raises:
            InvalidOutput: The limit of new tokens or a stop string cut the answer, or its type refuses the value.
        """
        if self.output_format is None or self.tool_calls:
            return cast("Parsed", None)
        if self.finish_reason is FinishReason.LENGTH:
            raise InvalidOutput(
                f"the answer was cut at {len(self.token_ids)} tokens, before its format was complete; allow more with "
                "max_new_tokens"
            )
        return cast("Parsed", self.output_format.parse(self.text))

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Where the text of the prompt is not what the chat template writes for the whole conversation."""
        return self.plan.warnings
