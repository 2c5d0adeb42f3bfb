"""The reference of an answer: transformers' own `generate`, over logits that are computed without linking.

Each step gets its logits from a function of the tokens generated so far. So processors, sampling and beams are those of
transformers, and no code of linking, history or the scheduler takes part.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode
from transformers.modeling_outputs import CausalLMOutput

Criterion: TypeAlias = Callable[..., torch.Tensor]
Draws: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Returns a context in which transformers draws the random numbers of one request."""


class Logits:
    """Logits behind a prompt and any generated tokens. Each is computed once."""

    def __init__(self, compute: Callable[[tuple[int, ...]], torch.Tensor]) -> None:
        self._compute = compute
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def after(self, token_ids: tuple[int, ...]) -> torch.Tensor:
        """Return the logits `[V]` behind the prompt and these generated tokens."""
        if token_ids not in self._known:
            computed = self._compute(token_ids)
            self._known.update((token_ids[:count], row) for count, row in enumerate(computed))
        return self._known[token_ids]

    def greedy(self, num_tokens: int) -> tuple[int, ...]:
        token_ids: tuple[int, ...] = ()
        for _ in range(num_tokens):
            token_ids = (*token_ids, int(self.after(token_ids).argmax()))
        return token_ids

    def rounded(self, size: float, seed: int) -> "Logits":
        """Return these logits with random errors up to `size` times the largest one."""

        def compute(token_ids: tuple[int, ...]) -> torch.Tensor:
            rows = torch.stack([self.after(token_ids[:count]) for count in range(len(token_ids) + 1)])
            generator = torch.Generator().manual_seed(seed + sum(token_ids))
            errors = 2 * torch.rand(rows.shape, generator=generator, dtype=rows.dtype) - 1
            return rows + size * rows.abs().max() * errors

        return Logits(compute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The answer of the reference, without padding. Rows of `output` may be beams."""

    sequences: tuple[tuple[int, ...], ...]
    ended: tuple[bool, ...]
    output: Any
    has_beams: bool

    def rows_in_use(self, step: int, num_rows: int) -> list[int]:
        """Return the rows of the output that are not padding at a step."""
        if self.has_beams:
            return list(range(num_rows))
        return [row for row, sequence in enumerate(self.sequences) if step < len(sequence)]


@torch.no_grad()
def decode(
    hf: Any,
    logits: Logits,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    options: Mapping[str, Any],
    ends: Sequence[int],
    criteria: Sequence[Criterion],
    draws: Draws,
) -> Decoded:
    """Decode behind a prompt, with the settings of generation of a model, and its other options."""
    num_given, num_known = len(prompt_ids), len(logits.after(()))
    has_beams = options.get("num_beams", 1) > 1

    def stop(row: Sequence[int]) -> int | None:
        """Return the number of generated tokens of a row, prompt included, at which it ends."""
        for length in range(num_given + 1, len(row) + 1):
            seen = torch.tensor([row[:length]])
            if row[length - 1] in ends or any(bool(each(seen, None)) for each in criteria):
                return length - num_given
        return None

    def after(row: Sequence[int]) -> torch.Tensor:
        if not has_beams and stop(row) is not None:
            return torch.zeros(num_known, dtype=torch.float64)  # what follows is padding
        return logits.after(tuple(row[num_given:]))

    view = copy.copy(hf)
    view.forward = lambda input_ids, **_: CausalLMOutput(logits=torch.stack([*map(after, input_ids.tolist())])[:, None])
    view.prepare_inputs_for_generation = lambda input_ids, attention_mask=None, **_: {"input_ids": input_ids}
    ids = torch.tensor([list(prompt_ids)])
    with draws():
        output = view.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            use_cache=False,
            max_new_tokens=max_new_tokens,
            stopping_criteria=list(criteria),
            return_dict_in_generate=True,
            eos_token_id=list(ends) or None,
            pad_token_id=num_known if has_beams else 0,
            **options,
        )
    rows = output.sequences.tolist()
    if has_beams:  # padding is a token that the model does not have, or -1
        rows = [[each for each in row if 0 <= each < num_known] for row in rows]
    stops = [stop(row) for row in rows]
    return Decoded(
        sequences=tuple(tuple(row[num_given:][:count]) for row, count in zip(rows, stops, strict=True)),
        ended=tuple(count is not None for count in stops),
        output=output,
        has_beams=has_beams,
    )


class RowDraws(TorchFunctionMode):
    """Context in which one row is sampled as in a shared forward pass.

    One random number of the generator chooses each token: the first one by ID at which the running sum of probabilities
    exceeds the number.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not torch.multinomial:
            return func(*args, **(kwargs or {}))
        (probabilities,) = args[0].to(torch.float64)
        sums = probabilities.cumsum(0)
        number = torch.rand((), generator=self._generator, dtype=torch.float64)
        place = (sums <= number * sums[-1]).sum()
        return place.clamp(max=(sums < sums[-1]).sum()).view(1, 1)
