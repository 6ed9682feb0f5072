"""A linear layer, with ReLU where one follows: relu(x w' + b)."""

import ctypes
import math
from typing import NamedTuple

import torch
from torch import Tensor


class Dense(NamedTuple):
    """A step of a chain."""

    inputs: int
    outputs: int
    flat: bool  # an nn.Flatten stands before it
    relu: bool

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        fits = len(shape) == 1 or self.flat
        return (self.outputs,) if fits and math.prod(shape) == self.inputs else None

    def forward(self, native: ctypes.CDLL, x: Tensor, w: Tensor, b: Tensor, keep: bool) -> tuple[Tensor, None]:
        x = x.contiguous()
        y = torch.empty((len(x), self.outputs), dtype=torch.float32)
        pointers = [t.data_ptr() for t in (x, w, b, y)]
        if native.moonfl_dense_forward(*pointers, len(x), self.inputs, self.outputs, self.relu) != 0:
            raise MemoryError("no memory for a linear layer")
        return y, None

    def backward(
        self, native: ctypes.CDLL, x: Tensor, w: Tensor, y: Tensor, note: Tensor | None, dy: Tensor, wants_dx: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        x, dy = x.contiguous(), dy.contiguous()
        dx = torch.empty(x.shape, dtype=torch.float32) if wants_dx else None
        gw, gb = torch.empty_like(w), torch.empty(self.outputs, dtype=torch.float32)
        pointers = [t.data_ptr() if t is not None else None for t in (x, w, y, dy, dx, gw, gb)]
        if native.moonfl_dense_backward(*pointers, len(x), self.inputs, self.outputs, self.relu) != 0:
            raise MemoryError("no memory for the gradient of a linear layer")
        return dx, gw, gb
