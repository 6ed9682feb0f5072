"""Per-FedAvg: learn a global model that is good after a gradient step at each party.

Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, NeurIPS 2020. https://arxiv.org/abs/2002.07948
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from ..settings import setting
from ..types import Loss, Params, Party
from .base import Algorithm
from .displaced import displaced_loss


def descent(w: Params, g: Params, alpha: float) -> Params:
    """Return w - alpha g."""
    return {name: param - alpha * g[name] for name, param in w.items()}


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
        return displaced_loss(party, supervised, partial(descent, alpha=self.alpha))
