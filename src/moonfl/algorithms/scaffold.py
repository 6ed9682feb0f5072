"""SCAFFOLD: control variates correct the client drift in every local step (option II).

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020. https://arxiv.org/abs/1910.06378
"""

from dataclasses import dataclass
from typing import ClassVar

from .. import tree
from ..types import Mean, Params, Party, Server, State, Term, Update
from .base import Algorithm
from .fednova import effective_steps


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """l = l_sup + <w, c - c_i>, whose gradient is that of l_sup plus c - c_i.

    c is the unweighted mean of all c_i, so the fixed point is the optimum of the unweighted mean of
    the parties' losses.
    """

    label: ClassVar[str] = "SCAFFOLD"
    requires_sgd: ClassVar[str] = (
        "SCAFFOLD computes the mean gradient of a round from the change of the weights, "
        "(w^t - w_i) / (lr a), which holds for SGD"
    )
    choice: ClassVar[str] = (
        "c and c_i start at 0, cover trainable parameters, and account for local momentum"
    )

    def init_server(self, params: Params, buffers: Params) -> Server:
        return Server(params=params, buffers=buffers, shared={"c": tree.zeros_like(params)})

    def init_party(self, params: Params) -> State:
        return {"c_i": tree.zeros_like(params)}

    def term(self, party: Party) -> Term:
        # <w, c - c_i> has the gradient c - c_i: line 10 of their Algorithm 1.
        drift = tree.sub(party.shared["c"], party.state["c_i"])
        return lambda output, batch, w: tree.dot(w, drift)

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        # c_i+ = c_i - c + (x - y_i)/(lr a): line 12. Their a is the number of steps K; with
        # momentum, K steps count for more than K. A proximal term (SCAFFOLD + FedProx) is part of
        # the loss whose mean gradient this is, so it does not change a.
        scale = 1 / (party.lr * effective_steps(steps, party.momentum))
        gradient = tree.mul(tree.sub(party.global_params, trained), scale)
        # The server adds what clip leaves of delta to c, so c_i has to do the same: c stays their
        # mean, and the rest is part of the next delta.
        delta = party.clip_difference(tree.sub(gradient, party.shared["c"]))
        return {"c_i": tree.add(party.state["c_i"], delta)}, {"delta_c": delta}

    def extra_like(self, params: Params, effective_steps: float) -> State:
        return {"delta_c": params}

    def finish_round(
        self, server: Server, updates: list[Update], parties: int, mean: Mean
    ) -> tuple[State, State]:
        # c+ = c + |S|/N mean over S of (c_i+ - c_i): line 17
        delta = mean((u.extra["delta_c"], 1) for u in updates)
        return {"c": tree.add(server.shared["c"], delta, len(updates) / parties)}, {}
