"""The options of a drawn request as objects: for the engine, and for the reference."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig

from promptcache.testing.tiny_model import tiny_model
from tests.requests.decoder import Criterion
from tests.requests.plans import VOCABULARY
from tests.requests.workloads import CRITERIA, Ask

_SAME = frozenset(
    {
        *("do_sample", "top_k", "top_p", "min_p", "typical_p", "temperature", "min_new_tokens"),
        *("repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("num_beams", "num_return_sequences", "length_penalty"),
    }
)
"""Options with one value for the engine and the reference, which may be in a configuration."""

_OUTPUTS = frozenset({"output_scores", "output_logits"})
_OF_ENGINE = frozenset({"return_dict_in_generate", "logprobs", "prompt_lookup_num_tokens"})
_OF_PLACES = frozenset({"bad_words_ids", "sequence_bias", "eos_token_id"}) | CRITERIA


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Options whose places are tokens: what the engine and the reference are given. `ends` None means the engine's."""

    given: dict[str, Any]
    reference: dict[str, Any]
    ends: tuple[int, ...] | None
    criteria: tuple[Criterion, ...]
    drafter: "Drafter | None"


def names_places(ask: Ask) -> bool:
    return not _OF_PLACES.isdisjoint(ask.options)


def resolve(ask: Ask, path: Sequence[int]) -> Resolved:
    """Return the options of a request. `path` is the greedy answer, or () if no option names a place in it."""
    named = dict(ask.options)
    same = {name: value for name, value in named.items() if name in _SAME}
    reference = same | {name: True for name in _OUTPUTS if name in named} | _of_tokens(named, path)
    given = reference | {name: named[name] for name in _OF_ENGINE if name in named}
    if "generation_config" in named:
        given = {name: value for name, value in given.items() if name not in same}
        given["generation_config"] = GenerationConfig(**same)
    ends = None
    if "eos_token_id" in named:
        ends = tuple(path[each.index] for each in named["eos_token_id"])
        given["eos_token_id"] = [*ends]
    criteria: list[Criterion] = []
    if "stopping_criteria" in named:
        criteria.append(_ends_in(path[named["stopping_criteria"].index]))
        given["stopping_criteria"] = [*criteria]
    if "stop_strings" in named:
        token_id = path[named["stop_strings"].index]
        text = chr(token_id) if token_id < 128 else "e"  # half of all bytes are no character
        criteria.append(_contains(text))
        given |= {"stop_strings": [text]}
    if "streamer" in named:
        given["streamer"] = Recorder()
    drafter = Drafter(named["assistant_model"]) if "assistant_model" in named else None
    if drafter is not None:
        given["assistant_model"] = drafter.model
    return Resolved(given=given, reference=reference, ends=ends, criteria=tuple(criteria), drafter=drafter)


def _of_tokens(named: dict[str, Any], path: Sequence[int]) -> dict[str, Any]:
    """Return the options that read or name tokens and are the same for the reference."""
    found: dict[str, Any] = {}
    if "bad_words_ids" in named:
        found["bad_words_ids"] = [[path[each.index] for each in word] for word in named["bad_words_ids"]]
    if "sequence_bias" in named:
        found["sequence_bias"] = {tuple(path[each.index] for each in named["sequence_bias"]): -5.0}
    if "logits_processor" in named:
        found["logits_processor"] = [_scramble]
    if "prefix_allowed_tokens_fn" in named:
        found["prefix_allowed_tokens_fn"] = _allowed
    return found


def _scramble(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Rotate the scores of each row by the sum of its tokens: a logits processor to which every token matters."""
    return torch.stack([row.roll(int(ids.sum()) % 5) for ids, row in zip(input_ids, scores, strict=True)])


def _allowed(batch_id: int, input_ids: torch.Tensor) -> list[int]:
    """Return two thirds of all tokens, which depend on the tokens so far."""
    return [each for each in range(VOCABULARY.vocab_size) if (each + int(input_ids.sum())) % 3]


def _ends_in(token_id: int) -> Criterion:
    return lambda input_ids, scores, **_: input_ids[:, -1] == token_id


def _contains(text: str) -> Criterion:
    def criterion(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([text in VOCABULARY.detokenize(row[-1:]) for row in input_ids.tolist()])

    return criterion


class Recorder:
    def __init__(self) -> None:
        self.puts: list[list[int]] = []
        self.ends: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.puts.append(value.reshape(-1).tolist())

    def end(self) -> None:
        self.ends.append(len(self.puts))


class Drafter:
    """A model for transformers that knows the answers, and drafts a wrong token after each `num_right` tokens."""

    def __init__(self, num_right: int) -> None:
        self.answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.model: Any = copy.copy(_assistant())
        self.model.generate = self._generate
        self._num_right = num_right

    def _generate(self, input_ids: torch.Tensor, max_new_tokens: int, **_: Any) -> Any:
        (row,) = input_ids.tolist()
        prompt = max((each for each in self.answers if tuple(row[: len(each)]) == each), key=len)
        draft = [*self.answers[prompt][len(row) - len(prompt) :][:max_new_tokens]] or [0]
        for index in range(self._num_right, len(draft), self._num_right + 1):
            draft[index] = (draft[index] + 1) % VOCABULARY.vocab_size
        scores = torch.full((len(draft), 1, VOCABULARY.vocab_size), -1e4)
        scores[range(len(draft)), 0, draft] = 0.0
        sequences = torch.cat([input_ids, torch.tensor([draft])], dim=1)
        return SimpleNamespace(sequences=sequences, scores=tuple(scores), past_key_values=None)


@cache
def _assistant() -> Any:
    return tiny_model().hf
