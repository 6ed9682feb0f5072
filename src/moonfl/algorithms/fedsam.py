"""FedSAM: local training minimises the worst loss near the weights, which finds flat minima.

Qu, Li, Duan, Liu, Tang, Lu, Generalized Federated Learning via Sharpness Aware Minimization,
ICML 2022. https://arxiv.org/abs/2206.02618
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .. import tree
from ..settings import setting
from ..types import Batch, Loss, Params, Party
from .base import Algorithm

SMALLEST_NORM = 1e-12  # a gradient of 0 has no direction


def ascent(loss: Tensor, w: Params, rho: float) -> Params:
    """Return w + rho g/||g||, where g is the gradient of the loss at w."""
    gradients = torch.autograd.grad(loss, list(w.values()), materialize_grads=True)
    g = dict(zip(w, gradients, strict=True))
    scale = rho / tree.dot(g, g).sqrt().clamp(min=SMALLEST_NORM)
    return {name: param + scale * g[name] for name, param in w.items()}


@dataclass(frozen=True)
class FedSAM(Algorithm):
    """l = l_sup at w + rho g/||g||, where g is the gradient of l_sup at w on the same batch."""

    choice: ClassVar[str] = "BatchNorm statistics are those at w, not at the perturbed weights"

    rho: float = setting(0.05, "radius of the perturbation; 0 is FedAvg", low=0)

    def local_loss(self, party: Party) -> Loss:
        supervised = super().local_loss(party)
        if self.rho == 0:
            return supervised

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            with torch.random.fork_rng(devices=[]):  # both passes have the same dropout masks
                at_w = supervised(model, batch)
            perturbed = ascent(at_w, tree.params_of(model), self.rho)
            buffers = {name: tensor.clone() for name, tensor in tree.buffers_of(model).items()}
            output = torch.func.functional_call(model, {**buffers, **perturbed}, (batch.x,))
            return party.supervised(output.logits, batch)

        return loss
