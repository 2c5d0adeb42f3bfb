"""95 % intervals for shares, paired differences and ratios of medians, from one value for each question or round.

`tools.demo.questions.Rate` has Wilson's interval of a single proportion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch

from promptcache.fidelity import clustered_interval
from tools.demo.questions import Rate

NUM_RESAMPLES = 2000


def paired_difference(first: Sequence[bool], second: Sequence[bool]) -> tuple[float, float, float]:
    """Return the share of `first` less the share of `second`, and its 95 % interval.

    Newcombe's hybrid score interval for paired proportions (Statistics in Medicine 1998, 17, 2635-2650, method 10): it
    combines the Wilson limits of both shares and allows for their correlation. It stays valid if nearly all answers are
    right, and it is not empty if both sides are right about the same questions.
    """
    total = len(first)
    both = sum(a and b for a, b in zip(first, second, strict=True))
    one, other = sum(first), sum(second)
    (low, high), (other_low, other_high) = (Rate(right=right, asked=total).interval for right in (one, other))
    phi = _correlation(both, one - both, other - both, total - one - other + both)
    share, other_share = one / total, other / total
    difference = share - other_share
    below = _hypotenuse(share - low, other_high - other_share, phi)
    above = _hypotenuse(other_share - other_low, high - share, phi)
    return difference, difference - below, difference + above


def _correlation(both: int, only_first: int, only_second: int, neither: int) -> float:
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    if margins == 0:
        return 0.0
    product: float = both * neither - only_first * only_second
    if product > 0:  # the method's correction for continuity
        product = max(product - (both + only_first + only_second + neither) / 2, 0.0)
    return product / math.sqrt(margins)


def _hypotenuse(a: float, b: float, phi: float) -> float:
    return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))


def share_interval(documents: Sequence[Sequence[bool]]) -> tuple[float, float, float]:
    """Return the share of right answers, and its 95 % interval: Wilson's if each document has one question.

    With several questions it is the bootstrap over documents. If all documents have the same share, that is empty;
    then each document counts as one question.
    """
    shares = [sum(each) / len(each) for each in documents]
    if len(set(shares)) > 1 and any(len(each) > 1 for each in documents):
        return clustered_interval(documents)
    rate = Rate(right=round(sum(shares)), asked=len(shares))
    return sum(shares) / len(shares), *rate.interval


def difference_interval(
    first: Sequence[Sequence[bool]], second: Sequence[Sequence[bool]]
) -> tuple[float, float, float]:
    """Return the share of `first` less that of `second`, by document, and its paired 95 % interval.

    It is Newcombe's if each document has one question, else the bootstrap over documents. If no document has a
    difference, the bootstrap's interval is empty; then each document counts as one question.
    """
    differences = [[a - b for a, b in zip(one, other, strict=True)] for one, other in zip(first, second, strict=True)]
    if all(len(each) == 1 for each in first):
        return paired_difference([*chain(*first)], [*chain(*second)])
    if any(map(sum, differences)):
        return clustered_interval(differences)
    return paired_difference([any(each) for each in first], [any(each) for each in second])


def ratio_of_medians(first: Sequence[float], second: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Return the median of `first` over that of `second`, and its 95 % interval by the percentile bootstrap over pairs.

    Pairs are measured in one round, and noise that both sides of a round meet does not widen the interval.
    """
    pairs = torch.tensor([first, second], dtype=torch.float64)
    chosen = torch.randint(len(first), (NUM_RESAMPLES, len(first)), generator=torch.Generator().manual_seed(seed))
    one, other = pairs[:, chosen].quantile(0.5, dim=-1)
    low, high = torch.quantile(one / other, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    one, other = pairs.quantile(0.5, dim=-1)
    return float(one / other), low, high


def ratio_of_sums(first: Sequence[float], second: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Return the sum of `first` over that of `second`, and its 95 % interval by the percentile bootstrap over pairs."""
    pairs = torch.tensor([first, second], dtype=torch.float64)
    chosen = torch.randint(len(first), (NUM_RESAMPLES, len(first)), generator=torch.Generator().manual_seed(seed))
    one, other = pairs[:, chosen].sum(-1)
    low, high = torch.quantile(one / other, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    one, other = pairs.sum(-1)
    return float(one / other), low, high
