"""A method of one's own: keep each representation near the global model's, on the sphere.

    moonfl run digits-fedavg algorithm=proximal_z:ProximalZ lam=0.5 rounds=5

Say the local loss of the paper is l_sup + lam * (1 - cos(z, z_glob)): MOON's positive pair alone, without a negative.
That, with its settings and a message for wrong ones, is the class below; it runs with every engine, server step, report
and over Flower.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from moonfl import FedAvg
from moonfl.settings import setting
from moonfl.types import Batch, Loss, Party


@dataclass(frozen=True)
class ProximalZ(FedAvg):
    lam: float = setting(
        0.5, "weight of the distance to the global representation; 0 is FedAvg", low=0
    )

    def local_loss(self, party: Party) -> Loss:
        glob = party.frozen(party.global_model)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            z, logits = model(batch.x)
            near = F.cosine_similarity(z, glob(batch).z).mean()
            return party.supervised(logits, batch) + self.lam * (1 - near)

        return loss
