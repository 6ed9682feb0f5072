"""FedProx: a proximal term keeps the local model near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, Federated Optimization in Heterogeneous Networks,
MLSys 2020. https://arxiv.org/abs/1812.06127
"""

from dataclasses import dataclass

from .. import tree
from ..settings import setting
from ..types import Party, Term
from .base import Algorithm


@dataclass(frozen=True)
class FedProx(Algorithm):
    """l = l_sup + mu/2 ||w - w^t||^2, over the trainable parameters."""

    mu: float = setting(0.01, "weight of the proximal term; 0 is FedAvg", low=0)

    @property
    def proximal_weight(self) -> float:
        return self.mu

    def term(self, party: Party) -> Term:
        return lambda output, batch, w: self.mu / 2 * tree.sq_dist(w, party.global_params)
