"""FedNova: average the progress per step, so that parties with more steps do not dominate.

Wang, Liu, Liang, Joshi, Poor, Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020. https://arxiv.org/abs/2007.07481
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from .. import tree
from ..types import Mean, Params, Party, Server, State, Update
from .base import Algorithm


def effective_steps(steps: int, momentum: float) -> float:
    """Return |a|_1 of K steps with momentum r: (K - r (1 - r^K)/(1 - r)) / (1 - r).

    It is the number of steps without momentum that move the weights as far.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


REQUIRES_SGD = (
    "FedNova divides the change of the weights by the effective number of steps a_i, whose formula "
    "holds for SGD"
)


@dataclass(frozen=True)
class FedNova(Algorithm):
    """w^{t+1} = w^t + tau_eff sum p_i (w_i - w^t)/a_i.

    tau_eff = sum p_i a_i, p_i = |D^i|/|D|, and a_i is the effective number of steps of party i.
    """

    requires_sgd: ClassVar[str] = REQUIRES_SGD

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        return {}, self.extra_like(party.global_params, steps, party.momentum)

    def extra_like(self, params: Params, steps: int, momentum: float) -> State:
        a = torch.tensor(effective_steps(steps, momentum), dtype=torch.float64)
        return {"norm": {"a": a}}

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        def progress(u: Update) -> Params:
            scale = float(
                u.extra["norm"]["a"].reciprocal()
            )  # inf, not an error, if a party sends 0
            return tree.Lazy(u.params, lambda k: (u.params[k] - server.params[k]) * scale)

        tau_eff = float(mean((u.extra["norm"], u.num_samples) for u in updates)["a"])
        d = mean((progress(u), u.num_samples) for u in updates)
        return replace(server, params=tree.add(server.params, d, tau_eff))
