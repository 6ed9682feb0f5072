"""FedDyn: a dynamic regulariser moves the optima of the parties onto the global one.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, Federated Learning Based on Dynamic Regularization, ICLR 2021.
https://arxiv.org/abs/2111.04263
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from .. import tree
from ..settings import setting
from ..types import Batch, Loss, Mean, Params, Party, Server, State, Update
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Parties count alike, whatever their size: h is the plain mean of their g, as in the paper."""

    takes_server_step: ClassVar[bool] = False
    weighting: ClassVar[str] = "parties count alike, whatever their number of samples"

    alpha: float = setting(0.1, "weight of the dynamic regulariser", above=0)

    def init_server(self, params: Params, buffers: Params) -> Server:
        return Server(params, buffers, memory={"h": tree.zeros_like(params)})

    def init_party(self, params: Params) -> State:
        return {
            "g": tree.zeros_like(params)
        }  # the gradient of the party's loss where it last ended

    def local_loss(self, party: Party) -> Loss:
        supervised = super().local_loss(party)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            # l = l_sup - <g_i, w> + alpha/2 ||w - w^t||^2
            w = tree.params_of(model)
            linear = tree.dot(w, party.state["g"])
            proximal = tree.sq_dist(w, party.global_params)
            return supervised(model, batch) - linear + self.alpha / 2 * proximal

        return loss

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        # g_i+ = g_i - alpha (w_i - w^t)
        moved = tree.sub(party.global_params, trained)
        return {"g": tree.add(party.state["g"], moved, self.alpha)}, {}

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        # h+ = h - alpha |S|/N (mean w_i - w^t);  w^{t+1} = mean w_i - h+/alpha
        centre = mean((u.params, 1) for u in updates)
        h = tree.add(
            server.memory["h"],
            tree.sub(centre, server.params),
            -self.alpha * len(updates) / parties,
        )
        return replace(server, params=tree.add(centre, h, -1 / self.alpha), memory={"h": h})
