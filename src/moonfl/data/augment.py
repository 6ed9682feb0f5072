"""From stored pixels to the network's input, a whole batch at a time."""

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..kernels.batch import gather
from .images import Images

PAD = 4  # pixels around the image before it is cropped back to its size


@dataclass(frozen=True)
class Preparation:
    """(x / scale - mean) / std per channel; when training, before it: crop, flip and rotation at random."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0
    crop: Literal["reflect", "zero"] | None = (
        None  # how the border of 4 pixels is filled before the crop
    )
    flip: bool = False
    rotation: float = 0.0  # up to so many degrees either way, nearest pixel, black outside

    @property
    def augments(self) -> bool:
        return self.crop is not None or self.flip or self.rotation > 0

    def batch(self, x: Tensor | Images, rows: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """The rows of x as the network's input: pixels as float32, augmented where a stream of random numbers is given,
        anything else as it is stored.
        """
        if not is_pixels(x.dtype, len(x.shape) - 1):
            return x[rows]
        if isinstance(x, Images):
            x, rows = x[rows], torch.arange(len(rows), device=rows.device)
        height, width = x.shape[2:]
        maps, choice = self.sources(len(rows), height, width, rng if self.augments else None)
        return gather(x, rows, maps, choice, normalised_bytes(self, x.shape[1]))

    def normalise(self, x: Tensor) -> Tensor:
        """[B, C, ...] stored values -> float32."""
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=x.device).view(
                -1, *[1] * (x.dim() - 2)
            )
            * self.scale
            for values in (self.mean, self.std)
        )
        return (x.float() - mean) / std

    def sources(
        self, batch: int, height: int, width: int, rng: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Maps of where every pixel comes from, int32 [M, HW], and for each image of the batch the map it takes."""
        if rng is None:
            return crop_and_flip(height, width, None), torch.zeros(batch, dtype=torch.long)
        shifts = (2 * PAD + 1) ** 2 if self.crop else 1
        shift = torch.randint(shifts, (batch,), generator=rng)
        flip = torch.randint(2 if self.flip else 1, (batch,), generator=rng)
        maps, choice = crop_and_flip(height, width, self.crop), 2 * shift + flip
        if self.rotation > 0:
            degrees = (torch.rand(batch, generator=rng) * 2 - 1) * self.rotation
            black = maps.new_full((batch, 1), height * width)
            moved = torch.cat([maps[choice], black], dim=1)
            maps = moved.gather(1, rotate(height, width, degrees.deg2rad()))
            choice = torch.arange(batch)
        return maps, choice


PIXELS = Preparation(mean=(0.5,), std=(0.5,))  # bytes to -1 ... 1
AS_STORED = Preparation(mean=(0.0,), std=(1.0,), scale=1.0)


def is_pixels(dtype: torch.dtype, dimensions: int) -> bool:
    """Whether samples with so many dimensions are images in bytes."""
    return dtype == torch.uint8 and dimensions == 3


def default_preparation(dtype: torch.dtype, dimensions: int) -> Preparation:
    """For data of which nothing else is known."""
    return PIXELS if is_pixels(dtype, dimensions) else AS_STORED


@functools.cache
def normalised_bytes(preparation: Preparation, channels: int) -> Tensor:
    """What each of the 256 values of a pixel becomes, [C, 256]."""
    values = torch.arange(256).view(1, 1, 1, 256).expand(1, channels, 1, 256)
    return preparation.normalise(values)[0, :, 0].contiguous()


@functools.cache
def crop_and_flip(height: int, width: int, crop: str | None) -> Tensor:
    """Where every pixel comes from, for each shift down, shift right and flip: int32 [shifts * 2, HW]."""
    rows, columns = _sources(height, crop), _sources(width, crop)  # [shifts, H], [shifts, W]
    columns = torch.stack([columns, columns.flip(1)], dim=1)  # [shifts, 2, W]
    index = rows[:, None, None, :, None] * width + columns[None, :, :, None, :]
    outside = (rows < 0)[:, None, None, :, None] | (columns < 0)[None, :, :, None, :]
    return index.masked_fill(outside, height * width).flatten(0, 2).flatten(1).int()


def _sources(side: int, crop: str | None) -> Tensor:
    """For each shift of a padded row of `side` pixels: the source of each pixel, -1 for black. [shifts, side]"""
    if crop is None:
        return torch.arange(side)[None]
    source = torch.arange(side)[None] + torch.arange(-PAD, PAD + 1)[:, None]
    if crop == "reflect":
        return (side - 1) - ((side - 1) - source.abs()).abs()
    return source.masked_fill((source < 0) | (source >= side), -1)


def rotate(height: int, width: int, radians: Tensor) -> Tensor:
    """Where every pixel comes from when each image turns about its centre; HW for outside. [B, HW]"""
    y = torch.arange(height)[:, None] + 0.5 - height / 2
    x = torch.arange(width)[None, :] + 0.5 - width / 2
    cos, sin = radians.cos()[:, None, None], radians.sin()[:, None, None]
    column = (cos * x - sin * y + width / 2).floor().long()
    row = (sin * x + cos * y + height / 2).floor().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return (row * width + column).masked_fill(~inside, height * width).flatten(1)
