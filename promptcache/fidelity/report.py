"""Results of a measurement of fidelity, their intervals, and the rule by which a setting is recommended.

Divergences are in nats, as everywhere in Python. The command shows millinats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from promptcache.diagnostics import Short
from promptcache.fidelity.settings import PROMOTED, Setting

EQUAL_NATS = 0.0001
"""Difference of two divergences that count as equal: a tenth of a millinat, the last digit that is shown."""

EQUAL_TTFT = 0.1
"""Share by which two times to first token may differ and still count as equal."""

LONGEST_TTFT = 1.5
"""Time to first token that nearer answers are worth, beside that of the fastest setting. The rule of the default."""

_NUM_RESAMPLES = 2000
_MAX_DRAWS = 1 << 18
"""Documents that are drawn at once, over several resamples; limits memory to a few megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean over prompts with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SettingFidelity(Short):
    """Figures of one setting, each over all prompts and compared with ordinary prefill.

    Attributes:
        setting: The setting.
        repair: The setting `repair` of its requests.
        divergence: Mean KL divergence of ordinary prefill from the setting, in nats.
        agreement: Mean share of places with the same most probable token.
        same_answer: Share of prompts with the same greedy answer.
        exact: Share of prompts of level `exact`.
        ttft_s: Median time from a plan to the first token, with all KV in memory.
        relative_ttft: `ttft_s` as a share of that of ordinary prefill.
        nbytes: Stored bytes of the schema, and of the pairs of modules that the prompts have.
    """

    setting: Setting
    repair: str
    divergence: Interval
    agreement: float
    same_answer: float
    exact: float
    ttft_s: float
    relative_ttft: float
    nbytes: int

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def highest_equal(self) -> float:
        """Highest mean divergence that does not count as worse than this one.

        It is the upper end of the interval, and at least a tenth of a millinat above the mean.
        """
        return max(self.divergence.high, self.divergence.value + EQUAL_NATS)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PromptFidelity(Short):
    """Distance of one prompt of the schema as it is.

    Attributes:
        name: Name or number of the example, or "random 1".
        xml: The prompt.
        divergence: KL divergence of ordinary prefill from the request, in nats.
        same_answer: Whether the greedy answer is that of ordinary prefill.
    """

    name: str
    xml: str
    divergence: float
    same_answer: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fidelity(Short):
    """Distance of a schema's cached requests from ordinary prefill, for several settings.

    Attributes:
        schema: Name of the schema.
        prompts: The prompts that were measured.
        settings: Figures of the schema as it is, then of each other setting.
        refused: Settings that the model or the schema refuses, with the reason.
        plain_ttft_s: Median time to the first token of ordinary prefill.
    """

    schema: str
    prompts: tuple[PromptFidelity, ...]
    settings: tuple[SettingFidelity, ...]
    refused: tuple[tuple[str, str], ...]
    plain_ttft_s: float

    @property
    def as_it_is(self) -> SettingFidelity:
        """The figures of the schema as it is."""
        return self.settings[0]

    def recommend(self, max_divergence: float | None = None) -> SettingFidelity | None:
        """Return the fastest setting that is near enough to ordinary prefill, or None if none is.

        1. Settings that an attribute can state take part.
        2. Near enough is a mean divergence of at most `max_divergence`, in nats. Without a limit, it is `highest_equal`
           of the nearest setting whose TTFT is at most `LONGEST_TTFT` times that of the fastest one.
        3. The lowest TTFT is taken. TTFTs that differ by at most `EQUAL_TTFT` count as equal; of these the nearest
           setting is taken, and of equally near ones the first.
        4. The schema stays as it is if that is among these, and its mean is at most `highest_equal` of the choice.
        """
        stated = [each for each in self.settings if each.setting != PROMOTED]
        if max_divergence is None:
            longest = LONGEST_TTFT * min(each.relative_ttft for each in stated)
            quick = (each for each in stated if each.relative_ttft <= longest)
            max_divergence = min(quick, key=lambda each: each.divergence.value).highest_equal
        allowed = [each for each in stated if each.divergence.value <= max_divergence]
        if not allowed:
            return None
        fastest = min(each.relative_ttft for each in allowed)
        fast = [each for each in allowed if each.relative_ttft <= fastest * (1 + EQUAL_TTFT)]
        chosen = min(fast, key=lambda each: round(each.divergence.value / EQUAL_NATS))
        stays = self.as_it_is in fast and self.as_it_is.divergence.value <= chosen.highest_equal
        return self.as_it_is if stays else chosen


def clustered_interval(documents: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float, float]:
    """Return the mean over all questions, and its 95 % interval by the percentile bootstrap over documents.

    Questions about one document are not independent, so documents are resampled. If the values are differences between
    two ways of answering the same question, the interval is a paired one.
    """
    sums = torch.tensor([sum(each) for each in documents], dtype=torch.float64)
    counts = torch.tensor([len(each) for each in documents], dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    means: list[torch.Tensor] = []
    num_rows = max(1, _MAX_DRAWS // len(sums))
    for start in range(0, _NUM_RESAMPLES, num_rows):
        size = (min(num_rows, _NUM_RESAMPLES - start), len(sums))
        chosen = torch.randint(len(sums), size, generator=generator)
        means.append(sums[chosen].sum(1) / counts[chosen].sum(1))
    low, high = torch.quantile(torch.cat(means), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(sums.sum() / counts.sum()), low, high
