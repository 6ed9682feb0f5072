"""q-FedAvg: parties with a larger loss get a larger weight, so that accuracy becomes more uniform.

Li, Sanjabi, Beirami, Smith, Fair Resource Allocation in Federated Learning, ICLR 2020.
https://arxiv.org/abs/1905.10497
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from .. import tree
from ..exchange import SENT_AND_STORED, check_pair
from ..settings import setting
from ..types import Mean, Params, Party, Server, State, Update
from .base import Algorithm
from .fedexp import squared_distance

SMALLEST_LOSS = 1e-10  # F^(q-1) is infinite at F = 0


@dataclass(frozen=True)
class QFedAvg(Algorithm):
    """w^{t+1} = w^t - sum p_i F_i^q d_i / sum p_i h_i with d_i = L (w^t - w_i) and p_i = |D^i|/|D|.

    h_i = q F_i^(q-1) ||d_i||^2 + L F_i^q. F_i is the loss of the global model w^t on the samples of
    party i, and L is the inverse of the local learning rate.
    """

    label: ClassVar[str] = "q-FedAvg"
    weighting: ClassVar[str] = (
        "parties are weighted by their number of samples, times F^q for their loss F"
    )
    requires_sgd: ClassVar[str] = (
        "q-FedAvg computes gradients from the change of the weights, L (w^t - w_i) with "
        "L = (1 - momentum) / lr, which holds for SGD"
    )
    choice: ClassVar[str] = "L = (1 - momentum) / lr"

    q: float = setting(0.1, "fairness: the larger, the more uniform; 0 is FedAvg", low=0)

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        if self.q == 0:
            return {}, {}
        losses = []  # sums over the samples of a batch
        samples = 0
        for output, batch in party.outputs(party.global_model):
            mean = party.supervised(output.logits, batch).detach()
            losses.append(mean.double() * len(batch.y))
            samples += len(batch.y)
        loss = torch.stack(losses).cpu().sum(dim=0, keepdim=True) / samples
        smoothness = torch.tensor([(1 - party.momentum) / party.lr], dtype=torch.float64)
        return {}, {"fairness": {"F": loss, "L": smoothness}}

    def extra_like(self, params: Params, effective_steps: float) -> State:
        if self.q == 0:
            return {}
        number = torch.zeros(1, dtype=torch.float64)
        return {"fairness": {"F": number, "L": number}}

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        if self.q == 0:
            return super().combine(server, updates, parties, mean)
        result = self.finish_round(server, updates, parties, mean)
        shared, memory = check_pair(f"finish_round of {self.label}", SENT_AND_STORED, result)
        step = mean((self.step(server, u), u.num_samples) for u in updates)
        h = mean(({"h": self.curvature(server, u)}, u.num_samples) for u in updates)["h"]
        params = tree.add(server.params, step, float(1 / h))
        return replace(server, params=params, shared=shared, memory=memory)

    def step(self, server: Server, update: Update) -> Params:
        """Return -F_i^q d_i."""
        loss, smoothness = fairness(update)
        scale = float(loss**self.q * smoothness)
        params = update.params
        return tree.Lazy(params, lambda name: (params[name] - server.params[name]) * scale)

    def curvature(self, server: Server, update: Update) -> Tensor:
        """Return h_i, shape [1]."""
        loss, smoothness = fairness(update)
        squared_d = smoothness**2 * squared_distance(update.params, server.params)
        return self.q * loss ** (self.q - 1) * squared_d + smoothness * loss**self.q


def fairness(update: Update) -> tuple[Tensor, Tensor]:
    """Return F_i and L as the party sent them, each of shape [1]."""
    numbers = update.extra["fairness"]
    return numbers["F"].clamp(min=SMALLEST_LOSS), numbers["L"]
