"""FedOpt: an adaptive optimizer on the server, Adam, Yogi or Adagrad.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, Adaptive Federated Optimization,
ICLR 2021. https://arxiv.org/abs/2003.00295
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import tree
from ..settings import setting
from ..types import Params, State
from .base import ServerOptimizer


def init_moments(params: Params, tau: float) -> State:
    """Return m = 0 and v = tau^2."""
    v = {k: torch.full_like(p, tau**2) for k, p in params.items()}
    return {"m": tree.zeros_like(params), "v": v}


def adaptive_step(
    optimizer: "Adam | Adagrad", params: Params, aggregated: Params, state: State
) -> tuple[Params, State]:
    """Return w^{t+1} = w^t + lr m / (sqrt(v) + tau) and the new moments m and v."""
    d = tree.sub(aggregated, params)
    m = tree.add(tree.mul(state["m"], optimizer.beta1), d, 1 - optimizer.beta1)
    v = {k: optimizer.second_moment(state["v"][k], d[k].square()) for k in d}
    scaled = {k: m[k] / (v[k].sqrt() + optimizer.tau) for k in d}
    return tree.add(params, scaled, optimizer.lr), {"m": m, "v": v}


@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """m = b1 m + (1-b1) d with d = mean - w^t; w^{t+1} = w^t + lr m / (sqrt(v) + tau)."""

    lr: float = setting(0.01, "server learning rate", above=0)
    beta1: float = setting(0.9, "decay of the first moment", low=0, below=1)
    beta2: float = setting(0.99, "decay of the second moment", low=0, below=1)
    tau: float = setting(
        0.001, "degree of adaptivity; the smaller, the more adaptive", above=0, high=1
    )

    def init(self, params: Params) -> State:
        return init_moments(params, self.tau)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return v = b2 v + (1-b2) d^2."""
        return self.beta2 * v + (1 - self.beta2) * squared

    def step(self, params: Params, aggregated: Params, state: State) -> tuple[Params, State]:
        return adaptive_step(self, params, aggregated, state)


@dataclass(frozen=True)
class Yogi(Adam):
    """Adam with v = v - (1-b2) d^2 sign(v - d^2)."""

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


@dataclass(frozen=True)
class Adagrad(ServerOptimizer):
    """Adam with v = v + d^2: v sums all rounds. By default there is no momentum."""

    lr: float = setting(0.03, "server learning rate", above=0)
    beta1: float = setting(0.0, "decay of the first moment; 0: no momentum", low=0, below=1)
    tau: float = setting(
        0.001, "degree of adaptivity; the smaller, the more adaptive", above=0, high=1
    )

    def init(self, params: Params) -> State:
        return init_moments(params, self.tau)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return v = v + d^2."""
        return v + squared

    def step(self, params: Params, aggregated: Params, state: State) -> tuple[Params, State]:
        return adaptive_step(self, params, aggregated, state)
