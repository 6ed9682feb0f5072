"""FedAvg, and the contract every algorithm of this package follows.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017. https://arxiv.org/abs/1602.05629
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from ..types import Batch, Loss, Mean, Params, Party, Server, State, Update


@dataclass(frozen=True)
class FedAvg:
    """Six hooks, all pure; their defaults are FedAvg. Fields are the hyperparameters.

    A subclass overrides what its paper changes. Nothing is kept on self: what must survive a round is
    returned, as Server (server side) or State (party side).
    """

    takes_server_step: ClassVar[bool] = True  # False: the paper's own aggregation admits no other
    federated: ClassVar[bool] = True  # False: parties never meet, so there is one round
    weighting: ClassVar[str] = "parties weigh by their number of samples"
    meaning: ClassVar[str] = (
        ""  # what else is done where implementations differ; stored with the results
    )

    def init_server(self, params: Params, buffers: Params) -> Server:
        """The server before the first round; `shared` is sent to the parties, `memory` is not."""
        return Server(params, buffers)

    def init_party(self, params: Params) -> State:
        """What a party keeps before its first round."""
        return {}

    def local_loss(self, party: Party) -> Loss:
        """The loss `party` minimises this round; called once, before the first step."""

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            _, logits = model(batch.x)
            return party.supervised(logits, batch)

        return loss

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        """After local training: what the party keeps, and what it sends beside its model.

        `trained` holds parameters and buffers; `steps` is the number of optimiser steps.
        """
        return party.state, {}

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        """w^{t+1} = sum |D^i|/|D| w_i^t over the parties that took part; `parties` is N, all of them.

        Sets params, shared and memory; buffers are always averaged and the server step comes after. `mean` is the
        weighted mean or the robust rule in its place (robust.py): whatever is averaged over parties goes through it.
        """
        return replace(server, params=mean((u.params, u.num_samples) for u in updates))

    def deployed(self, server: Server) -> dict[str, Params]:
        """The models to evaluate: "global", or one of each party, "party0", "party1", ..."""
        return {"global": {**server.params, **server.buffers}}
