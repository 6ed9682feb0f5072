"""Convolution, ReLU and 2x2 max-pooling as one operation: max_pool2d(relu(conv2d(x, w, b)), 2)."""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import library

LANES = 16  # samples the native code takes at a time


class ConvReluPool(nn.Conv2d):
    """A layer with the parameters and the start of nn.Conv2d(inputs, outputs, kernel).

    `flat`: give the pixels of a channel together, as nn.Flatten after it wants them; else the channels of a pixel.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, flat: bool = False) -> None:
        super().__init__(inputs, outputs, kernel)
        self.flat = flat
        self.native = True  # False: torch, whatever is at hand

    def forward(self, x: Tensor) -> Tensor:
        native = library() if self.native else None
        if native is None or not self._fits(x):
            return F.max_pool2d(F.relu(super().forward(x)), 2)
        y: Tensor = _ConvReluPool.apply(native, x, self.weight, self.bias, self.flat)  # type: ignore[no-untyped-call]
        return y

    def _fits(self, x: Tensor) -> bool:
        """Whether the native code can take it; what it cannot, torch takes or refuses in its own words."""
        plain = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32 and x.dim() == 4
        if not plain or len(x) == 0 or x.shape[1] != self.in_channels:
            return False
        return min(x.shape[2:]) > self.kernel_size[0] and x[0].numel() >= LANES


class _ConvReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: ctypes.CDLL, x: Tensor, w: Tensor, b: Tensor, flat: bool) -> Tensor:
        x, w, b = x.contiguous(memory_format=torch.channels_last), w.contiguous(), b.contiguous()
        (n, c, height, width), (o, _, k, _) = x.shape, w.shape
        layout = torch.contiguous_format if flat else torch.channels_last
        y = torch.empty((n, o, (height - k + 1) // 2, (width - k + 1) // 2), dtype=torch.float32, memory_format=layout)
        ctx.numbers = (n, c, height, width, o, k, int(flat))
        arg = None
        if any(ctx.needs_input_grad):
            arg = torch.empty(-(-n // LANES) * LANES * y[:1].numel(), dtype=torch.uint8)
            ctx.native, ctx.layout = native, layout
            ctx.save_for_backward(x, w, y, arg)
        status = native.moonfl_convpool_forward(
            x.data_ptr(),
            w.data_ptr(),
            b.data_ptr(),
            y.data_ptr(),
            arg.data_ptr() if arg is not None else None,
            *ctx.numbers,
        )
        if status != 0:
            raise MemoryError("no memory for a convolution")
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the gradient would count as a constant, silently
            raise RuntimeError("the native convolution has no second derivative; set MOONFL_KERNELS=torch")
        x, w, y, arg = ctx.saved_tensors
        dy = dy.contiguous(memory_format=ctx.layout)
        dx = torch.empty_like(x) if ctx.needs_input_grad[1] else None
        gw, gb = torch.empty_like(w), torch.empty(len(w), dtype=torch.float32)
        pointers = [t.data_ptr() if t is not None else None for t in (x, w, y, arg, dy, dx, gw, gb)]
        if ctx.native.moonfl_convpool_backward(*pointers, *ctx.numbers) != 0:
            raise MemoryError("no memory for the gradient of a convolution")
        return None, dx, gw, gb, None
