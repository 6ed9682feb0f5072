"""A custom method: keep the direction of each representation close to the global model's.

    moonfl run digits-fedavg algorithm=proximal_z:ProximalZ lam=0.5 rounds=5

The local loss is l_sup + lam * (1 - cos(z, z_glob)): MOON's positive pair without a negative. The
class below declares its setting, with a limit and a description, and the term. It runs with every
engine and server optimizer, in reports and over Flower.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from moonfl import Algorithm
from moonfl.settings import setting
from moonfl.types import Batch, Output, Params, Party, Term


@dataclass(frozen=True)
class ProximalZ(Algorithm):
    """l = l_sup + lam (1 - cos(z, z_glob))."""

    lam: float = setting(
        0.5, "weight of the distance to the global representation; 0 is FedAvg", low=0
    )

    def term(self, party: Party) -> Term:
        """Return the distance to the global representation."""
        global_model = party.frozen(party.global_model)

        def distance(output: Output, batch: Batch, w: Params) -> Tensor:
            z_glob = global_model(batch.x, batch.rows).z
            return self.lam * (1 - F.cosine_similarity(output.z, z_glob).mean())

        return distance
