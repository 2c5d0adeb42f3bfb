"""Answers cases in every way and compares the predictions of the model with those after plain prefill.

Plain prefill is transformers' own generation from a prompt without gaps. It uses only the tokens of the engine's plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import DynamicCache

from promptcache.bench.quality_documents import CACHED, Way, all_ways, prompt_xml, schema_xml
from promptcache.demo import Case, is_right
from promptcache.engine import Engine
from promptcache.runtime import reference_tokens, token_tensor


class Distance(NamedTuple):
    """Distance between two ways' predictions, at the end of the prompt and at each token of plain prefill's answer.

    Attributes:
        divergence: Mean KL divergence of the next token from the other way, in nats.
        num_agreeing: Places with the same most probable next token.
        num_places: All compared places.
    """

    divergence: float
    num_agreeing: int
    num_places: int

    @property
    def agreement(self) -> float:
        """Share of places with the same most probable next token."""
        return self.num_agreeing / self.num_places


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one case in one way.

    Attributes:
        right: Whether the whole answer is right.
        level: Level of the answer; plain prefill is exact.
        distances: Distance from each way that this one is compared with.
    """

    right: bool
    level: str
    distances: Mapping[Way, Distance]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Cases that are answered in one batch.

    Attributes:
        engine: Each chunk replaces its schemas "WAY-0", "WAY-1", ..., which frees the KV of the chunk before.
        instruction: Text at the start of each document; may be empty.
        max_new_tokens: Limit of an answer.
        chosen: Ways to compare; plain prefill is always added.
    """

    engine: Engine
    cases: Sequence[Case]
    arguments: bool
    instruction: str
    max_new_tokens: int
    chosen: Sequence[Way] = CACHED

    @property
    def ways(self) -> tuple[Way, ...]:
        """The chosen ways and those that they are compared with, plain prefill first."""
        return all_ways(self.chosen)

    def outcomes(self) -> Iterator[Mapping[Way, Outcome]]:
        """Answer every case in every way and yield its outcomes."""
        self.add_schemas()
        texts = {Way.PLAIN: plain_answers(self.engine, self.prompts(Way.PLAIN), self.max_new_tokens)}
        levels = {Way.PLAIN: ["exact"] * len(self.cases)}
        for way in self.ways[1:]:
            completions = self.engine.generate_batch(
                self.prompts(way), max_new_tokens=self.max_new_tokens, do_sample=False
            )
            texts[way] = [each.text for each in completions]
            levels[way] = [each.level.value for each in completions]
        for index, case in enumerate(self.cases):
            distances = self._distances(index, texts[Way.PLAIN][index])
            yield {
                way: Outcome(
                    right=is_right(texts[way][index], case.question.fact),
                    level=levels[way][index],
                    distances=distances[way],
                )
                for way in self.ways
            }

    def add_schemas(self) -> None:
        """Add the schemas of all documents in every way. Nothing is encoded yet."""
        for way in self.ways:
            for index, case in enumerate(self.cases):
                xml = schema_xml(case, way, f"{way}-{index}", arguments=self.arguments, instruction=self.instruction)
                self.engine.add_schema(xml, keep=way.keep)

    def prompts(self, way: Way) -> list[str]:
        """Return one prompt for each case."""
        return [self._prompt(index, way) for index in range(len(self.cases))]

    def _prompt(self, index: int, way: Way, answer: str | None = None) -> str:
        return prompt_xml(self.cases[index], way, f"{way}-{index}", arguments=self.arguments, answer=answer)

    def _distances(self, index: int, answer: str) -> dict[Way, dict[Way, Distance]]:
        """Compare the predictions of each way at every place of one answer."""
        places = len(self.engine.tokenizer.tokenize(answer)) + 1
        found = {Way.PLAIN: plain_logits(self.engine, self._prompt(index, Way.PLAIN, answer), places).log_softmax(-1)}
        for way in self.ways[1:]:
            logits = self.engine.logits(self._prompt(index, way, answer))[-places:]
            found[way] = logits.float().log_softmax(-1)
        return {way: {other: distance(found[way], found[other]) for other in way.beside} for way in self.ways}


@torch.no_grad()
def plain_answers(engine: Engine, prompts: Sequence[str], max_new_tokens: int) -> list[str]:
    """Return greedy answers after plain prefill of whole prompts, in one left-padded batch."""
    rows = [plain_token_ids(engine, prompt) for prompt in prompts]
    longest = max(map(len, rows))
    pad = engine.tokenizer.eos_ids[0] if engine.tokenizer.eos_ids else 0
    output = engine.model.hf.generate(
        torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device=engine.model.device),
        attention_mask=torch.tensor(
            [[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=engine.model.device
        ),
        past_key_values=DynamicCache(),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=pad,
        eos_token_id=list(engine.tokenizer.eos_ids) or None,
    )
    control = engine.tokenizer.control_ids
    return [
        engine.tokenizer.detokenize([each for each in row if each not in control])
        for row in output[:, longest:].tolist()
    ]


@torch.no_grad()
def plain_logits(engine: Engine, prompt: str, places: int) -> torch.Tensor:
    """Return logits `[places, V]` at the end of a plain causal forward pass over a whole prompt."""
    token_ids = token_tensor(plain_token_ids(engine, prompt), engine.model.device)
    logits: torch.Tensor = engine.model.hf(token_ids, past_key_values=DynamicCache(), logits_to_keep=places).logits
    return logits[0].float()


def plain_token_ids(engine: Engine, prompt: str) -> list[int]:
    """Return all tokens of a prompt in position order, as a model without a cache gets them."""
    used = sorted(
        (each for each in reference_tokens(engine.plan(prompt).tokens) if each.in_use), key=lambda each: each.position
    )
    return [each.token_id for each in used]


def distance(here: torch.Tensor, there: torch.Tensor) -> Distance:
    """Return the distance between log-probabilities `[places, V]`."""
    divergence = torch.nn.functional.kl_div(here, there, reduction="none", log_target=True).sum(-1)
    agreeing = here.argmax(-1) == there.argmax(-1)
    return Distance(max(0.0, float(divergence.mean())), int(agreeing.sum()), len(agreeing))
