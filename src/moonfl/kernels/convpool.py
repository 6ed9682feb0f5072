"""Convolution, ReLU and 2x2 max-pooling as one operation: max_pool2d(relu(conv2d(x, w, b)), 2)."""

import ctypes
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import chain

LANES = 16  # samples the native code takes at a time


class ConvReluPool(nn.Conv2d):
    """A layer with the parameters and the start of nn.Conv2d(inputs, outputs, kernel).

    `flat`: give the pixels of a channel together, as nn.Flatten after it wants them; else the channels of a pixel.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, flat: bool = False) -> None:
        super().__init__(inputs, outputs, kernel)
        self.flat = flat
        self.native = True  # False: torch, whatever is at hand

    def native_step(self) -> "Convolution":
        return Convolution(self.in_channels, self.out_channels, self.kernel_size[0], self.flat)

    def forward(self, x: Tensor) -> Tensor:
        made = chain.run([[self]], x) if self.native else None
        return made[0] if made is not None else F.max_pool2d(F.relu(super().forward(x)), 2)


class Convolution(NamedTuple):
    """A step of a chain."""

    inputs: int
    outputs: int
    kernel: int
    flat: bool

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        fits = len(shape) == 3 and shape[0] == self.inputs and min(shape[1:]) > self.kernel
        if not fits or math.prod(shape) < LANES:
            return None
        return (self.outputs, *self.pooled(shape[1:]))

    def pooled(self, sides: tuple[int, ...]) -> list[int]:
        """Height and width after it."""
        return [(side - self.kernel + 1) // 2 for side in sides]

    @property
    def layout(self) -> torch.memory_format:
        return torch.contiguous_format if self.flat else torch.channels_last

    def numbers(self, x: Tensor) -> tuple[int, ...]:
        return (len(x), self.inputs, x.shape[2], x.shape[3], self.outputs, self.kernel, self.flat)

    def forward(self, native: ctypes.CDLL, x: Tensor, w: Tensor, b: Tensor, keep: bool) -> tuple[Tensor, Tensor | None]:
        """y, and which place of each window was the largest."""
        x, n = x.contiguous(memory_format=torch.channels_last), len(x)
        y = torch.empty((n, self.outputs, *self.pooled(x.shape[2:])), dtype=torch.float32, memory_format=self.layout)
        arg = torch.empty(-(-n // LANES) * LANES * y[:1].numel(), dtype=torch.uint8) if keep else None
        pointers = [t.data_ptr() if t is not None else None for t in (x, w, b, y, arg)]
        if native.moonfl_convpool_forward(*pointers, *self.numbers(x)) != 0:
            raise MemoryError("no memory for a convolution")
        return y, arg

    def backward(
        self, native: ctypes.CDLL, x: Tensor, w: Tensor, y: Tensor, note: Tensor | None, dy: Tensor, wants_dx: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        x, dy = x.contiguous(memory_format=torch.channels_last), dy.contiguous(memory_format=self.layout)
        dx = torch.empty_like(x) if wants_dx else None
        gw, gb = torch.empty_like(w), torch.empty(self.outputs, dtype=torch.float32)
        pointers = [t.data_ptr() if t is not None else None for t in (x, w, y, note, dy, dx, gw, gb)]
        if native.moonfl_convpool_backward(*pointers, *self.numbers(x)) != 0:
            raise MemoryError("no memory for the gradient of a convolution")
        return dx, gw, gb
