"""FedDyn: a dynamic regulariser aligns the optima of the parties with the global one.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, Federated Learning Based on Dynamic
Regularization, ICLR 2021. https://arxiv.org/abs/2111.04263
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from .. import tree
from ..settings import setting
from ..types import Batch, Mean, Output, Params, Party, Server, State, Term, Update
from .base import Algorithm


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """l = l_sup - <g_i, w> + alpha/2 ||w - w^t||^2.

    Parties have equal weights, whatever their size: h is the unweighted mean of their g, as in the
    paper.
    """

    takes_server_optimizer: ClassVar[bool] = False
    weighting: ClassVar[str] = "parties have equal weights, whatever their number of samples"

    alpha: float = setting(0.1, "weight of the dynamic regulariser", above=0)

    def init_server(self, params: Params, buffers: Params) -> Server:
        return Server(params=params, buffers=buffers, memory={"h": tree.zeros_like(params)})

    def init_party(self, params: Params) -> State:
        return {"g": tree.zeros_like(params)}  # gradient of the party's loss at its last weights

    @property
    def proximal_weight(self) -> float:
        return self.alpha

    def term(self, party: Party) -> Term:
        def regulariser(output: Output, batch: Batch, w: Params) -> Tensor:
            linear = tree.dot(w, party.state["g"])
            return -linear + self.alpha / 2 * tree.sq_dist(w, party.global_params)

        return regulariser

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        # g_i+ = g_i - alpha (w_i - w^t), where clip may shorten the change as in h: h stays the
        # mean of the g_i
        change = party.clip_difference(tree.sub(party.global_params, trained))
        return {"g": tree.add(party.state["g"], change, self.alpha)}, {}

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        # h+ = h - alpha |S|/N (mean w_i - w^t);  w^{t+1} = mean w_i - h+/alpha
        average = mean((u.params, 1) for u in updates)
        change = tree.sub(average, server.params)
        h = tree.add(server.memory["h"], change, -self.alpha * len(updates) / parties)
        return replace(server, params=tree.add(average, h, -1 / self.alpha), memory={"h": h})
