"""Feature shift: the parties observe samples of the same kind in different ways.

The shift of party i of N (from 1) is level * i/N, as in the noise-based feature skew of Li, Diao,
Chen, He, Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022.
https://arxiv.org/abs/2102.02079

Samples are shifted once, before training. Every party has its own random stream, and draws in the
order of its samples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .. import seeds
from ..errors import InputError
from ..kernels.batch import rotate
from .augment import Preparation, crop_and_flip, is_pixels
from .base import Examples
from .descriptions import LEVELS
from .images import Images
from .moments import compute_moments, statistics_shape
from .partition import Index

CHUNK = 1024  # samples that are converted to float64 at a time
STREAMS = {"train": 0, "test": 1}


@dataclass(frozen=True)
class Shift:
    """A kind of shift and what determines it at every party."""

    kind: Literal["noise", "rotation", "scale"]
    level: float | None  # at the last party; None: the default of the kind
    parties: int
    seed: int
    unit: Tensor  # of the noise: the range of a pixel, or the standard deviation of each feature

    def level_of(self, party: int) -> float:
        """Return the level of a party; parties are numbered from 0."""
        level = LEVELS[self.kind] if self.level is None else self.level
        return level * (party + 1) / self.parties


def shift_unit(data: Examples, preparation: Preparation) -> Tensor:
    """Return the unit of noise: the range of a pixel, or the standard deviation of each feature.

    Data that cannot be shifted are refused.
    """
    x = data.x
    if isinstance(x, Images):
        raise InputError(
            "shift needs samples in memory, and an image folder is read on demand; save the "
            "images as an .npz file and use dataset=npz"
        )
    if is_pixels(x.dtype, x.dim() - 1):
        return torch.tensor(preparation.scale, dtype=torch.float64)
    if not x.dtype.is_floating_point:
        raise InputError(
            "shift requires images or numeric features; these samples are token ids "
            f"({str(x.dtype).removeprefix('torch.')}): remove shift"
        )
    moments = compute_moments(data)
    std = (moments.squared_deviations / moments.number).sqrt()
    return std.view(statistics_shape(tuple(x.shape[1:])))


def shift_features(
    shift: Shift, data: Examples, parts: Mapping[int, Index], subset: Literal["train", "test"]
) -> Examples:
    """Return a copy of the samples in which those of each party are shifted."""
    source = data.x
    assert not isinstance(source, Images)
    if shift.kind == "rotation" and source.dim() != 4:
        raise InputError(
            f"shift=rotation requires images [channels, height, width], the samples have shape "
            f"{list(source.shape[1:])}; use shift=noise or shift=scale"
        )
    x = source.clone()
    for party, part in parts.items():
        transform = _transform(shift, party, STREAMS[subset])
        for rows in torch.from_numpy(part).split(CHUNK):
            x[rows] = _store(transform(source[rows].double()), source.dtype, shift.unit)
    return Examples(x, data.y)


def _transform(shift: Shift, party: int, stream: int) -> Callable[[Tensor], Tensor]:
    """Return the function that shifts float64 samples of a party."""
    level = shift.level_of(party)
    if shift.kind == "scale":
        return lambda x: (1 - level) * x
    if shift.kind == "rotation":
        return lambda x: _rotate(x, level)
    # RandomState draws the same numbers in every version of numpy.
    random = np.random.RandomState(seeds.derive(shift.seed, "shift", stream, party) % 2**32)
    scale = level * shift.unit
    return lambda x: x + scale * torch.from_numpy(random.standard_normal(tuple(x.shape)))


def _rotate(x: Tensor, degrees: float) -> Tensor:
    """Rotate images [B, C, H, W] about their centre; nearest pixel, 0 outside."""
    height, width = x.shape[2:]
    pixels = torch.cat([x.flatten(2), x.new_zeros(*x.shape[:2], 1)], dim=2)
    unchanged = crop_and_flip(height, width, None)[:1]
    angle = torch.tensor([degrees]).deg2rad()
    source = rotate(unchanged, torch.tensor([0]), angle, height, width)[0]
    return pixels[:, :, source].view_as(x)


def _store(x: Tensor, dtype: torch.dtype, unit: Tensor) -> Tensor:
    """Convert shifted samples to the dtype of the data; pixels are rounded to their range."""
    if dtype == torch.uint8:
        x = x.round().clamp(0, float(unit))
    return x.to(dtype)
