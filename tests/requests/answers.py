"""The law over requests: an engine answers every request of a workload as the reference does."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch

from promptcache.answers.text import whole_text
from promptcache.decode import Completion
from promptcache.diagnostics import UnsupportedModel
from promptcache.encode import Executor, check_linking, linked_logits, prepare
from promptcache.engine import Engine
from promptcache.kv import Store
from promptcache.language import parse_prompt
from promptcache.layout import Plan
from promptcache.model import Model, reference_logits, used_tokens
from promptcache.planning.turns import ChatTurn
from promptcache.rows import Copies
from promptcache.testing.tiny_model import tiny_model
from tests.engine.asking import answered
from tests.families import random_model
from tests.laws.attended_oracle import attended
from tests.laws.laws import BrokenLaw
from tests.laws.position_oracle import SLOTS
from tests.requests.decoder import Decoded, Draws, Logits, RowDraws, decode
from tests.requests.options import Resolved, names_places, resolve
from tests.requests.plans import (
    VOCABULARY,
    Promoted,
    computed_tokens,
    features,
    plan_of,
    promoted_plan,
    promoted_tokens,
    state_of,
    without_text,
)
from tests.requests.workloads import MAX_PLACES, Ask, Step, Way, Workload

ROUNDING = 1e-6
"""Distance of scores that rounding explains: transformers, and the norms of most models, round to float32."""

NEARLY_EQUAL = 3e-5
"""Errors of logits, as a share of the largest one, under which another answer is right, too.

