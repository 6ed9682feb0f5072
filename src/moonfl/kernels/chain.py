"""A chain of layers in native code, one node in torch's graph: the loss around it stays torch's.

Where the native code cannot take a chain as it is, `run` returns None and the caller runs the layers one by one.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from . import library
from .dense import Dense


class Step(Protocol):
    """A layer, or a few at once. `note` is what its own backward needs beside x, w and y."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """A sample's shape after it; None for what it cannot take."""

    def forward(self, native: ctypes.CDLL, x: Tensor, w: Tensor, b: Tensor, keep: bool) -> tuple[Tensor, Tensor | None]:
        """y and the note, which may be None unless `keep`."""

    def backward(
        self, native: ctypes.CDLL, x: Tensor, w: Tensor, y: Tensor, note: Tensor | None, dy: Tensor, wants_dx: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """The gradients of x (where wanted), w and b."""


def run(parts: Iterable[Sequence[nn.Module]], x: Tensor) -> list[Tensor] | None:
    """What comes out of every part (layers in a row), each fed by the one before; None: not for the native code."""
    native = library()
    if native is None or x.device.type != "cpu" or x.dtype != torch.float32 or len(x) == 0:
        return None
    steps: list[Step] = []
    ends: list[int] = []
    params: list[Tensor] = []
    for part in parts:
        if not _plan(part, steps, params):
            return None
        ends.append(len(steps) - 1)
    shape: tuple[int, ...] | None = tuple(x.shape[1:])
    for step in steps:
        shape = step.shape(shape) if shape is not None else None
    if shape is None or any(p.dtype != torch.float32 or p.device.type != "cpu" for p in params):
        return None
    params = [p.contiguous() for p in params]
    if not torch.is_grad_enabled():
        outputs = [y for y, _ in _forward(native, steps, x, params, keep=False)]
        return [outputs[end] for end in ends]
    return list(_Chain.apply(native, steps, ends, x, *params))  # type: ignore[no-untyped-call]


def _plan(layers: Iterable[nn.Module], steps: list[Step], params: list[Tensor]) -> bool:
    """Add the steps of these layers and their weights and biases; False where they are not all ours to run."""
    before, flat = len(steps), False
    layer: Any  # torch's stubs know no attributes of a module
    for layer in _unnested(layers):
        kind = type(layer)
        if layer._forward_hooks or layer._forward_pre_hooks:  # somebody watches, and would see nothing
            return False
        if kind is nn.Linear and layer.bias is not None:
            steps.append(Dense(layer.in_features, layer.out_features, flat, relu=False))
            params += [layer.weight, layer.bias]
            flat = False
        elif kind is nn.ReLU and len(steps) > before and isinstance(steps[-1], Dense) and not flat:
            steps[-1] = steps[-1]._replace(relu=True)
        elif kind is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1:
            flat = True
        elif kind is nn.Sequential or kind is nn.Identity:
            continue
        elif hasattr(layer, "native_step") and not flat:
            steps.append(layer.native_step())
            params += [layer.weight, layer.bias]
        else:
            return False
    return len(steps) > before and not flat


def _unnested(layers: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """A Sequential first by itself, then what is in it."""
    for layer in layers:
        yield layer
        if type(layer) is nn.Sequential:
            yield from _unnested(layer)


def _forward(
    native: ctypes.CDLL, steps: list[Step], x: Tensor, params: list[Tensor], keep: bool
) -> list[tuple[Tensor, Tensor | None]]:
    made = []
    for i, step in enumerate(steps):
        x, note = step.forward(native, x, params[2 * i], params[2 * i + 1], keep)
        made.append((x, note))
    return made


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, native: ctypes.CDLL, steps: list[Step], ends: list[int], x: Tensor, *params: Tensor
    ) -> tuple[Tensor, ...]:
        made = _forward(native, steps, x, list(params), keep=True)
        ctx.native, ctx.steps, ctx.ends = native, steps, ends
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *params[::2], *(tensor for pair in made for tensor in pair))
        return tuple(made[end][0] for end in ends)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the gradient would count as a constant, silently
            raise RuntimeError("the native layers have no second derivative; set MOONFL_KERNELS=torch")
        count = len(ctx.steps)
        x, *saved = ctx.saved_tensors
        weights, outputs, notes = saved[:count], saved[count::2], saved[count + 1 :: 2]
        at_end = dict(zip(ctx.ends, given, strict=True))
        grads: list[Tensor | None] = [None] * (2 * count)
        dy: Tensor | None = None
        for i in reversed(range(count)):
            here = at_end.get(i)
            dy = here if dy is None else dy if here is None else dy + here
            if dy is None:  # the loss does not use what comes after step i
                continue
            wants_dx = i > 0 or ctx.needs_input_grad[3]
            before = outputs[i - 1] if i > 0 else x
            dy, grads[2 * i], grads[2 * i + 1] = ctx.steps[i].backward(
                ctx.native, before, weights[i], outputs[i], notes[i], dy, wants_dx
            )
        return None, None, None, dy, *grads
