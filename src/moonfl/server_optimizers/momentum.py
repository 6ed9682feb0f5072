"""FedAvgM: momentum on the server.

Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019. https://arxiv.org/abs/1909.06335
"""

from dataclasses import dataclass

from .. import tree
from ..settings import setting
from ..types import Params, State
from .base import ServerOptimizer


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """v = b v + (1-b) d with d = w^t - mean; w^{t+1} = w^t - lr v."""

    momentum: float = setting(0.9, "momentum coefficient b", low=0, below=1)
    damped: bool = setting(
        True, "whether d is multiplied by 1 - b (damping), as MOON's authors did; Hsu et al. do not"
    )
    lr: float = setting(1.0, "server learning rate", above=0)

    def init(self, params: Params) -> State:
        return {"v": tree.zeros_like(params)}

    def step(self, params: Params, aggregated: Params, state: State) -> tuple[Params, State]:
        share = 1 - self.momentum if self.damped else 1.0
        v = tree.add(tree.mul(state["v"], self.momentum), tree.sub(params, aggregated), share)
        return tree.add(params, v, -self.lr), {"v": v}
