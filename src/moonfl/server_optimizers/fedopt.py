"""FedOpt: an adaptive optimiser on the server, Adam or Yogi.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, Adaptive Federated Optimization, ICLR 2021.
https://arxiv.org/abs/2003.00295
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import tree
from ..settings import setting
from ..types import Params, State
from .average import Average


@dataclass(frozen=True)
class Adam(Average):
    lr: float = setting(0.01, "step size of the server", above=0)
    beta1: float = setting(0.9, "decay of the first moment", low=0, below=1)
    beta2: float = setting(0.99, "decay of the second moment", low=0, below=1)
    tau: float = setting(
        0.001, "degree of adaptivity; the smaller, the more adaptive", above=0, high=1
    )

    def init(self, params: Params) -> State:
        v = {k: torch.full_like(p, self.tau**2) for k, p in params.items()}
        return {"m": tree.zeros_like(params), "v": v}

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        # v = b2 v + (1-b2) d^2
        return self.beta2 * v + (1 - self.beta2) * squared

    def step(self, old: Params, combined: Params, memory: State) -> tuple[Params, State]:
        # m = b1 m + (1-b1) d with d = mean - w^t;  w^{t+1} = w^t + lr m / (sqrt(v) + tau)
        d = tree.sub(combined, old)
        m = tree.add(tree.mul(memory["m"], self.beta1), d, 1 - self.beta1)
        v = {k: self.second_moment(memory["v"][k], d[k].square()) for k in d}
        scaled = {k: m[k] / (v[k].sqrt() + self.tau) for k in d}
        return tree.add(old, scaled, self.lr), {"m": m, "v": v}


@dataclass(frozen=True)
class Yogi(Adam):
    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        # v = v - (1-b2) d^2 sign(v - d^2)
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)
