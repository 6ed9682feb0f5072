"""The choice between native code and torch, made once when a model is built.

`plan_layers` inspects the layers of a model for one shape of input. It returns a NativeChain, which
the model keeps and passes to `chain.run` in every forward pass, or None if torch must run the
layers. The forward pass does not choose again: it only checks that the input and the parameters
have the planned shapes and that nobody has modified the layers since (hooks, a patched `forward`,
replaced layers). Otherwise it falls back to torch.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .library import library

LANES = 16  # samples that the native code processes at a time

Parts = tuple[
    tuple[nn.Module, ...], ...
]  # modules in a row; the last output of each part is returned


class Step(NamedTuple):
    """One layer with the ReLU and the pooling after it, for samples of one shape.

    The fields are the first members of `struct step` in kernels.h, in the same order.
    """

    kernel: int  # side of the convolution kernel; 0: a linear layer
    inputs: int  # channels or features
    outputs: int
    height: int = 1  # of a convolution's input
    width: int = 1
    flat: bool = False  # convolution: output in channels-first layout instead of channels-last
    relu: bool = False  # linear layer: followed by ReLU (a convolution always is)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a sample after this step."""
        if not self.kernel:
            return (self.outputs,)
        height = (self.height - self.kernel + 1) // 2
        width = (self.width - self.kernel + 1) // 2
        return (self.outputs, height, width)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return the shape of the layer's weight."""
        if not self.kernel:
            return (self.outputs, self.inputs)
        return (self.outputs, self.inputs, self.kernel, self.kernel)

    @property
    def input_layout(self) -> torch.memory_format:
        """Return the memory format of the input."""
        return torch.channels_last if self.kernel else torch.contiguous_format

    @property
    def output_layout(self) -> torch.memory_format:
        """Return the memory format of the output."""
        return torch.contiguous_format if self.flat else self.input_layout


class Plan(NamedTuple):
    """The steps to run and the memory they need per sample."""

    steps: tuple[Step, ...]
    param_shapes: tuple[tuple[int, ...], ...]  # of the weight and the bias of every step
    ends: tuple[int, ...]  # the last step of every part; its output is returned
    y: tuple[
        int, ...
    ]  # offsets of the other steps' outputs in one tensor, then its length (floats)
    arg: tuple[int, ...]  # offsets of the argmax of every pooling, then the length (bytes)
    widest: int  # floats of the largest gradient that is passed from a step to the one before


@functools.lru_cache(maxsize=64)
def plan_steps(steps: tuple[Step, ...], ends: tuple[int, ...]) -> Plan:
    """Lay out the memory of these steps."""
    sizes = [math.prod(step.shape) for step in steps]
    y_sizes = [0 if i in ends else size for i, size in enumerate(sizes)]
    arg_sizes = [size if step.kernel else 0 for step, size in zip(steps, sizes, strict=True)]
    param_shapes: list[tuple[int, ...]] = []
    for step in steps:
        param_shapes += [step.weight_shape, (step.outputs,)]
    return Plan(
        steps=steps,
        param_shapes=tuple(param_shapes),
        ends=ends,
        y=tuple(accumulate(y_sizes, initial=0)),
        arg=tuple(accumulate(arg_sizes, initial=0)),
        widest=max(sizes[:-1], default=0),
    )


@dataclass(frozen=True, eq=False)
class NativeChain:
    """A plan and the modules whose layers it runs."""

    plan: Plan
    shape: tuple[int, ...]  # of an input sample
    parts: Parts
    layers: tuple[nn.Module, ...]  # the layers with parameters, one per step
    modules: tuple[nn.Module, ...]  # all modules that the plan replaces, containers included
    children: tuple[tuple[nn.Module | None, ...], ...]  # the children of each of them

    def is_current(self, parts: Parts) -> bool:
        """Return True if `parts` are the planned modules and none was modified since."""
        if parts != self.parts:
            return False
        for module, children in zip(self.modules, self.children, strict=True):
            if is_customised(module) or tuple(module._modules.values()) != children:
                return False
        return True

    def parameters(self) -> list[Tensor | None]:
        """Return the weight and the bias of every layer."""
        layer: Any  # the stubs of torch do not know the attributes of a module
        params: list[Tensor | None] = []
        for layer in self.layers:
            params.append(layer.weight)
            params.append(layer.bias)
        return params


