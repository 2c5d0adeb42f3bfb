"""95 % intervals by the bootstrap, from one value for each question.

Questions about one document are not independent. `clustered_interval` resamples documents.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_NUM_RESAMPLES = 2000
_MAX_DRAWS = 1 << 18
"""Documents that are drawn at once, over several resamples; limits memory to a few megabytes."""


def clustered_interval(documents: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float, float]:
    """Return the mean over all questions, and its 95 % interval by the percentile bootstrap over documents.

    If the values are differences between two ways of answering the same question, the interval is a paired one.
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
