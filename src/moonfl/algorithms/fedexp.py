"""FedExP: the server extrapolates beyond the mean of the models if the parties' changes disagree.

Jhunjhunwala, Wang, Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.
https://arxiv.org/abs/2301.09604
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from .. import seeds, tree
from ..settings import setting
from ..types import Mean, Params, Server, Update
from .base import Algorithm


def squared_distance(a: Params, b: Params) -> Tensor:
    """Return ||a - b||^2 in float64; one thread, so that its bits do not depend on the machine."""
    with seeds.one_thread():
        squares = [(a[name].double() - b[name].double()).square().sum() for name in b]
        return torch.stack(squares).sum()


@dataclass(frozen=True)
class FedExP(Algorithm):
    """w^{t+1} = w^t + eta d with d = sum p_i d_i, d_i = w_i - w^t and p_i = |D^i|/|D|.

    eta = max(1, sum p_i ||d_i||^2 / (2 (||d||^2 + epsilon))). The authors' code multiplies epsilon
    by the number of parties in the round and lets it decay; here it is a constant.
    """

    choice: ClassVar[str] = "the newest model is evaluated, not the mean of the last two"

    epsilon: float = setting(0.001, "limits the server's learning rate if the mean is small", low=0)

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        averaged = super().combine(server, updates, parties, mean)
        eta = self.learning_rate(server, updates, averaged.params, mean)
        if eta == 1:
            return averaged
        d = tree.sub(averaged.params, server.params)
        return replace(averaged, params=tree.add(server.params, d, eta))

    def learning_rate(
        self, server: Server, updates: list[Update], average: Params, mean: Mean
    ) -> float:
        """Return eta."""
        squares = (
            ({"d": squared_distance(u.params, server.params)}, u.num_samples) for u in updates
        )
        individual = float(mean(squares)["d"])
        of_mean = float(squared_distance(average, server.params))
        if of_mean == 0:  # no direction to extrapolate in
            return 1.0
        return max(1.0, individual / (2 * (of_mean + self.epsilon)))
