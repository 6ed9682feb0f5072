"""FedSAM: local training minimises the worst loss near the weights, which finds flat minima.

Qu, Li, Duan, Liu, Tang, Lu, Generalized Federated Learning via Sharpness Aware Minimization,
ICML 2022. https://arxiv.org/abs/2206.02618
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from .. import tree
from ..settings import setting
from ..types import Loss, Params, Party
from .base import Algorithm
from .displaced import displaced_loss

SMALLEST_NORM = 1e-12  # a gradient of 0 has no direction


def ascent(w: Params, g: Params, rho: float) -> Params:
    """Return w + rho g/||g||."""
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
        return displaced_loss(party, supervised, partial(ascent, rho=self.rho))
