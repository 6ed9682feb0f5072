"""A chain of layers in native code, one node in torch's graph: the loss around it stays torch's.

Where the native code cannot take a chain as it is, `run` returns None and the caller runs the layers one by one.
"""

import ctypes
import functools
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .library import library

LANES = 16  # samples the native code takes at a time


class Step(NamedTuple):
    """A layer, with the ReLU and the pooling after it, for samples of one shape: how C's struct step begins."""

    kernel: int  # of a convolution; 0: a linear layer
    inputs: int
    outputs: int
    height: int = 1  # of a convolution's input
    width: int = 1
    flat: bool = (
        False  # a convolution: give the pixels of a channel together, not the channels of a pixel
    )
    relu: bool = False  # a linear layer: ReLU after it; a convolution has it always

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample after it."""
        sides = ((side - self.kernel + 1) // 2 for side in (self.height, self.width))
        return (self.outputs, *sides) if self.kernel else (self.outputs,)

    @property
    def layouts(self) -> tuple[torch.memory_format, torch.memory_format]:
        """Of what it takes and what it gives."""
        together = torch.channels_last if self.kernel else torch.contiguous_format
        return together, torch.contiguous_format if self.flat else together


class Plan(NamedTuple):
    """What is to be run, and what a sample takes in memory: floats of y, bytes of arg."""

    steps: tuple[Step, ...]
    ends: tuple[
        int, ...
    ]  # the last step of every part: its y is an output, the others' lie in one tensor
    y: list[int]  # where each step's begins in that tensor, and at last how long it is
    arg: list[int]
    widest: int  # y whose gradient is on its way from one step to the one before


@functools.lru_cache(maxsize=64)
def plan_of(steps: tuple[Step, ...], ends: tuple[int, ...]) -> Plan:
    sizes = [math.prod(step.shape) for step in steps]
    y = accumulate((0 if i in ends else size for i, size in enumerate(sizes)), initial=0)
    arg = accumulate(
        (size if step.kernel else 0 for step, size in zip(steps, sizes, strict=True)), initial=0
    )
    return Plan(steps, ends, list(y), list(arg), max(sizes[:-1], default=0))


def run(parts: Iterable[Sequence[nn.Module]], x: Tensor) -> list[Tensor] | None:
    """What comes out of every part (layers in a row), each fed by the one before; None: not for the native code."""
    native = library()
    if (
        native is None
        or x.device.type != "cpu"
        or x.dtype != torch.float32
        or x.dim() < 2
        or len(x) == 0
    ):
        return None
    steps: list[Step] = []
    ends: list[int] = []
    params: list[Tensor] = []
    shape = tuple(x.shape[1:])
    for part in parts:
        if not _add(part, shape, steps, params):
            return None
        ends.append(len(steps) - 1)
        shape = steps[-1].shape
    for p in params:
        if p.dtype != torch.float32 or p.device.type != "cpu":
            return None
    plan, x = plan_of(tuple(steps), tuple(ends)), x.contiguous(memory_format=steps[0].layouts[0])
    params = [p.contiguous() for p in params]
    if not torch.is_grad_enabled():
        return _forward(native, plan, x, params, keep=False).outputs
    apply: Callable[..., tuple[Tensor, ...]] = _Chain.apply
    return list(apply(native, plan, x, *params))


def _add(
    layers: Iterable[nn.Module], shape: tuple[int, ...], steps: list[Step], params: list[Tensor]
) -> bool:
    """Add the steps of these layers, their weights and biases; False where they are not all ours to run."""
    before, flat = len(steps), False
    layer: Any  # torch's stubs know no attributes of a module
    for layer in _unnested(layers):
        kind = type(layer)
        if any(
            (
                layer._forward_hooks,
                layer._forward_pre_hooks,
                layer._backward_hooks,
                layer._backward_pre_hooks,
            )
        ):
            return False  # somebody watches, and would see nothing
        if "forward" in vars(layer):
            return False  # somebody put another in place of its own
        if kind is nn.Sequential or kind is nn.Identity:
            continue
        if kind is nn.ReLU and len(steps) > before and not steps[-1].kernel and not flat:
            steps[-1] = steps[-1]._replace(relu=True)
            continue
        if kind is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1:
            shape, flat = (math.prod(shape),), True
            continue
        step: Step | None = None
        if kind is nn.Linear and layer.bias is not None and shape == (layer.in_features,):
            step = Step(0, layer.in_features, layer.out_features)
        elif hasattr(layer, "native_step"):
            step = layer.native_step(shape)
        if step is None or (steps and steps[-1].layouts[1] != step.layouts[0]):
            return False
        sides = (step.kernel,) * 2 if step.kernel else ()
        if layer.weight.shape != (step.outputs, step.inputs, *sides) or layer.bias.shape != (
            step.outputs,
        ):
            return False  # somebody gave the layer others
        steps.append(step)
        params += [layer.weight, layer.bias]
        shape, flat = step.shape, False
    return len(steps) > before and not flat


def _unnested(layers: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """A Sequential first by itself, then what is in it."""
    for layer in layers:
        yield layer
        if type(layer) is nn.Sequential:
            yield from _unnested(layer)


class Kept(NamedTuple):
    """What a forward pass leaves for its backward."""

    outputs: list[Tensor]
    inner: Tensor  # what came out between them
    arg: Tensor | None  # where the maxima were


def _table(
    plan: Plan,
    weights: Sequence[Tensor],
    kept: Kept,
    biases: Sequence[int],
    after: Sequence[Sequence[int]],
) -> "array[int]":
    """An array of C's struct step. `after`: for each step dy, gw and gb; as many steps as it has are in the table."""
    n = len(kept.outputs[0])
    y = [kept.inner.data_ptr() + 4 * n * at for at in plan.y]
    for end, output in zip(plan.ends, kept.outputs, strict=True):
        y[end] = output.data_ptr()
    first = _address(kept.arg)
    arg = [first + up_to_lanes(n) * at if first else 0 for at in plan.arg]
    table = array("q")
    for i, last in enumerate(after):
        table.extend((*plan.steps[i], weights[i].data_ptr(), biases[i], y[i], arg[i], *last))
    return table


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def up_to_lanes(n: int) -> int:
    return -(-n // LANES) * LANES


def _forward(
    native: ctypes.CDLL, plan: Plan, x: Tensor, params: Sequence[Tensor], keep: bool
) -> Kept:
    n, outputs = len(x), []
    for end in plan.ends:
        step = plan.steps[end]
        outputs.append(
            torch.empty((n, *step.shape), dtype=torch.float32, memory_format=step.layouts[1])
        )
    inner = torch.empty(n * plan.y[-1], dtype=torch.float32)
    kept = Kept(
        outputs,
        inner,
        torch.empty(up_to_lanes(n) * plan.arg[-1], dtype=torch.uint8) if keep else None,
    )
    count = len(plan.steps)
    table = _table(
        plan, params[::2], kept, [b.data_ptr() for b in params[1::2]], [(0, 0, 0)] * count
    )
    if native.moonfl_chain_forward(table.buffer_info()[0], count, x.data_ptr(), n) != 0:
        raise MemoryError(f"no memory for a forward pass of {n} samples")
    return kept


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, native: ctypes.CDLL, plan: Plan, x: Tensor, *params: Tensor
    ) -> tuple[Tensor, ...]:
        outputs, inner, arg = _forward(native, plan, x, params, keep=True)
        ctx.native, ctx.plan = native, plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, inner, arg, *outputs, *params[::2])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        if (
            torch.is_grad_enabled()
        ):  # create_graph=True: the gradient would count as a constant, silently
            raise RuntimeError(
                "the native layers have no second derivative; set MOONFL_KERNELS=torch"
            )
        plan: Plan = ctx.plan
        x, inner, arg, *saved = ctx.saved_tensors
        x = x.contiguous(
            memory_format=plan.steps[0].layouts[0]
        )  # hooks that pack what is saved may change layouts
        outputs: list[Tensor] = []
        dys: dict[int, Tensor] = {}
        for end, dy in zip(plan.ends, given, strict=True):
            layout = plan.steps[end].layouts[1]
            outputs.append(saved[len(outputs)].contiguous(memory_format=layout))
            if dy is not None:
                dys[end] = dy.contiguous(memory_format=layout)
        weights = saved[len(outputs) :]
        if not dys:
            return (None,) * (3 + 2 * len(weights))
        n, count = len(x), max(dys) + 1  # the loss does not use what comes after
        grads: list[Tensor | None] = [None] * (2 * len(weights))
        for i in range(count):
            grads[2 * i] = torch.empty_like(weights[i])
            grads[2 * i + 1] = torch.empty(plan.steps[i].outputs, dtype=torch.float32)
        dx = torch.empty_like(x) if ctx.needs_input_grad[2] else None
        room = torch.empty(2 * n * plan.widest, dtype=torch.float32)
        after = [
            (_address(dys.get(i)), *map(_address, grads[2 * i : 2 * i + 2])) for i in range(count)
        ]
        table = _table(plan, weights, Kept(outputs, inner, arg), [0] * count, after)
        where = (
            table.buffer_info()[0],
            count,
            x.data_ptr(),
            n,
            _address(dx),
            room.data_ptr(),
            n * plan.widest,
        )
        if ctx.native.moonfl_chain_backward(*where) != 0:
            raise MemoryError(f"no memory for the gradients of {n} samples")
        return None, None, dx, *grads
