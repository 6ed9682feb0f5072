"""Robust aggregation: coordinate-wise median and trimmed mean in place of the weighted mean.

A minority of parties cannot move them arbitrarily. Yin, Chen, Ramchandran, Bartlett,
Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
https://arxiv.org/abs/1803.01498
"""

import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from .. import tree
from ..types import Params

MEDIAN = 0.5  # the share to trim at either end that leaves the median
PIECE = 2**20  # coordinates sorted at a time: sorting takes several times their memory


def trimmed_mean_of_trees(trees: Iterable[tuple[Params, float]], trim: float) -> Params:
    """Return the trimmed mean of each coordinate. Dtypes are kept, integers are rounded.

    Every party has one vote: weights are numbers of samples, which a party only claims.
    """
    voters = [params for params, _ in trees]
    cut = num_trimmed(len(voters), trim)
    return {name: trimmed_mean([params[name] for params in voters], cut) for name in voters[0]}


def num_trimmed(parties: int, trim: float) -> int:
    """Return how many of n parties to leave out at either end: floor(trim n), at least 1.

    At least one party remains. A trim above 0 therefore protects against one party of three or
    more, however few took part. Of two parties only the mean remains.
    """
    if trim == 0:
        return 0
    share = math.floor(trim * parties + 1e-9)  # 0.29 * 100 is slightly below 29
    return min(max(1, share), (parties - 1) // 2)


def trimmed_mean(values: list[Tensor], cut: int) -> Tensor:
    """Return the mean of x_(cut+1), ..., x_(n-cut) of the n sorted values of each coordinate.

    With the largest cut it is the median; of an even number of values, the mean of the two in the
    middle. Any `cut` values may be arbitrary, also NaN (sorted last): the mean lies between two of
    the others.
    """
    first = values[0]
    if first.is_complex():
        real = [torch.view_as_real(v) for v in values]
        return torch.view_as_complex(trimmed_mean(real, cut))
    if tree.is_integer(first.dtype) and all(v.equal(first) for v in values):
        return first.clone()
    pieces = zip(*(v.flatten().split(PIECE) for v in values), strict=True)
    means = [_trimmed_mean(torch.stack(piece, dim=1), cut) for piece in pieces]
    return torch.cat(means).view_as(first)


def _trimmed_mean(values: Tensor, cut: int) -> Tensor:
    """Reduce [M, n] to [M]. Sums are sequential in float64, so threads cannot change a bit."""
    middle = values.sort(dim=1).values[:, cut : values.shape[1] - cut].double()
    total = functools.reduce(torch.add, middle.unbind(dim=1))
    return tree.to_dtype(total / middle.shape[1], values.dtype)
