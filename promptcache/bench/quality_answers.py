"""Answers one chunk of cases in every way, and compares each way with plain prefill and what else it stands beside.

Comes in: an engine and a few cases. Goes out: for each case and way, whether the answer is right, and how far the
model's predictions are from those after another way. Plain prefill uses nothing of the engine but the tokens of the
text: it is transformers' own generation from a prompt without gaps.
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
    """How far the predictions of one way are from those of another, at every place of plain prefill's answer.

    Attributes:
        divergence: KL divergence of the next token from the other way's, in nats: the mean over all places, of which
            the first is the end of the prompt.
        num_agreeing: Places where the most probable next token is the same.
        num_places: All of them.
    """

    divergence: float
    num_agreeing: int
    num_places: int

    @property
    def agreement(self) -> float:
        """Share of places where the most probable next token is the same."""
        return self.num_agreeing / self.num_places


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case served in one way.

    Attributes:
        right: Whether the whole answer is.
        level: Of the answer; plain prefill is exact.
        distances: From each way that this one is compared with.
    """

    right: bool
    level: str
    distances: Mapping[Way, Distance]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Cases that are answered together.

    Attributes:
        engine: Its schemas "WAY-0", "WAY-1", ... are replaced by each chunk, which frees the KV of the chunk before.
        instruction: What every document says first; may be empty.
        max_new_tokens: Of an answer.
        chosen: Ways to compare; plain prefill is always one of them.
    """

    engine: Engine
    cases: Sequence[Case]
    arguments: bool
    instruction: str
    max_new_tokens: int
    chosen: Sequence[Way] = CACHED

    @property
    def ways(self) -> tuple[Way, ...]:
        """All ways that are needed for that, plain prefill first."""
        return all_ways(self.chosen)

    def outcomes(self) -> Iterator[Mapping[Way, Outcome]]:
        """Answer every case in every way."""
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
        """Make the documents known, in every way; nothing is encoded yet."""
        for way in self.ways:
            for index, case in enumerate(self.cases):
                xml = schema_xml(case, way, f"{way}-{index}", arguments=self.arguments, instruction=self.instruction)
                self.engine.add_schema(xml, keep=way.keep)

    def prompts(self, way: Way) -> list[str]:
        """One for each case."""
        return [self._prompt(index, way) for index in range(len(self.cases))]

    def _prompt(self, index: int, way: Way, answer: str | None = None) -> str:
        return prompt_xml(self.cases[index], way, f"{way}-{index}", arguments=self.arguments, answer=answer)

    def _distances(self, index: int, answer: str) -> dict[Way, dict[Way, Distance]]:
        """Compare predictions at every place of one answer: of each way, with those of each that it stands beside."""
        places = len(self.engine.tokenizer.tokenize(answer)) + 1
        found = {Way.PLAIN: plain_logits(self.engine, self._prompt(index, Way.PLAIN, answer), places).log_softmax(-1)}
        for way in self.ways[1:]:
            logits = self.engine.logits(self._prompt(index, way, answer))[-places:]
            found[way] = logits.float().log_softmax(-1)
        return {way: {other: distance(found[way], found[other]) for other in way.beside} for way in self.ways}


@torch.no_grad()
def plain_answers(engine: Engine, prompts: Sequence[str], max_new_tokens: int) -> list[str]:
    """Greedy answers after ordinary prefill of whole prompts, together, padded on the left."""
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
    """Logits `[places, V]` at the end of an ordinary causal forward pass over a whole prompt."""
    token_ids = token_tensor(plain_token_ids(engine, prompt), engine.model.device)
    logits: torch.Tensor = engine.model.hf(token_ids, past_key_values=DynamicCache(), logits_to_keep=places).logits
    return logits[0].float()


def plain_token_ids(engine: Engine, prompt: str) -> list[int]:
    """All tokens of a prompt, in order, as they would be fed without any cache."""
    used = sorted(
        (each for each in reference_tokens(engine.plan(prompt).tokens) if each.in_use), key=lambda each: each.position
    )
    return [each.token_id for each in used]


def distance(here: torch.Tensor, there: torch.Tensor) -> Distance:
    """Compare logarithms of probabilities `[places, V]`."""
    divergence = torch.nn.functional.kl_div(here, there, reduction="none", log_target=True).sum(-1)
    agreeing = here.argmax(-1) == there.argmax(-1)
    return Distance(max(0.0, float(divergence.mean())), int(agreeing.sum()), len(agreeing))
