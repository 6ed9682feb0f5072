"""A custom method: keep the direction of each representation close to the global model's.

    moonfl run digits-fedavg algorithm=proximal_z:ProximalZ lam=0.5 rounds=5

The local loss is l_sup + lam * (1 - cos(z, z_glob)): MOON's positive pair without a negative. The
class below declares its setting, with a limit and a description, and the loss. It runs with every
engine and server optimizer, in reports and over Flower.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from moonfl import Algorithm
from moonfl.settings import setting
from moonfl.types import Batch, Loss, Party


@dataclass(frozen=True)
class ProximalZ(Algorithm):
    """l = l_sup + lam (1 - cos(z, z_glob))."""

    lam: float = setting(
        0.5, "weight of the distance to the global representation; 0 is FedAvg", low=0
    )

    def local_loss(self, party: Party) -> Loss:
        """Return the supervised loss plus the distance to the global representation."""
        global_model = party.frozen(party.global_model)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            z, logits = model(batch.x)
            z_glob = global_model(batch.x, batch.rows).z
            similarity = F.cosine_similarity(z, z_glob).mean()
            return party.supervised(logits, batch) + self.lam * (1 - similarity)

        return loss
