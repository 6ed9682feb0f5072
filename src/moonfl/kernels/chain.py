"""Forward and backward pass of a chain of layers in native code, as one node in torch's graph.

`plan.py` decides which layers are run here.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .library import library
from .plan import LANES, NativeChain, Parts, Plan, Step, parameters_match, plan_steps


def run(chain: NativeChain, parts: Parts, x: Tensor) -> list[Tensor] | None:
    """Return the output of every part, or None if torch must run the modules for this input.

    `parts` are the modules that the model has now; see NativeChain.is_current.
    """
    if x.dim() < 2 or x.shape[1:] != chain.shape or not chain.is_current(parts):
        return None
    return _run_plan(chain.plan, x, chain.parameters())


def run_layer(step: Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Return the output of a single layer, or None if torch must run it for this input."""
    outputs = _run_plan(plan_steps((step,), (0,)), x, [weight, bias])
    return None if outputs is None else outputs[0]


def _run_plan(plan: Plan, x: Tensor, params: Sequence[Tensor | None]) -> list[Tensor] | None:
    """Return the outputs of a plan, or None if the native code cannot process these tensors."""
    native = library()
    if native is None or not x.is_cpu or x.dtype is not torch.float32 or len(x) == 0:
        return None
    if not parameters_match(plan.param_shapes, params):
        return None
    x = x.contiguous(memory_format=plan.steps[0].input_layout)
    tensors = [param.contiguous() for param in params if param is not None]
    if not torch.is_grad_enabled():
        return _forward(native, plan, x, tensors, save_argmax=False).outputs
    apply: Callable[..., tuple[Tensor, ...]] = _Chain.apply
    return list(apply(native, plan, x, *tensors))


class Activations(NamedTuple):
    """The tensors that a forward pass computes and its backward pass needs."""

    outputs: list[Tensor]  # of the parts
    inner: Tensor  # outputs of all other steps
    arg: Tensor | None  # argmax of every pooling; None: there is no backward pass


class Gradients(NamedTuple):
    """Addresses of the gradients of one step; 0: none."""

    output: int = 0  # the gradient that comes from outside the chain
    weight: int = 0
    bias: int = 0


def _step_table(
    plan: Plan,
    activations: Activations,
    weights: Sequence[Tensor],
    biases: Sequence[int],
    gradients: Sequence[Gradients],
) -> "array[int]":
    """Return an array of `struct step` (kernels.h), one for each element of `gradients`.

    `biases` are addresses.
    """
    n = len(activations.outputs[0])
    y = [activations.inner.data_ptr() + 4 * n * offset for offset in plan.y]
    for end, output in zip(plan.ends, activations.outputs, strict=True):
        y[end] = output.data_ptr()
    arg = [0] * len(plan.arg)
    if activations.arg is not None:
        start = activations.arg.data_ptr()
        arg = [start + round_up(n) * offset for offset in plan.arg]
    fields: list[int] = []
    for i, gradient in enumerate(gradients):
        fields += plan.steps[i]
        fields += (weights[i].data_ptr(), biases[i], y[i], arg[i])
        fields += gradient
    return array("q", fields)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def round_up(n: int) -> int:
    """Round a number of samples up to whole blocks of LANES."""
    return -(-n // LANES) * LANES


def _empty(n: int, step: Step) -> Tensor:
    """Return memory for the output of a step."""
    if not step.kernel:  # the memory format of a matrix is the default
        return torch.empty((n, step.outputs), dtype=torch.float32)
    return torch.empty((n, *step.shape), dtype=torch.float32, memory_format=step.output_layout)


def _forward(
    native: ctypes.CDLL, plan: Plan, x: Tensor, params: Sequence[Tensor], save_argmax: bool
) -> Activations:
    """Run all steps on a batch; `params` are the weight and the bias of every step."""
    n = len(x)
    outputs = []
    for end in plan.ends:
        step = plan.steps[end]
        outputs.append(_empty(n, step))
    inner = torch.empty(n * plan.y[-1], dtype=torch.float32)
    arg = torch.empty(round_up(n) * plan.arg[-1], dtype=torch.uint8) if save_argmax else None
    activations = Activations(outputs, inner, arg)
    count = len(plan.steps)
    biases = [bias.data_ptr() for bias in params[1::2]]
    table = _step_table(plan, activations, params[::2], biases, [Gradients()] * count)
    if native.moonfl_chain_forward(table.buffer_info()[0], count, x.data_ptr(), n) != 0:
        raise MemoryError(f"no memory for a forward pass of {n} samples")
    return activations


def refuse_second_derivative() -> None:
    """Raise an error if a backward pass is to be differentiated itself (create_graph=True).

    Otherwise the gradient would silently be treated as a constant.
    """
    if torch.is_grad_enabled():
        raise RuntimeError("the native layers have no second derivative; set MOONFL_KERNELS=torch")


class _Chain(torch.autograd.Function):
    """The chain as a differentiable function of its input and parameters."""

    @staticmethod
    def forward(
        ctx: Any, native: ctypes.CDLL, plan: Plan, x: Tensor, *params: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the output of every part."""
        outputs, inner, arg = _forward(native, plan, x, params, save_argmax=True)
        ctx.native = native
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, inner, arg, *outputs, *params[::2])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *output_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input and of every weight and bias."""
        refuse_second_derivative()
        plan: Plan = ctx.plan
        x, inner, arg, *saved = ctx.saved_tensors
        # saved_tensors_hooks may change the layout of what was saved
        x = x.contiguous(memory_format=plan.steps[0].input_layout)
        outputs: list[Tensor] = []
        dys: dict[int, Tensor] = {}
        for end, dy in zip(plan.ends, output_grads, strict=True):
            layout = plan.steps[end].output_layout
            outputs.append(saved[len(outputs)].contiguous(memory_format=layout))
            if dy is not None:
                dys[end] = dy.contiguous(memory_format=layout)
        weights = saved[len(outputs) :]
        if not dys:
            return (None,) * (3 + 2 * len(weights))
        n = len(x)
        count = max(dys) + 1  # the loss does not depend on later steps
        grads: list[Tensor | None] = [None] * (2 * len(weights))
        addresses: list[Gradients] = []
        for i in range(count):
            weight_grad = torch.empty_like(weights[i])
            bias_grad = torch.empty(plan.steps[i].outputs, dtype=torch.float32)
            grads[2 * i] = weight_grad
            grads[2 * i + 1] = bias_grad
            dy_address = _address(dys.get(i))
            addresses.append(Gradients(dy_address, weight_grad.data_ptr(), bias_grad.data_ptr()))
        dx = torch.empty_like(x) if ctx.needs_input_grad[2] else None
        workspace = torch.empty(2 * n * plan.widest, dtype=torch.float32)
        activations = Activations(outputs, inner, arg)
        table = _step_table(plan, activations, weights, [0] * count, addresses)
        status = ctx.native.moonfl_chain_backward(
            table.buffer_info()[0],
            count,
            x.data_ptr(),
            n,
            _address(dx),
            workspace.data_ptr(),
            n * plan.widest,
        )
        if status != 0:
            raise MemoryError(f"no memory for the gradients of {n} samples")
        return None, None, dx, *grads