def plan_layers(parts: Parts, shape: tuple[int, ...]) -> NativeChain | None:
    """Choose native code or torch for modules that run in sequence on samples of this shape.

    Return None for torch: there is no native library, a layer has no native implementation, or a
    layer has hooks or a patched `forward`.
    """
    if library() is None:
        return None
    steps: list[Step] = []
    ends: list[int] = []
    layers: list[nn.Module] = []
    part_shape = shape
    for part in parts:
        planned = _plan_part(part, part_shape)
        if planned is None:
            return None
        part_steps, part_layers = planned
        if steps and steps[-1].output_layout != part_steps[0].input_layout:
            return None
        steps += part_steps
        layers += part_layers
        ends.append(len(steps) - 1)
        part_shape = steps[-1].shape
    modules = tuple(module for part in parts for module in _flatten(part))
    return NativeChain(
        plan=plan_steps(tuple(steps), tuple(ends)),
        shape=shape,
        parts=parts,
        layers=tuple(layers),
        modules=modules,
        children=tuple(tuple(module._modules.values()) for module in modules),
    )


def _plan_part(
    modules: Sequence[nn.Module], shape: tuple[int, ...]
) -> tuple[list[Step], list[nn.Module]] | None:
    """Return the steps of these modules and the layer of each, or None if torch must run them."""
    steps: list[Step] = []
    layers: list[nn.Module] = []
    flattened = False  # whether the last module was Flatten, which has no step of its own
    layer: Any  # the stubs of torch do not know the attributes of a module
    for layer in _flatten(modules):
        if is_customised(layer):
            return None
        kind = type(layer)
        if kind is nn.Sequential or kind is nn.Identity:
            continue
        if kind is nn.ReLU and steps and not steps[-1].kernel and not flattened:
            steps[-1] = steps[-1]._replace(relu=True)
            continue
        if kind is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1:
            shape = (math.prod(shape),)
            flattened = True
            continue
        step = _plan_layer(layer, shape)
        if step is None or (steps and steps[-1].output_layout != step.input_layout):
            return None
        steps.append(step)
        layers.append(layer)
        shape = step.shape
        flattened = False
    if not steps or flattened:
        return None
    return steps, layers


def _plan_layer(layer: Any, shape: tuple[int, ...]) -> Step | None:
    """Return the step of a layer with parameters, or None if it has no native implementation."""
    step: Step | None = None
    if type(layer) is nn.Linear:
        if layer.bias is not None and shape == (layer.in_features,):
            step = Step(kernel=0, inputs=layer.in_features, outputs=layer.out_features)
    elif hasattr(layer, "native_step"):
        step = layer.native_step(shape)
    if step is None:
        return None
    shapes = (step.weight_shape, (step.outputs,))
    return step if parameters_match(shapes, (layer.weight, layer.bias)) else None


def is_customised(module: nn.Module) -> bool:
    """Return True if a module has hooks or a patched `forward`, which native code would skip."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
    )


def parameters_match(shapes: Sequence[tuple[int, ...]], params: Sequence[Tensor | None]) -> bool:
    """Return True if all parameters are float32 tensors on the CPU and have these shapes."""
    for shape, param in zip(shapes, params, strict=True):
        if param is None or param.dtype is not torch.float32 or not param.is_cpu:
            return False
        if param.shape != shape:
            return False
    return True


def _flatten(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yield every module; after a Sequential, the modules in it."""
    for module in modules:
        yield module
        if type(module) is nn.Sequential:
            yield from _flatten(module)