Where two tokens are nearly equal, rounding decides; and services keep both if one of them is kept.
"""

NUM_TRIES = 12
"""Decodings with random errors that are tried to explain another answer."""


def requests_are_the_reference(workload: Workload) -> None:
    """Answer every request of a workload, and compare each answer with the reference; history has to be used."""
    asked = Asked(workload)
    completions = [each for step in workload.steps for each in asked.check(step)]
    for number, (completion, found) in enumerate(zip(completions, features(workload), strict=True)):
        if "history hit" in found and (completion is None or not completion.usage.num_history_tokens):
            raise BrokenLaw(f"request {number} has used no history")


@cache
def model_named(name: str) -> Model:
    made = tiny_model() if name == "llama" else Model(random_model(name, torch.float64))
    check_linking(made)
    return made


class Asked:
    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._model = model_named(workload.model)
        with patch("promptcache.engine.check_linking"):  # would test each model again
            self._engine = Engine(self._model, VOCABULARY, history=workload.has_history, repair=str(SLOTS))
        memory = self._engine.store.memory
        self._engine._executor.copies = Copies(self._model, memory, small_tokens=workload.small_tokens)
        self._engine.add_schema(workload.schema, keep=workload.codec)
        self._state = state_of(workload)
        self._promoted = promoted_tokens(workload, self._state)
        self._computed: list[Promoted] = []
        if self._promoted is not None:
            first = workload.steps[0].asks[0]
            self._engine.promote(workload.prompts[first.prompt], salt=first.salt)
        self._quantized = Executor(self._model, Store(self._model.shape), lambda: self._engine.fingerprint)

    def check(self, step: Step) -> list[Completion | None]:
        made = self._checked(step)
        asks = [step.asks[0] if step.way is Way.BATCH else ask for ask in step.asks]
        self._computed += (
            computed_tokens(each.plan, ask.salt)
            for each, ask in zip(made, asks, strict=True)
            if each is not None and not each.plan.reused and ask.reuse  # history has no tokens of the others
        )
        return made

    def _checked(self, step: Step) -> list[Completion | None]:
        match step.way:
            case Way.GENERATE | Way.STREAM:
                return [self._single(*step.asks, step.way)]
            case Way.BATCH:
                return self._batch(step.asks)
            case Way.SERVICE:
                return self._service(step.asks)
            case Way.CHAT:
                return self._chat(step.asks)
            case Way.LINK:
                self._link(*step.asks)
                return [None]

    def _arguments(self, ask: Ask, options: Resolved) -> dict[str, Any]:
        return {"max_new_tokens": ask.max_new_tokens, "repair": ask.repair, "salt": ask.salt, **options.given}

    def _single(self, ask: Ask, way: Way) -> Completion:
        expected = self._expected(ask, way)
        torch.manual_seed(ask.seed)
        prompt = self._workload.prompts[ask.prompt]
        completion = answered(self._engine, prompt, way, **self._arguments(ask, expected.options))
        return expected.checked(completion, expected.draws(), expected.streamed())

    def _batch(self, asks: Sequence[Ask]) -> list[Completion | None]:
        first = asks[0]
        options = self._expected(first, Way.BATCH).options
        expected = [self._expected(ask, Way.BATCH, options=options) for ask in asks]
        torch.manual_seed(first.seed)
        completions = self._engine.generate_batch(
            [self._workload.prompts[ask.prompt] for ask in asks], **self._arguments(first, options)
        )
        torch.manual_seed(first.seed)
        draws = [each.next_draws() for each in expected]
        return [each.checked(made, drawn) for each, made, drawn in zip(expected, completions, draws, strict=True)]

    def _service(self, asks: Sequence[Ask]) -> list[Completion | None]:
        expected = [self._expected(ask, Way.SERVICE) for ask in asks]
        heard: list[queue.Queue[Any]] = [queue.Queue() for _ in asks]
        service = self._engine.service()
        try:
            for ask, each, items in zip(asks, expected, heard, strict=True):
                service.submit(
                    self._workload.prompts[ask.prompt],
                    items.put,
                    seed=ask.seed,
                    reuse=ask.reuse,
                    **self._arguments(ask, each.options),
                )
            return [each.checked_items(items) for each, items in zip(expected, heard, strict=True)]
        finally:
            service.close()

    def _chat(self, asks: Sequence[Ask]) -> list[Completion | None]:
        first = asks[0]
        prompt = without_text(parse_prompt(self._workload.prompts[first.prompt]))
        chat = self._engine.chat(prompt, repair=first.repair, salt=first.salt)
        completions: list[Completion | None] = []
        for ask in asks:
            expected = self._expected(ask, Way.CHAT, turns=chat.turns)
            torch.manual_seed(ask.seed)
            completion = chat.say(ask.said, max_new_tokens=ask.max_new_tokens, **expected.options.given)
            completions.append(expected.checked(completion, expected.draws(), expected.streamed()))
        return completions

    def _link(self, ask: Ask) -> None:
        expected = self._expected(ask, Way.LINK)
        try:
            linked = self._engine.link(self._workload.prompts[ask.prompt], repair=ask.repair)
        except UnsupportedModel:
            if not _has_gap(expected.plan, self._engine.model.facts.window):
                raise
            return
        given = {name: value for name, value in expected.options.given.items() if value != []}
        if {"output_scores", "output_logits"} & given.keys():
            given["return_dict_in_generate"] = True
        fed = tuple(linked["input_ids"][0].tolist())
        expected = replace(expected, seen=fed, fed=fed)
        expected.draft()
        torch.manual_seed(ask.seed)
        made = self._model.hf.generate(**linked, max_new_tokens=ask.max_new_tokens, **given)
        output = None if isinstance(made, torch.Tensor) else made
        rows = (made if output is None else output.sequences)[:, len(fed) :].tolist()
        found = Answer(sequences=tuple(map(tuple, rows)), is_padded=True, output=output, streamed=expected.streamed())
        expected.compare(found, [partial(_seeded, ask.seed)])

    def _expected(
        self, ask: Ask, way: Way, *, options: Resolved | None = None, turns: Sequence[ChatTurn] = ()
    ) -> "Expected":
        """Return what the engine is to answer; `options` are those of a batch, `turns` those of the chat so far."""
        plan = plan_of(self._workload, self._state, ask, way, turns)
        plan = self._chosen(promoted_plan(plan, self._promoted, ask, way, self._computed))
        logits = self._logits(plan)
        path = logits.greedy(MAX_PLACES) if options is None and names_places(ask) else ()
        options = options or resolve(ask, path)
        expected = Expected(
            ask=ask,
            model=self._model,
            plan=plan,
            seen=tuple(each.token_id for each in used_tokens(plan.tokens)),
            fed=plan.tokens.token_ids,
            options=options,
            ends=self._ends(options, way),
            logits=logits,
            is_link=way is Way.LINK,
        )
        expected.draft()
        return expected

    def _ends(self, options: Resolved, way: Way) -> tuple[int, ...]:
        if way is not Way.LINK:
            return self._engine.end_ids if options.ends is None else options.ends
        configured = self._model.hf.generation_config.eos_token_id
        return options.ends or (() if configured is None else (configured,))

    def _chosen(self, plan: Plan) -> Plan:
        """Return the plan with the tokens that the new ones attend to most; of quantized KV in a fresh store."""
        if self._workload.codec == "full":
            return attended(plan, self._model)
        return prepare(plan, self._quantized).plan

    def _logits(self, plan: Plan) -> Logits:
        """Return the logits behind a prompt: those of the reference, or of quantized KV in a fresh store."""

        def compute(token_ids: tuple[int, ...]) -> torch.Tensor:
            longer = plan.continued(token_ids)
            is_full = self._workload.codec == "full"
            found = reference_logits(longer.tokens, self._model) if is_full else linked_logits(longer, self._quantized)
            return found[-1 - len(token_ids) :]

        return Logits(compute)


def _has_gap(plan: Plan, window: int | None) -> bool:
    """Whether the last window of tokens of a prompt has a gap in its positions."""
    last = sorted(each.position for each in used_tokens(plan.tokens))[-(window or 1) :]
    return last[-1] - last[0] >= len(last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for one request; None, or (), for what did not."""

    sequences: tuple[tuple[int, ...], ...]
    is_padded: bool = False
    texts: tuple[str, ...] = ()
    ended: bool | None = None
    output: Any = None
    logprobs: Any = None
    streamed: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the reference needs to answer a request: tokens that processors `seen`, and that transformers is `fed`."""

    ask: Ask
    model: Model
    plan: Plan
    seen: tuple[int, ...]
    fed: tuple[int, ...]
    options: Resolved
    ends: tuple[int, ...]
    logits: Logits
    is_link: bool

    def draws(self) -> list[Draws]:
        """Return the draws of each sequence of a request, with the random state of torch seeded before."""
        torch.manual_seed(self.ask.seed)
        return self.next_draws()

    def next_draws(self) -> list[Draws]:
        """Return the draws of each sequence: each has the next number of torch's random state as its seed."""
        number = self.options.reference.get("num_return_sequences", 1)
        return [partial(_drawn, int(torch.randint(2**62, ()))) for _ in range(number)]

    def draft(self) -> None:
        """Give the answer to the assistant, if there is one."""
        if self.options.drafter is not None:
            self.options.drafter.answers[self.fed] = self._decoded(nullcontext, self.logits).sequences[0]

    def streamed(self) -> list[int] | None:
        """Return the new tokens that the streamer got, if there is one, behind the prompt and before the end."""
        streamer = self.options.given.get("streamer")
        if streamer is None:
            return None
        if streamer.ends != [len(streamer.puts)]:
            raise BrokenLaw(f"{self.ask}: the streamer got its end behind {streamer.ends} of {len(streamer.puts)} puts")
        prompt, *others = streamer.puts
        if prompt[: len(self.seen)] != [*self.seen]:
            raise BrokenLaw(f"{self.ask}: the streamer got {prompt}, the prompt is {self.seen}")
        return [token_id for each in others for token_id in each]

    def checked_items(self, items: queue.Queue[Any]) -> Completion:
        heard: list[int] = []
        while not isinstance(item := items.get(timeout=60), Completion):
            if isinstance(item, BaseException):
                raise item
            heard.append(item if isinstance(item, int) else item.token_id)
        draws = partial(_drawn, self.ask.seed)
        return self.checked(item, [draws], heard or self.streamed())

    def checked(
        self, completion: Completion, draws: Sequence[Draws], streamed: Sequence[int] | None = None
    ) -> Completion:
        if completion.plan.tokens != self.plan.tokens:
            raise BrokenLaw(f"{self.ask}: other tokens were planned")
        if (completion.logprobs is None) is ("logprobs" in self.options.given):
            raise BrokenLaw(f"{self.ask}: the log-probabilities are {completion.logprobs}")
        answer = Answer(
            sequences=(completion.token_ids,),
            texts=(completion.text, *completion.alternatives),
            ended=completion.finish_reason == "stop",
            logprobs=completion.logprobs,
            streamed=streamed,
        )
        self.compare(answer, draws)
        return completion

    def compare(self, answer: Answer, draws: Sequence[Draws]) -> None:
        """Compare an answer with the reference for the draws of each sequence, or for those of all together."""
        for row in answer.sequences:
            if not answer.is_padded:
                self.logits.after(row[:-1])  # one forward pass for all steps
        difference = found = self._difference(answer, [self._decoded(each, self.logits) for each in draws])
        for number in range(NUM_TRIES):
            if found is None:
                return
            rounded = self.logits.rounded(NEARLY_EQUAL, number)
            found = self._difference(answer, [self._decoded(each, rounded) for each in draws])
        raise BrokenLaw(f"{self.ask}: {difference}")

    def _decoded(self, draws: Draws, logits: Logits) -> Decoded:
        return decode(
            self.model.hf,
            logits,
            self.seen,
            max_new_tokens=self.ask.max_new_tokens,
            options=self._reference_options,
            ends=self.ends,
            criteria=self.options.criteria,
            draws=draws,
        )

    @property
    def _reference_options(self) -> dict[str, Any]:
        """The options of one decoding: an engine decodes each sequence by itself."""
        several = () if self.is_link else ("num_return_sequences",)
        return {name: value for name, value in self.options.reference.items() if name not in several}

    def _difference(self, answer: Answer, decoded: Sequence[Decoded]) -> str | None:
        """Return how an answer differs from the reference; None if it does not."""
        sequences, first = answer.sequences, decoded[0]
        expected = tuple(row for each in decoded for row in each.sequences)
        if answer.is_padded:
            sequences = tuple(row[: len(other)] for row, other in zip(sequences, expected, strict=True))
        if sequences != expected[: len(sequences)]:
            return f"tokens {sequences}, by the reference {expected}"
        if answer.texts and answer.texts != (texts := tuple(map(_text, expected))):
            return f"texts {answer.texts}, by the reference {texts}"
        if answer.ended not in (None, first.ended[0]):
            return f"ended: {answer.ended}, by the reference {first.ended[0]}"
        if answer.streamed is not None and len(expected) == 1 and tuple(answer.streamed) != sequences[0]:
            return f"streamed {answer.streamed}, the answer is {sequences[0]}"
        for name in ("scores", "logits"):
            if f"output_{name}" in self.options.given and not _are_near(answer.output, first, name):
                return f"other {name} in the output"
        return None if answer.logprobs is None else self._difference_of_logprobs(answer)

    def _difference_of_logprobs(self, answer: Answer) -> str | None:
        (token_ids,) = answer.sequences
        if tuple(each.token_id for each in answer.logprobs) != token_ids:
            return "log-probabilities of other tokens"
        for index, found in enumerate(answer.logprobs):
            logprobs = self.logits.after(token_ids[:index]).log_softmax(-1)
            top = [value for _, value in found.top]
            right = torch.stack([logprobs[found.token_id], *logprobs.topk(len(top)).values])
            if not _near(torch.tensor([found.logprob, *top], dtype=right.dtype), right):
                return f"log-probabilities {found}, by the reference {right.tolist()}"
        return None


def _text(token_ids: Sequence[int]) -> str:
    return whole_text(VOCABULARY.decode, token_ids)


def _are_near(output: Any, expected: Decoded, name: str) -> bool:
    """Whether `scores` or `logits` of two outputs are equal up to rounding, apart from padding."""
    for step, (one, other) in enumerate(zip(getattr(output, name), getattr(expected.output, name), strict=False)):
        rows = expected.rows_in_use(step, len(other))
        if one.shape != other.shape or not _near(one[rows], other[rows]):
            return False
    return True


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether numbers are equal up to rounding; minus infinity equals itself only."""
    if not torch.equal(one.isinf(), other.isinf()):
        return False
    finite = other[~other.isinf()]
    return not len(finite) or float((one[~one.isinf()] - finite).abs().max()) <= ROUNDING * (
        1 + float(finite.abs().max())
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    torch.manual_seed(seed)
    yield


def _drawn(seed: int) -> AbstractContextManager[Any]:
    """Return a context with the generator of a sequence."""
    return RowDraws(torch.Generator().manual_seed(seed))
