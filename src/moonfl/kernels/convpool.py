"""Convolution, ReLU and 2x2 max-pooling as one operation: max_pool2d(relu(conv2d(x, w, b)), 2)."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from . import chain


class ConvReluPool(nn.Conv2d):
    """A layer with the parameters and the start of nn.Conv2d(inputs, outputs, kernel).

    `flat`: give the pixels of a channel together, as nn.Flatten after it wants them; else the channels of a pixel.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, flat: bool = False) -> None:
        super().__init__(inputs, outputs, kernel)
        self.flat = flat
        self.native = True  # False: torch, whatever is at hand

    def native_step(self, shape: tuple[int, ...]) -> chain.Step | None:
        """This layer for samples of that shape; None for what the native code cannot take."""
        channels, height, width = shape if len(shape) == 3 else (0, 0, 0)
        kernel = self.kernel_size[0]
        if (
            not self.native
            or channels != self.in_channels
            or min(height, width) <= kernel
            or math.prod(shape) < chain.LANES
        ):
            return None
        return chain.Step(kernel, channels, self.out_channels, height, width, flat=self.flat)

    def forward(self, x: Tensor) -> Tensor:
        made = chain.run([[self]], x) if self.native else None
        return made[0] if made is not None else F.max_pool2d(F.relu(super().forward(x)), 2)
