"""Preparation of batches: normalisation and augmentation (crop, flip, rotation) of images."""

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..kernels.batch import gather, rotate
from .encoding import Encoding
from .images import Images

PAD = 4  # pixels that are added at each border before an image is cropped to its size


@dataclass(frozen=True)
class Preparation:
    """Normalisation (x / scale - mean) / std per channel, after random augmentation in training."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0
    crop: Literal["reflect", "zero"] | None = None  # random crop; how the border is padded
    flip: bool = False  # random horizontal flip
    rotation: float = 0.0  # largest angle in degrees; nearest pixel, black outside
    encoding: Encoding | None = None  # of the rows of a table

    @property
    def augments(self) -> bool:
        """Return True if training images are augmented."""
        return self.crop is not None or self.flip or self.rotation > 0

    def batch(self, x: Tensor | Images, rows: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Return samples as input of the network.

        Images become float32 and are augmented if `rng` is not None. Rows of a table are encoded
        if there is an encoding. Other samples stay as they are stored.
        """
        if self.encoding is not None:
            return self.encoding.apply(x[rows])
        if not is_pixels(x.dtype, len(x.shape) - 1):
            return x[rows]
        if isinstance(x, Images):
            x = x[rows]
            rows = torch.arange(len(rows), device=rows.device)
        height, width = x.shape[2:]
        maps, choice = self.sources(len(rows), height, width, rng if self.augments else None)
        return gather(x, rows, maps, choice, byte_table(self, x.shape[1]))

    def input_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the network's input for stored samples of this shape."""
        return shape if self.encoding is None else (len(self.encoding.features),)

    def normalise(self, x: Tensor) -> Tensor:
        """Convert stored values [B, C, ...] to float32 and normalise them."""
        mean = self._per_channel(self.mean, x)
        std = self._per_channel(self.std, x)
        return (x.float() - mean) / std

    def _per_channel(self, values: tuple[float, ...], x: Tensor) -> Tensor:
        """Return a mean or standard deviation in units of stored values; it broadcasts with x."""
        tensor = torch.tensor(values, dtype=torch.float32, device=x.device)
        return tensor.view(-1, *[1] * (x.dim() - 2)) * self.scale

    def sources(
        self, batch: int, height: int, width: int, rng: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return maps of the source of every pixel, int32 [M, HW], and the map of each image."""
        if rng is None:
            return crop_and_flip(height, width, None), torch.zeros(batch, dtype=torch.long)
        shifts = (2 * PAD + 1) ** 2 if self.crop else 1
        shift = torch.randint(shifts, (batch,), generator=rng)
        flip = torch.randint(2 if self.flip else 1, (batch,), generator=rng)
        maps = crop_and_flip(height, width, self.crop)
        choice = 2 * shift + flip
        if self.rotation > 0:
            degrees = (torch.rand(batch, generator=rng) * 2 - 1) * self.rotation
            maps = rotate(maps, choice, degrees.deg2rad(), height, width)
            choice = torch.arange(batch)
        return maps, choice


PIXELS = Preparation(mean=(0.5,), std=(0.5,))  # bytes to -1 ... 1
AS_STORED = Preparation(mean=(0.0,), std=(1.0,), scale=1.0)


def is_pixels(dtype: torch.dtype, dimensions: int) -> bool:
    """Return True if samples of this dtype and number of dimensions are images of bytes."""
    return dtype == torch.uint8 and dimensions == 3


def default_preparation(dtype: torch.dtype, dimensions: int) -> Preparation:
    """Return the preparation of user-supplied data."""
    return PIXELS if is_pixels(dtype, dimensions) else AS_STORED


@functools.cache
def byte_table(preparation: Preparation, channels: int) -> Tensor:
    """Return the normalised value of each of the 256 byte values, [C, 256]."""
    values = torch.arange(256).view(1, 1, 1, 256).expand(1, channels, 1, 256)
    return preparation.normalise(values)[0, :, 0].contiguous()


@functools.cache
def crop_and_flip(height: int, width: int, crop: str | None) -> Tensor:
    """Return the source of every pixel for each vertical shift, horizontal shift and flip.

    The result is int32 [shifts * 2, HW]; HW means black.
    """
    rows = _shifted(height, crop)  # [shifts, H]
    columns = _shifted(width, crop)  # [shifts, W]
    columns = torch.stack([columns, columns.flip(1)], dim=1)  # [shifts, 2, W]
    index = rows[:, None, None, :, None] * width + columns[None, :, :, None, :]
    outside = (rows < 0)[:, None, None, :, None] | (columns < 0)[None, :, :, None, :]
    return index.masked_fill(outside, height * width).flatten(0, 2).flatten(1).int()


def _shifted(side: int, crop: str | None) -> Tensor:
    """Return the source of each pixel of a row for each shift, [shifts, side]; -1 means black."""
    if crop is None:
        return torch.arange(side)[None]
    source = torch.arange(side)[None] + torch.arange(-PAD, PAD + 1)[:, None]
    if crop == "reflect":
        return (side - 1) - ((side - 1) - source.abs()).abs()
    return source.masked_fill((source < 0) | (source >= side), -1)
