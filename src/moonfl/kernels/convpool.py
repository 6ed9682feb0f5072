"""Convolution, ReLU and 2x2 max-pooling as one layer: max_pool2d(relu(conv2d(x, w, b)), 2)."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from .chain import run_layer
from .plan import LANES, Step


class ConvReluPool(nn.Conv2d):
    """A layer with the parameters and the initialisation of nn.Conv2d(inputs, outputs, kernel).

    With `flat` the native code writes its output in channels-first layout, as a following
    nn.Flatten needs it; otherwise in channels-last layout.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, flat: bool = False) -> None:
        super().__init__(inputs, outputs, kernel)
        self.flat = flat
        self.native = True  # False: always use torch

    def native_step(self, shape: tuple[int, ...]) -> Step | None:
        """Return the step of this layer for samples of a shape, or None if torch must run it."""
        if not self.native or len(shape) != 3:
            return None
        channels, height, width = shape
        kernel = self.kernel_size[0]
        if channels != self.in_channels or min(height, width) <= kernel:
            return None
        if math.prod(shape) < LANES:
            return None
        return Step(
            kernel=kernel,
            inputs=channels,
            outputs=self.out_channels,
            height=height,
            width=width,
            flat=self.flat,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled feature maps."""
        step = self.native_step(tuple(x.shape[1:]))
        y = None if step is None else run_layer(step, x, self.weight, self.bias)
        if y is not None:
            return y
        return F.max_pool2d(F.relu(super().forward(x)), 2)
