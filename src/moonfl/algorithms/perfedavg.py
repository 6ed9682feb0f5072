"""Per-FedAvg: learn a global model that is good after a gradient step at each party.

Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, NeurIPS 2020. https://arxiv.org/abs/2002.07948
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .. import tree
from ..settings import setting
from ..types import Batch, Loss, Params, Party
from .base import Algorithm


def descent(loss: Tensor, w: Params, alpha: float) -> Params:
    """Return w - alpha g, where g is the gradient of the loss at w, taken as a constant."""
    gradients = torch.autograd.grad(loss, list(w.values()), materialize_grads=True)
    return {name: w[name] - alpha * g for name, g in zip(w, gradients, strict=True)}


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """l = l_sup at w - alpha g, where g is the gradient of l_sup at w: first-order MAML.

    The gradient of l is taken at w - alpha g; its derivative by w, I - alpha H, is replaced by I.
    """

    label: ClassVar[str] = "Per-FedAvg"
    choice: ClassVar[str] = (
        "first-order; both gradients are of the same batch, where the paper draws two; "
        "BatchNorm statistics are those at w"
    )
    requires: ClassVar[Mapping[str, str]] = {"finetune": "1"}

    alpha: float = setting(0.01, "learning rate of the step to adapt; 0 is FedAvg", low=0)

    def local_loss(self, party: Party) -> Loss:
        supervised = super().local_loss(party)
        if self.alpha == 0:
            return supervised

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            with torch.random.fork_rng(devices=[]):  # both passes have the same dropout masks
                at_w = supervised(model, batch)
            adapted = descent(at_w, tree.params_of(model), self.alpha)
            buffers = {name: tensor.clone() for name, tensor in tree.buffers_of(model).items()}
            output = torch.func.functional_call(model, {**buffers, **adapted}, (batch.x,))
            return party.supervised(output.logits, batch)

        return loss
