"""Mean and standard deviation over all parties, for standardising float features.

A party shares only the number, the mean and the sum of squared deviations of its samples.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .base import Examples
from .encoding import is_constant
from .images import Images

CHUNK = 4096  # samples that are converted to float64 at a time


class Moments(NamedTuple):
    """Statistics of the values of each feature or channel.

    They are equivalent to count, sum and sum of squares, but do not lose digits.
    """

    number: int  # of values per feature
    mean: Tensor  # float64, [features]
    squared_deviations: Tensor  # sum of squared deviations from the mean, float64, [features]


def channel_axis(shape: tuple[int, ...]) -> int:
    """Return the axis of a sample that holds its features or channels.

    It is the first axis, but for a signal the shorter one, because time is long.
    """
    if len(shape) == 2 and shape[0] > shape[1]:
        return 1
    return 0


def statistics_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of mean and standard deviation that broadcasts with a sample."""
    axis = channel_axis(shape)
    return tuple(side if k == axis else 1 for k, side in enumerate(shape))


def compute_moments(data: Examples) -> Moments:
    """Compute the moments of one party's samples."""
    x = data.x
    assert not isinstance(x, Images)
    axis = channel_axis(tuple(x.shape[1:]))
    if x.dim() > 2:
        values = x.movedim(1 + axis, 1).flatten(2)  # [N, features, L]
    else:
        values = x.unsqueeze(2)
    return merge([_chunk_moments(chunk) for chunk in values.split(CHUNK)])


def target_moments(y: Tensor) -> Moments:
    """Compute the moments of one party's regression targets, [N, targets]."""
    return compute_moments(Examples(y, y))


def _chunk_moments(chunk: Tensor) -> Moments:
    """Compute moments with numpy, whose summation order does not depend on the threads."""
    values = chunk.cpu().double().numpy()
    mean = values.mean(axis=(0, 2))
    squared_deviations = np.square(values - mean[:, None]).sum(axis=(0, 2))
    return Moments(
        number=len(values) * values.shape[2],
        mean=torch.from_numpy(mean),
        squared_deviations=torch.from_numpy(squared_deviations),
    )


def merge(parts: Iterable[Moments]) -> Moments:
    """Merge moments in the given order (Chan, Golub, LeVeque 1979)."""
    first, *others = parts
    number, mean, squared_deviations = first
    for part in others:
        total = number + part.number
        difference = part.mean - mean
        mean = mean + difference * (part.number / total)
        between = difference.square() * (number * (part.number / total))
        squared_deviations = squared_deviations + part.squared_deviations + between
        number = total
    return Moments(number, mean, squared_deviations)


def mean_and_std(parts: Iterable[Moments], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over all parties.

    Both are float64 and broadcast with a sample. The standard deviation of a constant feature is
    set to 1.
    """
    number, mean, squared_deviations = merge(parts)
    std = (squared_deviations / number).sqrt()
    std = torch.where(is_constant(std, mean), torch.ones_like(std), std)
    statistics = statistics_shape(shape)
    return mean.view(statistics), std.view(statistics)
