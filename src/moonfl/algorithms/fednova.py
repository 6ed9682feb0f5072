"""FedNova: average the progress per step, so that parties with more steps do not dominate.

Wang, Liu, Liang, Joshi, Poor, Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020. https://arxiv.org/abs/2007.07481
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from .. import tree
from ..errors import InputError
from ..types import Mean, Params, Party, Server, State, Update
from .base import Algorithm


def effective_steps(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return a of K steps with momentum r: (K - r (1 - r^K)/(1 - r)) / (1 - r).

    It is the number of steps without momentum that move the weights as far. `pull` is lr m if the
    loss has a proximal term m/2 ||w - w^t||^2, which takes some of the way back; without momentum
    a = (1 - (1 - lr m)^K)/(lr m) then, as in the paper.
    """
    if pull == 0:
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    velocity = 0.0
    a = 0.0  # a constant gradient g moves the weights by -lr a g
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * a
        a += velocity
    return a


def check_divisor(a: float) -> float:
    """Return a after a check that progress can be divided by it."""
    if not 0 < a < math.inf:
        raise InputError(
            f"FedNova divides by the effective number of steps, which is {a:g}: the proximal term "
            "lets the weights oscillate around the global ones; lower lr or the weight of the "
            "term, such as fedprox.mu"
        )
    return a


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
        return {}, self.extra_like(party.global_params, party.effective_steps(steps))

    def extra_like(self, params: Params, effective_steps: float) -> State:
        return {"norm": {"a": torch.tensor(check_divisor(effective_steps), dtype=torch.float64)}}

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        def progress(u: Update) -> Params:
            scale = float(
                u.extra["norm"]["a"].reciprocal()
            )  # inf, not an error, if a party sends 0
            return tree.Lazy(u.params, lambda k: (u.params[k] - server.params[k]) * scale)

        tau_eff = float(mean((u.extra["norm"], u.num_samples) for u in updates)["a"])
        d = mean((progress(u), u.num_samples) for u in updates)
        return replace(server, params=tree.add(server.params, d, tau_eff))
