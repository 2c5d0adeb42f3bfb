"""Answers questions in every way and compares the predictions of the model with those after ordinary prefill.

Plain prefill is transformers' own generation from the turns' text, each turn tokenized as a whole, without gaps. It
uses neither schemas nor plans. Its greedy answer fixes the places at which all ways are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.quality.documents import Quiz, QuizQuestion, prompt_xml, schema_xml
from benchmarks.quality.ways import DEFAULT_WAYS, PLAIN, Way, all_ways, way_named
from promptcache.codecs import Codec
from promptcache.encode import Distance, compare_predictions
from promptcache.engine import Engine
from promptcache.tokenizer import Before, Conversations, Markup

GREEDY: Mapping[str, Any] = {"do_sample": False, "repetition_penalty": 1.0}
"""Options of generation. A penalty would see all tokens of ordinary prefill, and only new ones of a cached request."""

_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one question in one way.

    Attributes:
        answer: Text of the greedy answer.
        right: Whether the judge of the question accepts it.
        level: Level of the answer; ordinary prefill is exact.
        distances: Distance from each way that this one is compared with, by name.
    """

    answer: str
    right: bool
    level: str
    distances: Mapping[str, Distance]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAnswer:
    """The greedy answer after ordinary prefill, with the logits `[places, V]` that predicted each of its tokens.

    The end of the answer is a place too, if the answer ended by itself.
    """

    token_ids: tuple[int, ...]
    text: str
    logits: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Documents whose questions are answered in one batch.

    Attributes:
        engine: Each chunk replaces its schemas, which frees the KV of the chunk before.
        max_new_tokens: Limit of an answer.
        chosen: Ways to compare; ordinary prefill is always added.
    """

    engine: Engine
    quizzes: Sequence[Quiz]
    max_new_tokens: int
    chosen: Sequence[Way] = tuple(map(way_named, DEFAULT_WAYS))

    @property
    def ways(self) -> tuple[Way, ...]:
        """The chosen ways and those that they are compared with, ordinary prefill first.

        Without slots, arguments as text are no way of their own.
        """
        slots = any(quiz.has_slots for quiz in self.quizzes)
        return tuple(way for way in all_ways(self.chosen) if slots or not way.text)

    def outcomes(self) -> Iterator[list[dict[str, Outcome]]]:
        """Answer every question in every way; yield the outcomes of each document, by question and way."""
        self.add_schemas()
        plain = plain_answers(self.engine, self.quizzes, self.max_new_tokens)
        asked = [(index, question) for index, quiz in enumerate(self.quizzes) for question in quiz.questions]
        distances = [self._distances(*each, answer) for each, answer in zip(asked, plain, strict=True)]
        answers = {way: self._answers(way, asked, plain, distances) for way in self.ways[1:]}
        answers[PLAIN] = [each.text for each in plain]
        outcomes = iter(
            {
                way.name: Outcome(
                    answer=answers[way][number],
                    right=question.judge(answers[way][number]),
                    level=self._level(index, question, way),
                    distances=distances[number][way.name],
                )
                for way in self.ways
            }
            for number, (index, question) in enumerate(asked)
        )
        for quiz in self.quizzes:
            yield [next(outcomes) for _ in quiz.questions]

    def add_schemas(self) -> None:
        """Add the schemas of all documents. Ways that differ only in the request share a schema."""
        for way in {way.schema_name: way for way in self.ways[1:]}.values():
            for index, quiz in enumerate(self.quizzes):
                xml = schema_xml(quiz, way, f"{way.schema_name}-{index}", lambda text: len(self._tokenized(text)))
                self.engine.add_schema(xml, keep=Codec(way.keep))

    def prompt(self, index: int, question: QuizQuestion, way: Way, answer: str | None = None) -> str:
        """Return the prompt of one question about the document `index`."""
        return prompt_xml(self.quizzes[index], question, way, f"{way.schema_name}-{index}", answer)

    def _tokenized(self, text: str) -> tuple[int, ...]:
        return self.engine.tokenizer.tokenize(text)

    def _level(self, index: int, question: QuizQuestion, way: Way) -> str:
        if way == PLAIN:
            return "exact"
        return self.engine.plan(self.prompt(index, question, way), **way.request).level.value

    def _distances(self, index: int, question: QuizQuestion, plain: PlainAnswer) -> dict[str, dict[str, Distance]]:
        """Compare the predictions of each way at every place of ordinary prefill's answer.

        If the text of the answer has other tokens than were generated, the places end where the tokens differ.
        """
        start = self._tokenized(self.quizzes[index].own_text(question))
        text = _NOT_XML.split(plain.text, maxsplit=1)[0]
        again = self._tokenized(self.quizzes[index].own_text(question) + text)
        if again[: len(start)] != start:
            text, again = "", start
        places = min(_num_shared(again[len(start) :], plain.token_ids) + 1, len(plain.logits))
        found = {PLAIN.name: plain.logits[:places].log_softmax(-1)}
        for way in self.ways[1:]:
            logits = self.engine.logits(self.prompt(index, question, way, text), **way.request)
            found[way.name] = logits[len(logits) - 1 - (len(again) - len(start)) :][:places].float().log_softmax(-1)
        return {
            way.name: {other: compare_predictions(found[way.name], found[other]) for other in way.beside}
            for way in self.ways
        }

    def _answers(
        self,
        way: Way,
        asked: Sequence[tuple[int, QuizQuestion]],
        plain: Sequence[PlainAnswer],
        distances: Sequence[Mapping[str, Mapping[str, Distance]]],
    ) -> list[str]:
        """Return the greedy answers of one way.

        If the most probable token is that of ordinary prefill at every place, then the answer is, too. Only the other
        answers are generated.
        """
        answers = [each.text for each in plain]
        differing = [
            number
            for number, found in enumerate(distances)
            if sum(found[way.name][PLAIN.name].agrees) < len(plain[number].logits)
        ]
        if differing:
            prompts = [self.prompt(*asked[number], way) for number in differing]
            completions = self.engine.generate_batch(
                prompts, max_new_tokens=self.max_new_tokens, **GREEDY, **way.request
            )
            for number, completion in zip(differing, completions, strict=True):
                answers[number] = completion.text
        return answers


@torch.no_grad()
def plain_answers(engine: Engine, quizzes: Sequence[Quiz], max_new_tokens: int) -> list[PlainAnswer]:
    """Return the greedy answer to each question after ordinary prefill, in one left-padded batch.

    If documents have several questions, the tokens that these share are prefilled once.
    """
    rows = [[plain_token_ids(engine, quiz, question) for question in quiz.questions] for quiz in quizzes]
    shared = [_shared(each) if any(len(quiz.questions) > 1 for quiz in quizzes) else [] for each in rows]
    device = engine.model.device
    pad = engine.tokenizer.eos_ids[0] if engine.tokenizer.eos_ids else 0
    token_ids, mask = _padded([each for each, row in zip(shared, rows, strict=True) for _ in row], pad, device)
    cache = DynamicCache()
    if token_ids.shape[1]:
        first, first_mask = _padded(shared, pad, device)
        positions = (first_mask.cumsum(-1) - 1).clamp(min=0)
        engine.model.hf(
            first, attention_mask=first_mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        owners = [index for index, row in enumerate(rows) for _ in row]
        cache.batch_select_indices(torch.tensor(owners, device=device))
    own = [row[len(start) :] for start, each in zip(shared, rows, strict=True) for row in each]
    own_ids, own_mask = _padded(own, pad, device)
    output = engine.model.hf.generate(
        torch.cat((token_ids, own_ids), dim=1),
        attention_mask=torch.cat((mask, own_mask), dim=1),
        past_key_values=cache,
        max_new_tokens=max_new_tokens,
        **GREEDY,
        pad_token_id=pad,
        eos_token_id=list(engine.tokenizer.eos_ids) or None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    generated = output.sequences[:, token_ids.shape[1] + own_ids.shape[1] :].tolist()
    logits = torch.stack(output.logits, dim=1).float()  # [B, places, V]
    return [_plain_answer(engine, row, logits[index]) for index, row in enumerate(generated)]


def plain_token_ids(engine: Engine, quiz: Quiz, question: QuizQuestion) -> list[int]:
    """Return the tokens of a document and question without a schema, as a model without a cache gets them."""
    tokenizer = engine.tokenizer
    if not quiz.turns:
        return [*tokenizer.bos_ids, *tokenizer.tokenize(quiz.text + quiz.own_text(question))]
    rendered = Conversations(tokenizer).render(quiz.conversation(question), generation_prompt=True)
    return [token_id for ids in tokenizer.tokenize_parts([Markup(rendered)], Before.START) for token_id in ids]


def _shared(rows: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return the first tokens that all rows share; every row keeps a token of its own."""
    return rows[0][: min(_num_shared(*rows), min(map(len, rows)) - 1)]


def _num_shared(*rows: Sequence[int]) -> int:
    """Return the number of first tokens that all rows share."""
    columns = enumerate(zip(*rows, strict=False))
    return next((place for place, column in columns if len(set(column)) > 1), min(map(len, rows)))


def _padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left-padded token IDs and their mask, both `[B, T]`."""
    longest = max(map(len, rows))
    token_ids = [[pad] * (longest - len(row)) + [*row] for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(token_ids, device=device).long(), torch.tensor(mask, device=device).long()


def _plain_answer(engine: Engine, generated: Sequence[int], logits: torch.Tensor) -> PlainAnswer:
    """Cut a row of the batch at its end."""
    ends = set(engine.tokenizer.eos_ids)
    stop = next((place for place, token_id in enumerate(generated) if token_id in ends), len(generated))
    return PlainAnswer(
        token_ids=tuple(generated[:stop]),
        text=engine.tokenizer.decode(generated[:stop]),
        logits=logits[: stop + 1],
    )
