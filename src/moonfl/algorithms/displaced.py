"""The supervised loss at weights near w, for methods that take the gradient there."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import tree
from ..types import Batch, Loss, Params, Party

Displacement = Callable[[Params, Params], Params]  # (w, gradient at w) -> the weights near w


def displaced_loss(party: Party, supervised: Loss, displace: Displacement) -> Loss:
    """Return the supervised loss at the weights that `displace` returns.

    They depend on w and on the gradient of `supervised` at w, which is taken as a constant.
    BatchNorm statistics are updated at w only.
    """

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.random.fork_rng(devices=[]):  # both passes have the same dropout masks
            at_w = supervised(model, batch)
        w = tree.params_of(model)
        gradients = torch.autograd.grad(at_w, list(w.values()), materialize_grads=True)
        displaced = displace(w, dict(zip(w, gradients, strict=True)))
        buffers = {name: tensor.clone() for name, tensor in tree.buffers_of(model).items()}
        output = torch.func.functional_call(model, {**buffers, **displaced}, (batch.x,))
        return party.supervised(output.logits, batch)

    return loss
