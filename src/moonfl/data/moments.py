"""Standardisation over the federation: a party shares the number, mean and spread of its samples."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .base import Examples
from .images import Images

CHUNK = 4096  # samples at a time


class Moments(NamedTuple):
    """Of one party: how many values each feature or channel has, their mean, and the sum of squared deviations from it.

    That is count, sum and sum of squares in the form that loses no digits.
    """

    number: int
    mean: Tensor  # float64, [features]
    squares: Tensor


def channel_axis(shape: tuple[int, ...]) -> int:
    """Which axis of a sample are its features or channels: of a signal the shorter one, as time is long."""
    return int(len(shape) == 2 and shape[0] > shape[1])


def statistics_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """That of mean and deviation, so that they go with a sample."""
    return tuple(side if k == channel_axis(shape) else 1 for k, side in enumerate(shape))


def compute_moments(data: Examples) -> Moments:
    assert not isinstance(data.x, Images)
    axis = channel_axis(tuple(data.x.shape[1:]))
    values = (
        data.x.movedim(1 + axis, 1).flatten(2) if data.x.dim() > 2 else data.x.unsqueeze(2)
    )  # [N, features, L]
    found = [_of(chunk) for chunk in values.split(CHUNK)]
    return merge(found)


def _of(values: Tensor) -> Moments:
    """Summed by numpy, whose order does not depend on the number of threads."""
    own = values.cpu().double().numpy()
    mean = own.mean(axis=(0, 2))
    squares = np.square(own - mean[:, None]).sum(axis=(0, 2))
    return Moments(len(own) * own.shape[2], torch.from_numpy(mean), torch.from_numpy(squares))


def merge(parts: Iterable[Moments]) -> Moments:
    """Of all together, in their order (Chan, Golub, LeVeque 1979)."""
    first, *others = parts
    number, mean, squares = first
    for part in others:
        total, gap = number + part.number, part.mean - mean
        mean = mean + gap * (part.number / total)
        squares = squares + part.squares + gap.square() * (number * (part.number / total))
        number = total
    return Moments(number, mean, squares)


def mean_and_std(parts: Iterable[Moments], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and deviation of all parties together, float32, of a shape that goes with samples; a constant has 1."""
    number, mean, squares = merge(parts)
    std = (squares / number).sqrt()
    tiny = std <= 1e-12 * mean.abs().clamp(min=math.sqrt(torch.finfo(torch.float64).tiny))
    std = torch.where(tiny, torch.ones_like(std), std)
    return mean.float().view(statistics_shape(shape)), std.float().view(statistics_shape(shape))
